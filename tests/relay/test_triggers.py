"""Triggers are asked in the decode loop and end the turn in a hand-off."""

from __future__ import annotations

from typing import Any

import pytest

import kvbaton as kb
from kvbaton.errors import InputError
from kvbaton.triggers import Progress
from kvbaton.types import Route

PROMPT = "Hello there, you plan and code."


def test_an_end_of_turn_hands_off_whatever_ended_it(agent_of: Any) -> None:
    """The baton is there when ``run`` returns, and a receiver can take it."""
    turn = agent_of("a").run(PROMPT, max_new_tokens=4, hand_off_when=(kb.end_of_turn("b"),))
    assert (turn.finish, turn.receiver) == ("length", "b")
    assert turn.baton is not None
    assert turn.baton.manifest.terms.receiver == "b"
    taken = agent_of("b").take(turn.baton, "Go on", max_new_tokens=3)
    assert taken.receipt.route is Route.BATON


def test_a_predicate_stops_the_decode_loop_at_once(agent_of: Any) -> None:
    """The loop asks after every token: decoding ends with the token that fires."""
    when = kb.predicate(lambda progress: len(progress.ids) == 3)
    turn = agent_of("a").run(PROMPT, max_new_tokens=20, hand_off_when=(when,))
    assert (turn.finish, len(turn.ids)) == ("hand-off", 3)
    assert turn.baton.manifest.pending_tokens == 1


def test_a_marker_in_the_text_hands_off(agent_of: Any) -> None:
    """As soon as the answer contains the marker, and not before."""
    plain = agent_of("a").run(PROMPT, max_new_tokens=12)
    text = plain.text
    marker = text[len(text) // 2]
    turn = agent_of("b").run(PROMPT, max_new_tokens=12, hand_off_when=(kb.marker(marker),))
    assert turn.finish == "hand-off"
    assert marker in turn.text
    assert plain.ids[: len(turn.ids)] == turn.ids


def test_a_router_names_the_receiver(agent_of: Any) -> None:
    """The first receiver that the router names gets the baton."""

    def route(progress: Progress) -> str | None:
        return "reviewer" if len(progress.ids) >= 2 else None

    turn = agent_of("a").run(PROMPT, max_new_tokens=9, hand_off_when=(kb.router(route),))
    assert (turn.receiver, len(turn.ids)) == ("reviewer", 2)
    assert turn.fired.trigger == "router"


def test_a_tool_call_hands_off() -> None:
    """Complete tool calls fire, half ones do not."""
    trigger = kb.tool_call("runner")
    half = '<tool_call>{"name": "search", "arguments": {"q": 1}'
    assert trigger(Progress(half, (1,), ended=False)) is None
    fired = trigger(Progress(half + "}</tool_call>", (1,), ended=False))
    assert fired is not None
    assert fired.receiver == "runner"


def test_no_trigger_no_baton(agent_of: Any) -> None:
    """A trigger that does not fire leaves an ordinary turn."""
    never = kb.predicate(lambda progress: False)
    turn = agent_of("a").run(PROMPT, max_new_tokens=4, hand_off_when=(never,))
    assert (turn.baton, turn.fired, turn.receiver) == (None, None, "")
    with pytest.raises(InputError):
        kb.marker("")
