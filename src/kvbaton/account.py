"""The evidence: what is gathered while an agent answers, and the receipt made of it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvbaton.backing import Inherited, Taken
from kvbaton.clock import Clock
from kvbaton.decoding import Answer
from kvbaton.following import Look
from kvbaton.hedging import Hedge
from kvbaton.policy.base import Decision
from kvbaton.types import (
    Baton,
    Fidelity,
    Hops,
    Mode,
    Outcome,
    Reason,
    Receipt,
    Route,
    SegmentRef,
    TokenRun,
    worst_fidelity,
)


@dataclass
class Account:
    """What goes into a receipt; see ``Receipt`` for the meaning of the fields."""

    outcome: Outcome
    mode: Mode
    route: Route
    clock: Clock = field(default_factory=Clock)
    baton: Baton | None = None
    reasons: tuple[Reason, ...] = ()
    warnings: tuple[Reason, ...] = ()
    reused: int = 0
    pending: int = 0
    bytes_moved: int = 0
    first_divergence: int | None = None
    fidelity: Fidelity = field(default_factory=Fidelity)
    hops: Hops = field(default_factory=Hops)
    parents: tuple[str, ...] = ()
    signers: tuple[str, ...] = ()
    """Key ids of all who have had a part in the context, whether by cache or by text."""
    built_on: tuple[str, ...] = ()
    """Ids of the batons and answers that the context was made from, by cache or by text."""
    sources: tuple[str, ...] = ()
    """Ids of what else the prompt was made from."""
    look: Look | None = None
    """What is known of the freshness of the batons."""
    hedge: Hedge | None = None
    """A cache that is still on its way while text is prefilled."""
    decision: Decision | None = None
    """What the policy said; of several slices, what it said against the first that it refused."""
    held: tuple[SegmentRef, ...] = ()
    inherited: tuple[Inherited, ...] = ()
    batons: tuple[str, ...] = ()
    recomputed: int = 0
    probed: int = 0
    start: int | None = None
    """Positions that the cache holds before the prompt's rest is fed; ``reused`` by default."""
    labels: Mapping[str, str] = field(default_factory=dict)
    computed_before: int = 0
    """Positions that were run through the model before the answer's own first pass."""

    def enter(self, taken: Taken) -> Any:
        """Enter what a take brought; its cache, or None."""
        self.route, self.reused = taken.route, taken.reused
        return self.enter_slice(taken)

    def enter_slice(self, taken: Taken) -> Any:
        """Enter one slice of several; its cache, or None."""
        self.clock.add(taken.seconds)
        self.reasons += taken.reasons
        self.bytes_moved += taken.bytes_moved
        self.probed += taken.probed
        self.warnings += taken.warnings
        if self.decision is None or self.decision.route is not Route.TEXT:
            self.decision = taken.decision or self.decision
        self.held += taken.held
        self.inherit(taken.inherited)
        return taken.cache

    def label(self) -> None:
        """Label what builds on a stale context, by whichever route it is answered."""
        reason = None if self.look is None else self.look.label
        if reason is not None:
            self.outcome = Outcome.SUPERSEDED
            if reason not in self.reasons:
                self.reasons = (*self.reasons, reason)

    def give_up(self, answer: Answer, reason: Reason) -> None:
        """The cache turned out to be odd: the answer begins anew, from the ids."""
        self.route, self.outcome = Route.TEXT, Outcome.KV_UNUSABLE
        self.reasons += (reason,)
        self.label()
        self.computed_before += answer.computed_tokens
        self.reused = self.pending = self.start = 0
        self.held, self.inherited, self.parents = (), (), ()
        self.fidelity, self.hops = Fidelity(), Hops()

    def inherit(self, known: Sequence[Inherited], tokens: int | None = None) -> None:
        """Enter what the first ``tokens`` positions of a cache have inherited, or all of them."""
        for one in known:
            stop = one.run.stop if tokens is None else min(one.run.stop, tokens)
            count = stop - one.run.first
            if count > 0:
                self.inherited += (Inherited(TokenRun(one.run.first, count), one.fidelity),)
        self.fidelity = worst_fidelity(self.fidelity, *(i.fidelity for i in self.inherited))

    def receipt(self, answer: Answer, *, agent: str, model: str, context_tokens: int) -> Receipt:
        """The receipt of an answer."""
        baton = self.baton
        return Receipt(
            id=uuid.uuid4().hex,
            agent=agent,
            model=model,
            outcome=self.outcome,
            mode=self.mode,
            route=self.route,
            baton=baton.id if baton is not None else None,
            signer=baton.signer if baton is not None else "",
            reasons=self.reasons,
            warnings=self.warnings,
            context_tokens=context_tokens,
            reused_tokens=self.reused,
            pending_tokens=self.pending,
            batons=self.batons or ((baton.id,) if baton is not None else ()),
            computed_tokens=self.computed_before + answer.computed_tokens,
            probe_tokens=self.probed,
            recomputed_token_layers=self.recomputed,
            generated_tokens=len(answer.ids),
            bytes_moved=self.bytes_moved,
            bytes_deduplicated=baton.bytes_deduplicated if baton is not None else 0,
            seconds=dict(self.clock.seconds),
            sender_seconds=dict(baton.seconds) if baton is not None else {},
            fidelity=self.fidelity,
            hops=self.hops,
            decision={} if self.decision is None else self.decision.to_json(),
            first_divergence=self.first_divergence,
            finish=answer.finish,
            labels=self.labels,
            created_ms=time.time_ns() // 1_000_000,
        )
