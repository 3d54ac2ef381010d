"""Private values: unguessable, each given once in a set, and in none of the passages."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from kvbaton.audit.tasks.passages import Count, everything
from kvbaton.errors import InputError

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
        codes = [code for code in map(str, range(1000, 10_000)) if len(set(code)) == len(code)]
        self._codes = [code for code in codes if code not in _numbers()]
        random.Random(f"{seed} codes").shuffle(self._codes)
        self._words = _words(random.Random(f"{seed} words"))

    def codes(self, number: int) -> list[str]:
        """So many codes, for one unit: four different digits, no two next to each other in two.

        A small model that copies a code cannot slip from one into another of its unit.

        Raises
        ------
        InputError
            There are not enough left.
        """
        chosen: list[str] = []
        pairs: set[str] = set()
        for code in self._codes:
            mine = {code[place : place + 2] for place in range(3)}
            if pairs.isdisjoint(mine):
                chosen.append(code)
                pairs |= mine
            if len(chosen) == number:
                break
        if len(chosen) < number:
            raise InputError("there are not enough private codes for so many units and questions")
        self._codes = [code for code in self._codes if code not in chosen]
        return chosen

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
