"""``module:function``: a scorer of the user's own."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

from kvbaton.audit.scoring.judging import Judgement, Scorer, graded
from kvbaton.audit.tasks.schema import Question
from kvbaton.errors import InputError


def own_scorer(target: str) -> Scorer:
    """The scorer that a function of the user's is.

    It is called with the question and the text, and returns a :class:`Judgement`, a boolean, or a
    number from 0 to 1.  Its module must be importable, by ``PYTHONPATH`` for example.

    Raises
    ------
    InputError
        There is no such function, or importing its module fails.
    """
    module, _, name = target.partition(":")
    try:
        function = getattr(importlib.import_module(module), name, None)
    except Exception as error:
        raise InputError(
            f"the scorer's module cannot be imported: {type(error).__name__}: {error}", at=target
        ) from error
    if not callable(function):
        raise InputError(f'there is no function "{name}" in the scorer\'s module', at=target)
    return _checked(target, function)


def _checked(target: str, function: Callable[[Question, str], Any]) -> Scorer:
    def judge(question: Question, text: str) -> Judgement:
        try:
            found = function(question, text)
        except Exception as error:
            raise InputError(
                f"the scorer {target} failed: {type(error).__name__}: {str(error)[:200]}",
                at=question.id,
            ) from error
        return _judgement(target, question, found)

    return judge


def _judgement(target: str, question: Question, found: Any) -> Judgement:
    if isinstance(found, bool):
        return Judgement(float(found), found)
    score = found.score if isinstance(found, Judgement) else found
    try:
        number = float(score)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number <= 1:
        raise InputError(
            f"the scorer {target} gave {str(score)[:80]!r}, no number from 0 to 1", at=question.id
        )
    if isinstance(found, Judgement):
        return Judgement(number, bool(found.right), str(found.note))
    return graded(number)
