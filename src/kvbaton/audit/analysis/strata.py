"""Effects within groups of units: where a treatment pays, and where it does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kvbaton.audit.analysis.blocks import Block, is_right, mean_or_none, number_in, unit_mean
from kvbaton.audit.analysis.effects import (
    Corrected,
    Effect,
    corrected_together,
    effect_of,
    judged,
)
from kvbaton.audit.analysis.result import StratumResult
from kvbaton.audit.analysis.runs import Compared
from kvbaton.audit.analysis.verdicts import Rule

LENGTH_BINS = 3
LOAD_BINS = 2


@dataclass(frozen=True, slots=True)
class Group:
    """Blocks that have something in common."""

    by: str
    value: str
    blocks: tuple[Block, ...]
    low: float | None = None
    high: float | None = None


def groups_of(blocks: Sequence[Block]) -> list[Group]:
    """All groups; what all blocks share, or what is not known, makes none."""
    found: list[Group] = []
    for by, name in (("kind", "task_kind"), ("language", "language"), ("relevance", "relevance")):
        found += _by_value(by, [(block.about.get(name), block) for block in blocks])
    found += _by_value("pair", [(block.pair, block) for block in blocks])
    found += _by_bins("length", blocks, context_tokens, LENGTH_BINS, "tokens")
    found += _by_bins("load", blocks, mean_load, LOAD_BINS, "load")
    return found


def strata_of(
    blocks: Sequence[Block], treatments: Sequence[Compared], rules: Mapping[str, Rule], *, seed: int
) -> list[StratumResult]:
    """Every treatment in every group; tests are corrected for all groups of one kind.

    Parameters
    ----------
    rules
        Treatment -> the rule that it is judged by as a whole.
    """
    several: dict[str, list[tuple[Group, Effect]]] = {}
    for group in groups_of(blocks):
        for treatment in treatments:
            effect = effect_of(group.blocks, treatment, rules[treatment.name], seed=seed)
            if effect.units:
                several.setdefault(group.by, []).append((group, effect))
    rows: list[StratumResult] = []
    for some in several.values():
        corrected = corrected_together({_key(group, effect): effect for group, effect in some})
        rows += [_row(group, effect, corrected) for group, effect in some]
    return rows


def context_tokens(block: Block) -> float | None:
    """Length of the unit's context."""
    return number_in(block.about.get("context_tokens"))


def mean_load(block: Block) -> float | None:
    """Load of the machine during the unit's timed trials."""
    return mean_or_none(
        number_in(trial.get("load")) for trials in block.timed.values() for trial in trials
    )


def _row(group: Group, effect: Effect, corrected: Corrected) -> StratumResult:
    found = judged(effect, _key(group, effect), corrected)
    name, base = effect.treatment.name, effect.treatment.reference
    points = effect.quality.difference.scaled(100)
    return StratumResult(
        by=group.by,
        value=group.value,
        low=group.low,
        high=group.high,
        treatment=name,
        units=effect.units,
        questions=effect.turned.questions,
        ttft_ratio=effect.ratio.value,
        ttft_ratio_ci=effect.ratio.interval,
        accuracy=unit_mean(group.blocks, name, is_right, among=base),
        accuracy_t0=unit_mean(group.blocks, base, is_right, among=name),
        accuracy_difference_points=points.value,
        accuracy_difference_ci_points=points.interval,
        quality_verdict=found.quality,
        speed_verdict=found.speed,
        verdict=found.verdict,
        why=found.why,
        units_needed=found.units_needed,
    )


def _key(group: Group, effect: Effect) -> str:
    return f"{group.value}\n{effect.treatment.name}"


def _by_value(by: str, valued: Sequence[tuple[object, Block]]) -> list[Group]:
    members: dict[str, list[Block]] = {}
    for value, block in valued:
        if value not in (None, ""):
            members.setdefault(str(value), []).append(block)
    if len(members) < 2:
        return []
    return [Group(by, value, tuple(some)) for value, some in sorted(members.items())]


def _by_bins(
    by: str,
    blocks: Sequence[Block],
    value_of: Callable[[Block], float | None],
    bins: int,
    unit: str,
) -> list[Group]:
    """Groups of about equally many blocks, by a number; equal numbers stay together."""
    known = [(value, block) for block in blocks if (value := value_of(block)) is not None]
    values = np.asarray([value for value, _ in known])
    if len(known) < bins or np.ptp(values) == 0:
        return []
    edges = np.quantile(values, np.arange(1, bins) / bins)
    members: dict[int, list[tuple[float, Block]]] = {}
    for value, block in known:
        members.setdefault(int(np.searchsorted(edges, value, side="left")), []).append(
            (value, block)
        )
    if len(members) < 2:
        return []
    groups = []
    for _, some in sorted(members.items()):
        low, high = min(value for value, _ in some), max(value for value, _ in some)
        label = f"{low:.4g} to {high:.4g} {unit}"
        groups.append(Group(by, label, tuple(block for _, block in some), low, high))
    return groups
