"""Running an audit: block by block, in a random order, and on from where it was."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from kvbaton.audit.case import Case, Equipment
from kvbaton.audit.journal import Journal
from kvbaton.audit.ladder import Ladder, ladder_routes
from kvbaton.audit.load import Meter
from kvbaton.audit.plan import Plan
from kvbaton.audit.profiling import profiled
from kvbaton.audit.progress import Progress, Told
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

COUNTED_UNITS = 6
"""In the first so many units operations are counted: it slows every pass down."""

_KINDS = ("floor", "quality", "timed")


@dataclass(frozen=True, slots=True)
class _Trial:
    """What is to be done once: its kind, treatment, repeat, and place in the order of its block."""

    kind: str
    name: str
    repeat: int = 0
    position: int = 0


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
        self._progress = Progress(told or (lambda label: None))

    # -- the whole ------------------------------------------------------------------------------

    def run(self) -> bool:
        """Do every trial that is not done yet; whether there were any.

        Raises
        ------
        InputError
            The records are those of another run, or one cannot be kept.
        """
        self.journal.begin(self.header())
        lengths = self._ladder_lengths()
        self._progress.left = self._steps_left(lengths)
        if not self._progress.left:
            return False
        try:
            with _frozen():
                self._all(lengths)
        finally:
            self._account()
        return True

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
            "environment": environment()
            | {
                "versions": library_versions(),
                "device": str(engine.device),
                "threads": torch.get_num_threads(),
            },
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

    def _open_trials(self, unit: Unit) -> list[_Trial]:
        """A unit's trials that are not done yet, in their order.

        Quality first: nothing of it is timed.  Then the timed ones, in an order of their own for
        every repeat.
        """
        names = [t.name for t in self.treatments]
        wanted = [_Trial("floor", "T0"), *(_Trial("quality", name) for name in names)]
        dice = random.Random(f"{self.plan.seed} {unit.id}")
        for repeat in range(self.plan.repeats):
            dice.shuffle(names)
            wanted += [_Trial("timed", name, repeat, place) for place, name in enumerate(names)]
        return [one for one in wanted if not self._is_done(unit, one)]

    def _is_done(self, unit: Unit, trial: _Trial) -> bool:
        extra: dict[str, Any] = {"repeat": trial.repeat} if trial.kind == "timed" else {}
        found = self.journal.find(kind=trial.kind, unit=unit.id, treatment=trial.name, **extra)
        return found is not None

    def _block(self, number: int, unit: Unit) -> None:
        """All treatments of one unit; what fails is recorded, and the rest goes on."""
        todo = self._open_trials(unit)
        if not todo:
            return
        label = f"unit {number + 1} of {len(self.units)}"
        self._progress.say(f"{label}: its sender reads and speaks")
        try:
            case = self._case(number, unit)
        except KvbatonError as error:
            for name in dict.fromkeys(trial.name for trial in todo):
                self._failed(unit, name, "sender", error)
            self._progress.skip(len(todo))
            return
        trials = Trials(
            case,
            fixed_tokens=self.plan.fixed_tokens,
            meter=self.meter,
            counted=number < COUNTED_UNITS,
        )
        try:
            failed = {(name, kind) for name in self._send_all(case) for kind in _KINDS}
            for trial in todo:
                if (trial.name, trial.kind) in failed:
                    self._progress.skip(1)
                elif not self._tried(trials, trial, label):
                    failed.add((trial.name, trial.kind))
        finally:
            case.close()

    def _case(self, number: int, unit: Unit) -> Case:
        """The unit's case; as its sender has spoken before, where it has."""
        others = (*self.units[number + 1 :], *self.units[:number])
        with self.meter.work():
            return Case(
                self.equipment, unit, others, known=self.journal.find(kind="unit", unit=unit.id)
            )

    def _send_all(self, case: Case) -> set[str]:
        """Hand off for every treatment, and note the unit; names of the impossible ones."""
        impossible, sent = set(), {}
        for treatment in self.treatments:
            try:
                with self.meter.work():
                    made = case.sent(treatment)
            except KvbatonError as error:
                impossible.add(treatment.name)
                self._failed(case.unit, treatment.name, "hand-off", error)
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

    def _tried(self, trials: Trials, trial: _Trial, label: str) -> bool:
        """Do a trial and keep its record; False, and the failure is kept, where it cannot be."""
        treatment = self._by_name[trial.name]
        try:
            if trial.kind == "timed":
                record = trials.timed(treatment, trial.repeat, trial.position)
            elif trial.kind == "floor":
                record = trials.floor(treatment)
            else:
                record = trials.quality(treatment, self._by_name[treatment.reference])
        except KvbatonError as error:
            self._failed(trials.case.unit, trial.name, trial.kind, error)
            self._progress.skip(1)
            return False
        self._done(record, f"{label}: {trial.kind} {trial.name}")
        return True

    def _failed(self, unit: Unit, name: str, what: str, error: KvbatonError) -> None:
        record = {
            "kind": "failed",
            "unit": unit.id,
            "treatment": name,
            "what": what,
            "code": error.code,
            "sentence": str(error),
        }
        if not self.journal.knows(record):
            self.journal.keep(record)

    # -- around the blocks ----------------------------------------------------------------------

    def _warm_up(self) -> None:
        """Take every treatment of the shortest unit once, so that nobody pays for first use."""
        number = min(
            range(len(self.units)),
            key=lambda n: sum(len(str(m.get("content"))) for m in self.units[n].messages),
        )
        try:
            case = self._case(number, self.units[number])
        except KvbatonError:
            return  # said when its block comes
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
        return self.journal.find(kind="profile", treatment=treatment.name) is None

    def _profiles(self) -> None:
        """One profiled take of each treatment, on the first unit."""
        todo = [treatment for treatment in self.treatments if self._unprofiled(treatment)]
        if not todo:
            return
        asked = self.units[0].questions[0].text
        cuda = self.engine.device.type == "cuda"
        try:
            case = self._case(0, self.units[0])
        except KvbatonError:
            self._progress.skip(len(todo))
            return  # said in its block
        try:
            for treatment in todo:
                try:
                    case.sent(treatment)  # what making it takes is not the receiver's
                    take = partial(case.take, treatment, asked, max_new_tokens=1)
                    found = profiled(take, cuda=cuda)
                except KvbatonError:
                    self._progress.skip(1)
                    continue  # said in its block
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


@contextmanager
def _frozen() -> Iterator[None]:
    """Keep the garbage collector off what was there before: it would stop every other trial."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
