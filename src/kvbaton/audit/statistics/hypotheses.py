"""Tests of paired outcomes, as scipy and statsmodels do them, made safe for odd data.

No function here warns, raises or gives NaN for finite, infinite, constant or absent numbers: where
a test says nothing, its finding has no p value and a sentence.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
from scipy import optimize, stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import ttost_paired

from kvbaton.audit.statistics.proportions import Turned, accuracy_difference, is_sparse
from kvbaton.audit.statistics.values import Finding, Sample, finite, is_constant, quiet
from kvbaton.errors import InputError

FEWEST_FOR_SHAPIRO = 10
"""Below so many units neither normality nor ranks say much: the t test speaks."""
NORMAL_ALPHA = 0.05
Key = TypeVar("Key", bound=Hashable)

_LEAST_ALPHA, _MOST_ALPHA = 1e-12, 0.4999


def wilcoxon(differences: Sample) -> Finding:
    """Wilcoxon's signed rank test that differences are symmetric about zero, two-sided.

    Exact up to 50 units without ties, else by the normal approximation.
    """
    name, numbers = "wilcoxon", finite(differences)
    if not np.any(numbers):
        return Finding(name, None, why=_nothing_differs(numbers))
    sizes = np.abs(numbers)
    tied = 0.0 in sizes or np.unique(sizes).size < sizes.size
    with quiet():  # with ties the exact test would go through all signs
        done = stats.wilcoxon(np.sort(numbers), method="asymptotic" if tied else "auto")
    return _finding(name, float(done.statistic), float(done.pvalue))


def paired_t(differences: Sample) -> Finding:
    """Student's t test that the mean difference is zero, two-sided."""
    name, numbers = "paired t", finite(differences)
    if is_constant(numbers):
        return Finding(name, None, why=_constant(numbers))
    with quiet():
        done = stats.ttest_1samp(np.sort(numbers), 0.0)
    return _finding(name, float(done.statistic), float(done.pvalue))


def shapiro(differences: Sample) -> Finding:
    """Shapiro and Wilk's test that differences are normal."""
    name, numbers = "shapiro", finite(differences)
    if numbers.size < 3:
        return Finding(name, None, why="fewer than three units say nothing about normality")
    if is_constant(numbers):
        return Finding(name, None, why=_constant(numbers))
    with quiet():
        done = stats.shapiro(np.sort(numbers))
    return _finding(name, float(done.statistic), float(done.pvalue))


def location(differences: Sample) -> Finding:
    """The test that speaks for a difference: paired t where it may be used, else Wilcoxon's.

    It may be used where Shapiro and Wilk do not reject normality at 5%, and below 10 units, where
    signed ranks cannot reach the small p values that many comparisons ask for.
    """
    numbers = finite(differences)
    by_t = paired_t(numbers)
    if numbers.size < FEWEST_FOR_SHAPIRO and by_t.p is not None:
        why = f"{numbers.size} units are too few for ranks or a test of normality"
        return Finding(by_t.test, by_t.p, by_t.statistic, why)
    normal = shapiro(numbers).p
    if by_t.p is not None and normal is not None and normal >= NORMAL_ALPHA:
        why = f"the differences may be normal (Shapiro p = {normal:.2g})"
        return Finding(by_t.test, by_t.p, by_t.statistic, why)
    by_rank = wilcoxon(numbers)
    if by_rank.p is None or normal is None:
        return by_rank
    why = f"the differences are not normal (Shapiro p = {normal:.2g})"
    return Finding(by_rank.test, by_rank.p, by_rank.statistic, why)


def exact_mcnemar(lost: int, gained: int) -> Finding:
    """McNemar's exact test that as many answers were lost as gained, two-sided.

    It counts questions as independent, so it is reported beside the intervals, which do not.

    Raises
    ------
    InputError
        A count is negative.
    """
    name = "mcnemar"
    if min(lost, gained) < 0:
        raise InputError(f"counts cannot be negative: {lost} lost, {gained} gained")
    if not lost + gained:
        return Finding(name, 1.0, 0.0, "no answer turned")
    done = mcnemar([[0, lost], [gained, 0]], exact=True)
    return _finding(name, float(done.statistic), min(float(done.pvalue), 1.0))


def equivalence(turned: Turned, *, margin: float, icc: float) -> Finding:
    """Two one-sided tests that the difference of accuracy is beyond the margin.

    Paired TOST on unit means.  Where little turned, and where unit means do not vary, the exact
    interval takes over: p is the least alpha whose (1 - 2 alpha) interval is within the margin.

    Parameters
    ----------
    margin
        As a share: 0.05 for 5 points.

    Raises
    ------
    InputError
        The margin is not positive.
    """
    name = "tost"
    if not margin > 0:
        raise InputError(f"a margin is positive, not {margin}")
    if not turned.units:
        return Finding(name, None, why="no question was asked under both treatments")
    differences = turned.differences
    if not is_sparse(turned, icc=icc):
        with quiet():
            p = float(ttost_paired(differences, np.zeros_like(differences), -margin, margin)[0])
        return _finding(name, None, p)

    def inside(alpha: float) -> bool:
        return accuracy_difference(turned, icc=icc, level=1 - 2 * alpha).within(margin)

    why = "exact: too few answers turned for the spread of unit means"
    return Finding(name, _least_alpha(inside), why=why)


def accuracy_differs(turned: Turned, *, icc: float) -> Finding:
    """Test that accuracy is the same, two-sided: paired t on unit means.

    Where little turned, and where unit means do not vary, p is the least alpha whose exact
    (1 - alpha) interval does not hold zero.
    """
    if not turned.units:
        return Finding("accuracy", None, why="no question was asked under both treatments")
    if not is_sparse(turned, icc=icc):
        return paired_t(turned.differences)

    def apart(alpha: float) -> bool:
        found = accuracy_difference(turned, icc=icc, level=1 - alpha)
        return found.low is not None and found.high is not None and not found.low <= 0 <= found.high

    why = "exact: too few answers turned for the spread of unit means"
    return Finding("accuracy", _least_alpha(apart), why=why)


def holm(p_values: Mapping[Key, float | None]) -> dict[Key, float | None]:
    """P values after Holm's correction over all that have one; the others stay None."""
    known = {key: p for key, p in p_values.items() if p is not None}
    if not known:
        return dict(p_values)
    with _cheap_collection():
        corrected = multipletests(list(known.values()), method="holm")[1]
    after = {key: float(min(p, 1.0)) for key, p in zip(known, corrected, strict=True)}
    return {key: after.get(key) for key in p_values}


@contextmanager
def _cheap_collection() -> Iterator[None]:
    """``multipletests`` collects garbage at every call: let it look at nothing that is there.

    With models in memory a collection takes a third of a second.
    """
    mine = gc.get_freeze_count() == 0
    if mine:
        gc.freeze()
    try:
        yield
    finally:
        if mine:
            gc.unfreeze()


def _least_alpha(inside: Callable[[float], bool]) -> float:
    """Where intervals begin to be inside, as alpha grows and they narrow; 1 where none is."""
    if not inside(_MOST_ALPHA):
        return 1.0
    if inside(_LEAST_ALPHA):
        return _LEAST_ALPHA

    def side(log_alpha: float) -> float:
        return 1.0 if inside(math.exp(log_alpha)) else -1.0

    found = optimize.bisect(side, math.log(_LEAST_ALPHA), math.log(_MOST_ALPHA), xtol=1e-6)
    return float(math.exp(found))


def _finding(name: str, statistic: float | None, p: float) -> Finding:
    if not math.isfinite(p):
        return Finding(name, None, why="the test gives no number for these data")
    known = statistic if statistic is not None and math.isfinite(statistic) else None
    return Finding(name, min(max(p, 0.0), 1.0), known)


def _nothing_differs(numbers: np.ndarray) -> str:
    return "no unit differs" if numbers.size else "nothing was measured"


def _constant(numbers: np.ndarray) -> str:
    if numbers.size == 0:
        return "nothing was measured"
    if numbers.size == 1:
        return "one unit is no sample"
    return "all units differ by the same, so the spread is not known"
