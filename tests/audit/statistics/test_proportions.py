"""Differences of accuracy: exact limits, effective numbers, likeness within units."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbaton.audit.statistics.proportions import (
    Turned,
    UnitAnswers,
    accuracy_difference,
    concordant_bound,
    effective_questions,
    exact_interval,
    intraclass,
)
from kvbaton.errors import InputError


def same_units(units: int, questions: int, lost: int = 0, gained: int = 0) -> Turned:
    """Units that all fare the same."""
    return Turned.of(UnitAnswers(questions, lost, gained) for _ in range(units))


UNITS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6)).map(
        lambda n: UnitAnswers(sum(n), n[0], n[1])
    ),
    max_size=15,
)


def test_limits_are_those_of_clopper_and_pearson() -> None:
    """R's binom.test(682, 925) gives 0.7654066 as upper limit (Conover 1971, page 97)."""
    _, high = exact_interval(0, 682, 925, effective=925)
    assert high == pytest.approx(0.7654066, abs=1e-7)


def test_one_share_alone_has_its_own_lower_limit() -> None:
    """The lower limit of binom.test(682, 925) is 0.7076683, widened by what may be lost."""
    low, _ = exact_interval(0, 682, 925, effective=925)
    share, never = 682 / 925, 1 - 0.025 ** (1 / 925)
    assert low == pytest.approx(share - math.hypot(share - 0.7076683, never), abs=1e-7)


def test_forty_concordant_units_still_allow_seven_percent() -> None:
    """The one-sided 95% bound on a share that never occurred in 40 is 1 - 0.05^(1/40) = 7.2%."""
    assert concordant_bound(40, 0.05) == pytest.approx(0.0721575, abs=1e-7)


def test_clustered_questions_are_worth_fewer() -> None:
    """200 questions in units of 5 with icc 0.3 are worth 200 / 2.2; with icc 1 they are 40."""
    assert effective_questions([5] * 40, 0.3) == pytest.approx(200 / 2.2)
    assert effective_questions([5] * 40, 1.0) == pytest.approx(40)
    assert effective_questions([1] * 40, 1.0) == 40
    assert effective_questions([], 0.3) == 0


def test_concordant_units_get_an_exact_interval() -> None:
    """Where no answer turned the 90% interval is 0 with the one-sided 95% bound on both sides."""
    found = accuracy_difference(same_units(40, 5), icc=0.3, level=0.9)
    bound = 1 - 0.05 ** (2.2 / 200)
    assert (found.value, found.method) == (0.0, "exact")
    assert found.interval == pytest.approx([-bound, bound])
    assert bound == pytest.approx(0.0324160, abs=1e-7)


def test_units_that_all_lose_alike_have_an_interval_too() -> None:
    """Every unit loses one of five: the mean does not vary, and the interval has a width."""
    found = accuracy_difference(same_units(40, 5, lost=1), icc=0.3)
    assert found.method == "exact"
    assert found.low is not None and found.high is not None
    assert found.low < -0.2 < found.high


def test_few_discordances_are_never_narrower_than_none() -> None:
    """One lost answer in 200 does not narrow the interval."""
    units = [UnitAnswers(5, 0, 0)] * 39
    none = accuracy_difference(Turned.of([*units, UnitAnswers(5, 0, 0)]), icc=0.3)
    one = accuracy_difference(Turned.of([*units, UnitAnswers(5, 1, 0)]), icc=0.3)
    assert none.low is not None and none.high is not None
    assert one.low is not None and one.high is not None
    assert one.low < none.low
    assert one.high - one.low >= none.high - none.low


def test_everything_lost_is_not_certain_either() -> None:
    """All of 40 questions lost: the upper end is that of 40 of 40 by Clopper and Pearson."""
    found = accuracy_difference(same_units(40, 1, lost=1), icc=0.3)
    never = 1 - 0.025 ** (1 / 40)
    assert found.low == -1.0
    assert found.high == pytest.approx(-1 + math.hypot(never, never))


def test_units_alone_are_worth_what_they_are() -> None:
    """A unit without questions does not count."""
    found = Turned.of([UnitAnswers(0, 0, 0), UnitAnswers(2, 1, 0)])
    assert (len(found.units), found.questions, found.lost) == (1, 2, 1)
    assert accuracy_difference(Turned.of([]), icc=0.3).value is None


def test_units_that_fare_as_a_whole_are_alike() -> None:
    """Units that lose all or nothing have an intraclass correlation of 1."""
    some = [UnitAnswers(5, 5, 0)] * 6 + [UnitAnswers(5, 0, 0)] * 6
    assert intraclass([Turned.of(some)]) == pytest.approx(1.0)


def test_units_that_fare_the_same_are_not() -> None:
    """Units that all lose two of four are as different inside as can be: 0, never less."""
    assert intraclass([same_units(12, 4, lost=2)]) == 0.0


def test_likeness_by_hand() -> None:
    """Of 20 units of 2 questions, 10 lose one, 5 both and 5 none: between as within, so 0."""
    some = [UnitAnswers(2, 1, 0)] * 10 + [UnitAnswers(2, 2, 0)] * 5 + [UnitAnswers(2, 0, 0)] * 5
    between, within = 2 * 10 * 0.25 / 19, 10 * 0.5 / 20
    expected = (between - within) / (between + within)
    assert intraclass([Turned.of(some)]) == pytest.approx(expected)


def test_likeness_needs_discordances() -> None:
    """19 discordant questions are not enough, and units of one question never."""
    assert intraclass([Turned.of([UnitAnswers(19, 19, 0), UnitAnswers(19, 0, 0)])]) is None
    assert intraclass([same_units(40, 1, lost=1)]) is None
    assert intraclass([]) is None


def test_impossible_counts_are_refused() -> None:
    """More cannot turn than was asked."""
    with pytest.raises(InputError, match="2 lost and 1 gained of 2"):
        UnitAnswers(2, 2, 1)
    with pytest.raises(InputError, match="intraclass"):
        effective_questions([5], 1.5)


@settings(deadline=None, max_examples=60)
@given(UNITS, st.floats(0, 1), st.floats(0.5, 0.999))
def test_intervals_are_in_order_and_have_a_width(
    units: list[UnitAnswers], icc: float, level: float
) -> None:
    """Whatever turned, the interval holds the estimate, stays within -1 to 1, and is no point."""
    found = accuracy_difference(Turned.of(units), icc=icc, level=level)
    if found.value is None:
        assert found.why
        return
    assert found.low is not None and found.high is not None
    assert -1 <= found.low <= found.value <= found.high <= 1
    assert found.high > found.low


@settings(deadline=None, max_examples=60)
@given(UNITS, st.randoms())
def test_the_order_of_units_does_not_matter(units: list[UnitAnswers], dice: object) -> None:
    """Shuffled units have the same interval."""
    shuffled = list(units)
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    one, two = (accuracy_difference(Turned.of(some), icc=0.3) for some in (units, shuffled))
    assert one == two


@settings(deadline=None, max_examples=60)
@given(UNITS)
def test_losing_is_the_mirror_of_gaining(units: list[UnitAnswers]) -> None:
    """Exact limits change sign and place where lost and gained are exchanged."""
    found = Turned.of(units)
    if not found.questions:
        return
    effective = found.effective(0.3)
    low, high = exact_interval(found.lost, found.gained, found.questions, effective=effective)
    mirrored = exact_interval(found.gained, found.lost, found.questions, effective=effective)
    assert mirrored == pytest.approx((-high, -low))
