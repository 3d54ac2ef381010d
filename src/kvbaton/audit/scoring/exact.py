"""``exact``: the same words as an answer, and no others."""

from __future__ import annotations

from kvbaton.audit.scoring.judging import Judgement, words
from kvbaton.audit.tasks.schema import Question


def exact(question: Question, text: str) -> Judgement:
    """Right where the words are those of an answer, whatever case and punctuation they have."""
    said = words(text)
    right = bool(said) and any(said == words(answer) for answer in question.answers)
    return Judgement(float(right), right)
