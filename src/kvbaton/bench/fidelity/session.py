"""What all parts of the benchmark share: the scope, the engine, plans, tasks and their results."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from kvbaton.agent import Agent
from kvbaton.alignment.recompute import DEFAULT_CHOOSER
from kvbaton.bench.fidelity.journal import Journal
from kvbaton.bench.kl import POSITIONS, Loss, Reference, long_enough, text_ids
from kvbaton.bench.texts import Text, text_kinds
from kvbaton.codecs import CodecPlan
from kvbaton.codecs.calibration import EXACT_PROFILE, Calibrations, plan_for
from kvbaton.codecs.profiles import profile
from kvbaton.errors import InputError, NotCalibrated
from kvbaton.relay import CHECKED, Checks, Relay
from kvbaton.seals import TrustDomain
from kvbaton.stores import MemoryStore, Store
from kvbaton.types import JSON
from kvbaton.wire.canonical import dumps
from kvbaton.wire.digests import DomainKeys, range_digest

MODES = ("continue", "slice", "questions", "hops", "takes", "costs")
PROFILES = ("exact", "near-lossless", "layered", "compact", "tiny", "shallow")

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Scope:
    """What is measured.

    Parameters
    ----------
    tokens
        Tokens of context in mode ``continue``.
    profiles
        Codec profiles, by name.
    modes
        Parts of the benchmark, of ``MODES``.
    questions, side_questions
        Questions about private facts, ten per document: where a target is about them, and at most
        so many elsewhere.
    texts
        Kinds of text at most.
    positions
        Positions behind the context whose distributions are compared.
    prefix_tokens, before_tokens
        Tokens before a slice, at the receiver and at its sender: different numbers, so that the
        slice has to move.
    slice_tokens
        Tokens of a slice, or of several together.
    document_tokens
        Tokens of the documents that questions are about.
    choosers
        How rows to be computed again are chosen, by name.
    fractions
        Shares of a slice's rows that are computed again.
    counts
        Numbers of slices.
    hops
        Numbers of hand-offs.
    hop_profile
        The lossy profile that is handed on, and that a slow store is asked for.
    take_tokens
        Tokens of context that are taken from a slow store.
    repeats
        Timed runs.
    """

    tokens: tuple[int, ...] = (512, 1024, 2048, 4096, 7000)
    profiles: tuple[str, ...] = PROFILES
    modes: tuple[str, ...] = MODES
    questions: int = 200
    side_questions: int = 60
    texts: int = 5
    positions: int = POSITIONS
    prefix_tokens: int = 600
    before_tokens: int = 500
    slice_tokens: int = 1024
    document_tokens: int = 300
    choosers: tuple[str, ...] = (DEFAULT_CHOOSER, "deviation")
    fractions: tuple[float, ...] = (0.05, 0.15, 0.3)
    counts: tuple[int, ...] = (1, 3, 10, 30)
    hops: tuple[int, ...] = (1, 3, 5, 10)
    hop_profile: str = "compact"
    take_tokens: int = 2048
    repeats: int = 5

    def __post_init__(self) -> None:
        for name in self.modes:
            if name not in MODES:
                raise InputError(f"no mode is called {name!r}", hint=f"known: {', '.join(MODES)}")
        for name in (*self.profiles, self.hop_profile):
            profile(name)
        numbers = (*self.tokens, *self.counts, *self.hops, self.questions, self.texts)
        if min((*numbers, self.positions, self.repeats), default=1) < 1:
            raise InputError("numbers of tokens, texts, questions and runs are at least 1")


@dataclass(frozen=True, slots=True)
class Task:
    """One measurement: its key in the journal, what people are told, and how it is made."""

    key: str
    label: str
    run: Callable[[], JSON]


class Session:
    """One run of the benchmark on one engine.

    Parameters
    ----------
    engine
        A transformers engine.
    scope
        What is measured.
    journal
        Where measurements are kept.
    calibrations
        Records of the engine's function: they say which plan a profile is.
    progress
        Is told what is being measured.
    """

    def __init__(
        self,
        engine: Any,
        scope: Scope,
        journal: Journal,
        *,
        calibrations: Calibrations | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.engine, self.scope, self.journal = engine, scope, journal
        self._calibrations = calibrations or Calibrations()
        self._say: Progress = progress or (lambda label: None)
        self._domain = TrustDomain("bench", DomainKeys(bytes(32)))
        self._plans: dict[str, CodecPlan] = {}
        self._kept: dict[str, tuple[Any, Any]] = {}

    # -- plans, agents, texts --------------------------------------------------------------------

    def plan(self, name: str) -> CodecPlan:
        """The plan of a profile as it was calibrated, or as the profile makes it.

        One that was not calibrated carries a digest of itself, which only this session knows, so
        that it goes through the same gates.
        """
        if name not in self._plans:
            self._plans[name] = self._found_plan(name)
        return self._plans[name]

    def _found_plan(self, name: str) -> CodecPlan:
        engine = self.engine
        try:
            return plan_for(
                name,
                function=engine.function.digest,
                model=engine.name,
                layout=engine.layout,
                calibrations=self._calibrations,
            )
        except NotCalibrated:
            plan = profile(name).plan(engine.layout)
            return plan.calibrated(range_digest(dumps(plan.to_json(), what="codec plan")))

    def calibrated(self, name: str) -> bool:
        """Whether a record says what the profile costs on this function."""
        digest = self.plan(name).calibration
        return name == EXACT_PROFILE or digest in self._calibrations.digests

    def plan_key(self, name: str) -> str:
        """A profile in the journal: another plan of the same name is measured anew."""
        digest = self.plan(name).calibration
        return name if digest is None else f"{name}-{digest[:12]}"

    def relay(
        self,
        profile_name: str = EXACT_PROFILE,
        *,
        store: Store | None = None,
        kind: type[Relay] = Relay,
        checks: Checks = CHECKED,
    ) -> Relay:
        """A relay over a store of its own, which attaches whatever was handed off here."""
        plan = self.plan(profile_name)
        known = self._calibrations.digests
        if plan.calibration is not None:
            known |= {plan.calibration}
        return kind(
            self.engine,
            store or MemoryStore(),
            self._domain,
            plan=plan,
            calibrations=lambda function: known,
            checks=checks,
            max_lossy_hops=None,
        )

    def agent(self, name: str, relay: Relay, system: str | None = None) -> Agent:
        """An agent that stores nothing before it is asked to, with hours for every take."""
        return Agent(name, self.engine, relay, system=system, stream=False, deadline_s=36_000.0)

    def texts(self, tokens: int) -> tuple[Text, ...]:
        """The kinds of text that have ``tokens`` tokens and as many positions as are compared."""
        wanted = tokens + self.scope.positions
        if wanted > self.engine.max_tokens:
            return ()
        key = f"texts {wanted}"
        kinds = self.kept(key, wanted, lambda: long_enough(self.engine, text_kinds(), wanted))
        return tuple(kinds[: self.scope.texts])

    def reference(self, text: Text, tokens: int) -> Reference:
        """The exact cache of a text's beginning, and what the model says behind it."""

        def make() -> Reference:
            ids = text_ids(self.engine, text, tokens + self.scope.positions)
            return Reference(self.engine, text.name, ids, tokens)

        found: Reference = self.kept("reference", (text.name, tokens), make)
        return found

    def kept(self, what: str, key: Any, make: Callable[[], Any]) -> Any:
        """What was made last under this name, if it was made for the same key."""
        if what not in self._kept or self._kept[what][0] != key:
            self._kept.pop(what, None)  # lets go of the old one before the new one needs memory
            self._kept[what] = (key, make())
        return self._kept[what][1]

    # -- tasks ----------------------------------------------------------------------------------

    def run(self, tasks: Sequence[Task]) -> None:
        """Make all measurements that the journal does not hold yet."""
        todo = [task for task in tasks if task.key not in self.journal.found]
        started = time.perf_counter()
        for done, task in enumerate(todo):
            left = _time_left(done, len(todo), time.perf_counter() - started)
            self._say(f"{task.label} ({done + 1} of {len(todo)}{left})")
            self.journal.keep(task.key, task.run())

    def found(self, tasks: Sequence[Task]) -> list[JSON]:
        """Measurements of tasks, in their order; those that are missing are left out."""
        held = self.journal.found
        return [held[task.key] for task in tasks if task.key in held]


def _time_left(done: int, total: int, elapsed_s: float) -> str:
    if not done:
        return ""
    left_s = elapsed_s / done * (total - done)
    return f", about {left_s / 60:.0f} min left" if left_s >= 90 else f", about {left_s:.0f} s left"


# --- rows ---------------------------------------------------------------------------------------


def loss_json(loss: Loss, **more: Any) -> JSON:
    """A loss as the journal keeps it."""
    return {**loss.to_json(), **more}


@dataclass(frozen=True)
class Row:
    """One row of the result; what does not apply is None.

    ``more`` are further columns.
    """

    profile: str
    mode: str
    tokens: int
    dtype: str
    bits_per_element: float | None = None
    hops: int | None = None
    qa_accuracy: float | None = None
    qa_text_accuracy: float | None = None
    recompute_fraction: float | None = None
    losses: Sequence[JSON] = ()
    more: JSON = field(default_factory=dict)

    def to_json(self) -> JSON:
        """The row; ``kl`` is the median over the texts of the means over positions, in nats."""
        losses = self.losses
        worst = max(losses, key=lambda loss: float(loss["kl_mean"]), default=None)
        return {
            "profile": self.profile,
            "mode": self.mode,
            "tokens": self.tokens,
            "dtype": self.dtype,
            "kl": median(loss["kl_mean"] for loss in losses) if losses else None,
            "kl_worst": worst["kl_mean"] if worst else None,
            "worst_text": worst["text"] if worst else None,
            "texts": len(losses) or None,
            "flips": fmean(loss["flips"] for loss in losses) if losses else None,
            "ppl_ratio": median(loss["ppl_ratio"] for loss in losses) if losses else None,
            "bits_per_element": self.bits_per_element,
            "hops": self.hops,
            "qa_accuracy": self.qa_accuracy,
            "qa_text_accuracy": self.qa_text_accuracy,
            "recompute_fraction": self.recompute_fraction,
            **self.more,
        }
