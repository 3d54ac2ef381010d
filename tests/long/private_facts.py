"""Questions that only somebody who has read the context can answer.

Every context is a set of notes with invented people and codes between sentences of filler; the
seed decides everything, and no two contexts share a code.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

_FIRST = (
    "Mira", "Tomas", "Ingrid", "Pavel", "Leila", "Oscar", "Nadia", "Felix", "Greta", "Hugo",
    "Selma", "Viktor", "Paula", "Anton", "Carla", "Emil", "Rosa", "Jonas", "Clara", "Marek",
)  # fmt: skip
_LAST = (
    "Holm", "Varga", "Lind", "Novak", "Haddad", "Brandt", "Costa", "Weiss", "Moreau", "Silva",
    "Kern", "Dahl", "Rossi", "Fuchs", "Lopez", "Berg", "Marin", "Stein", "Petrov", "Young",
)  # fmt: skip
_FILLER = (
    "The office opens at eight in the morning.",
    "Visitors sign in at the front desk.",
    "The meeting room on the second floor was painted last week.",
    "Deliveries arrive through the side gate.",
    "The coffee machine is cleaned every evening.",
    "Bicycles may be left in the yard behind the building.",
    "The heating is switched off in May.",
    "Fire drills take place twice a year.",
    "The canteen serves soup on Mondays.",
    "Plants in the hall are watered by the caretaker.",
    "Printers are refilled on Fridays.",
    "The windows on the north side stay closed in winter.",
)


@dataclass(frozen=True)
class Notes:
    """Notes with one private fact, the question about it, and its answer."""

    text: str
    question: str
    answer: str


def make_notes(seed: int, *, sentences: int) -> Notes:
    """Notes of ``sentences`` sentences of filler with one fact somewhere between them."""
    dice = random.Random(seed)
    lines = [dice.choice(_FILLER) for _ in range(sentences)]
    person = f"{dice.choice(_FIRST)} {dice.choice(_LAST)}"
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
    lines = [dice.choice(_FILLER) for _ in range(sentences)]
    people = [f"{first} {dice.choice(_LAST)}" for first in dice.sample(_FIRST, facts)]
    codes = [str(code) for code in dice.sample(range(1000, 10000), facts)]
    for person, code in zip(people, codes, strict=True):
        lines.insert(dice.randrange(len(lines) + 1), f"The secret code of {person} is {code}.")
    asked = (f"What is the secret code of {person}?" for person in people)
    return Facts(" ".join(lines), tuple(zip(asked, codes, strict=True)))
