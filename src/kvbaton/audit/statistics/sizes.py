"""Effect sizes and percentiles."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats
from statsmodels.stats.proportion import proportion_effectsize

from kvbaton.audit.statistics.values import Sample, finite, number_or_none, quiet
from kvbaton.errors import InputError

_FEWEST = ((0.99, 100), (0.9, 10), (0.0, 1))
"""Percentiles from this on need so many observations: one beyond it, at the least."""


def percentile(sample: Sample, share: float) -> float | None:
    """A percentile of a sample; None with too few observations to speak of it.

    Parameters
    ----------
    share
        0.5 for the median; 0.9 needs 10 observations, 0.99 needs 100.

    Raises
    ------
    InputError
        ``share`` is not between 0 and 1.
    """
    if not 0 <= share <= 1:
        raise InputError(f"the share of a percentile lies between 0 and 1, not at {share}")
    numbers = finite(sample)
    fewest = next(count for least, count in _FEWEST if share >= least)
    return None if numbers.size < fewest else float(np.quantile(numbers, share))


def cliffs_delta(treated: Sample, reference: Sample) -> float | None:
    """How much more often a treated value is above one of the reference than below; -1 to 1."""
    one, two = finite(treated), finite(reference)
    if not one.size or not two.size:
        return None
    with quiet():
        above = float(stats.mannwhitneyu(one, two, method="asymptotic").statistic)
    return 2 * above / (one.size * two.size) - 1


def rank_biserial(differences: Sample) -> float | None:
    """Share of the signed ranks that is positive minus the one that is negative; -1 to 1."""
    numbers = finite(differences)
    numbers = numbers[numbers != 0]
    if not numbers.size:
        return None
    ranks = stats.rankdata(np.abs(numbers))
    return float((ranks * np.sign(numbers)).sum() / ranks.sum())


def cohen_h(treated: float | None, reference: float | None) -> float | None:
    """Distance of two shares after the arcsine transform; positive where the first is larger."""
    if treated is None or reference is None:
        return None
    return number_or_none(float(proportion_effectsize(treated, reference)))


def odds_ratio(gained: int, lost: int) -> float | None:
    """Gained over lost, half an answer added to each so that it is finite; None without any."""
    return (gained + 0.5) / (lost + 0.5) if gained + lost else None


def geometric_mean(sample: Sample) -> float | None:
    """Of the positive numbers of a sample."""
    numbers = finite(sample)
    numbers = numbers[numbers > 0]
    return math.exp(float(np.log(numbers).mean())) if numbers.size else None
