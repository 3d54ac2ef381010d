"""Run folders, read: the plan, the trials, and the tasks where they are beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvbaton.audit.analysis.verdicts import Rule
from kvbaton.audit.journal import PLAN, TASKS, TRIALS, read_trials
from kvbaton.audit.plan import read_plan
from kvbaton.audit.tasks.built_in import BUILT_IN
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
    def tasks(self) -> JSON:
        """Name, version and digest of the task set."""
        found: JSON = self.header.get("tasks") or {"name": self.plan.get("tasks")}
        return found

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
        There is no run; they differ in tasks, treatments, repeats or rule; two are of one pair.
    """
    if not runs:
        raise InputError("there is no run to analyse")
    for run in runs[1:]:
        differ = _unlike(runs[0], run)
        if differ:
            raise InputError(
                f"the runs cannot be analysed together: they differ in {'; '.join(differ)}",
                hint="several runs are one plan on several pairs of models: give the others apart",
            )
    pairs = [run.pair for run in runs]
    twice = sorted({pair for pair in pairs if pairs.count(pair) > 1})
    if twice:
        raise InputError(
            f"two runs are of the same pair and tasks: {', '.join(twice)}",
            hint="give one run of each pair",
        )
    return runs[0].rule


_ALIKE = (
    "units", "treatments", "repeats", "fixed_tokens", "margin_points", "alpha", "icc",
)  # fmt: skip
"""Fields of a plan in which runs that are analysed together are the same."""
_OF_SEED = ("seed", "questions", "lengths")
"""Those that make the units of a built-in set, whose bytes differ from model to model."""


def _unlike(one: Run, two: Run) -> list[str]:
    """In what two runs differ that must be the same, in words."""
    told = [
        f"{what} ({_plain(one.tasks.get(name))} against {_plain(two.tasks.get(name))})"
        for what, name in (("task set", "name"), ("version of the task set", "version"))
        if one.tasks.get(name) != two.tasks.get(name)
    ]
    fields = list(_ALIKE)
    digests = [run.tasks.get("digest") for run in (one, two)]
    if not told and (digests[0] != digests[1] or not digests[0]):
        if all(run.plan.get("tasks") in BUILT_IN for run in (one, two)):
            fields += _OF_SEED
        else:
            first, second = (str(digest)[:12] for digest in digests)
            told.append(f"digest of the task set ({first} against {second})")
    for name in fields:
        mine, theirs = _fixed(one, name), _fixed(two, name)
        if mine != theirs:
            told.append(f"{name} ({mine} against {theirs})")
    return told


def _plain(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(one) for one in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _fixed(run: Run, name: str) -> str:
    value = run.plan.get(name)
    return _plain(sorted(value) if name == "treatments" and value else value)


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
