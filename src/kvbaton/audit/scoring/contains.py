"""``contains``: an answer stands somewhere in the text."""

from __future__ import annotations

import re

from kvbaton.audit.scoring.judging import Judgement, normal
from kvbaton.audit.tasks.schema import Question

_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_NEIGHBOURS = {"digit": r"\d", "letter": r"[^\W_\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"}
"""What may not stand beside an edge of each kind."""


def contains(question: Question, text: str) -> Judgement:
    """Right where an answer stands in the text and is no part of a longer word or number.

    ``1234`` is not in ``12345``, nor ``cat`` in ``category``; Chinese has no spaces, so there an
    answer may stand anywhere, but a number is still a whole number.
    """
    said = normal(text)
    right = any(_stands(normal(answer), said) for answer in question.answers)
    return Judgement(float(right), right)


def _stands(answer: str, said: str) -> bool:
    if not answer:
        return False
    before, behind = _NEIGHBOURS.get(_kind(answer[0]), ""), _NEIGHBOURS.get(_kind(answer[-1]), "")
    pattern = f"{before and f'(?<!{before})'}{re.escape(answer)}{behind and f'(?!{behind})'}"
    return re.search(pattern, said) is not None


def _kind(edge: str) -> str:
    if edge.isdigit():
        return "digit"
    return "letter" if edge.isalpha() and not _WIDE.match(edge) else "other"
