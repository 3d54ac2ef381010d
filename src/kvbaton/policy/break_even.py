"""Break-even: from which context length on a route is faster than text, as measured.

Times of one route and of text, at a ladder of lengths, give a ratio per length; the break-even is
where it falls below one and stays there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvbaton.errors import Fault, InputError
from kvbaton.types import JSON
from kvbaton.wire.fields import read_int, read_list, read_name, read_object, refuse

RESAMPLES = 2000
FEW_REPEATS = 5

_MAX_TOKENS, MAX_ITEMS = 1 << 40, 10_000
_LOW, _HIGH = 0.025, 0.975

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class LadderPoint:
    """Times to the first token in seconds at one context length, by text and by the route.

    The repeats of both need not be paired, nor be equally many.
    """

    tokens: int
    text_s: tuple[float, ...]
    route_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RatioPoint:
    """Median time of the route over that of text, and its 95% interval; None for one repeat."""

    tokens: int
    ratio: float
    ci: Interval | None

    def to_json(self) -> JSON:
        """``{"tokens", "ratio", "ci"}``."""
        ci = None if self.ci is None else list(self.ci)
        return {"tokens": self.tokens, "ratio": self.ratio, "ci": ci}

    @classmethod
    def from_json(cls, value: Any, at: str = "$") -> RatioPoint:
        """Read what ``to_json`` wrote; raises ``FormatError``."""
        fields = read_object(value, at, {"tokens", "ratio", "ci"})
        return cls(
            read_int(fields, "tokens", at, 1, _MAX_TOKENS),
            _positive(fields["ratio"], f"{at}.ratio"),
            _interval(fields["ci"], f"{at}.ci"),
        )


@dataclass(frozen=True, slots=True)
class BreakEven:
    """From which length on a route is faster than text.

    Parameters
    ----------
    tokens
        The smallest context length from which the route is faster and stays so, as far as was
        measured; None where it is not faster at the longest length.
    ci
        95% interval over the repeats.  Its upper end is None where the route may never pay; the
        whole is None where nothing was repeated, or no resample ever pays.
    at_most
        The route was faster at every length: the true value is ``tokens`` or less.
    points
        Ratio at each measured length, shortest first.
    bandwidth_mb_s
        Of the store that the route read from, in 10^6 bytes per second; None where unknown.
    """

    route: str
    tokens: int | None
    ci: tuple[int, int | None] | None
    at_most: bool
    points: tuple[RatioPoint, ...]
    bandwidth_mb_s: float | None = None
    warnings: tuple[str, ...] = ()

    @property
    def never(self) -> bool:
        """Whether the route was not faster at the longest length that was measured."""
        return self.tokens is None

    def to_json(self) -> JSON:
        """As it is stored."""
        return {
            "route": self.route,
            "tokens": self.tokens,
            "ci": None if self.ci is None else list(self.ci),
            "at_most": self.at_most,
            "points": [point.to_json() for point in self.points],
            "bandwidth_mb_s": self.bandwidth_mb_s,
            "warnings": list(self.warnings),
        }

    @classmethod
    def from_json(cls, value: Any, at: str = "$") -> BreakEven:
        """Read what ``to_json`` wrote; raises ``FormatError``."""
        fields = read_object(value, at, set(cls.__dataclass_fields__))
        points = read_list(fields["points"], f"{at}.points", at_least=1, at_most=MAX_ITEMS)
        warned = read_list(fields["warnings"], f"{at}.warnings", at_most=MAX_ITEMS)
        speed = fields["bandwidth_mb_s"]
        if type(fields["at_most"]) is not bool:
            raise refuse("not true or false", Fault.WRONG_TYPE, f"{at}.at_most")
        return cls(
            route=read_name(fields, "route", at),
            tokens=_tokens_or_none(fields, "tokens", at),
            ci=_token_interval(fields["ci"], f"{at}.ci"),
            at_most=fields["at_most"],
            points=tuple(
                RatioPoint.from_json(point, f"{at}.points[{n}]") for n, point in enumerate(points)
            ),
            bandwidth_mb_s=None if speed is None else _positive(speed, f"{at}.bandwidth_mb_s"),
            warnings=tuple(
                read_name(warned, n, f"{at}.warnings", at_most=500) for n in range(len(warned))
            ),
        )


def break_even(
    points: Sequence[LadderPoint],
    *,
    route: str,
    seed: int,
    bandwidth_mb_s: float | None = None,
    resamples: int = RESAMPLES,
) -> BreakEven:
    """Find where a route begins to be faster than text.

    The logarithm of the ratio of medians is interpolated between measured lengths, linearly in
    the logarithm of the length.  Where it crosses zero several times, the last crossing counts.
    The interval is a percentile bootstrap over the repeats of every length.

    Parameters
    ----------
    points
        One per length, in any order.
    seed
        Of the bootstrap.

    Raises
    ------
    InputError
        No points, a length twice or below 1, no repeats, or a time that is not positive and
        finite; ``at`` is the place.
    """
    ladder = _checked(points)
    x = np.log([point.tokens for point in ladder])
    y = np.array([_median_log(p.route_s) - _median_log(p.text_s) for p in ladder])
    drawn = _resampled(ladder, np.random.default_rng(seed), resamples)
    repeated = all(min(len(p.text_s), len(p.route_s)) > 1 for p in ladder)
    crossing = float(_last_crossing(x, y[None, :])[0])
    ratios = tuple(
        RatioPoint(point.tokens, math.exp(value), _ratio_interval(point, draws))
        for point, value, draws in zip(ladder, y, drawn.T, strict=True)
    )
    return BreakEven(
        route=route,
        tokens=_up(crossing),
        ci=_crossing_interval(_last_crossing(x, drawn)) if repeated else None,
        at_most=bool(np.all(y < 0)),
        points=ratios,
        bandwidth_mb_s=bandwidth_mb_s,
        warnings=_warnings(ladder, y),
    )


def _checked(points: Sequence[LadderPoint]) -> list[LadderPoint]:
    if not points:
        raise InputError("there are no lengths to find a break-even in", at="$")
    for index, point in enumerate(points):
        at = f"$[{index}]"
        if type(point.tokens) is not int or point.tokens < 1:
            raise InputError(f"{point.tokens!r} is no context length", at=f"{at}.tokens")
        for name, times in (("text_s", point.text_s), ("route_s", point.route_s)):
            if not times:
                raise InputError("a length has no times", at=f"{at}.{name}")
            if not all(math.isfinite(one) and one > 0 for one in times):
                raise InputError("a time is not positive and finite", at=f"{at}.{name}")
    if len({point.tokens for point in points}) < len(points):
        raise InputError("a length is there twice", at="$", hint="join its repeats")
    return sorted(points, key=lambda point: point.tokens)


def _median_log(times: Sequence[float]) -> float:
    return float(np.median(np.log(times)))


def _resampled(
    ladder: Sequence[LadderPoint], random: np.random.Generator, resamples: int
) -> np.ndarray:
    """Log ratios ``[resamples, lengths]`` of medians of repeats drawn with replacement."""
    columns = []
    for point in ladder:
        logs = np.log(point.route_s), np.log(point.text_s)
        medians = [
            np.median(one[random.integers(0, len(one), (resamples, len(one)))], axis=1)
            for one in logs
        ]
        columns.append(medians[0] - medians[1])
    return np.stack(columns, axis=1)


def _last_crossing(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Where rows of log ratios ``[rows, lengths]`` fall below zero for good, in log length
    ``[rows]``: the first length where they always are, infinity where they are not at the last."""
    rows = np.arange(len(y))
    slower = y >= 0
    last = len(x) - 1 - np.argmax(slower[:, ::-1], axis=1)
    after = np.minimum(last + 1, len(x) - 1)
    rise, run = y[rows, last] - y[rows, after], x[after] - x[last]
    inside = x[last] + np.where(rise > 0, y[rows, last] / np.where(rise > 0, rise, 1), 0) * run
    found = np.where(slower[:, -1], np.inf, inside)
    return np.where(slower.any(axis=1), found, x[0])


def _up(log_tokens: float) -> int | None:
    return None if math.isinf(log_tokens) else math.ceil(math.exp(log_tokens) - 1e-6)


def _crossing_interval(crossings: np.ndarray) -> tuple[int, int | None] | None:
    low, high = np.quantile(crossings, [_LOW, _HIGH], method="inverted_cdf")
    if math.isinf(low):
        return None
    return math.floor(math.exp(low) + 1e-6), _up(float(high))


def _ratio_interval(point: LadderPoint, draws: np.ndarray) -> Interval | None:
    if min(len(point.text_s), len(point.route_s)) < 2:
        return None
    low, high = np.exp(np.quantile(draws, [_LOW, _HIGH]))
    return float(low), float(high)


def _warnings(ladder: Sequence[LadderPoint], y: np.ndarray) -> tuple[str, ...]:
    said = []
    if len(ladder) == 1:
        said.append("one length was measured: nothing is known between lengths")
    if np.count_nonzero(np.diff(y < 0)) > 1:
        said.append("the route is faster, slower and faster again: the last crossing counts")
    if y[0] < 0 and y[-1] >= 0:
        said.append("the route is faster at short lengths only")
    fewest = min(min(len(point.text_s), len(point.route_s)) for point in ladder)
    if fewest == 1:
        said.append("a length was measured once: there is no interval")
    elif fewest < FEW_REPEATS:
        said.append(f"a length has {fewest} repeats: intervals are too narrow below {FEW_REPEATS}")
    return tuple(said)


# --- reading -----------------------------------------------------------------------------------


def _positive(value: Any, at: str) -> float:
    if type(value) not in {int, float}:
        raise refuse("not a number", Fault.WRONG_TYPE, at)
    if not (math.isfinite(value) and value > 0):
        raise refuse("not positive and finite", Fault.OUT_OF_RANGE, at)
    return float(value)


def _interval(value: Any, at: str) -> Interval | None:
    if value is None:
        return None
    read_list(value, at, at_least=2, at_most=2)
    low, high = _positive(value[0], f"{at}[0]"), _positive(value[1], f"{at}[1]")
    if low > high:
        raise refuse("an interval ends before it begins", Fault.OUT_OF_RANGE, at)
    return low, high


def _tokens_or_none(inside: Any, key: str | int, at: str) -> int | None:
    return None if inside[key] is None else read_int(inside, key, at, 1, _MAX_TOKENS)


def _token_interval(value: Any, at: str) -> tuple[int, int | None] | None:
    if value is None:
        return None
    read_list(value, at, at_least=2, at_most=2)
    low = read_int(value, 0, at, 1, _MAX_TOKENS)
    high = _tokens_or_none(value, 1, at)
    if high is not None and low > high:
        raise refuse("an interval ends before it begins", Fault.OUT_OF_RANGE, at)
    return low, high
