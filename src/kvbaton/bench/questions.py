"""Questions that only somebody who has read a document can answer.

A document names codes of invented people between sentences of filler; its sender has a system
prompt with codes of its own, which the document does not have.  The seed decides everything, and
no two documents of one series share a code.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from kvbaton.errors import InputError

FACTS = 10
"""Codes of a document."""
PRIVATE_FACTS = 5
"""Codes of its sender's system prompt."""

Count = Callable[[str], int]
"""Tokens of a text."""

FIRST_NAMES = (
    "Mira", "Tomas", "Ingrid", "Pavel", "Leila", "Oscar", "Nadia", "Felix", "Greta", "Hugo",
    "Selma", "Viktor", "Paula", "Anton", "Carla", "Emil", "Rosa", "Jonas", "Clara", "Marek",
)  # fmt: skip
LAST_NAMES = (
    "Holm", "Varga", "Lind", "Novak", "Haddad", "Brandt", "Costa", "Weiss", "Moreau", "Silva",
    "Kern", "Dahl", "Rossi", "Fuchs", "Lopez", "Berg", "Marin", "Stein", "Petrov", "Young",
)  # fmt: skip
THINGS = (
    "badge number", "locker code", "parking permit", "phone extension", "safe combination",
    "library card", "alarm code", "tax reference", "network password", "bank PIN",
    "membership number", "flight number", "printer code", "order number", "gate code",
    "insurance policy", "bicycle lock", "mailbox number", "ticket number", "account number",
)  # fmt: skip
FILLER = (
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
_RULES = (
    "You write short sentences.",
    "You answer in the language of the question.",
    "You never guess where you can look something up.",
    "You keep what you are told in the order in which you are told it.",
    "You round amounts of money to whole numbers.",
    "You name the source of a figure where there is one.",
    "You do not repeat a question before you answer it.",
    "You write dates with the year first.",
    "You ask nobody for a decision that is yours.",
    "You leave out what was not asked for.",
    "You spell out an abbreviation when you first use it.",
    "You mention a mistake of yours as soon as you see it.",
)
_INTRODUCTION = "Read these notes.\n\n"
_CODES = tuple(range(1000, 10_000))


@dataclass(frozen=True, slots=True)
class Fact:
    """A code and what it is the code of, such as ``badge number of Mira Holm``."""

    subject: str
    code: str

    @property
    def question(self) -> str:
        """What is asked."""
        return f"What is the {self.subject}?"

    @property
    def opening(self) -> str:
        """The words with which every answer begins."""
        return f"The {self.subject} is"

    @property
    def sentence(self) -> str:
        """The fact as the document states it."""
        return f"The {self.subject} is {self.code}."

    @property
    def retold(self) -> str:
        """The fact in other words."""
        thing, _, person = self.subject.partition(" of ")
        return f"{person}: {thing} {self.code}."


@dataclass(frozen=True, slots=True)
class Document:
    """What a sender reads and says.

    ``system`` is its own system prompt, with the ``private`` facts; ``prompt`` is what it is
    given, with ``facts``; ``summary`` is its answer, which tells them in other words.
    """

    system: str
    prompt: str
    summary: str
    facts: tuple[Fact, ...]
    private: tuple[Fact, ...]


def make_document(
    number: int, count: Count, *, tokens: int, system_tokens: int, seed: int = 1
) -> Document:
    """The document of a number in a series.

    Parameters
    ----------
    number
        From 0 on; documents of one seed share no codes.
    count
        Tokens of a text.
    tokens, system_tokens
        About how many tokens the prompt and the system prompt have; more where the facts alone
        need more.

    Raises
    ------
    InputError
        There are not so many codes.
    """
    facts = FACTS + PRIVATE_FACTS
    if not 0 <= number < len(_CODES) // facts:
        raise InputError(f"there are not enough codes for document {number}")
    codes = random.Random(seed).sample(_CODES, len(_CODES))
    mine = codes[facts * number : facts * (number + 1)]
    dice = random.Random(f"{seed} {number}")
    known = tuple(
        Fact(f"{thing} of {person}", str(code))
        for thing, person, code in zip(
            dice.sample(THINGS, facts), _people(dice, facts), mine, strict=True
        )
    )
    public, private = known[:FACTS], known[FACTS:]
    told = "Here is what the notes say. " + " ".join(fact.retold for fact in public)
    return Document(
        system=_filled(dice, count, system_tokens, _RULES, private),
        prompt=_INTRODUCTION + _filled(dice, count, tokens, FILLER, public),
        summary=told,
        facts=public,
        private=private,
    )


def own_system_prompt(count: Count, *, tokens: int, seed: int = 1) -> str:
    """The system prompt of a receiver, about ``tokens`` long; it holds no codes."""
    return _filled(random.Random(f"{seed} receiver"), count, tokens, _RULES, ())


def _people(dice: random.Random, count: int) -> list[str]:
    """People of whom no two share a name."""
    names = zip(dice.sample(FIRST_NAMES, count), dice.sample(LAST_NAMES, count), strict=True)
    return [f"{first} {last}" for first, last in names]


def _filled(
    dice: random.Random, count: Count, tokens: int, filler: tuple[str, ...], facts: Iterable[Fact]
) -> str:
    """Facts between so many sentences of filler that the text has about ``tokens`` tokens."""
    lines = [fact.sentence for fact in facts]
    have = sum(count(line) + 1 for line in lines)
    sentences = _endless(dice, filler)
    while have < tokens:
        line = next(sentences)
        lines.insert(dice.randrange(len(lines) + 1), line)
        have += count(line)
    return " ".join(lines)


def _endless(dice: random.Random, filler: tuple[str, ...]) -> Iterator[str]:
    while True:
        yield from dice.sample(filler, len(filler))
