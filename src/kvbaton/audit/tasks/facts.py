"""Private facts between paragraphs of a manual: codes of invented people."""

from __future__ import annotations

import random

from kvbaton.audit.tasks.passages import chinese, filled, prose
from kvbaton.audit.tasks.private import Wanted
from kvbaton.audit.tasks.schema import Question, Unit
from kvbaton.bench.questions import FIRST_NAMES, LAST_NAMES, THINGS, Fact
from kvbaton.types import JSON

READ = "Read these notes.\n\n"
CONFIRM = "\n\nConfirm in one short sentence that you have read the notes."
_READ_ZH = "请阅读下面的笔记。\n\n"
_CONFIRM_ZH = "\n\n请用一句话确认你已经读完。"
_MESSAGE_TOKENS = 32
_ANSWER_TOKENS = 8
_NUMBERED = tuple(thing for thing in THINGS if thing.endswith(("number", "code")))

SURNAMES_ZH = tuple("王李张刘陈杨黄赵吴周徐孙马朱胡郭何林罗高")
GIVEN_NAMES_ZH = (
    "明远", "雅琴", "志强", "秀兰", "建国", "丽华", "子涵", "文博", "晓燕", "海涛",
    "玉梅", "俊杰", "思雨", "国栋", "春花", "永刚", "佳怡", "天宇", "淑芬", "立新",
)  # fmt: skip
THINGS_ZH = (
    "工号", "储物柜密码", "停车证号", "分机号", "保险箱密码", "借书证号", "报警码", "税号",
    "网络密码", "会员号", "航班号", "打印机代码", "订单号", "门禁码", "保单号", "车锁密码",
    "信箱号", "票号", "账号", "合同号",
)  # fmt: skip


def private_facts(wanted: Wanted) -> Unit:
    """English: ``The badge number of Mira Holm is 4821.``, asked person by person."""
    facts = some_facts(wanted, wanted.questions)
    room = wanted.tokens - wanted.count(READ) - wanted.count(CONFIRM)
    told = [fact.sentence for fact in facts]
    text = filled(wanted.dice, wanted.count, room, prose(), told)
    return Unit(
        id=wanted.id,
        kind="facts",
        messages=(user(READ + text + CONFIRM),),
        questions=tuple(fact_question(number, fact) for number, fact in enumerate(facts, 1)),
        message_tokens=_MESSAGE_TOKENS,
    )


def private_facts_zh(wanted: Wanted) -> Unit:
    """Chinese: the same with Chinese names between Chinese sentences."""
    dice, number = wanted.dice, wanted.questions
    people = [
        f"{surname}{given}"
        for surname, given in zip(
            dice.sample(SURNAMES_ZH, number), dice.sample(GIVEN_NAMES_ZH, number), strict=True
        )
    ]
    subjects = [
        f"{person}的{thing}"
        for person, thing in zip(people, dice.sample(THINGS_ZH, number), strict=True)
    ]
    codes = wanted.values.codes(number)
    told = [f"{subject}是{code}。" for subject, code in zip(subjects, codes, strict=True)]
    room = wanted.tokens - wanted.count(_READ_ZH) - wanted.count(_CONFIRM_ZH)
    text = filled(dice, wanted.count, room, chinese(), told, joint="\n")
    return Unit(
        id=wanted.id,
        kind="facts",
        language="zh",
        messages=(user(_READ_ZH + text + _CONFIRM_ZH),),
        questions=tuple(
            Question(
                id=f"q{place}",
                text=f"{subject}是多少？",  # noqa: RUF001
                answers=(code,),
                opening=f"{subject}是",
                max_new_tokens=_ANSWER_TOKENS,
            )
            for place, (subject, code) in enumerate(zip(subjects, codes, strict=True), 1)
        ),
        message_tokens=_MESSAGE_TOKENS,
    )


def some_facts(wanted: Wanted, number: int) -> list[Fact]:
    """Facts about so many people, of whom no two share a name or a thing."""
    things = wanted.dice.sample(_NUMBERED, number)
    people, codes = some_people(wanted.dice, number), wanted.values.codes(number)
    return [
        Fact(f"{thing} of {person}", code)
        for thing, person, code in zip(things, people, codes, strict=True)
    ]


def some_people(dice: random.Random, number: int) -> list[str]:
    """People of whom no two share a name."""
    names = zip(dice.sample(FIRST_NAMES, number), dice.sample(LAST_NAMES, number), strict=True)
    return [f"{first} {last}" for first, last in names]


def fact_question(number: int, fact: Fact) -> Question:
    """A question for a fact's code; the answer begins by naming what it is of."""
    return Question(
        id=f"q{number}",
        text=fact.question,
        answers=(fact.code,),
        opening=fact.opening,
        max_new_tokens=_ANSWER_TOKENS,
    )


def user(content: str) -> JSON:
    """A chat message of the user."""
    return {"role": "user", "content": content}
