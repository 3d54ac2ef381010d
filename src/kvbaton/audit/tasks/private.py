"""Private values: unguessable, each given once in a set, and in none of the passages."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from kvbaton.audit.tasks.passages import Count, everything
from kvbaton.errors import InputError

FIRST_CODE, LAST_CODE = 1000, 9999
_ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z")
_VOWELS = ("a", "e", "i", "o", "u")
_ENDS = ("l", "n", "r", "s", "x", "k", "m")
_SYLLABLES = 3
_NUMBER = re.compile(r"\d+")


class Values:
    """Hands out codes of four digits and words that no language has, by a seed.

    The units of a set draw from one of these, so no two units share a value.
    """

    def __init__(self, seed: str) -> None:
        taken = _numbers()
        codes = [str(code) for code in range(FIRST_CODE, LAST_CODE + 1) if str(code) not in taken]
        random.Random(f"{seed} codes").shuffle(codes)
        self._codes = iter(codes)
        self._words = _words(random.Random(f"{seed} words"))

    def code(self) -> str:
        """Four digits, the first of which is not zero.

        Raises
        ------
        InputError
            All codes are given.
        """
        code = next(self._codes, None)
        if code is None:
            raise InputError(
                "there are not enough private codes for so many units and questions",
                hint=f"a set has at most {LAST_CODE - FIRST_CODE} of them",
            )
        return code

    def word(self) -> str:
        """A made-up word of small letters that can be spoken."""
        return next(self._words)


@cache
def _numbers() -> frozenset[str]:
    return frozenset(_NUMBER.findall(everything()))


def _words(dice: random.Random) -> Iterator[str]:
    given: set[str] = set()
    while True:
        word = "".join(dice.choice(_ONSETS) + dice.choice(_VOWELS) for _ in range(_SYLLABLES))
        word += dice.choice(_ENDS)
        if word not in given and word not in everything():
            given.add(word)
            yield word


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a unit is to be.

    Parameters
    ----------
    id
        Of the unit.
    tokens
        About so many tokens of content do the sender's messages have.
    questions
        So many are asked.
    dice
        Of this unit alone.
    values
        Of the whole set.
    count
        Tokens of a text.
    """

    id: str
    tokens: int
    questions: int
    dice: random.Random
    values: Values
    count: Count
