"""What is known about a receipt before its route is chosen, as columns of numbers.

Nothing that the route itself changes belongs here: no reused tokens, no bytes, no seconds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from kvbaton.audit.observe.reading import Observation

NUMBERS = ("load", "reusable_tokens")
"""Labels that count as numbers where they are set."""
WORDS = ("task",)
"""Labels that count as categories where they are set."""

_MOST_LEVELS, _RARE, _OTHER = 20, 5, "(other)"


@dataclass(frozen=True, slots=True)
class Features:
    """Standardised columns ``[receipts, features]`` (mean 0, deviation 1) and their names.

    ``kept`` ``[receipts]`` is false where a category was seen in one arm only: for such receipts
    there is nothing to compare with.
    """

    names: tuple[str, ...]
    columns: np.ndarray
    kept: np.ndarray
    warnings: tuple[str, ...] = ()


def features(
    observations: Sequence[Observation],
    treated: np.ndarray,
    *,
    labels: Sequence[str] = (),
    both_arms: bool = True,
) -> Features:
    """Columns of all receipts.

    Parameters
    ----------
    treated
        ``[receipts]``, boolean.
    labels
        More labels to take account of; numbers where all are numbers, else categories.
    both_arms
        Leave out categories that were seen in one arm only.
    """
    numbers, words = _named(observations, labels)
    kept, warnings = np.ones(len(observations), dtype=bool), list[str]()
    levels = {name: _levels(values) for name, values in words.items()}
    if both_arms:
        kept, warnings = _in_both_arms(levels, treated)
    columns: dict[str, np.ndarray] = {}
    for name, values in numbers.items():
        columns |= _number_columns(name, values)
    for name, values in levels.items():
        for level in sorted(set(values[kept].tolist()))[1:]:
            columns[f"{name} {level}"] = (values == level).astype(float)
    names, table = _standardised(columns, kept)
    return Features(names, table, kept, tuple(warnings))


def _named(
    observations: Sequence[Observation], labels: Sequence[str]
) -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
    """Numbers, not a number where one is missing, and words, by name."""
    tokens = [math.log(max(1, one.context_tokens)) for one in observations]
    numbers = {"log context": np.array(tokens), "place in log": np.linspace(-1, 1, len(tokens))}
    if all(one.time_s is not None for one in observations):
        hours = np.array([_hour(one.time_s or 0.0) for one in observations]) * math.tau / 24
        numbers |= {"hour (sine)": np.sin(hours), "hour (cosine)": np.cos(hours)}
    words = {
        name: [getattr(one, name) for one in observations] for name in ("agent", "model", "mode")
    }
    for name in dict.fromkeys((*NUMBERS, *WORDS, *labels)):
        values = [one.labels.get(name, "") for one in observations]
        if not any(values):
            continue
        parsed = [_number(value) for value in values]
        pairs = zip(values, parsed, strict=True)
        if name not in WORDS and not any(text and math.isnan(number) for text, number in pairs):
            numbers[name] = np.array(parsed)
        else:
            words[name] = values
    return numbers, words


def _hour(time_s: float) -> float:
    when = datetime.fromtimestamp(time_s, UTC)
    return when.hour + when.minute / 60


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def _levels(values: Sequence[str]) -> np.ndarray:
    """Categories, the rare ones together."""
    often = {v for v, n in Counter(values).most_common(_MOST_LEVELS) if n >= _RARE}
    return np.array([value if value in often else _OTHER for value in values], dtype=object)


def _in_both_arms(
    levels: dict[str, np.ndarray], treated: np.ndarray
) -> tuple[np.ndarray, list[str]]:
    """Which receipts have only categories that both arms have, and what was left out."""
    kept, warnings = np.ones(len(treated), dtype=bool), list[str]()
    changed = True
    while changed and kept.any():
        changed = False
        for name, values in levels.items():
            arms = [set(values[kept & side].tolist()) for side in (treated, ~treated)]
            for level in sorted(arms[0] ^ arms[1]):
                lost = kept & (values == level)
                kept, changed = kept & ~lost, True
                warnings.append(
                    f"{int(lost.sum())} receipts with {name} {level!r} are left out: "
                    "they were seen in one arm only"
                )
    return kept, warnings


def _number_columns(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """A number and its square; where it is missing, the median and a mark."""
    missing = np.isnan(values)
    if missing.any():
        filled = np.where(missing, np.median(values[~missing]), values)
        return {name: filled, f"{name} missing": missing.astype(float)}
    if name == "log context":
        return {name: values, f"{name}, squared": (values - values.mean()) ** 2}
    return {name: values}


def _standardised(
    columns: dict[str, np.ndarray], kept: np.ndarray
) -> tuple[tuple[str, ...], np.ndarray]:
    names, table = [], []
    for name, values in columns.items():
        inside = values[kept]
        spread = float(inside.std()) if len(inside) else 0.0
        if spread > 1e-12:
            names.append(name)
            table.append((values - inside.mean()) / spread)
    rows = len(kept)
    return tuple(names), np.stack(table, axis=1) if table else np.zeros((rows, 0))
