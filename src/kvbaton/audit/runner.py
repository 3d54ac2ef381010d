"""Running an audit: block by block, in a random order, and on from where it was."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from kvbaton.audit.case import Case, Equipment
from kvbaton.audit.journal import Journal
from kvbaton.audit.ladder import Ladder, ladder_routes
from kvbaton.audit.load import Meter
from kvbaton.audit.plan import Plan
from kvbaton.audit.profiling import profiled
from kvbaton.audit.scoring import scorer
from kvbaton.audit.tasks.schema import TaskSet, Unit
from kvbaton.audit.treatments import Treatment, expanded
from kvbaton.audit.trials import Trials
from kvbaton.bench.kl import long_enough
from kvbaton.bench.machine import environment, library_versions
from kvbaton.bench.texts import real_texts
from kvbaton.errors import InputError, KvbatonError
from kvbaton.types import JSON

LADDER_ROOM = 64
"""Positions for the instruction behind the longest context that is timed."""
EXCERPT = 50
"""Characters of what a sender read that a record may have, where the plan allows it."""

Told = Callable[[str], None]


class Audit:
    """One run of an audit.

    Parameters
    ----------
    plan
        What is done.
    tasks
        The task set; the first ``plan.units`` units of it are run.
    equipment
        Model and stores.
    journal
        Where records are kept, and what was done before.
    told
        Is told what is under way, with the time left.

    Raises
    ------
    InputError
        The task set has no units, or a scorer is missing.
    """

    def __init__(
        self,
        plan: Plan,
        tasks: TaskSet,
        equipment: Equipment,
        journal: Journal,
        *,
        told: Told | None = None,
    ) -> None:
        self.plan, self.equipment, self.journal = plan, equipment, journal
        self.units = tasks.units[: plan.units]
        if not self.units:
            raise InputError("the task set has no units")
        for name in {question.scorer for unit in self.units for question in unit.questions}:
            scorer(name)  # one that is missing is found out before anything is run
        self.tasks, self.engine = tasks, equipment.engine
        self.treatments = expanded(plan.treatments)
        self._by_name = {treatment.name: treatment for treatment in self.treatments}
        self.meter = Meter()
        self._progress = _Progress(told or (lambda label: None))

    # -- the whole ------------------------------------------------------------------------------

    def run(self) -> None:
        """Do every trial that is not done yet.

        Raises
        ------
        KvbatonError
            A unit's sender cannot read it, or a record cannot be kept.
        """
        self.journal.begin(self.header())
        lengths = self._ladder_lengths()
        self._progress.left = self._steps_left(lengths)
        if not self._progress.left:
            return
        with _frozen():
            self._all(lengths)
        self._account()

    def _all(self, lengths: Sequence[int]) -> None:
        self._progress.say("warming up")
        self._warm_up()
        for number, unit in enumerate(self.units):
            self._block(number, unit)
        ladder = Ladder(
            self.equipment,
            ladder_routes(self.treatments),
            repeats=self.plan.ladder_repeats,
            seed=self.plan.seed,
            meter=self.meter,
        )
        for tokens in lengths:
            for record in ladder.trials(tokens, self._not_climbed(tokens)):
                self._done(record, f"break-even at {tokens} tokens")
        self._profiles()

    def header(self) -> JSON:
        """The first line of the records."""
        engine = self.engine
        return {
            "plan": self.plan.digest,
            "pair": f"{engine.name}/{engine.layout.dtype}",
            "function": engine.function.digest,
            "model": engine.name,
            "dtype": engine.layout.dtype,
            "seed": self.plan.seed,
            "tasks": {
                "name": self.tasks.name,
                "version": self.tasks.version,
                "digest": self.tasks.digest,
            },
            "treatments": {
                t.name: {
                    "label": t.label, "role": t.role.value, "reference": t.reference,
                    "profile": t.profile, **t.bookkeeping(),
                }
                for t in self.treatments
            },
            "environment": environment() | {"versions": library_versions()},
        }  # fmt: skip

    def _ladder_lengths(self) -> tuple[int, ...]:
        """Those that the model and the texts reach."""
        room = self.engine.max_tokens - LADDER_ROOM
        most = max(self.plan.ladder, default=0)
        if most and not long_enough(self.engine, real_texts()[:1], min(most, room)):
            room = min(room, 1024)
        return tuple(n for n in sorted(set(self.plan.ladder)) if n <= room)

    def _steps_left(self, lengths: Sequence[int]) -> int:
        """How many trials are still to be done."""
        left = sum(len(self._open_trials(unit)) for unit in self.units)
        routes = ladder_routes(self.treatments)
        for tokens in lengths:
            todo = self._not_climbed(tokens)
            left += sum(todo(t.name, r) for t in routes for r in range(self.plan.ladder_repeats))
        return left + sum(self._unprofiled(t) for t in self.treatments)

    def _not_climbed(self, tokens: int) -> Callable[[str, int], bool]:
        return lambda name, repeat: (
            self.journal.find(kind="ladder", treatment=name, repeat=repeat, tokens=tokens) is None
        )

    def _done(self, record: JSON, label: str) -> None:
        self.journal.keep(record)
        self._progress.step(label)

    # -- a block --------------------------------------------------------------------------------

    def _open_trials(self, unit: Unit) -> list[tuple[str, str, int]]:
        """Kind, treatment and repeat of a unit's trials that are not done yet, in their order.

        Quality first: nothing of it is timed.  Then the timed ones, in an order of their own for
        every repeat.
        """
        names = [t.name for t in self.treatments]
        wanted = [("floor", "T0", 0), *(("quality", name, 0) for name in names)]
        dice = random.Random(f"{self.plan.seed} {unit.id}")
        for repeat in range(self.plan.repeats):
            dice.shuffle(names)
            wanted += [("timed", name, repeat) for name in names]
        return [one for one in wanted if not self._is_done(unit, *one)]

    def _is_done(self, unit: Unit, kind: str, name: str, repeat: int) -> bool:
        find = self.journal.find
        if find(kind="failed", unit=unit.id, treatment=name) is not None:
            return True
        extra: dict[str, Any] = {"repeat": repeat} if kind == "timed" else {}
        return find(kind=kind, unit=unit.id, treatment=name, **extra) is not None

    def _block(self, number: int, unit: Unit) -> None:
        """All treatments of one unit."""
        todo = self._open_trials(unit)
        if not todo:
            return
        label = f"unit {number + 1} of {len(self.units)}"
        self._progress.say(f"{label}: its sender reads and speaks")
        case = self._case(number, unit)
        trials = Trials(case, fixed_tokens=self.plan.fixed_tokens, meter=self.meter)
        try:
            impossible = self._send_all(case)
            positions: dict[int, int] = {}
            for kind, name, repeat in todo:
                if name in impossible:
                    self._progress.step(label)
                    continue
                place = positions.get(repeat, 0) if kind == "timed" else 0
                positions[repeat] = place + 1 if kind == "timed" else 0
                record = self._tried(trials, kind, self._by_name[name], repeat, place)
                if record["kind"] == "failed":
                    impossible.add(name)
                self._done(record, f"{label}: {kind} {name}")
        finally:
            case.close()

    def _case(self, number: int, unit: Unit) -> Case:
        """The unit's case; with the words that its sender has said, where it has spoken before."""
        known = self.journal.find(kind="unit", unit=unit.id)
        others = (*self.units[number + 1 :], *self.units[:number]) or (unit,)
        with self.meter.work():
            return Case(self.equipment, unit, others, said=known["message_ids"] if known else None)

    def _send_all(self, case: Case) -> set[str]:
        """Hand off for every treatment, and note the unit; names of the impossible ones."""
        impossible, sent = set(), {}
        for treatment in self.treatments:
            try:
                with self.meter.work():
                    made = case.sent(treatment)
            except KvbatonError as error:
                impossible.add(treatment.name)
                self._failed(case.unit, treatment, error)
                continue
            sent[treatment.name] = {
                "seconds": made.seconds,
                "phases": dict(made.baton.seconds),
                "bytes_written": made.baton.bytes_written,
            }
        if self.journal.find(kind="unit", unit=case.unit.id) is None:
            self.journal.keep(self._unit_record(case, sent))
        return impossible

    def _unit_record(self, case: Case, sent: JSON) -> JSON:
        unit = case.unit
        read = str(unit.messages[-1].get("content", ""))
        return {
            "kind": "unit",
            "unit": unit.id,
            "task_kind": unit.kind,
            "language": unit.language,
            "relevance": unit.relevance.value,
            "excerpt": read[:EXCERPT] if self.plan.excerpts else "",
            "prompt_tokens": case.prompt_tokens,
            "message_tokens": len(case.turn.ids),
            "context_tokens": case.turn.tokens,
            "message_ids": list(case.turn.ids),
            "questions": len(unit.questions),
            "sender": case.sender_s | {"tokenize_s": case.tokenize_s},
            "hand_off": sent,
        }

    def _tried(
        self, trials: Trials, kind: str, treatment: Treatment, repeat: int, position: int
    ) -> JSON:
        """The record of a trial; of its failure, where it cannot be done."""
        try:
            if kind == "timed":
                return trials.timed(treatment, repeat, position)
            if kind == "floor":
                return trials.floor(treatment)
            return trials.quality(treatment, self._by_name[treatment.reference])
        except KvbatonError as error:
            return _failure(trials.case.unit, treatment, error)

    def _failed(self, unit: Unit, treatment: Treatment, error: KvbatonError) -> None:
        record = _failure(unit, treatment, error)
        if self.journal.find(**{k: record[k] for k in ("kind", "unit", "treatment")}) is None:
            self.journal.keep(record)

    # -- around the blocks ----------------------------------------------------------------------

    def _warm_up(self) -> None:
        """Take every treatment of the shortest unit once, so that nobody pays for first use."""
        number = min(
            range(len(self.units)),
            key=lambda n: sum(len(str(m.get("content"))) for m in self.units[n].messages),
        )
        case = self._case(number, self.units[number])
        try:
            for treatment in self.treatments:
                try:
                    with self.meter.work():
                        case.take(treatment, self.units[number].questions[0].text, max_new_tokens=2)
                except KvbatonError:
                    continue  # said when its trial comes
        finally:
            case.close()

    def _unprofiled(self, treatment: Treatment) -> bool:
        find = self.journal.find
        failed = find(kind="failed", unit=self.units[0].id, treatment=treatment.name)
        return failed is None and find(kind="profile", treatment=treatment.name) is None

    def _profiles(self) -> None:
        """One profiled take of each treatment, on the first unit."""
        todo = [treatment for treatment in self.treatments if self._unprofiled(treatment)]
        if not todo:
            return
        case, asked = self._case(0, self.units[0]), self.units[0].questions[0].text
        cuda = self.engine.device.type == "cuda"
        try:
            for treatment in todo:
                with self.meter.work():
                    case.sent(treatment)  # what making it takes is not the receiver's
                    found = profiled(
                        partial(case.take, treatment, asked, max_new_tokens=1), cuda=cuda
                    )
                record = {"kind": "profile", "treatment": treatment.name} | found
                self._done(record, f"profile of {treatment.name}")
        finally:
            case.close()

    def _account(self) -> None:
        """What this session of the run took: the last record of each."""
        sessions = sum(record["kind"] == "session" for record in self.journal.records)
        self.journal.keep(
            {
                "kind": "session",
                "repeat": sessions,
                "wall_s": self.meter.wall_s,
                "work_s": self.meter.work_s,
                "overhead_share": self.meter.overhead_share,
            }
        )


def _failure(unit: Unit, treatment: Treatment, error: KvbatonError) -> JSON:
    return {
        "kind": "failed",
        "unit": unit.id,
        "treatment": treatment.name,
        "code": error.code,
        "sentence": str(error),
    }


@contextmanager
def _frozen() -> Iterator[None]:
    """Keep the garbage collector off what was there before: it would stop every other trial."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class _Progress:
    """Says what is under way, and about how long it will take."""

    def __init__(self, told: Told) -> None:
        self._told, self.left, self._done, self._start = told, 0, 0, time.monotonic()

    def say(self, label: str) -> None:
        self._told(label)

    def step(self, label: str) -> None:
        """One trial is done."""
        self._done, self.left = self._done + 1, max(0, self.left - 1)
        left_s = (time.monotonic() - self._start) / self._done * self.left
        minutes = f"{left_s / 60:.0f} min" if left_s >= 90 else f"{left_s:.0f} s"
        self._told(f"{label}, about {minutes} left")
