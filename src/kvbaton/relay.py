"""The flow, whole: five pairs of inverses between a sender's cache and a receiver's.

::

    hand_off:  export -> slice -> encode -> seal -> put
    take:      get -> verify -> decode -> align -> attach

Every arrow is an iterator of (segment, layer), so a full segment is stored while the sender still
decodes, and layer 0 is attached before the last layer arrives.  One type per arrow: what has not
been verified cannot be decoded.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ExitStack
from dataclasses import dataclass, replace
from threading import TIMEOUT_MAX, Event
from typing import TYPE_CHECKING, Any

from kvbaton import codecs
from kvbaton.arrows import (
    Cut,
    align_layers,
    decode_layers,
    get_layers,
    verify_layers,
)
from kvbaton.backing import (
    Shipment,
    Source,
    Taken,
    one_more,
)
from kvbaton.checking import (
    Lost,
    Tally,
    check_layers,
    probe_refusal,
    probe_windows,
)
from kvbaton.clock import Clock, begun
from kvbaton.deciding import SOMEBODY, Calibrated, Deciding, Receiving, Request
from kvbaton.engines.base import Engine
from kvbaton.errors import (
    InputError,
    KvbatonError,
)
from kvbaton.hedging import Late
from kvbaton.leasing import handing_off, segments_of, taking
from kvbaton.opening import NOBODY, Bearer, Opening, Spending, earliest
from kvbaton.placing import Target, move_refusal, moves_to
from kvbaton.policy.base import Decision
from kvbaton.prefixes import PrefixIndex
from kvbaton.publishing import Publisher
from kvbaton.reasons import reason_of
from kvbaton.seals import TrustDomain
from kvbaton.segments import open_segments
from kvbaton.shipping import AS_IT_IS, Packing, Shipper
from kvbaton.stores import Store
from kvbaton.types import (
    AlignedLayer,
    Baton,
    BatonRef,
    BlockScores,
    DecodedLayer,
    Export,
    FetchedLayer,
    Fidelity,
    FidelityClass,
    FunctionId,
    Importance,
    Mode,
    Move,
    Reason,
    ReasonCode,
    Route,
    SegmentRef,
    SegmentSpan,
    Span,
    Terms,
    TokenRun,
    Transcript,
    VerifiedLayer,
    worst_fidelity,
)
from kvbaton.vaults import sealed
from kvbaton.wire.digests import SECRET_BYTES

if TYPE_CHECKING:
    from kvbaton.probes.limits import ProbeLimits

SEGMENT_TOKENS = 256
"""Tokens of a full segment."""
MAX_LOSSY_HOPS = 3
"""Default of lossy hand-offs in a row."""

Observer = Callable[[str, Mapping[str, Any]], None]
"""Called with the name of an event and its facts; never with text or tensors."""


@dataclass(frozen=True, slots=True)
class Checks:
    """How a cache is held to its tokens before it is used.

    Parameters
    ----------
    tokens
        Whether V of layer 0 must be that of the tokens.  Experiments that attach a wrong cache on
        purpose leave it out; nothing else should.
    losses
        The measured error of V in layer 0 of what a codec has changed before.
    limits
        Measured limits of windows for a function's digest; None where there are none.
    plans
        The plan that a calibration record has measured, by the record's digest; None where it is
        not known here.
    """

    tokens: bool = True
    losses: Lost | None = None
    limits: Callable[[str], ProbeLimits | None] = lambda function: None
    plans: Callable[[str], codecs.CodecPlan | None] = lambda calibration: None


CHECKED = Checks()


class Relay:
    """Hands batons over for one engine, through one store, within one trust domain.

    Parameters
    ----------
    engine
        The model whose caches are handed over.
    store
        Where segments, batons, transcripts and prefix records go; encrypted where the domain asks
        for that.
    domain
        The trust domain; its keys address everything.
    segment_tokens
        Tokens of a full segment.
    plan
        Codec chains by layer; lossless by default.
    calibrations
        Digests of the calibration records that are known for a function, by its digest: only what
        one of them measured is attached.
    max_lossy_hops
        Lossy or approximate hand-offs since the last exact prefill after which a receiver
        prefills the ids; None for any number.
    checks
        How a cache is held to its tokens.
    deciding
        By which route a baton is taken; by default the gates say it.
    observer
        Is told of events as they happen.
    """

    def __init__(
        self,
        engine: Engine,
        store: Store,
        domain: TrustDomain,
        *,
        segment_tokens: int = SEGMENT_TOKENS,
        plan: codecs.CodecPlan | None = None,
        calibrations: Calibrated | None = None,
        max_lossy_hops: int | None = MAX_LOSSY_HOPS,
        checks: Checks = CHECKED,
        deciding: Deciding | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.engine, self.store, self.domain = engine, sealed(store, domain), domain
        store = self.store
        self.segment_tokens = segment_tokens
        self.checks = checks
        self.deciding = deciding or Deciding(
            engine,
            calibrations=calibrations or (lambda function: frozenset()),
            max_lossy_hops=max_lossy_hops,
        )
        self.observe: Observer = observer or (lambda event, facts: None)
        self.opening = Opening(store, domain)
        self.publisher = Publisher(engine, store, domain, self.opening.pedigree, self.observe)
        self.prefixes = PrefixIndex(
            store, domain, engine.layout, segment_tokens=segment_tokens, observe=self.observe
        )
        self.shipper = Shipper(
            engine,
            store,
            domain,
            self.prefixes,
            segment_tokens=segment_tokens,
            plan=plan,
            observe=self.observe,
        )

    @property
    def plan(self) -> codecs.CodecPlan:
        """How caches are encoded where a hand-off names no other plan."""
        return self.shipper.plan

    def encode_by(self, plan: codecs.CodecPlan | None) -> None:
        """Encode by another plan from now on; None for lossless."""
        self.shipper.plan = plan or codecs.exact_plan(len(self.engine.layout.layers))

    # -- hand_off: export -> slice -> encode -> seal -> put --------------------------------------

    def hand_off(  # noqa: PLR0913 - all but three have defaults and are named
        self,
        source: Source,
        *,
        sender: str,
        text: str,
        mode: Mode = Mode.CONTINUE,
        spans: tuple[Span, ...] = (),
        messages: tuple[Mapping[str, Any], ...] = (),
        terms: Terms | None = None,
        packing: Packing = AS_IT_IS,
        importance: BlockScores | None = None,
        expires_ms: int = 0,
        place: tuple[str, int] = ("", -1),
    ) -> Baton:
        """Store the source's cache and the signed baton that lists it.

        The manifest is written last, so a sender that dies leaves no baton behind; until then
        what it lists is leased, also what the store held before.  ``spans`` are
        at positions of the baton; ``expires_ms`` is 0 or milliseconds since the epoch, and never
        later than that of what it was taken from; ``place`` is the ref that is to be moved to it,
        and which of its heads it will be.

        Raises
        ------
        LossySource
            The plan would quantize what has been quantized before.
        StoreError
            The store could not take it; no baton exists.
        StaleTurn
            The cache has moved on.
        NotTrusted
            The cache comes from a baton whose key was revoked.
        """
        clock = Clock()
        function = self.engine.function
        packing = replace(packing, function=function.digest, sender=sender)
        self.opening.pedigree.require_none_revoked(source.signers)
        parents = self.opening.pedigree.parents(source.parents, self.store)
        with handing_off(sender) as loan:
            shipment = self.shipper.ship_all(source, clock, packing, loan)
            ids, cached = source.packed_ids, source.packed_cached
            promised = (ref.promised for ref in shipment.segments)
            fidelity = worst_fidelity(*promised, *(kin.fidelity for kin in parents))
            listing = self.publisher.listing(
                sender, mode, terms, ids, spans, function, parents, signers=source.signers
            )
            listing = replace(
                listing,
                cached_tokens=cached,
                pending_tokens=len(ids) - cached,
                segments=shipment.segments,
                fidelity=fidelity,
                hops=one_more(source.hops, fidelity),
                parents=source.parents,
                importance=importance,
                expires_ms=earliest(expires_ms, *(kin.expires_ms for kin in parents)),
                noise=max((packing.noise, *(kin.noise for kin in parents))),
                ref=place[0],
                sequence=place[1],
            )
            words = Transcript(ids, text, tuple(dict(m) for m in messages))
            return self.publisher.publish(clock, listing, words, shipment, parents, loan)

    def hand_off_text(
        self,
        words: Transcript,
        spans: tuple[Span, ...],
        *,
        sender: str,
        removed: tuple[str, ...] = (),
        parents: tuple[str, ...] = (),
        signers: tuple[str, ...] = (),
        terms: Terms | None = None,
        to_domain: str = "",
        expires_ms: int = 0,
        place: tuple[str, int] = ("", -1),
    ) -> Baton:
        """Store a signed baton of text only, for this trust domain or for another one.

        What is made for another domain names nothing of this one's: its digests are keyed with a
        salt of its own, and it lists no parents.

        Parameters
        ----------
        words, spans
            The text, and whose words it is.
        removed
            Names of what was taken out of it.
        to_domain
            The other domain.
        place
            As for ``hand_off``.

        Raises
        ------
        InputError
            ``to_domain`` is this relay's own.
        StoreError
            The store could not take it; no baton exists.
        """
        if to_domain == self.domain.name:
            raise InputError("this is the agent's own trust domain", at="$.to_domain")
        clock = Clock()
        self.opening.pedigree.require_none_revoked(signers)
        kin = () if to_domain else self.opening.pedigree.parents(parents, self.store)
        listing = self.publisher.listing(
            sender, Mode.CONTINUE, terms, words.ids, spans, self.engine.function, kin,
            signers=() if to_domain else signers,
        )  # fmt: skip
        export = Export(to_domain, secrets.token_hex(SECRET_BYTES)) if to_domain else None
        listing = replace(
            listing,
            parents=() if to_domain else parents,
            expires_ms=expires_ms,
            export=export,
            redacted=removed,
            ref=place[0],
            sequence=place[1],
        )
        with handing_off(sender) as loan:
            return self.publisher.publish(clock, listing, words, Shipment((), 0, 0), kin, loan)

    # -- take: get -> verify -> decode -> align -> attach ----------------------------------------

    def open(
        self,
        baton: Baton | BatonRef | str,
        *,
        deadline_s: float = math.inf,
        bearer: Bearer = NOBODY,
        unspent: list[Spending] | None = None,
    ) -> Baton:
        """Manifest and transcript of a baton, once both are verified; see ``Opening.open``.

        Raises
        ------
        NotTrusted
            It is not authentic, not for this receiver, or not at this time.
        BatonUnavailable
            Manifest or transcript is absent, damaged or too late; the cause is chained.
        """
        return self.opening.open(baton, deadline_s=deadline_s, bearer=bearer, unspent=unspent)

    def take(  # noqa: PLR0913 - all but five have defaults and are named
        self,
        baton: Baton,
        *,
        prompt_tokens: int,
        reusable: int,
        room: int,
        deadline_s: float,
        minimum: FidelityClass = FidelityClass.APPROXIMATE,
        function: FunctionId | None = None,
        moves: Sequence[Move] | None = None,
        importance: Importance = Importance.ORDINARY,
        receiving: Receiving = SOMEBODY,
        hedged: bool = False,
    ) -> Taken:
        """Attach a baton's cache for a prompt whose first ``reusable`` ids are the baton's.

        ``function`` is the engine's, where the caller has just asked for it; ``moves`` are the
        positions that stay where the window is too small for all of them.  Never raises for what
        is wrong with the baton: the reasons say it, and ``cache`` is None.
        """
        function = function or self.engine.function
        decision = self.deciding.decide(
            baton,
            Request(prompt_tokens, reusable, room, minimum, function, sliced=moves is not None),
            receiving,
        )
        if decision.route is Route.TEXT:
            return _decided(Taken(None, 0, Route.TEXT, ()), decision)
        sliced = (Fidelity(FidelityClass.APPROXIMATE),) if moves is not None else ()
        promised = [*sliced, *(ref.promised for ref in baton.manifest.segments)]
        if importance is Importance.CRITICAL:
            impossible = probe_refusal(self.engine, promised, self._limits(function))
            if impossible is not None:
                return replace(Taken(None, 0, Route.TEXT, (impossible,)), decision=decision)
        tokens = min(reusable, baton.manifest.cached_tokens)
        taken = self.attach(
            baton.manifest.segments, baton.transcript.ids, tokens if moves is None else moves,
            room=room, deadline_s=deadline_s, store_url=baton.ref.store, function=function,
            noise=baton.manifest.noise, hedged=hedged and importance is Importance.ORDINARY,
        )  # fmt: skip
        if taken.late is not None:
            taken = replace(taken, late=taken.late.then(lambda one: _decided(one, decision)))
        if taken.cache is None:
            return replace(taken, decision=decision)
        taken = _decided(taken, decision)
        return self._examined(taken, baton.transcript.ids, promised, importance)

    def _limits(self, function: FunctionId) -> ProbeLimits | None:
        return self.checks.limits(function.digest)

    def _examined(
        self,
        taken: Taken,
        ids: Sequence[int],
        promised: Sequence[Fidelity],
        importance: Importance,
    ) -> Taken:
        """What was taken, or the text route where the windows of a critical take are odd."""
        if importance is Importance.ORDINARY:
            return taken
        clock, known = Clock(), self._limits(self.engine.function)
        with clock.phase("probe"):
            report, wrong = probe_windows(
                self.engine, taken.cache, ids[: taken.reused], promised, known,
                importance=importance,
            )  # fmt: skip
        clock.add(taken.seconds)
        probed = taken.probed + (0 if report is None else report.rows)
        if wrong is None:
            return replace(taken, probed=probed, seconds=clock.seconds)
        return replace(
            Taken(None, 0, Route.TEXT, (wrong,), probed=probed, seconds=clock.seconds),
            decision=taken.decision,
        )

    def hang(
        self,
        baton: Baton,
        runs: Sequence[TokenRun],
        *,
        at: int,
        prompt_tokens: int,
        deadline_s: float,
        minimum: FidelityClass = FidelityClass.APPROXIMATE,
        function: FunctionId | None = None,
        importance: Importance = Importance.ORDINARY,
        receiving: Receiving = SOMEBODY,
    ) -> Taken:
        """Attach runs of a baton's cache, turned to positions ``at`` on, behind other tokens.

        The cache holds nothing but these positions, from its head on; ``held`` and ``inherited``
        are at the receiver's positions.  Never raises for what is wrong with the baton.

        Parameters
        ----------
        runs
            Of the baton's positions, ascending; those that are pending are left out.
        prompt_tokens
            Tokens of the receiver's whole prompt.
        """
        moves, reusable = moves_to(runs, at, cached=baton.manifest.cached_tokens)
        if importance is Importance.CRITICAL:
            wrong = Reason(ReasonCode.PROBE_IMPOSSIBLE, "a slice cannot be held to its tokens")
            return Taken(None, 0, Route.TEXT, (wrong,))
        refusal = self.slice_refusal(baton, prompt_tokens)
        if refusal or not moves:
            sentence = refusal or "the slice has no keys and values yet"
            code = ReasonCode.SLICE_REFUSED if refusal else ReasonCode.NO_KV
            return Taken(None, 0, Route.TEXT, (Reason(code, sentence),))
        function = function or self.engine.function
        decision = self.deciding.decide(
            baton, Request(prompt_tokens, reusable, 0, minimum, function, sliced=True), receiving
        )
        if decision.route is Route.TEXT:
            return _decided(Taken(None, 0, Route.TEXT, ()), decision)
        taken = self.attach(
            baton.manifest.segments, baton.transcript.ids, moves, room=0, deadline_s=deadline_s,
            behind=at, store_url=baton.ref.store, function=function,
            noise=baton.manifest.noise,
        )  # fmt: skip
        return replace(taken, decision=decision)

    def slice_refusal(self, baton: Baton, prompt_tokens: int) -> str | None:
        """Why keys of this model, or those of this baton, cannot be moved; None if they can."""
        stop = max((ref.span.stop for ref in baton.manifest.segments), default=0)
        window = self.engine.max_tokens
        return move_refusal(self.engine.layout, max(stop, prompt_tokens), window=window)

    def attach(
        self,
        refs: Sequence[SegmentRef],
        ids: Sequence[int],
        moves: Sequence[Move] | int,
        *,
        room: int,
        deadline_s: float,
        behind: int | None = None,
        store_url: str | None = None,
        function: FunctionId | None = None,
        noise: float = 0.0,
        hedged: bool = False,
    ) -> Taken:
        """Attach some positions of a baton to a new cache, or say why not.

        The work runs in a thread of its own, on a cache that nobody else sees: past the deadline
        it is abandoned, whatever the store is doing, and nothing half attached is left.

        Parameters
        ----------
        refs, ids
            Segments and ids of the baton.
        moves
            Which of its positions, and where they go: ascending, one behind the other from
            position 0 on, or from ``behind`` on.  A number stands for the first so many.
        behind
            Positions of other tokens that will stand before what is attached.
        noise
            Relative size of the noise that the sender has added.
        hedged
            Go on past the deadline: what was taken says how to use it yet, or to let go of it.
        """
        clock, abandoned, tally, loan = Clock(), Event(), Tally(), taking()
        target = Target(moves, behind)
        needed = [(i, ref) for i, ref in enumerate(refs) if target.cuts(ref)]
        digest = (function or self.engine.function).digest

        def fill() -> tuple[Any, int]:
            with ExitStack() as stack:
                with clock.phase("get"):
                    store = self.opening.store_of(store_url or self.store.url)
                    loan.lease(store, segments_of([ref for _, ref in needed]))
                    opened = open_segments(
                        stack, store, needed, ids, digest, keys=self.domain.keys,
                        layout=self.engine.layout, plans=self.checks.plans,
                    )  # fmt: skip
                cuts = [target.cuts(ref) for ref in refs]
                fetched = clock.timed("get", get_layers(opened, abandoned))
                decoded = clock.timed("decode", decode_layers(self._verified(fetched, clock)))
                if self.checks.tokens:
                    checked = check_layers(
                        decoded, opened, ids, self.engine, cuts=cuts, noise=noise,
                        lost=self.checks.losses, tally=tally,
                    )  # fmt: skip
                    decoded = clock.timed("probe", checked)
                cache = self._fill(decoded, cuts, target.tokens, room=room, clock=clock)
            return cache, sum(ref.size_bytes for _, ref in needed)

        def let_go() -> None:
            abandoned.set()
            loan.close()

        def whole() -> Taken:
            cache, moved = coming.result()
            return Taken(
                cache, target.tokens, Route.BATON, (), target.held(refs), target.inherited(refs),
                moved, tally.positions, self._unchecked(tally.positions, target.tokens),
                clock.seconds,
            )  # fmt: skip

        if deadline_s <= 0:
            return Taken(None, 0, Route.TEXT, (_late(deadline_s),))
        coming = begun(fill)
        late = Late(coming, whole, let_go) if hedged else None
        try:
            coming.result(timeout=min(deadline_s, TIMEOUT_MAX))
        except FutureTimeout:
            why, spent = _late(deadline_s), dict(clock.seconds)
            return Taken(None, 0, Route.TEXT, (why,), seconds=spent, late=late)
        except (KvbatonError, MemoryError) as error:
            late = None
            return Taken(None, 0, Route.TEXT, (reason_of(error),), seconds=clock.seconds)
        finally:
            if late is None or coming.done():
                let_go()
        return whole()

    def _fill(
        self,
        decoded: Iterable[tuple[int, DecodedLayer]],
        cuts: Sequence[Sequence[Cut]],
        tokens: int,
        *,
        room: int,
        clock: Clock,
    ) -> Any:
        with clock.phase("attach"):
            slot = self.engine.slot(tokens, room=room)
        turns = any(cut.position != cut.run.first for some in cuts for cut in some)
        shifter = self._shifter() if turns else None
        for part in clock.timed("align", align_layers(decoded, cuts, shifter)):
            with clock.phase("attach"):
                slot.write(part)
            self.observe("layer-attached", {"layer": part.layer, "run": part.run})
        return slot.finish()

    def _unchecked(self, positions: int, tokens: int) -> tuple[Reason, ...]:
        """A warning where not all positions could be held to their tokens."""
        if not self.checks.tokens or positions >= tokens:
            return ()
        sentence = (
            f"the first {tokens - positions} of {tokens} positions could not be held to their "
            "tokens: layer 0 keeps a window only"
        )
        return (Reason(ReasonCode.PARTLY_CHECKED, sentence),)

    def _verified(
        self, fetched: Iterable[tuple[int, FetchedLayer]], clock: Clock
    ) -> Iterable[tuple[int, VerifiedLayer]]:
        """Layers whose bytes have the promised digest.  A seam of its own: a benchmark of what
        verifying costs overrides it, and nothing else may."""
        return clock.timed("verify", verify_layers(fetched))

    def _shifter(self) -> Any:
        from kvbaton.alignment.shift import Shifter

        layout, tables = self.engine.layout, self.engine.frequencies
        return Shifter(layout, layout, tables_from=tables, tables_to=tables)

    def copy_prefix(self, cache: Any, tokens: int, *, room: int) -> Any:
        """A cache of its own with the first ``tokens`` positions of another, without the store.

        For full-attention layouts only: window layers know nothing but their end.
        """
        slot = self.engine.slot(tokens, room=room)
        span = SegmentSpan(0, tokens)
        for part in self.engine.export(cache, [span]):
            slot.write(AlignedLayer(span, part.layer, part.run, part.keys, part.values))
        return slot.finish()

    def find_prefix(self, ids: Sequence[int]) -> tuple[SegmentRef, ...]:
        """Full exact segments in the store that begin ``ids``, leaving at least one id to feed."""
        return self.prefixes.find(self.engine.function.digest, ids)


def _decided(taken: Taken, decision: Decision) -> Taken:
    """What was taken, by the route that was decided on and for its reasons."""
    return replace(taken, route=decision.route, reasons=decision.reasons, decision=decision)


def _late(deadline_s: float) -> Reason:
    sentence = f"the cache was not there within {deadline_s:.3g} s"
    return Reason(ReasonCode.DEADLINE, sentence)
