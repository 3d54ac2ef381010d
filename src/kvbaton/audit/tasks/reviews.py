"""Code, then review: the receiver mends functions that the sender has drafted; tests decide."""

from __future__ import annotations

from textwrap import indent

from kvbaton.audit.tasks.facts import user
from kvbaton.audit.tasks.passages import code, filled
from kvbaton.audit.tasks.private import Wanted
from kvbaton.audit.tasks.problems import PROBLEMS, Problem
from kvbaton.audit.tasks.schema import Question, Unit

_READ = "This is our module.\n\n```python\n"
_TASK = "\n```\n\nAdd these functions to it.\n"
_ANSWER_TOKENS = 80


def code_review(wanted: Wanted) -> Unit:
    """Specifications with private numbers, drafts with a fault each, and a review of one."""
    problems = []
    for problem in wanted.dice.sample(PROBLEMS, wanted.questions):
        low, high = sorted(wanted.values.codes(2))
        problems.append(problem.filled(low, high))
    task = _TASK + "\n".join(f"- `{one.head}`: {one.specification}." for one in problems)
    room = wanted.tokens - wanted.count(_READ) - wanted.count(task)
    text = filled(wanted.dice, wanted.count, room, code(), [], joint="\n\n\n")
    drafts = "\n\n\n".join(function(one.head, one.draft) for one in problems)
    return Unit(
        id=wanted.id,
        kind="code-review",
        messages=(user(_READ + text + task),),
        message=f"```python\n{drafts}\n```",
        questions=tuple(_question(f"q{place}", one) for place, one in enumerate(problems, 1)),
    )


def function(head: str, body: str) -> str:
    """Source of a function."""
    return f"def {head}:\n{indent(body, '    ')}"


def _question(name: str, problem: Problem) -> Question:
    return Question(
        id=name,
        text=(
            f"The draft of `{problem.name}` is wrong: {problem.review}. "
            "Write the corrected function, and nothing else."
        ),
        answers=(function(problem.head, problem.body),),
        scorer="code",
        opening=f"```python\ndef {problem.head}:\n",
        max_new_tokens=_ANSWER_TOKENS,
        tests="\n".join(f"assert {test.format(f=problem.name)}" for test in problem.tests),
    )
