"""Private tables between paragraphs of a manual: stock lists with a row per article."""

from __future__ import annotations

from kvbaton.audit.tasks.facts import CONFIRM, READ, user
from kvbaton.audit.tasks.passages import filled, prose
from kvbaton.audit.tasks.private import Wanted
from kvbaton.audit.tasks.schema import Question, Unit

_ARTICLES = (
    "oak chair", "brass lamp", "copper kettle", "wool blanket", "glass vase", "steel ladder",
    "paper fan", "leather belt", "cotton shirt", "silver spoon", "garden hose", "iron gate",
    "marble tile", "rubber boot", "velvet curtain", "bamboo mat", "pine shelf", "clay pot",
    "linen towel", "tin bucket",
)  # fmt: skip
_ROWS = 5
_MESSAGE_TOKENS = 32
_ANSWER_TOKENS = 8


def private_tables(wanted: Wanted) -> Unit:
    """A table of articles and their stock numbers; asked row by row."""
    rows = max(wanted.questions, _ROWS)
    articles = wanted.dice.sample(_ARTICLES, rows)
    codes = wanted.values.codes(rows)
    lines = [f"| {article} | {code} |" for article, code in zip(articles, codes, strict=True)]
    table = "\n".join(("| article | stock number |", "| --- | --- |", *lines))
    room = wanted.tokens - wanted.count(READ) - wanted.count(CONFIRM)
    text = filled(wanted.dice, wanted.count, room, prose(), [table])
    asked = wanted.dice.sample(list(zip(articles, codes, strict=True)), wanted.questions)
    return Unit(
        id=wanted.id,
        kind="tables",
        messages=(user(READ + text + CONFIRM),),
        questions=tuple(
            Question(
                id=f"q{place}",
                text=f"What is the stock number of the {article}?",
                answers=(code,),
                opening=f"| article | stock number |\n| --- | --- |\n| {article} |",
                max_new_tokens=_ANSWER_TOKENS,
            )
            for place, (article, code) in enumerate(asked, 1)
        ),
        message_tokens=_MESSAGE_TOKENS,
    )
