"""From a plan to a running audit, and from its records to results."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvbaton.audit.analysis.lengths import ladders
from kvbaton.audit.plan import Plan
from kvbaton.audit.tasks.built_in import BUILT_IN, built_in_set
from kvbaton.audit.tasks.files import read_task_set
from kvbaton.audit.tasks.schema import TaskSet
from kvbaton.errors import InputError
from kvbaton.policy.break_even import BreakEven, break_even
from kvbaton.policy.profit import BreakEvenRecord, Host, ProfitMap
from kvbaton.types import JSON


def tasks_for(plan: Plan, tokenizer: Any, *, made_for: str) -> TaskSet:
    """The task set that a plan names: built in, or a file.

    Raises
    ------
    InputError
        Nothing of that name; a bad line of a file; fewer units than the plan wants.
    """
    if plan.tasks in BUILT_IN:
        return built_in_set(
            plan.tasks,
            units=plan.units,
            questions=plan.questions or None,
            lengths=plan.lengths or None,
            count=lambda text: len(tokenizer.encode(text, add_special_tokens=False)),
            seed=plan.seed,
            made_for=made_for,
        )
    path = task_file(plan)
    tasks = read_task_set(path)
    if len(tasks.units) < plan.units:
        raise InputError(
            f"the task set has {len(tasks.units)} units, the plan wants {plan.units}",
            at=str(path),
            hint=f"--units {len(tasks.units)}",
        )
    return tasks


def task_file(plan: Plan) -> Path:
    """The file of tasks that a plan names.

    Raises
    ------
    InputError
        There is none; or the plan names questions or lengths, which are what stands in it.
    """
    path = Path(plan.tasks)
    if not path.is_file():
        raise InputError(
            f"no task set is called {plan.tasks[:60]!r}, and there is no such file",
            at="$.tasks",
            hint=f"known: {', '.join(sorted(BUILT_IN))}",
        )
    for name, value in (("questions", plan.questions), ("lengths", plan.lengths)):
        if value:
            raise InputError(f"a task file has its own {name}", at=f"$.{name}", hint="leave it out")
    return path


def break_even_record(header: JSON, records: Sequence[JSON]) -> BreakEvenRecord | None:
    """Break-even lengths as the policy reads them; None where no lengths were measured."""
    found = ladders(records)
    if not found:
        return None
    seed, host, pair = int(header["seed"]), header["environment"], str(header["pair"])
    routes: tuple[BreakEven, ...] = tuple(
        break_even(points, route=route, seed=seed) for route, points in found.items()
    )
    return BreakEvenRecord(
        function=str(header["function"]),
        pair=pair,
        dtype=str(header["dtype"]),
        host=Host(str(host["cpu"]), int(host["cores"])),
        created_s=int(time.time()),
        routes=routes,
        profit=ProfitMap.of({(pair, one.route): one for one in routes}),
    )
