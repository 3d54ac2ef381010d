"""Run folders, read: the plan, the trials, and the tasks where they are beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvbaton.audit.analysis.verdicts import Rule
from kvbaton.audit.journal import PLAN, TASKS, TRIALS, read_trials
from kvbaton.audit.plan import read_plan
from kvbaton.audit.tasks.files import read_task_set
from kvbaton.audit.treatments import treatment
from kvbaton.errors import InputError
from kvbaton.types import JSON


@dataclass(frozen=True, slots=True)
class Compared:
    """A treatment as the analysis sees it."""

    name: str
    label: str
    role: str
    reference: str

    @property
    def is_reference(self) -> bool:
        """Whether others are compared with it."""
        return self.name == self.reference


@dataclass(frozen=True, slots=True)
class Asked:
    """A question's words and what is right."""

    text: str
    expected: str | None


@dataclass(frozen=True, slots=True)
class Run:
    """One audit of one pair of models.

    Parameters
    ----------
    plan
        As ``plan.json`` has it.
    header
        First line of the trials.
    records
        The others.
    asked
        (unit, question) -> its words; empty where the tasks are not kept beside the trials.
    """

    plan: JSON
    header: JSON
    records: Sequence[JSON]
    asked: Mapping[tuple[str, str], Asked] = field(default_factory=dict)

    @property
    def pair(self) -> str:
        """Models of sender and receiver, with dtype."""
        return str(self.header.get("pair", ""))

    @property
    def task_key(self) -> str:
        """What makes units of two runs the same ones."""
        tasks = self.header.get("tasks") or {}
        return f"{tasks.get('digest') or self.plan.get('tasks')} {self.plan.get('seed')}"

    @property
    def rule(self) -> Rule:
        """What the plan has fixed."""
        known = {
            name: float(self.plan[name])
            for name in ("margin_points", "alpha", "icc")
            if self.plan.get(name) is not None
        }
        return Rule(**known)

    def of_kind(self, kind: str) -> Iterable[JSON]:
        """Records of a kind."""
        return (record for record in self.records if record.get("kind") == kind)


def read_run(folder: Path) -> Run:
    """The run of a folder; a last line that was cut off is left out.

    Raises
    ------
    InputError
        There is no run, or a file of it is wrong.
    FormatError
        A trial is damaged or recorded twice; the line is named.
    """
    plan = read_plan(folder / PLAN)
    header, records = read_trials(folder / TRIALS)
    if header.get("plan") not in (None, plan.digest):
        raise InputError(
            "the trials belong to another plan", at=str(folder / TRIALS), hint="run the audit again"
        )
    return Run(
        plan.to_json() | {"digest": plan.digest}, header, tuple(records), _asked(folder / TASKS)
    )


def joined_rule(runs: Sequence[Run]) -> Rule:
    """The rule that all runs share.

    Raises
    ------
    InputError
        There is no run, they were planned by different rules, or two are of the same pair.
    """
    if not runs:
        raise InputError("there is no run to analyse")
    if len({run.rule for run in runs}) > 1:
        raise InputError(
            "the runs were planned with different margins, alphas or correlations",
            hint="analyse them one by one",
        )
    keys = [(run.pair, run.task_key) for run in runs]
    if len(set(keys)) < len(keys):
        raise InputError(
            "two runs are of the same pair and tasks", hint="give each run's folder once"
        )
    return runs[0].rule


def treatments_of(runs: Sequence[Run]) -> dict[str, Compared]:
    """All treatments by name, references first, else in the order of the plans."""
    found: dict[str, Compared] = {}
    for run in runs:
        told = run.header.get("treatments") or {}
        named = [*told, *run.plan.get("treatments", ())]
        named += [str(r["treatment"]) for r in run.records if r.get("kind") in ("timed", "quality")]
        for name in dict.fromkeys(named):
            if name not in found:
                found[name] = _compared(name, told.get(name) or {})
    return dict(sorted(found.items(), key=lambda item: not item[1].is_reference))


def _compared(name: str, told: JSON) -> Compared:
    if told:
        role, base = str(told.get("role", "candidate")), told.get("reference")
        base = name if role == "reference" or not base else str(base)
        return Compared(name, str(told.get("label") or name), role, base)
    known = treatment(name)
    return Compared(name, known.label, known.role.value, known.reference)


def _asked(path: Path) -> dict[tuple[str, str], Asked]:
    if not path.exists():
        return {}
    return {
        (unit.id, question.id): Asked(question.text, next(iter(question.answers), None))
        for unit in read_task_set(path).units
        for question in unit.questions
    }
