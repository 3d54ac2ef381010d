"""Records sorted into blocks: what one unit got under every treatment, on one pair of models."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kvbaton.audit.analysis.runs import Asked, Run
from kvbaton.audit.statistics.proportions import Turned, UnitAnswers
from kvbaton.audit.statistics.values import finite
from kvbaton.types import JSON

BATON, TEXT = "baton", "text"


@dataclass(frozen=True, slots=True)
class Block:
    """All trials of one unit on one pair.

    Parameters
    ----------
    unit
        What was sampled; the same on all pairs.
    about
        Its ``unit`` record; empty where the run was killed before it.
    timed
        Treatment -> timed trials.
    quality
        Treatment -> the record of its answers.
    asked
        Question -> its words.
    """

    unit: str
    pair: str
    about: JSON
    timed: Mapping[str, Sequence[JSON]] = field(default_factory=dict)
    quality: Mapping[str, JSON] = field(default_factory=dict)
    asked: Mapping[str, Asked] = field(default_factory=dict)

    def seconds(self, treatment: str, name: str) -> np.ndarray:
        """A field of the timed trials of a treatment; what is no positive number is left out."""
        numbers = finite(number_in(trial.get(name)) for trial in self.timed.get(treatment, ()))
        return numbers[numbers > 0]

    def answers(self, treatment: str) -> dict[str, JSON]:
        """Question -> answer under a treatment."""
        record = self.quality.get(treatment) or {}
        return {str(answer["question"]): answer for answer in record.get("answers") or ()}


def blocks_of(runs: Sequence[Run]) -> list[Block]:
    """Blocks in an order that does not depend on that of the records."""
    found: list[Block] = []
    for run in runs:
        about = {str(record["unit"]): record for record in run.of_kind("unit")}
        timed: dict[str, dict[str, list[JSON]]] = {unit: {} for unit in about}
        quality: dict[str, dict[str, JSON]] = {unit: {} for unit in about}
        for record in run.of_kind("timed"):
            of_unit = timed.setdefault(str(record["unit"]), {})
            of_unit.setdefault(str(record["treatment"]), []).append(record)
        for record in run.of_kind("quality"):
            quality.setdefault(str(record["unit"]), {})[str(record["treatment"])] = record
        for unit in sorted(timed.keys() | quality.keys()):
            asked = {question: words for (of, question), words in run.asked.items() if of == unit}
            trials = {name: _in_order(some) for name, some in timed.get(unit, {}).items()}
            found.append(
                Block(unit, run.pair, about.get(unit, {}), trials, quality.get(unit, {}), asked)
            )
    return sorted(found, key=lambda block: (block.pair, block.unit))


def as_treated(blocks: Iterable[Block], treatment: str) -> list[Block]:
    """The blocks without those trials of a treatment that fell back to text or to a part."""
    kept = []
    for block in blocks:
        timed, quality = dict(block.timed), dict(block.quality)
        timed[treatment] = [t for t in timed.get(treatment, ()) if t.get("route") == BATON]
        if (quality.get(treatment) or {}).get("route") != BATON:
            quality.pop(treatment, None)
        kept.append(replace(block, timed=timed, quality=quality))
    return kept


def unit_log_ratios(
    blocks: Iterable[Block], treatment: str, reference: str, name: str
) -> dict[str, float]:
    """Unit -> mean log ratio of a field of timed trials, over its repeats and pairs."""
    by_unit: dict[str, list[float]] = {}
    for block in blocks:
        one, two = block.seconds(treatment, name), block.seconds(reference, name)
        if one.size and two.size:
            ratio = float(np.log(np.sort(one)).mean() - np.log(np.sort(two)).mean())
            by_unit.setdefault(block.unit, []).append(ratio)
    return {unit: float(np.mean(sorted(some))) for unit, some in sorted(by_unit.items())}


def turned(blocks: Iterable[Block], treatment: str, reference: str) -> Turned:
    """What became of every question that was asked under both."""
    counts: dict[str, list[int]] = {}
    for block in blocks:
        one, two = block.answers(treatment), block.answers(reference)
        count = counts.setdefault(block.unit, [0, 0, 0])
        for question in one.keys() & two.keys():
            now, was = is_right(one[question]), is_right(two[question])
            if now is not None and was is not None:
                count[0] += 1
                count[1] += was > now
                count[2] += now > was
    return Turned.of(UnitAnswers(*count) for count in counts.values())


def unit_mean(
    blocks: Iterable[Block],
    treatment: str,
    value: Callable[[JSON], float | None],
    *,
    among: str | None = None,
) -> float | None:
    """Mean over units of the mean over a unit's questions of something about an answer.

    Parameters
    ----------
    among
        Only questions of which the same is known under this treatment too.
    """
    by_unit: dict[str, list[float]] = {}
    for block in blocks:
        others = block.answers(treatment if among is None else among)
        for question, answer in sorted(block.answers(treatment).items()):
            number = number_in(value(answer))
            if number is not None and value(others.get(question, {})) is not None:
                by_unit.setdefault(block.unit, []).append(number)
    return mean_or_none([float(np.mean(some)) for _, some in sorted(by_unit.items())])


def is_right(answer: JSON) -> float | None:
    """1 for a right answer, 0 for a wrong one; None where it was not judged."""
    return None if answer.get("right") is None else float(bool(answer["right"]))


def mean_or_none(numbers: Iterable[float | None]) -> float | None:
    """Mean of what is finite; None without any."""
    known = np.sort(finite(numbers))
    mean = float(known.mean()) if known.size else math.nan
    return mean if math.isfinite(mean) else None


def number_in(value: object) -> float | None:
    """A JSON value as a finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _in_order(trials: Iterable[JSON]) -> list[JSON]:
    return sorted(trials, key=lambda trial: int(trial.get("repeat", 0)))
