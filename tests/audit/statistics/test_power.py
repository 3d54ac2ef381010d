"""Power before the run, and how many units a margin needs."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbaton.audit.statistics.power import AIM, power_for, units_needed, units_to_narrow
from kvbaton.errors import InputError


def test_units_for_a_margin_of_five_points() -> None:
    """0.95^n is at most 5% from n = 59 on: 59 units of one, 26 of five with icc 0.3 (x 2.2 / 5)."""
    assert math.ceil(math.log(0.05) / math.log(0.95)) == 59
    assert units_needed(questions=1) == 59
    assert units_needed(questions=5) == 26
    assert units_needed(questions=5, icc=1.0) == 59
    assert math.ceil(math.log(0.05) / math.log(0.95) * 2.2 / 5) == 26


def test_what_forty_units_can_show() -> None:
    """Without discordance 40 units of 5 bound the loss at 3.2 points, as units alone at 7.2."""
    found = power_for(40, 5, expected_discordance=0.0)
    assert found.power == pytest.approx(1.0)
    assert found.bound_points == pytest.approx(3.24160, abs=1e-5)
    assert found.bound_units_only_points == pytest.approx(7.21575, abs=1e-5)
    assert found.attainable_margin_points == pytest.approx(3.24160, abs=1e-5)


def test_forty_units_of_one_question_cannot_show_five_points() -> None:
    """Their bound of 7.2 points is beyond the margin, whatever they answer."""
    assert power_for(40, 1, expected_discordance=0.0).power == 0.0


def test_a_true_loss_as_large_as_the_margin_cannot_be_equivalent() -> None:
    """No number of units shows what is not so."""
    assert units_needed(questions=5, lost=0.06) is None


def test_intervals_narrow_with_the_root() -> None:
    """Half the width takes four times the units."""
    assert units_to_narrow(10, 0.2, 0.1) == 40
    assert units_to_narrow(10, 0.2, 0.0) is None
    assert units_to_narrow(10, math.inf, 0.1) is None


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 80), st.integers(1, 8), st.floats(0, 0.3), st.floats(0, 1))
def test_power_is_a_chance(units: int, questions: int, discordance: float, icc: float) -> None:
    """It lies between 0 and 1, and a margin of 80% power is attainable or None."""
    found = power_for(units, questions, expected_discordance=discordance, icc=icc)
    assert 0 <= found.power <= 1
    margin = found.attainable_margin_points
    assert margin is None or 0 < margin < 100


def test_the_needed_units_have_the_power() -> None:
    """The number that is named reaches 80%, and one fewer does not."""
    needed = units_needed(questions=5, lost=0.01, gained=0.01)
    assert needed is not None
    assert power_for(needed, 5, expected_discordance=0.02).power >= AIM
    assert power_for(needed - 1, 5, expected_discordance=0.02).power < AIM


@pytest.mark.parametrize(
    "wrong",
    [{"margin_points": 0.0}, {"alpha": 0.5}, {"expected_discordance": 1.5}, {"icc": -0.1}],
)
def test_numbers_that_are_none_of_their_kind_are_refused(wrong: dict[str, float]) -> None:
    """The sentence names what is wrong."""
    with pytest.raises(InputError):
        power_for(40, 5, **wrong)
