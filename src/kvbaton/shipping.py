"""Bringing spans of a cache into a store: export -> slice -> (noise) -> encode -> seal -> put."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any

from kvbaton import codecs
from kvbaton.arrows import encode_layers, slice_layers
from kvbaton.backing import Shipment, Source, pieces, placed_ref
from kvbaton.clock import Clock
from kvbaton.engines.base import Engine
from kvbaton.errors import InputError
from kvbaton.leasing import UNLEASED, Loan, in_use
from kvbaton.noise import blur_layers, checked_level, span_seeds
from kvbaton.prefixes import PrefixIndex
from kvbaton.seals import TrustDomain
from kvbaton.stores import Key, Kind, Store
from kvbaton.types import (
    EXACT,
    EncodedLayer,
    Fidelity,
    FidelityClass,
    SealedSegment,
    SegmentKind,
    SegmentRef,
    SegmentSpan,
    TokenRun,
)
from kvbaton.vaults import require_sealed
from kvbaton.warming import chains_of, warm_soon
from kvbaton.wire import segment
from kvbaton.wire.binding import run_digests
from kvbaton.wire.limits import MAX_NOISE


@dataclass(frozen=True, slots=True)
class Packing:
    """How a hand-off encodes.

    Parameters
    ----------
    plan
        How everything is to be encoded, whatever it was encoded with before; by default the
        relay's own plan, and only what has not been encoded yet.
    requantize
        Encode by ``plan`` even what another codec has changed already; it is marked.
    noise
        Relative size of the noise that is added to K and V; 0 for none.
    function
        Digest of the engine's function, where the caller has just asked for it.
    sender
        In whose name segments are found by those whose prompts begin alike.
    """

    plan: codecs.CodecPlan | None = None
    requantize: bool = False
    noise: float = 0.0
    function: str = ""
    sender: str = ""

    def __post_init__(self) -> None:
        if checked_level(self.noise) > MAX_NOISE:
            raise InputError(f"a baton has noise of at most {MAX_NOISE}", at="$.noise")


AS_IT_IS = Packing()


class Shipper:
    """The sender's half of a relay; parameters as there."""

    def __init__(
        self,
        engine: Engine,
        store: Store,
        domain: TrustDomain,
        prefixes: PrefixIndex,
        *,
        segment_tokens: int,
        plan: codecs.CodecPlan | None,
        observe: Any,
    ) -> None:
        self.engine, self.store, self.domain, self.prefixes = engine, store, domain, prefixes
        self.segment_tokens, self.observe = segment_tokens, observe
        self._lossless = codecs.exact_plan(len(engine.layout.layers))
        self.plan = plan or self._lossless

    def ship(
        self,
        cache: Any,
        ids: Sequence[int],
        spans: Sequence[SegmentSpan],
        clock: Clock,
        packing: Packing = AS_IT_IS,
        loan: Loan = UNLEASED,
        *,
        attended: Fidelity = EXACT,
    ) -> Iterator[tuple[SegmentRef, int]]:
        """Bring spans of a cache into the store; yields each segment and the bytes written.

        ``attended`` is the worst that these positions attended to; ``loan`` leases the segments.
        """
        chosen, layout = packing.plan or self.plan, self.engine.layout
        if not chosen.lossless:
            warm_soon(chains_of(chosen), layout.dtype)
        function = packing.function or self.engine.function.digest
        sliced = slice_layers(clock.timed("export", self.engine.export(cache, spans)))
        if packing.noise:
            attended = replace(attended, kind=FidelityClass.APPROXIMATE)
            seeds = span_seeds(self.domain.keys, function, ids)
            sliced = clock.timed("noise", blur_layers(sliced, packing.noise, seeds))
        encoded = clock.timed("encode", encode_layers(sliced, chosen, layout, attended=attended))
        for sealed in clock.timed("seal", self._seal(encoded, ids, function)):
            yield self._put(sealed, ids, clock, packing.sender, loan)

    def _seal(
        self, encoded: Iterable[EncodedLayer], ids: Sequence[int], function: str
    ) -> Iterator[SealedSegment]:
        keys = self.domain.keys
        for span, layers in groupby(encoded, key=attrgetter("span")):
            ((tokens, before),) = run_digests(keys, function, ids, [span])
            yield segment.seal_segment(
                layers,
                keys=keys,
                function=function,
                layout=self.engine.layout,
                producer=self.engine.producer,
                token_digest=tokens,
                prefix_key=before,
                storage=codecs.storage,
            )

    def _put(
        self, sealed: SealedSegment, ids: Sequence[int], clock: Clock, sender: str, loan: Loan
    ) -> tuple[SegmentRef, int]:
        with clock.phase("put"):
            require_sealed(self.store, self.domain)
            header = sealed.header
            loan.lease(self.store, [Key(Kind.SEGMENT, sealed.address)])  # first: it may be there
            written = self.store.put(Key(Kind.SEGMENT, sealed.address), sealed.parts)
            ref = SegmentRef(sealed.address, header.span, header.size_bytes, header.fidelity)
            self.prefixes.add(header.function, ref, ids, sender=sender)
        self.observe("segment-stored", {"span": ref.span, "bytes": written})
        return ref, written

    def ship_all(
        self,
        source: Source,
        clock: Clock,
        packing: Packing = AS_IT_IS,
        loan: Loan = UNLEASED,
    ) -> Shipment:
        """Bring what a source hands off into the store, writing only what is not there yet.

        ``loan`` leases every segment that is listed, before the store is asked for it.

        What a lossy codec has changed before is listed again as it lies in the store, or stored
        losslessly: it is not quantized twice.

        Raises
        ------
        LossySource
            The plan would quantize what has been quantized, and ``requantize`` does not allow it.
        """
        plan = packing.plan
        if plan is not None and not plan.lossless and not packing.requantize:
            source.require_original(plan.name)
        refs: list[SegmentRef] = []
        written = position = 0
        for run in source.runs:
            kept = TokenRun(run.first, max(0, min(run.stop, source.cached) - run.first))
            for ref, size_bytes in self.ship_run(source, kept, clock, packing, loan, state=True):
                to = position + ref.run.first - kept.first
                refs.append(placed_ref(ref, to, in_place=position == kept.first))
                written += size_bytes
            position += kept.count
        total = sum(ref.size_bytes for ref in refs)
        return Shipment(tuple(refs), written, total - written)

    def ship_run(
        self,
        source: Source,
        run: TokenRun,
        clock: Clock,
        packing: Packing = AS_IT_IS,
        loan: Loan = UNLEASED,
        *,
        state: bool = False,
    ) -> Iterator[tuple[SegmentRef, int]]:
        """Bring one run of a cache into the store: its segments, with the bytes written.

        Segments that are held are listed again; ``state`` adds that of the window layers.
        """
        plan, noisy = packing.plan, packing.noise > 0

        def usable(ref: SegmentRef) -> bool:
            wanted = plan is None or ref.fidelity.codec == plan.fidelity.codec
            if not wanted or noisy:
                return False
            key = Key(Kind.SEGMENT, ref.address)
            loan.lease(self.store, [key])
            return in_use(self.store, key)

        full = self.engine.layout.full_layers
        found = pieces(source, run, self.segment_tokens, usable) if full else iter(())
        for held, todo in groupby(found, key=lambda piece: piece.held):
            if held is not None:
                yield held, 0
                continue
            spans = [SegmentSpan(piece.span.first, piece.span.count) for piece in todo]
            yield from self._ship_spans(source, spans, clock, packing, loan)
        if state and self.engine.layout.window_layers and run.count:
            spans = [SegmentSpan(0, run.stop, SegmentKind.WINDOW)]
            yield from self._ship_spans(source, spans, clock, packing, loan)

    def _ship_spans(
        self,
        source: Source,
        spans: Iterable[SegmentSpan],
        clock: Clock,
        packing: Packing,
        loan: Loan,
    ) -> Iterator[tuple[SegmentRef, int]]:
        """New segments; what has been quantized before is stored losslessly."""
        for (again, attended), alike in groupby(spans, key=source.terms):
            requantize = packing.requantize
            chosen = self._lossless if again and not requantize else packing.plan or self.plan
            known = attended
            if again and requantize:
                known = replace(attended, codec=f"{attended.codec}+{chosen.name}", calibration=None)
            yield from self.ship(
                source.cache,
                source.ids,
                list(alike),
                clock,
                replace(packing, plan=chosen),
                loan,
                attended=known,
            )
