"""Translate, then polish: the receiver rewrites a sentence of the sender's rough translation."""

from __future__ import annotations

from kvbaton.audit.tasks.facts import some_people, user
from kvbaton.audit.tasks.passages import filled, prose
from kvbaton.audit.tasks.private import Wanted
from kvbaton.audit.tasks.schema import Question, Unit

_READ = "This is a page of a notebook. Some of its lines are about deliveries.\n\n"
_TASK = "\n\nTranslate the lines about deliveries into Chinese."
_GOODS = (
    ("boxes of tea", "箱茶叶"), ("bags of rice", "袋大米"), ("bottles of oil", "瓶食用油"),
    ("rolls of paper", "卷纸"), ("sets of tools", "套工具"), ("pairs of gloves", "双手套"),
    ("books", "本书"), ("chairs", "把椅子"), ("blankets", "条毯子"), ("lamps", "盏灯"),
)  # fmt: skip
_DAYS = (
    ("Monday", "星期一"), ("Tuesday", "星期二"), ("Wednesday", "星期三"), ("Thursday", "星期四"),
    ("Friday", "星期五"),
)  # fmt: skip
_ANSWER_TOKENS = 40


def translate_polish(wanted: Wanted) -> Unit:
    """The quantity in each sentence is private; a polished sentence must still have it."""
    dice, number = wanted.dice, wanted.questions
    people, goods = some_people(dice, number), dice.sample(_GOODS, number)
    days = [dice.choice(_DAYS) for _ in people]
    codes = wanted.values.codes(number)
    rows = list(zip(people, goods, days, codes, strict=True))
    told = [f"On {day[0]} {who} delivers {code} {what[0]}." for who, what, day, code in rows]
    rough = [f"{who} 在{day[1]}的时候是要送去{code}{what[1]}的。" for who, what, day, code in rows]
    room = wanted.tokens - wanted.count(_READ) - wanted.count(_TASK)
    text = filled(dice, wanted.count, room, prose(), told)
    return Unit(
        id=wanted.id,
        kind="translate-polish",
        language="zh",
        messages=(user(_READ + text + _TASK),),
        message="\n".join(rough),
        questions=tuple(
            Question(
                id=f"q{place}",
                text=f"请把译文里关于 {who} 的那一句改写得更通顺，只写这一句。",  # noqa: RUF001
                answers=(code,),
                opening=who,
                max_new_tokens=_ANSWER_TOKENS,
            )
            for place, (who, _, _, code) in enumerate(rows, 1)
        ),
    )
