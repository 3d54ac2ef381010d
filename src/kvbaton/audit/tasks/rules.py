"""Private instructions: a number of four digits as the right reply to each topic."""

from __future__ import annotations

from kvbaton.audit.tasks.facts import CONFIRM, user
from kvbaton.audit.tasks.passages import filled, prose
from kvbaton.audit.tasks.private import Wanted
from kvbaton.audit.tasks.schema import Question, Unit

_READ = "Follow these instructions for replies to guests.\n\n"
_TOPICS = (
    "refunds for meals", "the parking garage", "a late breakfast", "slow wifi", "dogs in the room",
    "more towels", "airport taxis", "lost keys", "heavy luggage", "the laundry service",
    "birthday cakes", "theatre tickets",
)  # fmt: skip
_MESSAGE_TOKENS = 32
_ANSWER_TOKENS = 8


def instructions(wanted: Wanted) -> Unit:
    """A number for each topic, to be given as the reply whenever a guest asks about it."""
    topics = wanted.dice.sample(_TOPICS, wanted.questions)
    codes = wanted.values.codes(wanted.questions)
    told = [
        f"The right reply to a guest who asks about {topic} is {code}."
        for topic, code in zip(topics, codes, strict=True)
    ]
    room = wanted.tokens - wanted.count(_READ) - wanted.count(CONFIRM)
    text = filled(wanted.dice, wanted.count, room, prose(), told)
    return Unit(
        id=wanted.id,
        kind="instructions",
        messages=(user(_READ + text + CONFIRM),),
        questions=tuple(
            Question(
                id=f"q{place}",
                text=f"A guest asks about {topic}. Answer as you were instructed.",
                answers=(code,),
                opening=f"The right reply to a guest who asks about {topic} is",
                max_new_tokens=_ANSWER_TOKENS,
            )
            for place, (topic, code) in enumerate(zip(topics, codes, strict=True), 1)
        ),
        message_tokens=_MESSAGE_TOKENS,
    )
