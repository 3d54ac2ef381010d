"""When context and new tokens exceed the window: what stays is decided before anything is read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.relay.conftest import make_engine

from kvbaton.errors import InputError, WindowExceeded
from kvbaton.stores import Kind
from kvbaton.types import FidelityClass, Outcome, ReasonCode, Role, Route

LONG = "Hello there, you plan and code. " * 6


@pytest.fixture
def narrow() -> Any:
    """A model whose window is too small for what is asked of it below."""
    engine = make_engine()
    engine.max_tokens = 150
    return engine


def baton_of(agent_of: Any, narrow: Any, **options: Any) -> Any:
    """A baton that fits the sender's window, but not the receiver's with a long answer."""
    sender = agent_of("a", engine=narrow, system="You plan", stream=False)
    turn = sender.run(LONG, max_new_tokens=20)
    return turn, sender.hand_off(turn, **options)


def test_the_oldest_tokens_are_dropped_and_the_beginning_stays(
    agent_of: Any, narrow: Any, store: Any
) -> None:
    """Sinks and the newest tokens are attached, moved together; the rest is not even read."""
    turn, baton = baton_of(agent_of, narrow)
    receiver = agent_of("b", engine=narrow)
    taken = receiver.take(baton, "Go on", overflow="drop-oldest", max_new_tokens=80)
    receipt = taken.receipt
    assert (receipt.outcome, receipt.route) == (Outcome.USED, Route.BATON)
    assert receipt.reasons[0].code is ReasonCode.WINDOW_FITTED
    assert "drop-oldest" in receipt.reasons[0].sentence
    assert receipt.context_tokens + 80 == narrow.max_tokens
    assert receipt.fidelity.kind is FidelityClass.APPROXIMATE
    system = next(s for s in turn.spans if s.role is Role.SYSTEM)
    ids = taken.conversation.ids
    assert ids[: system.run.count] == turn.conversation.ids[: system.run.count]
    stays = receipt.reused_tokens - system.run.count
    newest = turn.conversation.ids[turn.cached - stays : turn.cached]
    assert ids[system.run.count : receipt.reused_tokens] == newest
    assert receipt.bytes_moved < sum(r.size_bytes for r in baton.manifest.segments)


def test_what_stays_stands_where_a_prefill_would_put_it(agent_of: Any, narrow: Any) -> None:
    """In layer 0 the fitted cache equals the one computed from the ids that stay."""
    _, baton = baton_of(agent_of, narrow)
    taken = agent_of("b", engine=narrow).take(
        baton, "Go on", overflow="drop-oldest", max_new_tokens=40
    )
    plain = narrow.new_cache(narrow.max_tokens)
    narrow.forward(plain, taken.conversation.ids[: taken.receipt.reused_tokens])
    count = taken.receipt.reused_tokens
    mine = taken.conversation.cache.layers[0].k_store[:, :, :count]
    torch.testing.assert_close(mine, plain.layers[0].keys, rtol=1e-5, atol=1e-5)


def test_what_matters_stays_as_the_sender_recorded_it(agent_of: Any, narrow: Any) -> None:
    """Blocks that got the most attention are kept, in their order."""
    turn, baton = baton_of(agent_of, narrow, importance=True)
    assert baton.manifest.importance is not None
    assert max(baton.manifest.importance.scores) == 255
    taken = agent_of("b", engine=narrow).take(
        baton.id, "Go on", overflow="importance", max_new_tokens=40
    )
    assert taken.receipt.route is Route.BATON
    assert "importance" in taken.receipt.reasons[0].sentence
    assert taken.receipt.context_tokens + 40 <= narrow.max_tokens
    del turn


def test_a_summary_stands_for_the_context(agent_of: Any, narrow: Any) -> None:
    """The sender's model sums up; the receiver reads that, as text, with its own instruction."""
    sender = agent_of("a", engine=narrow, stream=False)
    turn = sender.run(LONG, max_new_tokens=9)
    before = list(turn.conversation.ids)
    summary = sender.summarize(turn, "You plan", max_new_tokens=8)
    assert turn.conversation.ids == before
    assert turn.conversation.cache.length == turn.cached
    baton = sender.hand_off(turn, summary=summary or "Hello")
    taken = agent_of("b", engine=narrow).take(baton, "Go on", overflow="summary", max_new_tokens=60)
    receipt = taken.receipt
    assert (receipt.outcome, receipt.route) == (Outcome.KV_UNUSABLE, Route.TEXT)
    assert receipt.reasons[0].code is ReasonCode.WINDOW_FITTED
    assert receipt.reused_tokens == 0
    assert "Go on" in narrow.chat.text_of(taken.conversation.ids)


def test_what_fits_is_left_alone(agent_of: Any, narrow: Any) -> None:
    """A strategy changes nothing where there is room."""
    _, baton = baton_of(agent_of, narrow)
    taken = agent_of("b", engine=narrow).take(
        baton, "Go on", overflow="drop-oldest", max_new_tokens=4
    )
    assert taken.receipt.reasons == ()
    assert taken.receipt.fidelity.kind is FidelityClass.EXACT


@pytest.mark.parametrize("overflow", ["refuse", "summary"])
def test_what_cannot_be_fitted_is_an_error(
    agent_of: Any, narrow: Any, overflow: str, store: Any
) -> None:
    """Refusing is the default, and a summary has to be there."""
    _, baton = baton_of(agent_of, narrow)
    with pytest.raises(WindowExceeded):
        agent_of("b", engine=narrow).take(baton, LONG, overflow=overflow, max_new_tokens=40)
    assert len(list(store.list(Kind.BATON))) == 1


def test_window_models_drop_nothing(agent_of: Any) -> None:
    """Their windows hold the end only, so no position can be moved."""
    engine = make_engine("gemma3")
    engine.max_tokens = 150
    sender = agent_of("a", engine=engine)
    baton = sender.hand_off(sender.run(LONG, max_new_tokens=9))
    with pytest.raises(WindowExceeded, match="window"):
        agent_of("b", engine=engine).take(baton, "Go on", overflow="drop-oldest", max_new_tokens=60)


def test_an_unknown_strategy_names_the_known_ones(agent_of: Any, narrow: Any) -> None:
    """A slip is an input error with a hint."""
    _, baton = baton_of(agent_of, narrow)
    with pytest.raises(InputError) as caught:
        agent_of("b", engine=narrow).take(baton, "Go on", overflow="shrink", max_new_tokens=40)
    assert "drop-oldest" in caught.value.hint


def test_a_lost_cache_is_read_from_the_ids_that_stay(
    agent_of: Any, narrow: Any, store: Any
) -> None:
    """The fallback of a fitted context is the fitted context, as text."""
    _, baton = baton_of(agent_of, narrow)
    for entry in list(store.list(Kind.SEGMENT)):
        store.delete(entry.key)
    taken = agent_of("b", engine=narrow).take(
        baton, "Go on", overflow="drop-oldest", max_new_tokens=40
    )
    assert taken.receipt.route is Route.TEXT
    assert taken.receipt.context_tokens + 40 == narrow.max_tokens
    assert taken.receipt.reasons[-1].code is ReasonCode.SEGMENT_MISSING
