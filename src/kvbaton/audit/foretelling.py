"""What an audit would do and could show, said before anything is run."""

from __future__ import annotations

from dataclasses import asdict

from kvbaton.audit.launch import task_file
from kvbaton.audit.plan import Plan
from kvbaton.audit.statistics.power import AIM, power_for, units_needed
from kvbaton.audit.tasks.built_in import BUILT_IN
from kvbaton.audit.tasks.files import read_task_set
from kvbaton.audit.treatments import expanded
from kvbaton.types import JSON

DISCORDANCE = 0.02
"""Share of answers that are taken to turn by chance alone, half of them for the better."""


def foretold(plan: Plan) -> JSON:
    """The plan with its treatments, number of trials and power.

    Returns
    -------
    dict
        ``{"plan", "digest", "trials", "treatments", "power", "units_needed", "warning", "file"}``;
        ``warning`` is empty where the units are enough for the margin.

    Raises
    ------
    InputError
        No task set of that name, or a bad line in a file.
    """
    treatments = expanded(plan.treatments)
    questions = _questions(plan)
    power = power_for(
        plan.units,
        questions,
        margin_points=plan.margin_points,
        icc=plan.icc,
        alpha=plan.alpha,
        expected_discordance=DISCORDANCE,
    )
    needed = units_needed(
        questions=questions,
        margin_points=plan.margin_points,
        icc=plan.icc,
        alpha=plan.alpha,
        lost=DISCORDANCE / 2,
        gained=DISCORDANCE / 2,
    )
    warning = ""
    if power.power < AIM:
        warning = (
            f"{plan.units} units of {questions} questions show equal quality within "
            f"{plan.margin_points:g} points with a chance of {100 * power.power:.0f}% only"
        )
        warning += f"; {needed} units are needed" if needed else ""
    return {
        "plan": plan.to_json(),
        "digest": plan.digest,
        "trials": plan.units * (1 + len(treatments) * (1 + plan.repeats)),
        "treatments": [
            {"name": t.name, "label": t.label, "role": t.role.value} | t.bookkeeping()
            for t in treatments
        ],
        "power": asdict(power),
        "units_needed": needed,
        "warning": warning,
        "file": None,
    }


def _questions(plan: Plan) -> int:
    """Questions of a unit."""
    if plan.tasks in BUILT_IN:
        return plan.questions or BUILT_IN[plan.tasks].questions
    units = read_task_set(task_file(plan)).units
    return max(1, round(sum(len(unit.questions) for unit in units) / len(units)))
