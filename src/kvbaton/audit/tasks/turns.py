"""Conversations of several turns: what is asked at the end was said in the beginning."""

from __future__ import annotations

from kvbaton.audit.tasks.facts import fact_question, some_facts, user
from kvbaton.audit.tasks.passages import filled, prose
from kvbaton.audit.tasks.private import Wanted
from kvbaton.audit.tasks.schema import Unit
from kvbaton.types import JSON

_FIRST = "Hello. Please remember what I tell you now, I will need it later.\n\n"
_LAST = "Thank you. Confirm in one short sentence that you have read everything."
_TURNS = 3
_OF_FIRST = 0.5
"""Of the text; the later turns share the rest."""
_REPLIES = (
    "I have read it. Please go on.",
    "Thank you, that is clear to me.",
    "All right. What is next?",
    "I have noted that.",
)
_PARTS = ("Here is a part of the manual.", "This is the last part.")
_MESSAGE_TOKENS = 32


def multi_turn(wanted: Wanted) -> Unit:
    """Facts in the first message, then more parts of a manual turn by turn."""
    facts = some_facts(wanted, wanted.questions)
    replies = wanted.dice.sample(_REPLIES, _TURNS)
    room = wanted.tokens - sum(map(wanted.count, (_FIRST, _LAST, *_PARTS, *replies)))
    early = round(_OF_FIRST * room)
    told = [fact.sentence for fact in facts]
    text = _FIRST + filled(wanted.dice, wanted.count, early, prose(), told)
    later = (room - wanted.count(text)) // len(_PARTS)
    messages: list[JSON] = [user(text), _assistant(replies[0])]
    for part, reply in zip(_PARTS, replies[1:], strict=True):
        text = filled(wanted.dice, wanted.count, later, prose(), [])
        messages += [user(f"{part}\n\n{text}".strip()), _assistant(reply)]
    return Unit(
        id=wanted.id,
        kind="multi-turn",
        messages=(*messages, user(_LAST)),
        questions=tuple(fact_question(number, fact) for number, fact in enumerate(facts, 1)),
        message_tokens=_MESSAGE_TOKENS,
    )


def _assistant(content: str) -> JSON:
    return {"role": "assistant", "content": content}
