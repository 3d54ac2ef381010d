"""Intervals of a mean over units.

Units are what is sampled, so unit means go in, and units are resampled.  Each end of an interval is
the farther one of two: the studentized bootstrap (*bootstrap-t*; Efron and Tibshirani, An
Introduction to the Bootstrap, 1993, section 12.5), which knows of skew, and Student's t, which
knows of heavy tails.  With 20 to 60 unit means either alone covers too little of the other's case,
and percentile and BCa intervals of both (docs/guides/audit-statistics.md has the figures).
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from kvbaton.audit.statistics.values import (
    Estimate,
    Sample,
    finite,
    is_constant,
    quiet,
)
from kvbaton.errors import InputError

RESAMPLES = 1999
FEWEST_FOR_BOOTSTRAP = 10
"""Below so many units there are too few different resamples: Student's t is used."""


def mean_interval(
    sample: Sample, *, level: float = 0.95, seed: int = 0, resamples: int = RESAMPLES
) -> Estimate:
    """Mean of unit means with its interval.

    Parameters
    ----------
    sample
        ``[units]``; what is not finite is left out.
    level
        Of confidence, between 0 and 1.
    seed
        Of the resampling.
    """
    by_t, numbers = student_interval(sample, level=level), np.sort(finite(sample))
    if by_t.low is None or by_t.high is None or numbers.size < FEWEST_FOR_BOOTSTRAP:
        return by_t
    mean, error = float(numbers.mean()), _standard_error(numbers)
    low_t, high_t = _bootstrap_t(numbers, level, seed, resamples)
    low, high = min(by_t.low, mean - high_t * error), max(by_t.high, mean - low_t * error)
    return Estimate(mean, low, high, "bootstrap-t")


def student_interval(sample: Sample, *, level: float = 0.95) -> Estimate:
    """Mean of unit means with Student's interval; see ``mean_interval``."""
    require_level(level)
    numbers = np.sort(finite(sample))
    if numbers.size == 0:
        return Estimate(None, why="nothing was measured")
    mean = float(numbers.mean())
    if numbers.size == 1:
        return Estimate(mean, why="one unit gives no interval")
    error = _standard_error(numbers)
    if is_constant(numbers) or not error > 0:
        return Estimate(mean, why="all units have the same value, so its spread is not known")
    half = float(stats.t.ppf((1 + level) / 2, numbers.size - 1)) * error
    return Estimate(mean, mean - half, mean + half, "t")


def require_level(level: float) -> None:
    """Refuse a level of confidence that is none.

    Raises
    ------
    InputError
        It is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise InputError(f"a level of confidence lies between 0 and 1, not at {level}")


def _standard_error(numbers: np.ndarray) -> float:
    return float(numbers.std(ddof=1) / math.sqrt(numbers.size))


def _bootstrap_t(
    numbers: np.ndarray, level: float, seed: int, resamples: int
) -> tuple[float, float]:
    """Quantiles of the studentized mean; (0, 0) where too many resamples are constant."""
    mean = numbers.mean()

    def studentized(resample: np.ndarray, axis: int = -1) -> np.ndarray:
        error = resample.std(axis=axis, ddof=1) / math.sqrt(numbers.size)
        distance: np.ndarray = resample.mean(axis=axis) - mean
        return distance / error

    with quiet():
        done = stats.bootstrap(
            (numbers,),
            studentized,
            n_resamples=resamples,
            confidence_level=level,
            method="percentile",
            vectorized=True,
            rng=np.random.default_rng(seed),
        )
    low, high = float(done.confidence_interval.low), float(done.confidence_interval.high)
    return (low, high) if math.isfinite(low) and math.isfinite(high) else (0.0, 0.0)
