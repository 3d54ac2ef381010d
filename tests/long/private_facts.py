"""Questions that only somebody who has read the context can answer.

Every context is a set of notes with invented people and codes between sentences of filler; the
seed decides everything, and no two contexts share a code.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from kvbaton.bench.questions import FILLER, FIRST_NAMES, LAST_NAMES


@dataclass(frozen=True)
class Notes:
    """Notes with one private fact, the question about it, and its answer."""

    text: str
    question: str
    answer: str


def make_notes(seed: int, *, sentences: int) -> Notes:
    """Notes of ``sentences`` sentences of filler with one fact somewhere between them."""
    dice = random.Random(seed)
    lines = [dice.choice(FILLER) for _ in range(sentences)]
    person = f"{dice.choice(FIRST_NAMES)} {dice.choice(LAST_NAMES)}"
    code = str(dice.randrange(1000, 10000))
    lines.insert(dice.randrange(len(lines) + 1), f"The secret code of {person} is {code}.")
    return Notes(" ".join(lines), f"What is the secret code of {person}?", code)


@dataclass(frozen=True)
class Facts:
    """Notes with several private facts, and a question and an answer for each."""

    text: str
    questions: tuple[tuple[str, str], ...]


def make_facts(seed: int, *, facts: int, sentences: int) -> Facts:
    """Notes of ``sentences`` sentences of filler with ``facts`` facts between them; no two people
    share a first name or a code."""
    dice = random.Random(seed)
    lines = [dice.choice(FILLER) for _ in range(sentences)]
    people = [f"{first} {dice.choice(LAST_NAMES)}" for first in dice.sample(FIRST_NAMES, facts)]
    codes = [str(code) for code in dice.sample(range(1000, 10000), facts)]
    for person, code in zip(people, codes, strict=True):
        lines.insert(dice.randrange(len(lines) + 1), f"The secret code of {person} is {code}.")
    asked = (f"What is the secret code of {person}?" for person in people)
    return Facts(" ".join(lines), tuple(zip(asked, codes, strict=True)))
