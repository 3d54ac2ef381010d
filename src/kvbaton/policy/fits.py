"""Straight lines through few, noisy times: medians first, then relative errors, never negative."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

from kvbaton.policy.speeds import Line, Spread

Point = tuple[float, float]
"""Units, such as tokens or bytes, and seconds."""

_LEAST_S = 1e-6
"""Shorter times count as this long where errors are divided by them."""
_LEAST_UNITS = 1e-9
"""Fewer units cannot be divided by: they stand for none."""
_SPREAD = 0.1
"""Share of times that may lie on either side of an interval."""


def line_of(points: Iterable[Point]) -> Line:
    """The line with the least relative squared errors; nothing for no points.

    The median of all times of equal units stands for them.  A line that would fall, or begin below
    zero, is replaced by the best one that does not.
    """
    rows = [(units, seconds, max(seconds, _LEAST_S) ** -2) for units, seconds in _medians(points)]
    if not rows:
        return Line()
    weight = math.fsum(w for _, _, w in rows)
    mean_x = math.fsum(w * x for x, _, w in rows) / weight
    mean_y = math.fsum(w * y for _, y, w in rows) / weight
    spread = math.fsum(w * (x - mean_x) ** 2 for x, _, w in rows)
    if spread <= 1e-12 * weight * max(mean_x * mean_x, 1.0):  # one length says nothing of a slope
        through_zero = mean_x >= _LEAST_UNITS
        return Line(0.0, max(0.0, mean_y) / mean_x) if through_zero else Line(max(0.0, mean_y))
    slope = math.fsum(w * (x - mean_x) * (y - mean_y) for x, y, w in rows) / spread
    fixed = mean_y - slope * mean_x
    if slope < 0:
        return Line(max(0.0, mean_y))
    if fixed < 0:
        squares = math.fsum(w * x * x for x, _, w in rows)
        return Line(0.0, max(0.0, math.fsum(w * x * y for x, y, w in rows) / squares))
    return Line(fixed, slope)


def _medians(points: Iterable[Point]) -> list[Point]:
    found: dict[float, list[float]] = defaultdict(list)
    for units, seconds in points:
        found[units].append(seconds)
    return [(units, median(times)) for units, times in sorted(found.items())]


def spread_of(ratios: Sequence[float]) -> Spread:
    """Between which multiples of a prediction eight of ten times lie, the prediction included."""
    if not ratios:
        return Spread()
    ascending = sorted(ratios)
    cut = int(_SPREAD * len(ascending))
    return Spread(min(1.0, ascending[cut]), max(1.0, ascending[-1 - cut]))
