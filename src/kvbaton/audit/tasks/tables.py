"""A private order list between paragraphs of a manual: a customer and a number in each row."""

from __future__ import annotations

from kvbaton.audit.tasks.facts import CONFIRM, READ, some_people, user
from kvbaton.audit.tasks.passages import filled, prose
from kvbaton.audit.tasks.private import Wanted
from kvbaton.audit.tasks.schema import Question, Unit

_HEAD = "customer,order number"
_ROWS = 5
_MESSAGE_TOKENS = 32
_ANSWER_TOKENS = 8


def private_tables(wanted: Wanted) -> Unit:
    """One list with two columns, customers and order numbers; asked for the numbers, row by row."""
    rows = max(wanted.questions, _ROWS)
    people = some_people(wanted.dice, rows)
    codes = wanted.values.codes(rows)
    lines = [f"{person},{code}" for person, code in zip(people, codes, strict=True)]
    table = "\n".join((_HEAD, *lines))
    room = wanted.tokens - wanted.count(READ) - wanted.count(CONFIRM)
    text = filled(wanted.dice, wanted.count, room, prose(), [table])
    asked = wanted.dice.sample(list(zip(people, codes, strict=True)), wanted.questions)
    return Unit(
        id=wanted.id,
        kind="tables",
        messages=(user(READ + text + CONFIRM),),
        questions=tuple(
            Question(
                id=f"q{place}",
                text=f"What is the order number of {person}?",
                answers=(code,),
                opening=f"{_HEAD}\n{person},",
                max_new_tokens=_ANSWER_TOKENS,
            )
            for place, (person, code) in enumerate(asked, 1)
        ),
        message_tokens=_MESSAGE_TOKENS,
    )
