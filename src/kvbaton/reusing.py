"""Reusing the beginning of a prompt: of an agent's own cache, or of what the store holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvbaton.account import Account
from kvbaton.backing import covered
from kvbaton.conversation import Conversation, Turn
from kvbaton.decoding import Answer, Decoding, decode
from kvbaton.prompts import Prompt
from kvbaton.relay import Relay
from kvbaton.taking import require_window, room_for
from kvbaton.types import Reason, ReasonCode, Role, SegmentRef, common_prefix


def own_prefix(
    relay: Relay,
    known: Conversation,
    agreed: int,
    wanted: Prompt,
    how: Decoding,
    account: Account,
) -> Any:
    """A copy of what a diverging prompt has in common with the agent's own cache."""
    account.first_divergence = account.reused = agreed
    account.parents, account.hops, account.signers = known.parents, known.hops, known.signers
    if said_before(known, agreed):
        account.built_on = known.built_on
    account.held = covered(known.stored(), agreed)
    account.inherit(known.inherited, agreed)
    room = room_for(relay.engine, wanted, agreed, how)
    return relay.copy_prefix(known.cache, agreed, room=room)


def said_before(known: Conversation, agreed: int) -> bool:
    """Whether the first positions of a conversation hold more than what any prompt may begin with:
    an answer, what was taken from others, or what is not exact."""
    if any(one.run.first < agreed for one in known.inherited):
        return True
    roles = (Role.GENERATED, Role.HISTORY, Role.REASONING)
    return any(span.role in roles and span.run.stop <= agreed for span in known.spans)


def stored_prefix(
    relay: Relay,
    found: Sequence[SegmentRef],
    tokens: int,
    wanted: Prompt,
    how: Decoding,
    account: Account,
    *,
    deadline_s: float,
) -> Any:
    """The beginning of the prompt, if the store holds it; otherwise None."""
    if not found:
        return None
    room = room_for(relay.engine, wanted, tokens, how)
    taken = relay.attach(found, wanted.ids, tokens, room=room, deadline_s=deadline_s)
    cache = account.enter(taken)
    if cache is not None:
        account.reasons = (
            Reason(ReasonCode.PREFIX_HIT, f"the store holds the first {tokens} tokens"),
        )
    return cache


def answer_aside(relay: Relay, turn: Turn, asked: Sequence[int], how: Decoding) -> Answer:
    """An answer behind a turn that leaves the conversation as it is.

    Raises
    ------
    WindowExceeded
        There is no room left to answer in.
    """
    engine, talk, start = relay.engine, turn.conversation, 0
    wanted = Prompt((*talk.ids[: turn.tokens], *asked), (), ())
    require_window(engine, wanted)
    room = room_for(engine, wanted, turn.cached, how)
    if engine.layout.window_layers:
        cache = engine.new_cache(turn.cached + room)
    else:
        cache, start = relay.copy_prefix(talk.cache, turn.cached, room=room), turn.cached
    return decode(engine, cache, wanted.ids[start:], how, after=start)


def covers(known: Conversation, ids: Sequence[int]) -> bool:
    """Whether ``ids`` begin with everything that the conversation's cache holds, and go on."""
    cached = known.cache.length
    return len(ids) > cached and common_prefix(known.ids, ids) >= cached
