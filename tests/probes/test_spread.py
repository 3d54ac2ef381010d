"""Distances from where honest measurements lie."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbaton.errors import FormatError, InputError
from kvbaton.probes.spread import Spread, spread_of

FLAT = Spread((1.0, 2.0), (1.0, 0.0, 0.0, 0.25), 0.5)


def test_a_distance_can_be_checked_by_hand() -> None:
    """Off by 3 and 8 with precisions 1 and 1/4: the root of 9 + 16, in units of a half."""
    assert FLAT.distance((1.0, 2.0)) == 0
    assert FLAT.distance((4.0, 10.0)) == pytest.approx(10.0)


@given(
    rows=st.integers(20, 60), size=st.integers(1, 6), seed=st.integers(0, 2**32 - 1),
    stretch=st.floats(0.01, 100),
)  # fmt: skip
def test_five_of_a_hundred_lie_beyond_distance_one(
    rows: int, size: int, seed: int, stretch: float
) -> None:
    """The unit is the 95% quantile of what it was made of, whatever the scale."""
    measured = np.random.default_rng(seed).normal(3, stretch, (rows, size))
    found = spread_of(measured.tolist())
    beyond = sum(found.distance(row) > 1 + 1e-9 for row in measured.tolist())
    assert 0 < beyond <= math.ceil(0.05 * rows)
    assert found.distance(measured.mean(0).tolist()) == pytest.approx(0, abs=1e-6)


def test_what_moves_together_is_judged_together() -> None:
    """Two values that always agree are odd where they differ, though each alone is common."""
    line = np.linspace(-1, 1, 50)
    found = spread_of(np.stack((line, line + 0.01 * np.sin(50 * line)), axis=1).tolist())
    assert found.distance((0.9, 0.9)) < 1 < found.distance((0.5, -0.5))


def test_a_constant_has_a_distance_nevertheless() -> None:
    """Measurements that never differ make no division by zero."""
    found = spread_of([[1.0, 2.0]] * 5)
    assert found.distance((1.0, 2.0)) == 0
    assert math.isfinite(found.distance((2.0, 2.0))) and found.distance((2.0, 2.0)) > 1


def test_what_is_not_finite_is_infinitely_odd() -> None:
    """NaN must not compare its way past a limit."""
    for odd in (math.nan, math.inf, -math.inf):
        assert FLAT.distance((1.0, odd)) == math.inf


def test_wrong_numbers_of_values_and_rows_are_refused() -> None:
    """A spread fits the measurement that it was made for."""
    with pytest.raises(InputError, match="2 values are measured, not 3"):
        FLAT.distance((1.0, 2.0, 3.0))
    for rows in ([[1.0]], [], [[1.0], [math.nan]]):
        with pytest.raises(InputError, match="at least two rows"):
            spread_of(rows)


def test_json_gives_the_same_spread_again() -> None:
    """What is stored is what was measured."""
    assert Spread.from_json(FLAT.to_json()) == FLAT


@pytest.mark.parametrize(
    "change",
    [
        {"unit": 0.0},
        {"unit": math.nan},
        {"precision": [1.0]},
        {"center": ["x", 1.0]},
        {"center": None},
    ],
)
def test_a_damaged_spread_is_refused_with_its_place(change: dict[str, object]) -> None:
    """The error names where it stands."""
    with pytest.raises(FormatError) as error:
        Spread.from_json(FLAT.to_json() | change, at="$.choices")
    assert error.value.at == "$.choices"
