"""Private names and constants of a code base, between real functions."""

from __future__ import annotations

from kvbaton.audit.tasks.facts import user
from kvbaton.audit.tasks.passages import code, filled
from kvbaton.audit.tasks.private import Wanted
from kvbaton.audit.tasks.schema import Question, Unit

_READ = "Read this module.\n\n```python\n"
_CONFIRM = "\n```\n\nConfirm in one short sentence that you have read the module."
_THINGS = (
    "ledger", "parcel", "invoice", "sensor", "booking", "garage", "voucher", "turbine", "orchard",
    "harbour", "clinic", "depot",
)  # fmt: skip
_LIMITS = ("retry_limit", "page_size", "cache_slots", "port", "batch_size")
_VERBS = ("close", "archive", "refresh", "lock", "print", "count")
_OPTIONS = ("depth", "budget", "timeout_ms", "stride", "weight")
_MESSAGE_TOKENS = 32


def code_symbols(wanted: Wanted) -> Unit:
    """Constants, names of functions and defaults of parameters, asked in turn."""
    things = wanted.dice.sample(_THINGS, wanted.questions)
    codes = iter(wanted.values.codes(wanted.questions))
    kinds = (_constant, _function, _default)
    told: list[str] = []
    questions: list[Question] = []
    for place, thing in enumerate(things):
        text, question = kinds[place % 3](wanted, f"q{place + 1}", thing, next(codes))
        told.append(text)
        questions.append(question)
    room = wanted.tokens - wanted.count(_READ) - wanted.count(_CONFIRM)
    text = filled(wanted.dice, wanted.count, room, code(), told, joint="\n\n\n")
    return Unit(
        id=wanted.id,
        kind="code-symbols",
        messages=(user(_READ + text + _CONFIRM),),
        questions=tuple(questions),
        message_tokens=_MESSAGE_TOKENS,
    )


def _constant(wanted: Wanted, name: str, thing: str, value: str) -> tuple[str, Question]:
    constant = f"{thing}_{wanted.dice.choice(_LIMITS)}".upper()
    return f"{constant} = {value}", Question(
        id=name,
        text=f"What is the value of the constant {constant} in the module?",
        answers=(value,),
        opening=f"{constant} =",
        max_new_tokens=8,
    )


def _function(wanted: Wanted, name: str, thing: str, value: str) -> tuple[str, Question]:
    verb, function = wanted.dice.choice(_VERBS), wanted.values.word()
    remark = f"# {verb.capitalize()} the {thing}:\ndef "
    return f"{remark}{function}({thing}):\n    return {thing}.{verb}()", Question(
        id=name,
        text=f"Which function of the module is there to {verb} the {thing}?",
        answers=(function,),
        opening=f"```python\n{remark}",
        max_new_tokens=12,
    )


def _default(wanted: Wanted, name: str, thing: str, value: str) -> tuple[str, Question]:
    option, verb = wanted.dice.choice(_OPTIONS), wanted.dice.choice(_VERBS)
    function = f"{verb}_{thing}"
    return f"def {function}({thing}, *, {option}={value}):\n    return {thing}.{verb}({option})", (
        Question(
            id=name,
            text=f"What is the default of the parameter {option} of {function}?",
            answers=(value,),
            opening=f"def {function}({thing}, *, {option}=",
            max_new_tokens=8,
        )
    )
