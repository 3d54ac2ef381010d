"""Which rows of slices are computed again, and what a repair leaves in the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvbaton.alignment.recompute import CHOOSERS, Repair, Scores, chosen_rows, mend
from kvbaton.errors import InputError, SliceError
from kvbaton.types import TokenRun

TWO = (TokenRun(10, 6), TokenRun(20, 4))
SCORES = Scores(importance=(0, 9, 0, 8, 0, 0, 7, 0, 0, 1), deviation=(9, 0, 0, 0, 0, 0, 0, 0, 8, 0))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Compute on one thread, and leave the number of threads as it was."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("chooser", "rows"),
    [
        ("first", (10, 11, 12, 20, 21)),
        ("last", (13, 14, 15, 22, 23)),
        ("every", (10, 12, 14, 20, 22)),
        ("importance", (10, 11, 13, 20, 23)),
        ("deviation", (10, 11, 12, 13, 22)),
        ("first+importance", (10, 11, 13, 20, 23)),
        ("first+deviation", (10, 11, 12, 20, 22)),
        ("first+last", (10, 11, 14, 15, 20)),
    ],
)
def test_half_of_two_slices_by_hand(chooser: str, rows: tuple[int, ...]) -> None:
    """Five of ten rows, as each chooser picks them."""
    assert chosen_rows(TWO, Repair(0.5, chooser), SCORES) == rows


def test_the_default_depends_on_how_many() -> None:
    """Few rows are the first ones; where there are more, half of them go by importance."""
    assert (Repair().choice, Repair().fraction) == ("first", 0.05)
    assert [Repair(f).choice for f in (0.09, 0.1, 1)] == [
        "first", "first+importance", "first",
    ]  # fmt: skip
    assert Repair(0.3, "deviation").choice == "deviation"
    chosen = [chosen_rows(TWO, Repair(0.5, c), SCORES) for c in ("auto", "first+importance")]
    assert chosen[0] == chosen[1]


def test_every_chooser_is_tried_above() -> None:
    """The choosers are exactly these."""
    assert list(CHOOSERS) == [
        "first", "last", "every", "importance", "deviation",
        "first+importance", "first+deviation", "first+last",
    ]  # fmt: skip


runs_of = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=5)


@given(
    runs_of,
    st.floats(0, 1),
    st.sampled_from(sorted(CHOOSERS)),
    st.lists(st.floats(0, 1), min_size=45, max_size=45),
)
def test_a_choice_has_its_size(
    gaps: list[tuple[int, int]], fraction: float, chooser: str, ranking: list[float]
) -> None:
    """So many rows as the fraction says, rounded up, ascending, all of them in the slices."""
    runs, at = [], 0
    for gap, count in gaps:
        runs.append(TokenRun(at + gap, count))
        at = runs[-1].stop
    total = sum(run.count for run in runs)
    scores = Scores(ranking[:total], ranking[::-1][:total])
    rows = chosen_rows(runs, Repair(fraction, chooser), scores)
    inside = {p for run in runs for p in range(run.first, run.stop)}
    assert len(rows) == -(-fraction * total // 1)
    assert list(rows) == sorted(set(rows) & inside)


def test_halves_that_are_shared_out_anew_do_not_add_up_to_more() -> None:
    """Shares of five rows among five runs are not those of four and one more."""
    runs = [TokenRun(0, 7), TokenRun(7, 1), TokenRun(8, 1), TokenRun(9, 1), TokenRun(10, 7)]
    assert len(chosen_rows(runs, Repair(0.1875, "first+last"))) == 4


def test_scores_that_are_missing() -> None:
    """A chooser that goes by scores wants one for every position."""
    with pytest.raises(InputError, match="0 scores of importance for 10 positions"):
        chosen_rows(TWO, Repair(0.5, "importance"))
    with pytest.raises(InputError, match="1 scores of deviation"):
        chosen_rows(TWO, Repair(0.5, "first+deviation"), Scores(deviation=(1.0,)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"chooser": "best"}, "no chooser 'best'"),
        ({"fraction": 1.5}, "between 0 and 1"),
        ({"fraction": float("nan")}, "between 0 and 1"),
        ({"queries": 0}, "at least 1"),
        ({"check_layer": 0}, "at least 1"),
    ],
)
def test_repairs_that_cannot_be(options: dict[str, Any], words: str) -> None:
    """Unknown choosers and numbers out of range are refused when they are given."""
    with pytest.raises(InputError, match=words):
        Repair(**options)


# -- on a model -------------------------------------------------------------------------------

IDS = [3 + (97 * i + 11 * i * i) % 280 for i in range(30)]
OTHER = [5 + (41 * i) % 250 for i in range(8)]
SLICES = (TokenRun(8, 10), TokenRun(18, 7))


def with_slices(engine: Any) -> Any:
    """A cache of ``IDS`` whose positions 8 to 24 have seen another beginning."""
    cache, other = engine.new_cache(32), engine.new_cache(32)
    engine.forward(cache, IDS[:25])
    engine.forward(other, OTHER + IDS[8:25])
    for mine, theirs in zip(cache.layers, other.layers, strict=True):
        mine.k_store[:, :, 8:25] = theirs.k_store[:, :, 8:25]
        mine.v_store[:, :, 8:25] = theirs.v_store[:, :, 8:25]
    engine.forward(cache, IDS[25:])
    return cache


def gap(engine: Any, cache: Any) -> float:
    """How far a cache's V lies from the text route's, over all layers."""
    text = engine.new_cache(32)
    engine.forward(text, IDS)
    off = [
        (a.v_store - b.v_store)[:, :, :30].square().sum()
        for a, b in zip(cache.layers, text.layers, strict=True)
    ]
    return float(sum(off))


@pytest.mark.parametrize("chooser", sorted(CHOOSERS))
def test_mending_everything_is_text(tiny_engine: Callable[..., Any], chooser: str) -> None:
    """A repair of all rows leaves the text route's cache, what follows the slices included."""
    engine = tiny_engine("llama")
    cache = with_slices(engine)
    assert gap(engine, cache) > 1
    done = mend(engine, cache, IDS, SLICES, Repair(1.0, chooser))
    assert done.rows == tuple(range(8, 30))
    assert gap(engine, cache) < 1e-6


@pytest.mark.parametrize("chooser", sorted(CHOOSERS))
def test_mending_a_part_closes_a_part(tiny_engine: Callable[..., Any], chooser: str) -> None:
    """A repair of a third of the rows brings the cache nearer to the text route's."""
    engine = tiny_engine("llama")
    cache = with_slices(engine)
    before = gap(engine, cache)
    mend(engine, cache, IDS, SLICES, Repair(0.34, chooser, queries=5))
    assert gap(engine, cache) < 0.9 * before


def test_what_a_repair_costs(tiny_engine: Callable[..., Any]) -> None:
    """Rows times layers of everything that was run: the choice, the rows, and those behind."""
    engine = tiny_engine("llama")
    plain = mend(engine, with_slices(engine), IDS, SLICES, Repair(0.5, "first"))
    assert plain.token_layers == 4 * (9 + 5)
    asked = mend(engine, with_slices(engine), IDS, SLICES, Repair(0.5, "importance", queries=3))
    assert asked.token_layers == 4 * (3 + 9 + 5)
    checked = mend(engine, with_slices(engine), IDS, SLICES, Repair(0.5, "deviation"))
    assert checked.token_layers == 2 * 17 + 4 * (9 + 5)


def test_mending_nothing(tiny_engine: Callable[..., Any]) -> None:
    """A repair of no rows runs nothing."""
    engine = tiny_engine("llama")
    cache = with_slices(engine)
    before = engine.computed_tokens()
    done = mend(engine, cache, IDS, SLICES, Repair(0))
    assert (done.rows, done.token_layers) == ((), 0)
    assert engine.computed_tokens() == before


@pytest.mark.parametrize(
    ("runs", "at"),
    [
        ([], "$.runs"),
        ([TokenRun(25, 6)], "$.runs[0]"),
        ([TokenRun(8, 5), TokenRun(12, 3)], "$.runs[1]"),
    ],
)
def test_slices_that_are_not_there(
    tiny_engine: Callable[..., Any], runs: list[TokenRun], at: str
) -> None:
    """Slices must lie in the cache, one behind the other."""
    engine = tiny_engine("llama")
    with pytest.raises(SliceError) as caught:
        mend(engine, with_slices(engine), IDS, runs)
    assert caught.value.at == at
