"""Whether a trial's place in the order of its unit moved its time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kvbaton.audit.analysis.blocks import Block, number_in
from kvbaton.audit.analysis.verdicts import SAME_SHARE
from kvbaton.audit.statistics.hypotheses import wilcoxon
from kvbaton.types import JSON

FEWEST_UNITS = 10
ALPHA = 0.01
"""A caution, not a verdict: it is wrong in one audit of a hundred."""


def order_told(blocks: Sequence[Block]) -> list[str]:
    """A sentence where times rise or fall with the place, by 5% or more; else none.

    Only repeats of a unit's treatment are compared with each other, which got other places.
    """
    by_unit: dict[str, list[tuple[float, float]]] = {}
    for block in blocks:
        by_unit.setdefault(block.unit, []).extend(_apart_from_mean(block))
    slopes, above, below = [], 0.0, 0.0
    for _, points in sorted(by_unit.items()):
        product, square = sum(x * y for x, y in points), sum(x * x for x, _ in points)
        if square > 0:
            slopes.append(product / square)
            above, below = above + product, below + square
    if len(slopes) < FEWEST_UNITS:
        return []
    last = max(_place(trial) or 0.0 for b in blocks for some in b.timed.values() for trial in some)
    p, change = wilcoxon(slopes).p, math.expm1(above / below * last)
    if p is None or p >= ALPHA or abs(change) < SAME_SHARE:
        return []
    more = "longer" if change > 0 else "less"
    return [
        f"The last trial of a unit's order took {100 * abs(change):.0f}% {more} to the first token "
        f"than the first one (p = {p:.1g}). The order was random, so this favours no treatment, "
        "but it makes intervals wider."
    ]


def _apart_from_mean(block: Block) -> list[tuple[float, float]]:
    """(place, log seconds) of the repeats of each treatment, less their means."""
    found = []
    for trials in block.timed.values():
        known = [
            (place, math.log(seconds))
            for trial in trials
            if (place := _place(trial)) is not None
            and (seconds := number_in(trial.get("ttft_s")) or 0.0) > 0
        ]
        if len(known) > 1:
            centred = np.asarray(known) - np.mean(known, axis=0)
            found += [(float(place), float(log_s)) for place, log_s in centred]
    return found


def _place(trial: JSON) -> float | None:
    return number_in(trial.get("position"))
