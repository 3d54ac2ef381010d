"""The effect of the baton route on an outcome: as logged, weighted, and doubly robust.

All three are means of one number per receipt (its *influence*), so that one interval fits all:
receipts are summed by conversation, and the conversations go into the interval of the audit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kvbaton.audit.statistics.intervals import FEWEST_FOR_BOOTSTRAP, mean_interval
from kvbaton.audit.statistics.values import Estimate
from kvbaton.errors import InputError

_MOST_RESAMPLED = 2000
"""Above so many conversations the mean is normal, and resampling would take gigabytes."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Baton minus text, with its 95% interval and two-sided p value.

    ``error`` is the standard error clustered by conversation, ``clusters`` their number.
    """

    estimate: Estimate
    error: float
    p: float
    clusters: int

    @property
    def value(self) -> float:
        """The estimate; 0 where nothing varies."""
        return self.estimate.value or 0.0


def doubly_robust(
    outcome: np.ndarray, treated: np.ndarray, columns: np.ndarray, scores: np.ndarray
) -> np.ndarray:
    """Influences ``[receipts]`` of the augmented weighted estimate; their mean is the effect.

    It is right where either the scores or a straight line of the features, one per route, are
    (Robins, Rotnitzky and Zhao, Journal of the American Statistical Association 89, 1994).
    """
    table = np.column_stack([np.ones(len(outcome)), columns])
    by_baton = table @ _least_squares(table[treated], outcome[treated])
    by_text = table @ _least_squares(table[~treated], outcome[~treated])
    corrected = np.where(
        treated, (outcome - by_baton) / scores, -(outcome - by_text) / (1 - scores)
    )
    return np.asarray(by_baton - by_text + corrected)


def _least_squares(table: np.ndarray, outcome: np.ndarray) -> np.ndarray:
    """Coefficients; the smallest of several that fit alike."""
    return np.asarray(np.linalg.pinv(table.T @ table, hermitian=True) @ (table.T @ outcome))


def weighted(outcome: np.ndarray, treated: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Influences ``[receipts]`` of the difference of weighted means."""
    total = len(outcome)
    found = np.zeros(total)
    difference = 0.0
    for side, sign in ((treated, 1), (~treated, -1)):
        mean = float(np.average(outcome[side], weights=weights[side]))
        difference += sign * mean
        scale = total / float(weights[side].sum())
        found[side] = sign * weights[side] * (outcome[side] - mean) * scale
    return found + difference


def effect(influences: np.ndarray, clusters: np.ndarray, *, seed: int, fitted: int = 0) -> Effect:
    """Mean of influences with an interval over clusters.

    Parameters
    ----------
    influences
        ``[receipts]``.
    clusters
        ``[receipts]``, number of each one's conversation.
    fitted
        Coefficients that were fitted to the same receipts: they take up degrees of freedom, so
        deviations are widened for them.

    Raises
    ------
    InputError
        There are fewer than two conversations.
    """
    from scipy import stats

    parts = cluster_parts(influences, clusters)
    count = len(parts)
    if count < 2:
        raise InputError("one conversation gives no interval", hint="label conversations")
    mean = float(parts.mean())
    parts = mean + (parts - mean) * math.sqrt(count / max(count - fitted, count / 2))
    error = float(parts.std(ddof=1)) / math.sqrt(count)
    if error <= 1e-12 * max(1.0, abs(mean)):
        alike = "all conversations have the same value, so its spread is not known"
        return Effect(Estimate(mean, why=alike), 0.0, 1.0, count)
    p = float(2 * stats.t.sf(abs(mean) / error, count - 1))
    if FEWEST_FOR_BOOTSTRAP <= count <= _MOST_RESAMPLED:
        return Effect(mean_interval(parts, seed=seed), error, p, count)
    half = float(stats.t.ppf(0.975, count - 1)) * error
    return Effect(Estimate(mean, mean - half, mean + half, "t"), error, p, count)


def cluster_parts(influences: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """One number per cluster ``[clusters]`` whose mean is that of the receipts.

    Clusters are of different sizes, so the mean over receipts is a ratio; this is its linear
    form, whose standard error is the clustered sandwich.
    """
    mean = float(influences.mean())
    _, places = np.unique(clusters, return_inverse=True)
    sums = np.bincount(places, weights=influences - mean)
    return mean + sums * (len(sums) / len(influences))
