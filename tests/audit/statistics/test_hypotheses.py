"""Tests against published values, and against data that say nothing."""

import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.audit.statistics.test_intervals import SLEEP

from kvbaton.audit.statistics.hypotheses import (
    accuracy_differs,
    equivalence,
    exact_mcnemar,
    holm,
    location,
    paired_t,
    shapiro,
    wilcoxon,
)
from kvbaton.audit.statistics.proportions import Turned, UnitAnswers, accuracy_difference
from kvbaton.errors import InputError

BEFORE = [1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30]
AFTER = [0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29]
"""Depression scale factors (Hollander and Wolfe 1973, page 29), the example of R's wilcox.test."""

ANY = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=12)


def test_wilcoxon_of_hollander_and_wolfe() -> None:
    """R gives V = 40 and a one-sided p of 0.01953, that is 10 of 512: two-sided 20 of 512."""
    found = wilcoxon([b - a for b, a in zip(BEFORE, AFTER, strict=True)])
    assert found.p == pytest.approx(20 / 512)
    assert found.statistic == 45 - 40


def test_paired_t_of_the_sleep_data() -> None:
    """R's t.test gives t = -4.0621 and p = 0.002833."""
    found = paired_t(SLEEP)
    assert found.statistic == pytest.approx(-4.0621, abs=5e-5)
    assert found.p == pytest.approx(0.002833, abs=5e-7)


def test_mcnemar_by_the_binomial() -> None:
    """8 lost and 1 gained: twice (1 + 9) of 512; 5 lost and none gained: twice 1 of 32."""
    assert exact_mcnemar(8, 1).p == pytest.approx(20 / 512)
    assert exact_mcnemar(0, 5).p == pytest.approx(2 / 32)
    assert exact_mcnemar(3, 3).p == 1.0


def test_mcnemar_without_discordance() -> None:
    """Where no answer turned there is nothing to explain."""
    assert (exact_mcnemar(0, 0).p, exact_mcnemar(0, 0).why) == (1.0, "no answer turned")
    with pytest.raises(InputError, match="negative"):
        exact_mcnemar(-1, 0)


def test_holm_by_hand() -> None:
    """0.01, 0.04, 0.03, 0.005 become 0.03, 0.06, 0.06, 0.02; what has no p value counts not."""
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005, "e": None})
    assert found.pop("e") is None
    assert found == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert holm({}) == {}
    assert holm({"a": None}) == {"a": None}


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1), max_size=12))
def test_holm_keeps_the_order_and_lowers_nothing(p_values: dict[str, float]) -> None:
    """A smaller p value stays the smaller one, and none becomes smaller or more than 1."""
    found = holm(p_values)
    ordered = sorted(p_values, key=lambda key: p_values[key])
    corrected = [found[key] for key in ordered]
    assert all(p is not None and p_values[k] <= p <= 1 for k, p in found.items())
    assert corrected == sorted(corrected)  # type: ignore[type-var]


def test_equivalence_by_two_t_tests() -> None:
    """With enough turned, p is the larger of the two one-sided t tests, computed by hand."""
    units = [UnitAnswers(10, 1 + n % 3, 2 - n % 2) for n in range(60)]
    differences = [unit.difference for unit in units]
    error = statistics.stdev(differences) / math.sqrt(60)
    mean = statistics.fmean(differences)
    expected = max(stats.t.sf((mean + 0.05) / error, 59), stats.t.sf((0.05 - mean) / error, 59))
    found = equivalence(Turned.of(units), margin=0.05, icc=0.0)
    assert found.p == pytest.approx(expected)
    assert found.why == ""


def test_equivalence_without_discordance_is_exact() -> None:
    """Nothing lost in n effective questions: p is the chance of that at the margin, 0.95^n."""
    same = Turned.of([UnitAnswers(5, 0, 0)] * 40)
    assert equivalence(same, margin=0.05, icc=0.3).p == pytest.approx(0.95 ** (200 / 2.2), rel=1e-4)


def test_equivalence_agrees_with_its_interval() -> None:
    """P is at most alpha exactly where the (1 - 2 alpha) interval is within the margin."""
    some = Turned.of([UnitAnswers(5, 0, 0)] * 38 + [UnitAnswers(5, 1, 0)] * 2)
    p = equivalence(some, margin=0.05, icc=0.3).p
    assert p is not None
    for alpha in (p * 0.99, p * 1.01):
        inside = accuracy_difference(some, icc=0.3, level=1 - 2 * alpha).within(0.05)
        assert inside == (alpha > p)


def test_equivalence_of_what_differs_is_not_shown() -> None:
    """Where a tenth is lost p is 1, or near it."""
    lost = Turned.of([UnitAnswers(10, 1, 0)] * 40)
    assert equivalence(lost, margin=0.05, icc=0.3).p == 1.0
    assert equivalence(Turned.of([]), margin=0.05, icc=0.3).p is None
    with pytest.raises(InputError, match="margin"):
        equivalence(lost, margin=0.0, icc=0.3)


def test_a_difference_of_accuracy_by_units() -> None:
    """With enough turned it is the paired t test of unit means."""
    some = Turned.of([UnitAnswers(10, 2 + n % 3, n % 2) for n in range(40)])
    assert accuracy_differs(some, icc=0.0) == paired_t(some.differences)


def test_a_difference_of_few_answers_is_exact() -> None:
    """P is where the interval begins not to hold zero; where none turned it is 1."""
    few = Turned.of([UnitAnswers(5, 0, 0)] * 35 + [UnitAnswers(5, 2, 0)] * 5)
    p = accuracy_differs(few, icc=0.3).p
    assert p is not None and 0 < p < 0.5
    assert (accuracy_difference(few, icc=0.3, level=1 - 1.01 * p).high or 0) < 0
    assert (accuracy_difference(few, icc=0.3, level=1 - 0.99 * p).high or 0) >= 0
    assert accuracy_differs(Turned.of([UnitAnswers(5, 0, 0)] * 40), icc=0.3).p == 1.0
    assert accuracy_differs(Turned.of([]), icc=0.3).p is None


def test_the_test_that_speaks_depends_on_normality() -> None:
    """Normal quantiles get the t test, one large outlier ranks, few units the t test."""
    normal = [float(stats.norm.ppf((n + 0.5) / 30)) + 1 for n in range(30)]
    assert location(normal).test == "paired t"
    assert location([*normal, 50.0]).test == "wilcoxon"
    assert location([1.0, 1.1, 1.2, 9.0]).test == "paired t"


@pytest.mark.parametrize("test", [wilcoxon, paired_t, shapiro, location])
@pytest.mark.parametrize("sample", [[], [1.0], [0.0] * 12, [math.nan] * 3, [math.inf, 1.0]])
def test_odd_samples_get_a_sentence(test: object, sample: list[float]) -> None:
    """Nothing, one unit and ties give no p value but a sentence, or a p value that is sound."""
    found = test(sample)  # type: ignore[operator]
    assert found.p is None or 0 <= found.p <= 1
    assert found.p is not None or found.why


@settings(max_examples=40, deadline=None)
@given(ANY)
def test_no_test_gives_what_is_not_finite(sample: list[float]) -> None:
    """Whatever goes in, p values are between 0 and 1 or None, and nothing warns."""
    for test in (wilcoxon, paired_t, shapiro, location):
        found = test(sample)
        assert found.p is None or 0 <= found.p <= 1
        assert found.statistic is None or math.isfinite(found.statistic)
