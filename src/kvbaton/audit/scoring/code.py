"""``code``: the code of an answer passes the question's tests."""

from __future__ import annotations

import re

from kvbaton.audit.scoring.judging import Judgement
from kvbaton.audit.scoring.sandbox import run_tests
from kvbaton.audit.tasks.schema import Question
from kvbaton.errors import InputError

_FENCED = re.compile(r"```[^\n`]*\n(.*?)(?:^```|\Z)", re.DOTALL | re.MULTILINE)


def code(question: Question, text: str) -> Judgement:
    """Right where the tests behind the code run to their end without an error.

    The opening belongs to the code.  What is tested is the first fenced block, or all of it where
    there is none; lines at the end that were cut off are left out.

    Raises
    ------
    InputError
        The question has no tests, or this system has no limits to run them under.
    """
    if not question.tests.strip():
        raise InputError("a question for code needs tests", at=question.id)
    outcome = run_tests(extracted(question.opening + text), question.tests)
    return Judgement(float(outcome.passed), outcome.passed, outcome.note)


def extracted(text: str) -> str:
    """The code of a text: its first fenced block, closed or not, or the text itself."""
    found = _FENCED.search(text)
    return found[1] if found else text
