"""Private tables between paragraphs of a manual: order lists with a row per customer."""

from __future__ import annotations

from kvbaton.audit.tasks.facts import CONFIRM, READ, some_people, user
from kvbaton.audit.tasks.passages import filled, prose
from kvbaton.audit.tasks.private import Wanted
from kvbaton.audit.tasks.schema import Question, Unit

_ARTICLES = (
    "oak chair", "brass lamp", "copper kettle", "wool blanket", "glass vase", "steel ladder",
    "paper fan", "leather belt", "cotton shirt", "silver spoon", "garden hose", "iron gate",
    "marble tile", "rubber boot", "velvet curtain", "bamboo mat", "pine shelf", "clay pot",
    "linen towel", "tin bucket",
)  # fmt: skip
_HEAD = "| customer | article | order number |\n| --- | --- | --- |"
_ROWS = 5
_MESSAGE_TOKENS = 32
_ANSWER_TOKENS = 8


def private_tables(wanted: Wanted) -> Unit:
    """A table of customers, articles and order numbers; asked row by row."""
    rows = max(wanted.questions, _ROWS)
    people = some_people(wanted.dice, rows)
    articles = wanted.dice.sample(_ARTICLES, rows)
    keys = [f"{person} | {article}" for person, article in zip(people, articles, strict=True)]
    codes = wanted.values.codes(rows)
    lines = [f"| {key} | {code} |" for key, code in zip(keys, codes, strict=True)]
    table = "\n".join((_HEAD, *lines))
    room = wanted.tokens - wanted.count(READ) - wanted.count(CONFIRM)
    text = filled(wanted.dice, wanted.count, room, prose(), [table])
    asked = wanted.dice.sample(list(zip(people, articles, codes, strict=True)), wanted.questions)
    return Unit(
        id=wanted.id,
        kind="tables",
        messages=(user(READ + text + CONFIRM),),
        questions=tuple(
            Question(
                id=f"q{place}",
                text=f"What is the order number of the {article} for {person}?",
                answers=(code,),
                opening=f"{_HEAD}\n| {person} | {article} |",
                max_new_tokens=_ANSWER_TOKENS,
            )
            for place, (person, article, code) in enumerate(asked, 1)
        ),
        message_tokens=_MESSAGE_TOKENS,
    )
