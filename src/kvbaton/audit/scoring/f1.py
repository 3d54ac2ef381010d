"""``f1``: words that the text and an answer share."""

from __future__ import annotations

from collections import Counter

from kvbaton.audit.scoring.judging import Judgement, graded, words
from kvbaton.audit.tasks.schema import Question


def f1(question: Question, text: str) -> Judgement:
    """Harmonic mean of precision and recall over words, each as often as it occurs in both.

    The definition is SQuAD's (Rajpurkar et al. 2016) without its removal of articles; Chinese is
    counted by character.  The best answer counts.
    """
    said = words(text)
    return graded(max((_f1(said, words(answer)) for answer in question.answers), default=0.0))


def _f1(said: list[str], wanted: list[str]) -> float:
    shared = (Counter(said) & Counter(wanted)).total()
    return 2 * shared / (len(said) + len(wanted)) if shared else 0.0
