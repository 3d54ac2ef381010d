"""The knapsack of bits: against all plans there are, and by hand."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbaton.errors import InputError
from kvbaton.tuning.search import Choice, hull, within_cost, within_loss


def slot(*points: tuple[float, float]) -> list[Choice]:
    """A slot from (cost, loss) pairs."""
    return [Choice(index, cost, loss) for index, (cost, loss) in enumerate(points)]


def total(picked: tuple[Choice, ...]) -> tuple[float, float]:
    """Cost and loss of a plan."""
    return sum(c.cost for c in picked), sum(c.loss for c in picked)


def test_the_hull_leaves_out_what_is_never_worth_it():
    """(2, 9) lies above the line from (1, 10) to (3, 1); (4, 2) costs more and loses more."""
    kept = hull(slot((1, 10), (2, 9), (3, 1), (4, 2), (5, 0.5)))
    assert [(c.cost, c.loss) for c in kept] == [(1, 10), (3, 1), (5, 0.5)]


def test_bytes_go_where_they_save_most():
    """Two more bytes save 9 in the second slot and 2 in the first."""
    slots = [slot((1, 4), (3, 2)), slot((1, 10), (3, 1))]
    assert total(within_cost(slots, 4)) == (4, 5)
    assert total(within_cost(slots, 6)) == (6, 3)


def test_a_smaller_step_is_taken_where_the_steepest_does_not_fit():
    """The second slot's step of 5 does not fit any more, the first's of 1 does."""
    slots = [slot((1, 4), (2, 3)), slot((1, 100), (6, 1))]
    assert total(within_cost(slots, 4)) == (3, 103)


def test_no_more_bytes_than_the_loss_asks_for():
    """The walk ends at the first plan that keeps the bound."""
    slots = [slot((1, 4), (3, 2)), slot((1, 10), (3, 1))]
    assert total(within_loss(slots, 5)) == (4, 5)
    assert total(within_loss(slots, 14)) == (2, 14)


def test_bounds_that_cannot_be_kept_are_errors():
    """Smaller than the smallest plan, or better than the best."""
    slots = [slot((2, 4), (3, 2))]
    with pytest.raises(InputError, match="smallest plan is larger"):
        within_cost(slots, 1)
    with pytest.raises(InputError, match="largest plan loses more"):
        within_loss(slots, 1)
    with pytest.raises(InputError, match="without choices"):
        within_cost([[]], 1)


POINTS = st.lists(
    st.tuples(st.integers(1, 20), st.integers(0, 50)),
    min_size=1,
    max_size=4,
    unique_by=lambda p: p[0],
)


@given(st.lists(POINTS, min_size=1, max_size=4), st.integers(0, 80))
def test_a_plan_under_a_cost_is_as_good_as_its_hull_allows(points: list, budget: int):
    """Never over the budget, and no plan beats it by more than one step of one slot."""
    slots = [slot(*one) for one in points]
    every = [total(picked) for picked in product(*slots)]
    fitting = [loss for cost, loss in every if cost <= budget]
    if not fitting:
        with pytest.raises(InputError):
            within_cost(slots, budget)
        return
    cost, loss = total(within_cost(slots, budget))
    step = max(abs(a.loss - b.loss) for one in slots for a in one for b in one)
    assert cost <= budget
    assert min(fitting) <= loss <= min(fitting) + step


@given(st.lists(POINTS, min_size=1, max_size=4), st.integers(0, 200))
def test_a_plan_under_a_loss_keeps_it(points: list, bound: int):
    """Where any plan keeps the bound, the one found does."""
    slots = [slot(*one) for one in points]
    possible = any(loss <= bound for _, loss in (total(p) for p in product(*slots)))
    if not possible:
        with pytest.raises(InputError):
            within_loss(slots, bound)
        return
    assert total(within_loss(slots, bound))[1] <= bound
