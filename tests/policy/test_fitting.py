"""Fitting the window: what stays, decided from numbers alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbaton.errors import InputError
from kvbaton.policy.fitting import SINKS, Fit, FitStrategy, Importance, Overflow, fit
from kvbaton.types import Deny, Move, ReasonCode, Role, Span, TokenRun

CUTS = (FitStrategy.DROP_OLDEST, FitStrategy.IMPORTANCE)


def too_long(**changes: object) -> Overflow:
    """100 tokens of context, 10 new ones and room for 10 in a window of 60: 40 find room."""
    sizes = {"context_tokens": 100, "new_tokens": 10, "room_tokens": 10, "max_tokens": 60}
    return Overflow(**(sizes | changes))  # type: ignore[arg-type]


def found(overflow: Overflow, strategy: str) -> Fit:
    """What stays; the strategy must not refuse."""
    fitted = fit(overflow, strategy)
    assert isinstance(fitted, Fit)
    return fitted


def denied(overflow: Overflow, strategy: str) -> str:
    """Why the strategy refuses."""
    verdict = fit(overflow, strategy)
    assert isinstance(verdict, Deny)
    assert verdict.reason.code is ReasonCode.WINDOW_EXCEEDED
    return verdict.reason.sentence


@st.composite
def overflows(draw: st.DrawFn) -> Overflow:
    """Anything that might be asked, with spans and scores or without."""
    context = draw(st.integers(0, 300))
    prompt = draw(st.integers(0, context))
    size = draw(st.integers(1, 40))
    scores = draw(st.lists(st.floats(-1, 1), max_size=context // size + 2))
    return Overflow(
        context_tokens=context,
        new_tokens=draw(st.integers(0, 60)),
        room_tokens=draw(st.integers(0, 60)),
        max_tokens=draw(st.integers(1, 300)),
        spans=(Span(Role.SYSTEM, TokenRun(0, prompt)),) if prompt else (),
        sinks=draw(st.none() | st.integers(0, 20)),
        importance=draw(st.sampled_from([None, Importance(size, tuple(scores))])),
    )


@given(overflow=overflows(), strategy=st.sampled_from(CUTS))
def test_what_stays_fits_exactly_in_order_with_sinks_and_newest(
    overflow: Overflow, strategy: FitStrategy
) -> None:
    """Runs ascend, do not overlap and close up; they fill the room to the token."""
    fitted = fit(overflow, strategy)
    assert fit(overflow, strategy) == fitted
    if isinstance(fitted, Deny):
        assert overflow.budget <= max(SINKS, overflow.sinks or 0, len_of_prompt(overflow))
        return
    to = last = 0
    for move in fitted.moves:
        assert move.run.count > 0 and move.run.first >= last and move.to == to
        to, last = to + move.run.count, move.run.stop
    assert last == overflow.context_tokens
    assert fitted.tokens == min(overflow.context_tokens, overflow.budget)
    assert (fitted.reason is not None) == (overflow.context_tokens > overflow.budget)
    sinks = SINKS if overflow.sinks is None else overflow.sinks
    kept = fitted.kept(range(overflow.context_tokens))
    assert kept[:sinks] == tuple(range(min(sinks, overflow.context_tokens)))


def len_of_prompt(overflow: Overflow) -> int:
    """Tokens of the system prompt, where there is one."""
    return overflow.spans[0].run.count if overflow.spans else 0


def test_what_fits_is_left_alone() -> None:
    """Everything stays where it is, and there is no reason to name."""
    for strategy in FitStrategy:
        fitted = found(too_long(context_tokens=40), strategy)
        assert fitted.moves == (Move(TokenRun(0, 40), 0),)
        assert (fitted.reason, fitted.moved) == (None, False)


def test_refusing_asks_only_for_what_must_fit() -> None:
    """Room for generation is no reason to refuse: generation ends at the window."""
    assert found(too_long(context_tokens=50), "refuse").tokens == 50
    assert "51 tokens of context, 10 new ones" in denied(too_long(context_tokens=51), "refuse")


def test_the_oldest_are_dropped_behind_the_sinks() -> None:
    """Of 100 tokens the first 4 and the last 36 stay, and the latter move to position 4."""
    fitted = found(too_long(), "drop-oldest")
    assert fitted.moves == (Move(TokenRun(0, 4), 0), Move(TokenRun(64, 36), 4))
    assert [move.to - move.run.first for move in fitted.moves] == [0, -60]
    assert fitted.moved
    assert fitted.reason is not None
    assert fitted.reason.code is ReasonCode.WINDOW_FITTED
    assert fitted.reason.sentence.startswith("drop-oldest: 100 tokens of context, 10 new ones")
    assert "60 were dropped, the first 4 and the newest 36 stay" in fitted.reason.sentence


@pytest.mark.parametrize(
    ("spans", "first"),
    [
        ((Span(Role.SHARED, TokenRun(0, 6)), Span(Role.SYSTEM, TokenRun(6, 6))), 12),
        ((Span(Role.SYSTEM, TokenRun(0, 20)),), 20),
        ((Span(Role.SYSTEM, TokenRun(0, 21)),), 4),
        ((Span(Role.SYSTEM, TokenRun(0, 2)), Span(Role.TASK, TokenRun(2, 9))), 4),
        ((Span(Role.TASK, TokenRun(0, 9)), Span(Role.SYSTEM, TokenRun(9, 9))), 4),
    ],
)
def test_a_leading_prompt_stays_if_it_takes_at_most_half(
    spans: tuple[Span, ...], first: int
) -> None:
    """Shared and system prompts at the beginning are sinks, too; never less than four tokens."""
    assert found(too_long(spans=spans), "drop-oldest").moves[0] == Move(TokenRun(0, first), 0)


def test_the_best_blocks_stay_between_the_sinks_and_the_newest() -> None:
    """Of ten blocks the best two that find room whole stay; what is left goes to the newest."""
    scores = Importance(10, (0, 0, 5, 0, 9, 0, 7, 0, 0, 0))
    fitted = found(too_long(importance=scores), "importance")
    runs = [(move.run.first, move.run.count) for move in fitted.moves]
    assert runs == [(0, 4), (40, 10), (60, 10), (84, 16)]
    assert fitted.reason is not None
    assert "the first 4, 20 between by importance and the newest 16" in fitted.reason.sentence


def test_equal_scores_leave_the_newer_blocks() -> None:
    """Ties go to what is newer, so the same numbers always give the same cut."""
    fitted = found(too_long(importance=Importance(10, (1.0,) * 10)), "importance")
    assert [(m.run.first, m.run.count) for m in fitted.moves] == [(0, 4), (64, 36)]


def test_blocks_have_the_mean_of_their_tokens() -> None:
    """Five scores in blocks of two: the last block has one."""
    found = Importance.of_tokens((1.0, 3.0, 0.0, 0.5, 7.0), block_tokens=2)
    assert found == Importance(2, (2.0, 0.25, 7.0))
    with pytest.raises(InputError, match="at least one token"):
        Importance.of_tokens((1.0,), block_tokens=0)


def test_importance_that_nobody_recorded_drops_the_oldest_and_says_so() -> None:
    """Without scores the cut is that of drop-oldest, and the sentence names it."""
    fitted = found(too_long(), "importance")
    assert fitted.moves == found(too_long(), "drop-oldest").moves
    assert fitted.reason is not None
    assert "the baton records no importance" in fitted.reason.sentence


def test_a_summary_stands_for_the_context() -> None:
    """Nothing is loaded; the text goes to the receiver."""
    fitted = found(too_long(summary="All is well.", summary_tokens=5), "summary")
    assert (fitted.moves, fitted.summary) == ((), "All is well.")
    assert fitted.reason is not None and fitted.reason.sentence.startswith("summary: 100 tokens")
    assert not fitted.needs(TokenRun(0, 100))


def test_no_summary_or_one_that_is_too_long_is_refused() -> None:
    """The sentence says how to come by one."""
    assert "hand_off(turn, summary=...)" in denied(too_long(), "summary")
    assert "neither does the summary" in denied(too_long(summary="x", summary_tokens=41), "summary")


@pytest.mark.parametrize("strategy", CUTS)
def test_positions_that_cannot_be_moved_are_refused(strategy: str) -> None:
    """A model whose positions are fixed keeps its reason."""
    assert "window layers" in denied(too_long(fixed="it has window layers"), strategy)


@pytest.mark.parametrize("strategy", CUTS)
def test_new_tokens_that_leave_no_room_are_refused(strategy: str) -> None:
    """Sinks without anything behind them are no context."""
    assert "the first 4, which always stay" in denied(too_long(new_tokens=46), strategy)
    assert "and 0 tokens of context" in denied(too_long(new_tokens=90), strategy)


def test_only_segments_that_keep_something_are_needed() -> None:
    """Positions 4 to 63 are dropped: a segment inside of them need not be read."""
    fitted = found(too_long(), "drop-oldest")
    wanted = [fitted.needs(TokenRun(first, 16)) for first in range(0, 96, 16)]
    assert wanted == [True, False, False, False, True, True]


@pytest.mark.parametrize(
    ("make", "at"),
    [
        (lambda: too_long(room_tokens=-1), "$.room_tokens"),
        (lambda: too_long(sinks=-1), "$.sinks"),
        (lambda: Importance(0, ()), "$.importance.block_tokens"),
        (lambda: Importance(4, (1.0, float("nan"))), "$.importance.scores[1]"),
    ],
)
def test_impossible_numbers_are_named(make: object, at: str) -> None:
    """The error names the field."""
    with pytest.raises(InputError) as error:
        make()  # type: ignore[operator]
    assert error.value.at == at


def test_an_unknown_strategy_is_named_with_the_known_ones() -> None:
    """The error says what there is."""
    with pytest.raises(InputError, match="refuse, drop-oldest, importance, summary"):
        fit(too_long(), "guess")
