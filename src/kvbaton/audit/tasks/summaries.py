"""Summarize, then answer: questions to which what the sender read hardly matters."""

from __future__ import annotations

from kvbaton.audit.tasks.facts import user
from kvbaton.audit.tasks.passages import filled, prose
from kvbaton.audit.tasks.private import Wanted
from kvbaton.audit.tasks.schema import Question, Relevance, Unit

_READ = "Read this part of the manual of a programming language.\n\n"
_TASK = "\n\nSummarize it in one or two sentences."
_TOPIC = Question(
    id="q1",
    text="Which programming language is the manual about?",
    answers=("Python",),
    opening="The manual is about the programming language",
    max_new_tokens=8,
)
_CAPITALS = (
    ("France", "Paris"), ("Italy", "Rome"), ("Spain", "Madrid"), ("Germany", "Berlin"),
    ("Japan", "Tokyo"), ("Russia", "Moscow"), ("Egypt", "Cairo"), ("Greece", "Athens"),
    ("China", "Beijing"), ("Austria", "Vienna"), ("Portugal", "Lisbon"), ("Poland", "Warsaw"),
    ("Ireland", "Dublin"), ("Hungary", "Budapest"), ("Sweden", "Stockholm"), ("Norway", "Oslo"),
    ("Cuba", "Havana"), ("England", "London"), ("Kenya", "Nairobi"), ("Peru", "Lima"),
)  # fmt: skip
_OPPOSITES = (
    ("hot", "cold"), ("big", "small"), ("up", "down"), ("day", "night"), ("black", "white"),
    ("open", "closed"), ("left", "right"), ("rich", "poor"), ("early", "late"), ("wet", "dry"),
    ("strong", "weak"), ("true", "false"),
)  # fmt: skip
_MESSAGE_TOKENS = 48
_ANSWER_TOKENS = 8


def summarize_answer(wanted: Wanted) -> Unit:
    """The topic, which can be guessed, and then things that everybody knows."""
    room = wanted.tokens - wanted.count(_READ) - wanted.count(_TASK)
    text = filled(wanted.dice, wanted.count, room, prose(), [])
    asked = [
        *((f"the capital of {country}", city) for country, city in _CAPITALS),
        *((f'the opposite of the word "{word}"', other) for word, other in _OPPOSITES),
    ]
    known = [
        Question(
            id=f"q{place}",
            text=f"What is {what}?",
            answers=(answer,),
            opening=f"{what[0].upper()}{what[1:]} is",
            max_new_tokens=_ANSWER_TOKENS,
        )
        for place, (what, answer) in enumerate(wanted.dice.sample(asked, wanted.questions - 1), 2)
    ]
    return Unit(
        id=wanted.id,
        kind="summarize-answer",
        relevance=Relevance.LOW,
        messages=(user(_READ + text + _TASK),),
        questions=(_TOPIC, *known),
        message_tokens=_MESSAGE_TOKENS,
    )
