"""The negative control: each question carries all that its answer needs."""

from __future__ import annotations

from dataclasses import replace

from kvbaton.audit.tasks.facts import CONFIRM, READ, fact_question, some_facts, user
from kvbaton.audit.tasks.passages import filled, prose
from kvbaton.audit.tasks.private import Wanted
from kvbaton.audit.tasks.schema import Relevance, Unit

_MESSAGE_TOKENS = 32


def nothing_needed(wanted: Wanted) -> Unit:
    """The sender reads a manual; the receiver is told a fact and asked for it at once."""
    facts = some_facts(wanted, wanted.questions)
    room = wanted.tokens - wanted.count(READ) - wanted.count(CONFIRM)
    text = filled(wanted.dice, wanted.count, room, prose(), [])
    return Unit(
        id=wanted.id,
        kind="nothing-needed",
        relevance=Relevance.NONE,
        messages=(user(READ + text + CONFIRM),),
        questions=tuple(
            replace(fact_question(number, fact), text=f"{fact.sentence} {fact.question}")
            for number, fact in enumerate(facts, 1)
        ),
        message_tokens=_MESSAGE_TOKENS,
    )
