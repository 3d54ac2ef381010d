"""Following the ledger: what an agent notes there, and what it says of the batons that are taken.

Whether a context is the current one is asked before anything of it is used, and again when the
answer is there.  What was made from what is noted afterwards.  A ledger that cannot be used stops
nobody: freshness is unknown then, the receipt warns, and notes wait in a spool.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kvbaton.clock import Clock
from kvbaton.deciding import Receiving
from kvbaton.errors import (
    InputError,
    KvbatonError,
    LedgerUnavailable,
    RefConflict,
    Superseded,
)
from kvbaton.lineage.keeper import LedgerKeeper
from kvbaton.lineage.records import (
    MAX_LABEL,
    Freshness,
    Head,
    Node,
    NodeKind,
    Standing,
    require_ref,
)
from kvbaton.opening import now_ms
from kvbaton.policy.rules import PolicyRules, StaleRule
from kvbaton.stores import Key, Kind, Store
from kvbaton.types import (
    JSON,
    Baton,
    BatonRef,
    Manifest,
    Reason,
    ReasonCode,
    Receipt,
)

UNKNOWN = Freshness(Standing.UNKNOWN)
FLUSH_S = 2.0
"""How long a look-up waits for what is not in the ledger yet."""
LEDGER_SHARE, LEAST_S = 0.25, 0.05
"""Which part of the time for a cache the ledger may take where it hangs, and at least how much."""
RATE_MINUTES = 10
"""Over how long the moves of a ref are counted."""
_STRICTNESS = (StaleRule.LABEL, StaleRule.FETCH, StaleRule.REFUSE)
_SWORN = {Standing.CURRENT: 0, Standing.UNKNOWN: 1, Standing.STALE: 2}


class NewerBatons(Exception):
    """Stale batons are to be replaced by the heads of their refs; never leaves a take."""

    def __init__(self, references: Sequence[BatonRef | None]) -> None:
        super().__init__()
        self.references = tuple(references)
        """In the order of the batons; None for one that is current."""


@dataclass(frozen=True, slots=True)
class Place:
    """A ref, and which of its heads a baton will be."""

    ref: str = ""
    sequence: int = -1

    @property
    def in_manifest(self) -> tuple[str, int]:
        """The two as manifests have them."""
        return self.ref, self.sequence


NO_REF = Place()


@dataclass
class Look:
    """What one take knows of the freshness of its batons, before and behind the answer."""

    following: Following
    rule: StaleRule
    rules: PolicyRules
    clock: Clock
    batons: tuple[Baton, ...] = ()
    names: tuple[str, ...] = ()
    """Ids of what an agent's own conversation builds on."""
    found: Freshness = UNKNOWN
    warnings: list[Reason] = field(default_factory=list)
    deadline_s: float | None = None
    """How long the take has for a cache, by its clock; None leaves the wait to the keeper."""
    replaced: list[Reason] = field(default_factory=list)
    """What newer batons were taken, once they are opened."""

    def at(self, batons: Sequence[Baton]) -> None:
        """Look at verified batons, before a ticket is spent or a token is read.

        Raises
        ------
        Superseded
            One is stale, or not known to be current, and the rule refuses that.
        NewerBatons
            The rule is to take newer ones, and there are.
        """
        self.batons = tuple(batons)
        with self.clock.phase("freshness"):
            standings = [
                self.following.freshness(baton, limit_s=self._limit_s()) for baton in batons
            ]
        self.found = max(standings, key=lambda one: _SWORN[one.standing], default=UNKNOWN)
        self.warnings += self.following.troubles()
        if self.found.standing is Standing.CURRENT or self.rule is StaleRule.LABEL:
            return
        if self.found.standing is Standing.UNKNOWN:
            if self.rules.known_freshness:
                raise Superseded("nobody can say whether the baton's context is the current one")
            return
        if self.rule is StaleRule.FETCH:
            self._fetch(standings)
        raise Superseded(
            stale_sentence(self.found),
            hint="take the head of its ref, or go on with stale='label'",
        )

    def _limit_s(self) -> float | None:
        """What a ledger that hangs may cost: a part of what is left for the cache."""
        if self.deadline_s is None:
            return None
        return max(LEAST_S, LEDGER_SHARE * (self.deadline_s - self.clock.elapsed()))

    def at_own(self, names: Sequence[str]) -> None:
        """Look at what an agent's own conversation builds on, before it goes on.

        Raises
        ------
        Superseded
            It is stale, and the rule refuses that.
        """
        self.names = tuple(names)
        if not names:
            return
        with self.clock.phase("freshness"):
            standings = [self.following.freshness_of(name) for name in names]
        self.found = max(standings, key=lambda one: _SWORN[one.standing])
        self.warnings += self.following.troubles()
        if self.found.standing is Standing.STALE and self.rule is StaleRule.REFUSE:
            raise Superseded(
                f"the conversation goes on {stale_sentence(self.found)}",
                hint="take the newer context, or begin anew: agent.forget()",
            )

    def _fetch(self, standings: Sequence[Freshness]) -> None:
        newer: list[BatonRef | None] = []
        replaced: list[Reason] = []
        for baton, found in zip(self.batons, standings, strict=True):
            if found.standing is not Standing.STALE:
                newer.append(None)
                continue
            if not found.ref or found.head_sequence < found.ref_sequence:
                return  # withdrawn: there is nothing newer
            try:
                head, ref = self.following.head(found.ref)
            except KvbatonError as error:
                raise Superseded(
                    f"{stale_sentence(found)}; the newer one cannot be found: {error.sentence}"
                ) from error
            if head.baton == baton.id:
                return
            replaced.append(
                Reason(
                    ReasonCode.REPLACED,
                    f"{head.ref}@{head.sequence} was taken in place of the stale "
                    f"{found.ref}@{found.ref_sequence}",
                )
            )
            newer.append(ref)
        self.replaced += replaced
        raise NewerBatons(newer)

    @property
    def label(self) -> Reason | None:
        """What an answer that builds on a stale context has to say; None where it does not."""
        if self.found.standing is not Standing.STALE:
            return None
        return Reason(ReasonCode.STALE, stale_sentence(self.found))

    def receiving(
        self,
        agent: str,
        labels: Mapping[str, str],
        tags: Sequence[str],
    ) -> Receiving:
        """Who takes the batons, and what is known of their freshness, for the policy."""
        found = self.found
        watched = self.rules.max_moves_per_minute is not None and bool(found.ref)
        return Receiving(
            agent=agent,
            conversation=labels.get("conversation", ""),
            tags=frozenset(tags),
            standing=found.standing.value,
            stale_why=found.why,
            moves_per_minute=self.following.moves_per_minute(found.ref) if watched else None,
        )

    def without_batons(self) -> Look:
        """The same, where nothing of the batons is used: nothing can become stale any more."""
        self.batons, self.replaced = (), []
        return self

    def conclude(self, receipt: Receipt) -> tuple[JSON, tuple[Reason, ...]]:
        """Freshness as the receipt states it, once the answer is there, and warnings of what has
        become stale since."""
        stated = self.found.to_json()
        self.following.keep_seen()
        if not (self.batons or self.names):
            return stated, ()
        standings = [self.following.freshness(baton) for baton in self.batons]
        self.following.note_unknown(self.batons, standings)
        standings += [self.following.freshness_of(name) for name in self.names]
        now = max(standings, key=lambda one: _SWORN[one.standing])
        stated["after"] = {"standing": now.standing.value, "as_of": now.as_of, "why": now.why}
        if now.standing is not Standing.STALE or self.found.standing is Standing.STALE:
            return stated, ()
        known = self.found.standing is Standing.CURRENT
        since = "it was current when the answer began" if known else "known since it began"
        sentence = f"{stale_sentence(now)}; {since}"
        return stated, (Reason(ReasonCode.STALE, sentence),)


class Following:
    """An agent's view of the ledger.

    Parameters
    ----------
    keeper
        This process's way to it; None where there is no ledger.
    agent
        The agent's name.
    """

    def __init__(self, keeper: LedgerKeeper | None, agent: str = "") -> None:
        self.keeper, self.agent = keeper, agent
        self._seen: dict[str, int] = {}
        """Where this agent last saw refs: what it hands off replaces that."""
        if keeper is not None:
            keeper.warm()

    # -- reading ----------------------------------------------------------------------------------

    def look(
        self,
        clock: Clock,
        *,
        asked: StaleRule | None,
        rules: PolicyRules,
        deadline_s: float | None = None,
    ) -> Look:
        """A look at the batons of one take: by the caller's rule or the owner's, whichever is
        stricter."""
        stricter = max(rules.stale, asked or rules.stale, key=_STRICTNESS.index)
        return Look(self, stricter, rules, clock, deadline_s=deadline_s)

    def freshness(self, baton: Baton, *, limit_s: float | None = None) -> Freshness:
        """Whether a baton's context is the current one; unknown where nobody can say."""
        listing = baton.manifest
        if self.keeper is None:
            return Freshness(Standing.UNKNOWN, listing.ref, max(0, listing.sequence))
        found = self.keeper.freshness(
            baton.id, listing.ref, max(0, listing.sequence), limit_s=limit_s
        )
        if found.ref:
            self._seen[found.ref] = max(found.ref_sequence, self._seen.get(found.ref, 0))
        return found

    def freshness_of(self, name: str) -> Freshness:
        """Whether something that the ledger knows by its id is stale."""
        return UNKNOWN if self.keeper is None else self.keeper.freshness(name)

    def note_unknown(self, batons: Sequence[Baton], standings: Sequence[Freshness]) -> None:
        """Note batons that the ledger does not know: their senders have none, or another one."""
        for baton, found in zip(batons, standings, strict=True):
            answered = self.keeper is not None and self.keeper.failure is None
            if answered and found.standing is Standing.UNKNOWN:
                self.note(baton_node(baton, (), ""))

    def head(self, ref: str) -> tuple[Head, BatonRef]:
        """Where a ref stands, and a reference to the baton there.

        Raises
        ------
        UnknownRef
            It has not been moved yet.
        LedgerError
            There is no ledger, or it cannot be used.
        """
        head, node = self._kept().head(require_ref(ref))
        self._seen[ref] = head.sequence
        return head, BatonRef(head.baton, node.store)

    def moves_per_minute(self, ref: str) -> float | None:
        """How often a ref has moved in the last ten minutes; None where nobody can say."""
        if self.keeper is None:
            return None
        since_ms = now_ms() - RATE_MINUTES * 60_000
        moves = self.keeper.moves(ref, since_ms=since_ms)
        return None if moves is None else moves / RATE_MINUTES

    def keep_seen(self) -> None:
        """Put on the disk what was seen of the ledger; that this fails is not worth an answer."""
        if self.keeper is not None:
            with contextlib.suppress(KvbatonError):
                self.keeper.keep_seen()

    def troubles(self) -> tuple[Reason, ...]:
        """A warning where the ledger cannot be used, or is not the one that was known."""
        failure = None if self.keeper is None else self.keeper.failure
        if failure is None:
            return ()
        hint = f"; {failure.hint}" if failure.hint else ""
        return (Reason(ReasonCode.LEDGER, f"{failure.sentence}{hint}"),)

    def look_up(self, name: str) -> str:
        """The whole id of a node, from a part of it.

        Raises
        ------
        UnknownNode, InputError
            Nothing begins so, or several do.
        LedgerError
            There is no ledger, or it cannot be used.
        """
        kept = self._kept()
        kept.flush(FLUSH_S)
        return kept.ask(lambda ledger: ledger.node(name).id)

    # -- refs -------------------------------------------------------------------------------------

    def place(self, ref: str | None, expect: int | None = None) -> Place:
        """Where a new baton will stand: behind the head that the caller expects, or that this
        agent has seen, or else behind the one that the ref has now.

        Raises
        ------
        InputError
            The name or the number cannot be used.
        LedgerError
            There is no ledger, or it cannot be used now.
        """
        if ref is None:
            if expect is not None:
                raise InputError("a ref is needed to expect something of", at="$.ref")
            return NO_REF
        require_ref(ref)
        if expect is not None and (type(expect) is not int or expect < 0):
            raise InputError("a ref stands at 0 or more", at="$.expect")
        stands = self._kept().stands(ref)
        return Place(ref, 1 + (self._seen.get(ref, stands) if expect is None else expect))

    def move(self, baton: Baton, node: Node, store: Store) -> Head:
        """Move a baton's ref to it, where ``node`` stands for it.

        Raises
        ------
        RefConflict
            Somebody was faster; the baton is taken back.
        LedgerError
            The ledger cannot be used now.
        """
        listing = baton.manifest
        try:
            head = self._kept().move(listing.ref, node, expected=listing.sequence - 1)
        except RefConflict:
            self._take_back(baton, store)
            raise
        self._seen[listing.ref] = head.sequence
        return head

    def _take_back(self, baton: Baton, store: Store) -> None:
        """Remove a baton whose ref stands elsewhere, unless somebody has moved it to just that:
        equal contexts at one time make equal batons."""
        with contextlib.suppress(KvbatonError):
            heads = self._kept().ask(lambda ledger: ledger.history(baton.manifest.ref))
            if all(head.baton != baton.id for head in heads):
                store.delete(Key(Kind.BATON, baton.id))

    # -- notes ------------------------------------------------------------------------------------

    def note_answer(self, receipt: Receipt, built_on: Sequence[str]) -> tuple[Reason, ...]:
        """Note an answer soon; a warning where that cannot be kept."""
        facts: JSON = {
            "outcome": receipt.outcome.value,
            "route": receipt.route.value,
            "reasons": [reason.code.value for reason in receipt.reasons],
        }
        node = Node(
            receipt.id,
            NodeKind.ANSWER,
            parents=tuple(built_on),
            agent=_shown(receipt.agent),
            model=_shown(receipt.model),
            tokens=receipt.context_tokens + receipt.generated_tokens,
            codec=_shown(receipt.fidelity.codec),
            fidelity=receipt.fidelity.kind.value,
            hops_exact=receipt.hops.exact,
            hops_lossy=receipt.hops.lossy,
            created_ms=receipt.created_ms,
            facts=facts,
        )
        return self.note(node)

    def note_artefact(self, label: str, built_on: Sequence[str]) -> str:
        """Note something that was made from contexts; its id.

        Raises
        ------
        InputError
            The label or an id cannot be used.
        LedgerError
            There is no ledger, or the note cannot be kept.
        """
        name = f"artefact-{uuid.uuid4().hex}"
        node = Node(
            name,
            NodeKind.ARTEFACT,
            label=label,
            parents=tuple(built_on),
            agent=_shown(self.agent),
            created_ms=now_ms(),
        )
        self._kept().put(node)
        return name

    def when_stale(self, names: Sequence[str], told: Callable[[Node], None]) -> Callable[[], None]:
        """Be told, once each, when nodes become stale; gives what lets go of them.

        Raises
        ------
        LedgerError
            There is no ledger.
        """
        watch = self._kept().watch()
        let_go = [watch.hold(name, told) for name in names]

        def done() -> None:
            for one in let_go:
                one()

        return done

    def note(self, node: Node) -> tuple[Reason, ...]:
        """Note a node soon; a warning where that cannot be kept."""
        if self.keeper is None:
            return ()
        try:
            self.keeper.put(node)
        except KvbatonError as error:
            return (Reason(ReasonCode.LEDGER, error.sentence),)
        return self.troubles()

    def _kept(self) -> LedgerKeeper:
        if self.keeper is None:
            raise LedgerUnavailable(
                "this agent has no ledger", hint="give it one: Agent(..., ledger=URL)"
            )
        return self.keeper


def stale_sentence(found: Freshness) -> str:
    """What an answer from a stale context says of itself."""
    based = f", {found.ref}@{found.ref_sequence}" if found.ref else ""
    return f"based on stale context{based}: {found.why}"


def baton_node(
    baton: Baton, built_on: Sequence[str], model: str, facts: JSON | None = None
) -> Node:
    """A baton as the ledger knows it, made by a model from nodes of these ids."""
    listing = baton.manifest
    return Node(
        baton.id,
        NodeKind.BATON,
        # what is cached came through what it was built on, which may have moved on since
        parents=tuple(dict.fromkeys(built_on or listing.parents)),
        agent=_shown(listing.sender),
        model=_shown(model),
        function=listing.function.digest,
        tokens=listing.cached_tokens + listing.pending_tokens,
        size_bytes=sum(ref.size_bytes for ref in listing.segments) + listing.transcript_bytes,
        codec=_shown(listing.fidelity.codec),
        fidelity=listing.fidelity.kind.value,
        hops_exact=listing.hops.exact,
        hops_lossy=listing.hops.lossy,
        store=_without_password(baton.ref.store),
        expires_ms=listing.expires_ms,
        created_ms=listing.created_ms,
        facts=_facts(listing) | (facts or {}),
    )


def _facts(listing: Manifest) -> JSON:
    facts: JSON = {"mode": listing.mode.value, "segments": len(listing.segments)}
    if listing.export is not None:
        facts["to_domain"] = listing.export.domain
    return facts


def _shown(name: str) -> str:
    """A name as the ledger keeps it: agents and models may be called anything."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name[:MAX_LABEL])


def _without_password(url: str) -> str:
    """A URL without the name and password that may stand in it."""
    scheme, found, rest = url.partition("://")
    place = rest.split("/", 1)
    place[0] = place[0].rsplit("@", 1)[-1]
    return f"{scheme}{found}{'/'.join(place)}"
