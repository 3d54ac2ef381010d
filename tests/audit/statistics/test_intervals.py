"""Intervals of means and ratios, percentiles, effect sizes."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbaton.audit.statistics.intervals import mean_interval, student_interval
from kvbaton.audit.statistics.sizes import (
    cliffs_delta,
    cohen_h,
    geometric_mean,
    odds_ratio,
    percentile,
    rank_biserial,
)
from kvbaton.errors import InputError

SLEEP = [-1.2, -2.4, -1.3, -1.3, 0.0, -1.0, -1.8, -0.8, -4.6, -1.4]
"""Differences of Student's sleep data (Biometrika 6, 1908), as in R's data set ``sleep``."""

ANY = st.floats(allow_nan=True, allow_infinity=True)


def test_students_interval_of_the_sleep_data() -> None:
    """R's t.test of the sleep data gives -1.58 with -2.4598858 to -0.7001142."""
    found = student_interval(SLEEP)
    assert found.value == pytest.approx(-1.58)
    assert found.interval == pytest.approx([-2.4598858, -0.7001142], abs=1e-7)


def test_few_units_get_students_interval() -> None:
    """Below 10 units nothing is resampled."""
    assert mean_interval(SLEEP[:9]) == student_interval(SLEEP[:9])


def test_the_interval_is_never_inside_students() -> None:
    """Each end is the farther one of two, and skew moves one of them."""
    skewed = np.random.default_rng(1).exponential(1, 30)
    by_t, found = student_interval(skewed), mean_interval(skewed)
    assert by_t.low is not None and by_t.high is not None
    assert found.low is not None and found.high is not None
    assert found.low <= by_t.low
    assert found.high > by_t.high


def test_the_interval_moves_and_stretches_with_the_data() -> None:
    """Adding 3 and doubling does so to the interval."""
    sample = np.random.default_rng(2).gamma(2, 1, 25)
    one, two = mean_interval(sample), mean_interval(2 * sample + 3)
    assert two.interval == pytest.approx([2 * end + 3 for end in one.interval or []])


@pytest.mark.parametrize(
    ("sample", "why"),
    [
        ([], "nothing was measured"),
        ([math.nan, math.inf], "nothing was measured"),
        ([1.0], "one unit gives no interval"),
        ([0.3] * 20, "all units have the same value, so its spread is not known"),
    ],
)
def test_odd_samples_get_a_sentence_instead_of_an_interval(sample: list[float], why: str) -> None:
    """Without spread or observations there is no interval, and the reason is said."""
    found = mean_interval(sample)
    assert found.interval is None
    assert found.why == why


@settings(deadline=None, max_examples=60)
@given(st.lists(ANY, max_size=30))
def test_no_interval_has_a_number_that_is_not_finite(sample: list[float]) -> None:
    """Whatever goes in, what comes out is finite and in order, or None."""
    found = mean_interval(sample, resamples=99)
    for number in (found.value, found.low, found.high):
        assert number is None or math.isfinite(number)
    if found.low is not None and found.high is not None and found.value is not None:
        assert found.low <= found.value <= found.high
    assert found.interval is not None or found.why


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(-5, 5), min_size=2, max_size=20), st.randoms())
def test_the_order_of_units_does_not_matter(sample: list[float], dice: object) -> None:
    """A shuffled sample has the same interval."""
    shuffled = list(sample)
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    assert mean_interval(sample, resamples=99) == mean_interval(shuffled, resamples=99)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.5, math.nan])
def test_a_level_that_is_none_is_refused(level: float) -> None:
    """A level of confidence lies between 0 and 1."""
    with pytest.raises(InputError, match="level of confidence"):
        mean_interval([1.0, 2.0], level=level)


def test_percentiles_need_observations_beyond_them() -> None:
    """P99 is there from 100 observations on, P90 from 10, the median from one."""
    hundred = np.arange(1, 101)
    assert percentile(hundred[:99], 0.99) is None
    assert percentile(hundred, 0.99) == pytest.approx(99.01)
    assert percentile(hundred[:9], 0.9) is None
    assert percentile(hundred[:10], 0.9) == pytest.approx(9.1)
    assert percentile([4.0], 0.5) == 4.0
    assert percentile([], 0.5) is None


def test_cliffs_delta_by_counting() -> None:
    """Of 9 pairs 6 are below and one above: -5/9."""
    assert cliffs_delta([1, 2, 3], [2, 3, 4]) == pytest.approx(-5 / 9)
    assert cliffs_delta([1], [2]) == -1
    assert cliffs_delta([1], []) is None


def test_cohens_h_by_arcsines() -> None:
    """Half against a quarter is pi/6 (2 arcsin of the roots; Cohen 1988, chapter 6)."""
    assert cohen_h(0.5, 0.25) == pytest.approx(math.pi / 6)
    assert cohen_h(1.0, 1.0) == 0.0
    assert cohen_h(None, 0.5) is None


def test_rank_biserial_by_ranks() -> None:
    """Ranks 1 to 4, of which 4 is negative: (6 - 4) / 10."""
    assert rank_biserial([1, 2, 3, -4, 0]) == pytest.approx(0.2)
    assert rank_biserial([0.0]) is None


def test_an_odds_ratio_is_finite() -> None:
    """Half an answer is added to each side; nothing turned gives none."""
    assert odds_ratio(0, 4) == pytest.approx(0.5 / 4.5)
    assert odds_ratio(0, 0) is None


def test_a_geometric_mean() -> None:
    """Of 2 and 8 it is 4."""
    assert geometric_mean([2.0, 8.0, -1.0, math.nan]) == pytest.approx(4.0)
    assert geometric_mean([]) is None
