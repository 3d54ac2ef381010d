"""Built-in task sets: made by a seed, over text that every installation has."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from kvbaton.audit.tasks.files import digest_of
from kvbaton.audit.tasks.passages import Count
from kvbaton.audit.tasks.private import Values, Wanted
from kvbaton.audit.tasks.schema import TaskSet, Unit
from kvbaton.errors import InputError

MOST_QUESTIONS = 10
MOST_UNITS = 1000


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of task set.

    Parameters
    ----------
    about
        What it is, in a sentence.
    make
        ``module:function`` that makes a unit.
    lengths
        Default lengths in tokens, taken in turn by the units.
    questions
        Asked of a unit by default.
    least_tokens
        Shorter ones do not hold the questions' content.
    version
        Rises whenever the same seed would give another set.
    """

    about: str
    make: str
    lengths: tuple[int, ...] = (256, 512, 1024)
    questions: int = 5
    least_tokens: int = 200
    version: int = 1

    def maker(self) -> Callable[[Wanted], Unit]:
        """The function that makes a unit."""
        module, _, name = self.make.partition(":")
        made: Callable[[Wanted], Unit] = getattr(importlib.import_module(module), name)
        return made


def _family(place: str, about: str, **options: object) -> Family:
    return Family(about, f"kvbaton.audit.tasks.{place}", **options)  # type: ignore[arg-type]


BUILT_IN: Mapping[str, Family] = MappingProxyType(
    {
        "private-facts": _family(
            "facts:private_facts", "Codes of invented people between paragraphs of a manual."
        ),
        "private-facts-zh": _family(
            "facts:private_facts_zh", "Codes of invented people between Chinese sentences."
        ),
        "private-tables": _family(
            "tables:private_tables",
            "A list of customers and their order numbers between paragraphs of a manual.",
        ),
        "code-symbols": _family(
            "symbols:code_symbols", "Constants, functions and defaults between real functions."
        ),
        "instructions": _family(
            "rules:instructions",
            "Numbers that only the sender was told to reply with, one for each topic.",
        ),
        "multi-turn": _family(
            "turns:multi_turn", "Facts of the first of several turns, asked after the last."
        ),
        "translate-polish": _family(
            "translations:translate_polish",
            "Sentences of a rough translation to be rewritten, with quantities to be kept.",
        ),
        "summarize-answer": _family(
            "summaries:summarize_answer",
            "Low relevance: what everybody knows, behind a summary of a manual.",
        ),
        "code-review": _family(
            "reviews:code_review",
            "Functions of the sender with a fault each, to be corrected; tests decide.",
            questions=2,
        ),
        "nothing-needed": _family(
            "nothing:nothing_needed",
            "Negative control: each question carries all that its answer needs.",
        ),
    }
)
"""Families by name."""

DEFAULT = "private-facts"


def built_in_set(
    name: str = DEFAULT,
    *,
    units: int,
    count: Count,
    questions: int | None = None,
    lengths: tuple[int, ...] | None = None,
    seed: int = 1,
    made_for: str = "",
) -> TaskSet:
    """A set of a family; the same arguments give the same bytes.

    Units take the lengths in turn.  A larger set of the same seed begins with the smaller one.

    Parameters
    ----------
    name
        One of ``BUILT_IN``.
    units
        How many.
    count
        Tokens of a text, without special tokens.
    questions
        Of each unit; by default what the family says.
    lengths
        Tokens of the contents of a unit's messages; by default what the family says.
    made_for
        Name of the tokenizer that counts.

    Raises
    ------
    InputError
        There is no such family, or a number is out of range.
    """
    family = BUILT_IN.get(name)
    if family is None:
        raise InputError(
            f'no built-in task set is called "{name}"', hint=f"known: {', '.join(sorted(BUILT_IN))}"
        )
    asked = family.questions if questions is None else questions
    sizes = family.lengths if lengths is None else tuple(lengths)
    _check(units, asked, sizes, family)
    make, values = family.maker(), Values(f"{name} {seed}")
    made = [
        make(
            Wanted(
                id=f"u{number + 1:03d}",
                tokens=sizes[number % len(sizes)],
                questions=asked,
                dice=random.Random(f"{name} {seed} {number}"),
                values=values,
                count=count,
            )
        )
        for number in range(units)
    ]
    found = TaskSet(
        name, family.version, tuple(made), seed=seed, about=family.about, made_for=made_for
    )
    return replace(found, digest=digest_of(found))


def _check(units: int, questions: int, lengths: tuple[int, ...], family: Family) -> None:
    if not 1 <= units <= MOST_UNITS:
        raise InputError(f"a built-in set has 1 to {MOST_UNITS} units, not {units}")
    if not 1 <= questions <= MOST_QUESTIONS:
        raise InputError(f"a unit has 1 to {MOST_QUESTIONS} questions, not {questions}")
    if not lengths:
        raise InputError("there is no length to make units of")
    if min(lengths) < family.least_tokens:
        raise InputError(
            f"{min(lengths)} tokens are too few for this set",
            hint=f"give at least {family.least_tokens}",
        )
