"""Turns that are given: an agent says what it is told to, as if it had sampled it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvbaton.conversation import Turn, clip


def given_ids(engine: Any, turn: Turn, text: str) -> tuple[int, ...]:
    """Ids of a text as an answer to what a turn has read, with the one that ends the turn."""
    prompt = turn.tokens - len(turn.ids)
    said = engine.tokenizer.encode(text, add_special_tokens=False)
    closing = engine.chat.close([*turn.conversation.ids[:prompt], *said]) or engine.chat.stop_ids
    return (*said, next(iter(closing)))


def put_into_its_mouth(
    engine: Any, turn: Turn, ids: Sequence[int], *, one_by_one: bool = False
) -> Turn:
    """The turn as if its agent had sampled ``ids``; the last one is left pending.

    Parameters
    ----------
    turn
        A new turn of one token, of which nothing but the prompt has been fed.
    one_by_one
        Feed them like sampled ones, one pass each; else all in one pass.
    """
    talk, prompt = turn.conversation, turn.tokens - len(turn.ids)
    fed = tuple(ids[:-1])
    for part in [(token,) for token in fed] if one_by_one else [fed] if fed else []:
        engine.forward(talk.cache, part)
    talk.ids[prompt:] = list(ids)
    talk.spans[:] = [
        *clip(talk.spans, prompt),
        *engine.chat.answer_spans(tuple(ids), first=prompt, inside_reasoning=False),
    ]
    said = engine.chat.text_of([i for i in ids if i not in engine.chat.stop_ids])
    talk.messages[-1] = {"role": "assistant", "content": said}
    return replace(turn, ids=tuple(ids), text=said, tokens=len(talk.ids), cached=talk.cache.length)
