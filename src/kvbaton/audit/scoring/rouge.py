"""``rouge-l``: the longest sequence of words that the text and an answer have in common."""

from __future__ import annotations

from collections.abc import Sequence

from kvbaton.audit.scoring.judging import Judgement, graded, words
from kvbaton.audit.tasks.schema import Question

MAX_WORDS = 2000
"""Of a text; the rest is not compared, as time grows with the product of both lengths."""


def rouge_l(question: Question, text: str) -> Judgement:
    """ROUGE-L of a sentence (Lin 2004): F of the longest common subsequence, with beta = 1.

    Precision is its length over the text's, recall over the answer's, both in words; Chinese is
    counted by character; nothing is stemmed.  The best answer counts.
    """
    said = words(text)[:MAX_WORDS]
    return graded(max((_f(said, words(answer)) for answer in question.answers), default=0.0))


def _f(said: list[str], wanted: list[str]) -> float:
    common = common_subsequence(said, wanted[:MAX_WORDS])
    return 2 * common / (len(said) + len(wanted[:MAX_WORDS])) if common else 0.0


def common_subsequence(one: Sequence[str], other: Sequence[str]) -> int:
    """Length of the longest sequence that both contain in its order, gaps allowed."""
    row = [0] * (len(other) + 1)
    for word in one:
        diagonal = 0
        for place, there in enumerate(other, 1):
            above = row[place]
            row[place] = diagonal + 1 if word == there else max(above, row[place - 1])
            diagonal = above
    return row[-1]
