"""Conversations of several turns: what is asked at the end was said in the beginning."""

from __future__ import annotations

from kvbaton.audit.tasks.facts import fact_question, some_facts, user
from kvbaton.audit.tasks.passages import filled, prose
from kvbaton.audit.tasks.private import Wanted
from kvbaton.audit.tasks.schema import Unit
from kvbaton.types import JSON

_FIRST = "Hello. Please remember what I tell you now, I will need it later.\n"
_LAST = "Thank you. Confirm in one short sentence that you have read everything."
_TURNS = 3
_REPLIES = (
    "I have read it. Please go on.",
    "Thank you, that is clear to me.",
    "All right. What is next?",
    "I have noted that.",
)
_PARTS = ("Here is a part of the manual.", "And this is another part.", "This is the last part.")
_MESSAGE_TOKENS = 32


def multi_turn(wanted: Wanted) -> Unit:
    """Facts in the first message, then parts of a manual turn by turn."""
    facts = some_facts(wanted, wanted.questions)
    messages: list[JSON] = [
        user(_FIRST + "\n".join(f"- {fact.sentence}" for fact in facts)),
        _assistant("I will remember it."),
    ]
    spoken = (*(message["content"] for message in messages), *_PARTS, *_REPLIES, _LAST)
    room = wanted.tokens - sum(map(wanted.count, spoken))
    for part, reply in zip(_PARTS, wanted.dice.sample(_REPLIES, _TURNS), strict=True):
        text = filled(wanted.dice, wanted.count, room // _TURNS, prose(), [])
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
