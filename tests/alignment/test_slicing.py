"""What may be cut out of a turn, and where it goes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbaton.alignment.slicing import (
    as_runs,
    by_importance,
    by_role,
    require_sliceable,
    slice_refusal,
)
from kvbaton.errors import InputError, SliceError
from kvbaton.types import KVLayout, LayerKind, LayerLayout, Role, Span, TokenRun

FULL = LayerLayout(LayerKind.FULL, 2, 16, 16)
WINDOW = LayerLayout(LayerKind.WINDOW, 2, 16, 16, window=8)
UNPLACED = LayerLayout(LayerKind.FULL, 2, 16, 16, rope=-1)


def spans(*sizes: tuple[Role, int]) -> tuple[Span, ...]:
    """Spans one behind the other."""
    found, first = [], 0
    for role, count in sizes:
        found.append(Span(role, TokenRun(first, count)))
        first += count
    return tuple(found)


TURN = spans(
    (Role.SYSTEM, 10), (Role.TASK, 5), (Role.TOOL, 7), (Role.REASONING, 4), (Role.GENERATED, 6)
)
CHAT = spans(
    (Role.TASK, 3), (Role.GENERATED, 4), (Role.TASK, 5), (Role.REASONING, 2), (Role.GENERATED, 6)
)


# -- models -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "reason"),
    [
        ((FULL, FULL), None),
        ((FULL, UNPLACED), None),
        ((FULL, WINDOW), "layer 1 attends to a window"),
        ((UNPLACED, UNPLACED), "not rotary"),
    ],
)
def test_which_models_can_be_sliced(layers: tuple[LayerLayout, ...], reason: str | None) -> None:
    """Every layer must be full attention, and there must be rotary positions."""
    layout = KVLayout("F32", layers)
    found = slice_refusal(layout)
    if reason is None:
        assert found is None
        require_sliceable(layout)
        return
    assert found is not None and reason in found
    with pytest.raises(SliceError, match=reason):
        require_sliceable(layout)


# -- ranges -----------------------------------------------------------------------------------


def test_ranges_become_runs() -> None:
    """Neighbours become one run; both ways of writing a range are understood."""
    assert as_runs([(0, 3), TokenRun(3, 2), (7, 9)], tokens=9) == (TokenRun(0, 5), TokenRun(7, 2))


@pytest.mark.parametrize(
    ("ranges", "at", "words"),
    [
        ([], "$.spans", "at least one"),
        ([(2, 2)], "$.spans[0]", "range 2:2 is empty"),
        ([(0, 1), (5, 4)], "$.spans[1]", "range 5:4 is empty"),
        ([(0, 11)], "$.spans[0]", "outside of a sequence of 10 tokens"),
        ([(-1, 3)], "$.spans[0]", "outside"),
        ([(0, 4), (3, 6)], "$.spans[1]", "range 3:6 overlaps 0:4"),
        ([(0, 4), (0, 4)], "$.spans[1]", "overlaps"),
        ([(5, 7), (0, 2)], "$.spans[1]", "range 0:2 lies before 5:7"),
        ([(0.5, 2)], "$.spans[0]", "0.5 is not a position"),
        ([(True, 2)], "$.spans[0]", "True is not a position"),
    ],
)
def test_ranges_that_are_no_slice(ranges: list[Any], at: str, words: str) -> None:
    """Each way of being wrong has a sentence, and the place of the range."""
    with pytest.raises(SliceError, match=words) as caught:
        as_runs(ranges, tokens=10)
    assert caught.value.at == at
    assert isinstance(caught.value, InputError)


@given(st.sets(st.integers(0, 60), min_size=1))
def test_runs_hold_exactly_the_tokens(wanted: set[int]) -> None:
    """Single tokens in order become the fewest runs that hold them and nothing else."""
    runs = as_runs([(i, i + 1) for i in sorted(wanted)], tokens=61)
    held = [p for run in runs for p in range(run.first, run.stop)]
    assert held == sorted(wanted)
    assert all(b.first > a.stop for a, b in pairwise(runs))


# -- roles ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selection", "runs"),
    [
        ("prompt", [TokenRun(10, 12)]),
        ("generated", [TokenRun(26, 6)]),
        ("all", [TokenRun(10, 12), TokenRun(26, 6)]),
    ],
)
def test_private_roles_are_left_out(selection: Any, runs: list[TokenRun]) -> None:
    """System prompt and reasoning are in no slice by default."""
    assert by_role(TURN, selection) == tuple(runs)


def test_private_roles_can_be_asked_for() -> None:
    """With no private roles a slice of everything is one run."""
    assert by_role(TURN, private=frozenset()) == (TokenRun(0, 32),)


def test_earlier_answers_belong_to_the_prompt() -> None:
    """With the length of the prompt, only what was said behind it counts as generated."""
    assert by_role(CHAT, "prompt", prompt_tokens=12) == (TokenRun(0, 12),)
    assert by_role(CHAT, "generated", prompt_tokens=12) == (TokenRun(14, 6),)
    assert by_role(CHAT, "generated") == (TokenRun(3, 4), TokenRun(14, 6))


def test_a_span_over_the_end_of_the_prompt_is_cut() -> None:
    """A span that begins in the prompt and goes on in the answer is split at its end."""
    one = spans((Role.TASK, 3), (Role.GENERATED, 9))
    assert by_role(one, "prompt", prompt_tokens=5) == (TokenRun(0, 5),)
    assert by_role(one, "generated", prompt_tokens=5) == (TokenRun(5, 7),)


def test_nothing_left() -> None:
    """A selection of which nothing is left is an error that names the roles left out."""
    only = spans((Role.SYSTEM, 4), (Role.TASK, 2))
    with pytest.raises(SliceError, match=r"nothing is left.*reasoning, system"):
        by_role(only, "generated")
    with pytest.raises(SliceError, match="no selection 'half'"):
        by_role(only, "half")  # type: ignore[arg-type]


# -- importance and layers ------------------------------------------------------------------------


def test_importance_by_hand() -> None:
    """Of ten tokens: the first, the last, and the two best of the others, in their order."""
    scores = [0.0, 0.1, 0.9, 0.2, 0.3, 0.8, 0.1, 0.1, 0.0, 0.0]
    runs = by_importance(scores, 4, sinks=1, recent=1, first=100)
    assert runs == (TokenRun(100, 1), TokenRun(102, 1), TokenRun(105, 1), TokenRun(109, 1))


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=40),
    st.integers(1, 40),
    st.integers(0, 5),
    st.integers(0, 5),
)
def test_importance_keeps_what_it_says(
    scores: list[float], keep: int, sinks: int, recent: int
) -> None:
    """Exactly so many are kept, with the ends, and no better token is left out."""
    keep = max(sinks + recent, min(keep, len(scores)))
    if keep > len(scores) or keep == 0:
        return
    runs = by_importance(scores, keep, sinks=sinks, recent=recent)
    kept = {p for run in runs for p in range(run.first, run.stop)}
    ends = set(range(sinks)) | set(range(len(scores) - recent, len(scores)))
    assert len(kept) == keep
    assert ends <= kept
    left = [s for i, s in enumerate(scores) if i not in kept]
    assert all(scores[i] >= max(left, default=0) for i in kept - ends)


@pytest.mark.parametrize(
    ("keep", "sinks", "words"), [(0, 0, "0 of 5"), (6, 0, "6 of 5"), (3, 4, "4 first and 0 last")]
)
def test_importance_that_cannot_be(keep: int, sinks: int, words: str) -> None:
    """Keeping nothing, more than there is, or fewer than the ends is refused."""
    with pytest.raises(SliceError, match=words):
        by_importance([0.0] * 5, keep, sinks=sinks, recent=0)
