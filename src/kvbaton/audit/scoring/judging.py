"""What a scorer says of an answer, and what it compares."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from kvbaton.audit.tasks.schema import Question

RIGHT_FROM = 0.5
"""Score from which an answer that can be partly right counts as right."""

_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W_]+", re.UNICODE)
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Judgement:
    """What an answer is worth.

    Parameters
    ----------
    score
        From 0 to 1.
    right
        Whether it counts as right.
    note
        Why it is not, where that is worth saying.
    """

    score: float
    right: bool
    note: str = ""


Scorer = Callable[[Question, str], Judgement]
"""Judges the text with which a question was answered; the opening is not part of the text."""


def graded(score: float) -> Judgement:
    """Of a score between 0 and 1: right from one half on."""
    return Judgement(score, score >= RIGHT_FROM)


def normal(text: str) -> str:
    """A text in compatibility form, in small letters, with single spaces."""
    return _SPACE.sub(" ", unicodedata.normalize("NFKC", text).casefold()).strip()


def words(text: str) -> list[str]:
    """Words of a text in their normal form, without punctuation; each Chinese character is one."""
    parted = _WIDE.sub(lambda found: f" {found[0]} ", normal(text))
    return _WORD.findall(parted)
