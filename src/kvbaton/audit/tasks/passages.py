"""Real text between which private content is put: cut at paragraphs, functions or sentences.

Prose and code come with Python (:mod:`kvbaton.bench.texts`), so a set is the same wherever the same
version of Python makes it; the Chinese texts are ours.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.resources import files

from kvbaton.bench.texts import real_texts

Count = Callable[[str], int]
"""Tokens of a text."""

PARAGRAPH_CHARACTERS = (60, 480)
FUNCTION_CHARACTERS = (60, 1500)
SENTENCE_CHARACTERS = (8, 120)
_MISSES = 60
"""Pieces in a row that may be too long for what is left, before a text counts as full."""

_FUNCTION = re.compile(r"^def .*?(?=^[^\s)#])", re.MULTILINE | re.DOTALL)
_SENTENCE = re.compile(r"[^。！？\n]+[。！？]”?")  # noqa: RUF001
_SPACE = re.compile(r"\s+")
_MARKED_UP = re.compile(r"\s[-=^~*+]{3,}|>>>|::=|\|\s")


@cache
def prose() -> tuple[str, ...]:
    """Paragraphs of a language manual, each on one line."""
    whole = "\n\n".join(text.text for text in real_texts() if text.name.startswith("manual"))
    joined = (_SPACE.sub(" ", part).strip() for part in whole.split("\n\n") if _is_prose(part))
    return _sized(joined, PARAGRAPH_CHARACTERS)


@cache
def code() -> tuple[str, ...]:
    """Functions of a standard library, whole."""
    (whole,) = (text.text for text in real_texts() if text.name == "code")
    found = _sized((part[0].strip() for part in _FUNCTION.finditer(whole)), FUNCTION_CHARACTERS)
    return tuple(piece for piece in found if _is_code(piece))


@cache
def chinese() -> tuple[str, ...]:
    """Sentences of two Chinese texts."""
    data = files("kvbaton") / "data"
    texts = (data / "texts" / "chinese.md", data / "audit" / "chinese.md")
    whole = "\n".join(text.read_text(encoding="utf-8") for text in texts)
    return _sized((found[0].strip() for found in _SENTENCE.finditer(whole)), SENTENCE_CHARACTERS)


@cache
def everything() -> str:
    """All passages in small letters: what private content must not stand in."""
    return "\n".join((*prose(), *code(), *chinese())).lower()


def filled(
    dice: random.Random,
    count: Count,
    tokens: int,
    pieces: Sequence[str],
    private: Sequence[str],
    *,
    joint: str = "\n\n",
) -> str:
    """A text of about ``tokens`` tokens: running pieces with private ones spread among them.

    Parameters
    ----------
    pieces
        Taken in their order from a place that dice choose; one that is too long for what is left
        is passed over.
    private
        All of them are in the text, in their order, however long it gets.
    joint
        Between two pieces.
    """
    between = count(f".{joint}A") - count(".A")
    left = tokens - sum(count(piece) + between for piece in private)
    chosen: list[str] = []
    place, missed = dice.randrange(len(pieces)), 0
    while left > 0 and missed < _MISSES:
        piece = pieces[place % len(pieces)]
        place += 1
        costs = count(piece) + between
        missed = missed + 1 if costs > left else 0
        if costs <= left:
            chosen.append(piece)
            left -= costs
    gaps = range(len(chosen) + 1)
    apart = dice.sample(gaps, len(private)) if len(private) <= len(gaps) else ()
    places = sorted(apart or (dice.choice(gaps) for _ in private))
    for place, piece in reversed(list(zip(places, private, strict=True))):
        chosen.insert(place, piece)
    return joint.join(chosen)


def _is_code(piece: str) -> bool:
    """Whether a function was cut out whole."""
    try:
        ast.parse(piece)
    except SyntaxError:
        return False
    return True


def _is_prose(paragraph: str) -> bool:
    """Whether a paragraph is sentences rather than a heading, a table or an example."""
    lines = paragraph.strip("\n").splitlines()
    if not lines or not lines[0][:1].isalpha() or _MARKED_UP.search(paragraph):
        return False
    return all(line[:1].isalnum() or line[:1] in '"*(' for line in lines) and (
        paragraph.rstrip().endswith((".", "!", "?"))
    )


def _sized(pieces: Iterable[str], characters: tuple[int, int]) -> tuple[str, ...]:
    low, high = characters
    return tuple(dict.fromkeys(piece for piece in pieces if low <= len(piece) <= high))
