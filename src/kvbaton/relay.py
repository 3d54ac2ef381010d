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
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ExitStack
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from threading import Event
from typing import Any

from kvbaton import codecs
from kvbaton.arrows import (
    Cut,
    Opened,
    align_layers,
    decode_layers,
    encode_layers,
    get_layers,
    slice_layers,
    verify_layers,
)
from kvbaton.backing import (
    Shipment,
    Source,
    Taken,
    one_more,
    pieces,
    placed_ref,
)
from kvbaton.clock import Clock, within
from kvbaton.engines.base import Engine
from kvbaton.errors import (
    Fault,
    FormatError,
    KvbatonError,
)
from kvbaton.opening import open_baton, store_of
from kvbaton.placing import Target, move_refusal, moves_to
from kvbaton.policy import gates
from kvbaton.prefixes import PrefixIndex
from kvbaton.reasons import located, reason_of
from kvbaton.seals import TrustDomain
from kvbaton.stores import Key, Kind, Store
from kvbaton.types import (
    EXACT,
    AlignedLayer,
    Baton,
    BatonRef,
    BlockScores,
    EncodedLayer,
    Fidelity,
    FidelityClass,
    FunctionId,
    Manifest,
    Mode,
    Move,
    Reason,
    ReasonCode,
    Route,
    SealedSegment,
    SegmentKind,
    SegmentRef,
    SegmentSpan,
    Span,
    Terms,
    TokenRun,
    Transcript,
    worst_fidelity,
)
from kvbaton.warming import chains_of, warm_soon
from kvbaton.wire import manifest, segment, transcript
from kvbaton.wire.binding import check_segment, ref_digests, run_digests
from kvbaton.wire.digests import baton_id

SEGMENT_TOKENS = 256
"""Tokens of a full segment."""
MAX_LOSSY_HOPS = 3
"""Default of lossy hand-offs in a row."""

Observer = Callable[[str, Mapping[str, Any]], None]
"""Called with the name of an event and its facts; never with text or tensors."""

Calibrated = Callable[[str], frozenset[str]]
"""Digest of a function -> digests of the calibration records that are known for it."""


class Relay:
    """Hands batons over for one engine, through one store, within one trust domain.

    Parameters
    ----------
    engine
        The model whose caches are handed over.
    store
        Where segments, batons, transcripts and prefix records go.
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
        observer: Observer | None = None,
    ) -> None:
        self.engine, self.store, self.domain = engine, store, domain
        self.segment_tokens = segment_tokens
        self._lossless = codecs.exact_plan(len(engine.layout.layers))
        self.plan = plan or self._lossless
        self.calibrations: Calibrated = calibrations or (lambda function: frozenset())
        self.max_lossy_hops = max_lossy_hops
        self.observe: Observer = observer or (lambda event, facts: None)
        self.prefixes = PrefixIndex(
            store, domain, engine.layout, segment_tokens=segment_tokens, observe=self.observe
        )

    # -- hand_off: export -> slice -> encode -> seal -> put --------------------------------------

    def ship(
        self,
        cache: Any,
        ids: Sequence[int],
        spans: Sequence[SegmentSpan],
        clock: Clock,
        *,
        plan: codecs.CodecPlan | None = None,
        attended: Fidelity = EXACT,
        function: str = "",
    ) -> Iterator[tuple[SegmentRef, int]]:
        """Bring spans of a cache into the store; yields each segment and the bytes written.

        ``attended`` is the worst that these positions attended to; ``function`` is the digest of
        the engine's, where the caller has just asked for it.
        """
        chosen, layout = plan or self.plan, self.engine.layout
        if not chosen.lossless:
            warm_soon(chains_of(chosen), layout.dtype)
        exported = clock.timed("export", self.engine.export(cache, spans))
        sliced = slice_layers(exported)
        encoded = clock.timed("encode", encode_layers(sliced, chosen, layout, attended=attended))
        function = function or self.engine.function.digest
        for sealed in clock.timed("seal", self._seal(encoded, ids, function)):
            yield self._put(sealed, ids, clock)

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
        self, sealed: SealedSegment, ids: Sequence[int], clock: Clock
    ) -> tuple[SegmentRef, int]:
        with clock.phase("put"):
            header = sealed.header
            written = self.store.put(Key(Kind.SEGMENT, sealed.address), sealed.parts)
            ref = SegmentRef(sealed.address, header.span, header.size_bytes, header.fidelity)
            self.prefixes.add(header.function, ref, ids)
        self.observe("segment-stored", {"span": ref.span, "bytes": written})
        return ref, written

    def ship_all(
        self,
        source: Source,
        clock: Clock,
        *,
        plan: codecs.CodecPlan | None = None,
        requantize: bool = False,
        function: str = "",
    ) -> Shipment:
        """Bring what a source hands off into the store, writing only what is not there yet.

        What a lossy codec has changed before is listed again as it lies in the store, or stored
        losslessly: it is not quantized twice.

        Parameters
        ----------
        plan
            How everything is to be encoded, whatever it was encoded with before.
        requantize
            Encode by ``plan`` even what another codec has changed already; it is marked.

        Raises
        ------
        LossySource
            ``plan`` would quantize what has been quantized, and ``requantize`` does not allow it.
        """
        if plan is not None and not plan.lossless and not requantize:
            source.require_original(plan.name)
        refs: list[SegmentRef] = []
        written = position = 0
        for run in source.runs:
            kept = TokenRun(run.first, max(0, min(run.stop, source.cached) - run.first))
            for ref, size_bytes in self.ship_run(
                source,
                kept,
                clock,
                plan=plan,
                requantize=requantize,
                state=True,
                function=function,
            ):
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
        *,
        plan: codecs.CodecPlan | None = None,
        requantize: bool = False,
        state: bool = False,
        function: str = "",
    ) -> Iterator[tuple[SegmentRef, int]]:
        """Bring one run of a cache into the store: its segments, with the bytes written.

        Segments that are held are listed again; ``state`` adds that of the window layers.
        """

        def usable(ref: SegmentRef) -> bool:
            wanted = plan is None or ref.fidelity.codec == plan.fidelity.codec
            return wanted and self.store.exists(Key(Kind.SEGMENT, ref.address))

        full = self.engine.layout.full_layers
        found = pieces(source, run, self.segment_tokens, usable) if full else iter(())
        for held, todo in groupby(found, key=lambda piece: piece.held):
            if held is not None:
                yield held, 0
                continue
            spans = [SegmentSpan(piece.span.first, piece.span.count) for piece in todo]
            yield from self._ship_spans(
                source, spans, clock, plan, requantize=requantize, function=function
            )
        if state and self.engine.layout.window_layers and run.count:
            spans = [SegmentSpan(0, run.stop, SegmentKind.WINDOW)]
            yield from self._ship_spans(
                source, spans, clock, plan, requantize=requantize, function=function
            )

    def _ship_spans(
        self,
        source: Source,
        spans: Iterable[SegmentSpan],
        clock: Clock,
        plan: codecs.CodecPlan | None,
        *,
        requantize: bool,
        function: str,
    ) -> Iterator[tuple[SegmentRef, int]]:
        """New segments; what has been quantized before is stored losslessly."""
        for (again, attended), alike in groupby(spans, key=source.terms):
            chosen = self._lossless if again and not requantize else plan or self.plan
            known = attended
            if again and requantize:
                known = replace(attended, codec=f"{attended.codec}+{chosen.name}", calibration=None)
            yield from self.ship(
                source.cache,
                source.ids,
                list(alike),
                clock,
                plan=chosen,
                attended=known,
                function=function,
            )

    def hand_off(
        self,
        source: Source,
        *,
        sender: str,
        text: str,
        mode: Mode = Mode.CONTINUE,
        spans: tuple[Span, ...] = (),
        messages: tuple[Mapping[str, Any], ...] = (),
        terms: Terms | None = None,
        plan: codecs.CodecPlan | None = None,
        requantize: bool = False,
        importance: BlockScores | None = None,
    ) -> Baton:
        """Store the source's cache and the baton that lists it.

        The manifest is written last, so a sender that dies leaves no baton behind.  ``spans`` are
        at positions of the baton; ``plan`` and ``requantize`` are as for ``ship_all``.

        Raises
        ------
        LossySource
            The plan would quantize what has been quantized before.
        StoreError
            The store could not take it; no baton exists.
        StaleTurn
            The cache has moved on.
        """
        clock = Clock()
        function = self.engine.function
        shipment = self.ship_all(
            source, clock, plan=plan, requantize=requantize, function=function.digest
        )
        ids, cached = source.packed_ids, source.packed_cached
        fidelity = worst_fidelity(*(ref.promised for ref in shipment.segments))
        words = Transcript(ids, text, tuple(dict(m) for m in messages))
        blob = transcript.encode_transcript(words)
        address = self.domain.keys.transcript_address(blob)
        listing = Manifest(
            function=function,
            domain=self.domain.name,
            sender=sender,
            mode=mode,
            created_ms=time.time_ns() // 1_000_000,
            cached_tokens=cached,
            pending_tokens=len(ids) - cached,
            token_digest=self.domain.keys.token_digest(ids),
            transcript=address,
            transcript_bytes=len(blob),
            spans=spans,
            segments=shipment.segments,
            fidelity=fidelity,
            hops=one_more(source.hops, fidelity),
            parents=source.parents,
            terms=terms or Terms(),
            producer=self.engine.producer,
            importance=importance,
        )
        payload = manifest.encode_manifest(listing)
        name = baton_id(payload)
        with clock.phase("put"):
            self.store.put(Key(Kind.TRANSCRIPT, address), [blob])
            self.store.put(Key(Kind.BATON, name), [manifest.wrap(payload)])
        self.observe("baton-stored", {"baton": name})
        clock.seconds["total"] = clock.elapsed()
        return Baton(
            ref=BatonRef(name, self.store.url),
            manifest=listing,
            transcript=words,
            bytes_written=shipment.bytes_written,
            bytes_deduplicated=shipment.bytes_deduplicated,
            seconds=clock.seconds,
        )

    # -- take: get -> verify -> decode -> align -> attach ----------------------------------------

    def open(self, baton: Baton | BatonRef | str, *, deadline_s: float = math.inf) -> Baton:
        """Manifest and transcript of a baton; a ``Baton`` in process carries both.

        Raises
        ------
        NotTrusted
            The baton belongs to another trust domain; its transcript was not read.
        BatonUnavailable
            Manifest or transcript is absent, damaged or too late; the cause is chained.
        """
        return open_baton(baton, self.store, self.domain, deadline_s=deadline_s)

    def take(
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
    ) -> Taken:
        """Attach a baton's cache for a prompt whose first ``reusable`` ids are the baton's.

        ``function`` is the engine's, where the caller has just asked for it; ``moves`` are the
        positions that stay where the window is too small for all of them.  Never raises for what
        is wrong with the baton: the reasons say it, and ``cache`` is None.
        """
        context = self._context(
            prompt_tokens=prompt_tokens, reusable=reusable, room=room, minimum=minimum,
            function=function, sliced=moves is not None,
        )  # fmt: skip
        asked = gates.GATES if moves is None else gates.SLICE_GATES
        route, reasons = gates.decide(baton.manifest, context, asked)
        if route is Route.TEXT:
            return Taken(None, 0, route, reasons)
        tokens = min(reusable, baton.manifest.cached_tokens)
        taken = self.attach(
            baton.manifest.segments, baton.transcript.ids, tokens if moves is None else moves,
            room=room, deadline_s=deadline_s, store_url=baton.ref.store, function=context.function,
        )  # fmt: skip
        if taken.cache is None:
            return taken
        return replace(taken, route=route, reasons=reasons)

    def _context(
        self,
        *,
        prompt_tokens: int,
        reusable: int,
        room: int,
        minimum: FidelityClass,
        function: FunctionId | None,
        sliced: bool = False,
    ) -> gates.TakeContext:
        engine = self.engine
        function = function or engine.function
        return gates.TakeContext(
            function=function,
            layout=engine.layout,
            max_tokens=engine.max_tokens,
            prompt_tokens=prompt_tokens,
            reusable_tokens=reusable,
            room_tokens=room,
            free_memory_bytes=engine.free_memory_bytes(),
            minimum=minimum,
            max_lossy_hops=self.max_lossy_hops,
            calibrations=self.calibrations(function.digest),
            model=engine.name,
            sliced=sliced,
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
        refusal = self.slice_refusal(baton, prompt_tokens)
        if refusal or not moves:
            sentence = refusal or "the slice has no keys and values yet"
            code = ReasonCode.SLICE_REFUSED if refusal else ReasonCode.NO_KV
            return Taken(None, 0, Route.TEXT, (Reason(code, sentence),))
        context = self._context(
            prompt_tokens=prompt_tokens, reusable=reusable, room=0, minimum=minimum,
            function=function, sliced=True,
        )  # fmt: skip
        route, reasons = gates.decide(baton.manifest, context, gates.SLICE_GATES)
        if route is Route.TEXT:
            return Taken(None, 0, route, reasons)
        return self.attach(
            baton.manifest.segments, baton.transcript.ids, moves, room=0, deadline_s=deadline_s,
            behind=at, store_url=baton.ref.store, function=context.function,
        )  # fmt: skip

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
        """
        clock, abandoned = Clock(), Event()
        target = Target(moves, behind)
        needed = [(i, ref) for i, ref in enumerate(refs) if target.cuts(ref)]
        digest = (function or self.engine.function).digest

        def fill() -> tuple[Any, int]:
            with ExitStack() as stack:
                with clock.phase("get"):
                    store = store_of(store_url or self.store.url, self.store)
                    opened = self._open_segments(stack, store, needed, ids, digest)
                cuts = [target.cuts(ref) for ref in refs]
                cache = self._fill(
                    opened, cuts, target.tokens, room=room, clock=clock, abandoned=abandoned
                )
            return cache, sum(ref.size_bytes for _, ref in needed)

        try:
            cache, moved = within(deadline_s, fill)
        except FutureTimeout:
            late = Reason(ReasonCode.DEADLINE, f"the cache was not there within {deadline_s:.3g} s")
            return Taken(None, 0, Route.TEXT, (late,), seconds=dict(clock.seconds))
        except (KvbatonError, MemoryError) as error:
            return Taken(None, 0, Route.TEXT, (reason_of(error),), seconds=clock.seconds)
        finally:
            abandoned.set()
        return Taken(
            cache, target.tokens, Route.BATON, (), target.held(refs), target.inherited(refs),
            moved, clock.seconds,
        )  # fmt: skip

    def _fill(
        self,
        opened: Sequence[Opened],
        cuts: Sequence[Sequence[Cut]],
        tokens: int,
        *,
        room: int,
        clock: Clock,
        abandoned: Event,
    ) -> Any:
        with clock.phase("attach"):
            slot = self.engine.slot(tokens, room=room)
        turns = any(cut.position != cut.run.first for some in cuts for cut in some)
        shifter = self._shifter() if turns else None
        fetched = clock.timed("get", get_layers(opened, abandoned))
        verified = clock.timed("verify", verify_layers(fetched))
        decoded = clock.timed("decode", decode_layers(verified))
        for part in clock.timed("align", align_layers(decoded, cuts, shifter)):
            with clock.phase("attach"):
                slot.write(part)
            self.observe("layer-attached", {"layer": part.layer, "run": part.run})
        return slot.finish()

    def _shifter(self) -> Any:
        from kvbaton.alignment.shift import Shifter

        layout, tables = self.engine.layout, self.engine.frequencies
        return Shifter(layout, layout, tables_from=tables, tables_to=tables)

    def _open_segments(
        self,
        stack: ExitStack,
        store: Store,
        refs: Sequence[tuple[int, SegmentRef]],
        ids: Sequence[int],
        function: str,
    ) -> list[Opened]:
        """Open segments and check their headers against address, manifest and tokens."""
        keys = self.domain.keys
        opened: list[Opened] = []
        digests = ref_digests(keys, function, ids, [ref for _, ref in refs])
        for (index, ref), (tokens, prefix_key) in zip(refs, digests, strict=True):
            with located(f"$.segments[{index}]"):
                reader = stack.enter_context(store.open(Key(Kind.SEGMENT, ref.address)))
                header = segment.read_header(
                    reader.read, file_size=reader.size_bytes, address=ref.address, keys=keys,
                    storage=codecs.storage,
                )  # fmt: skip
                check_segment(
                    header, ref, function=function, token_digest=tokens, prefix_key=prefix_key
                )
                if header.layout != self.engine.layout:
                    raise FormatError("the segment has another layout", fault=Fault.RANGES)
            if header.fidelity.compressed:
                chains = [codecs.chain_from_json(c, codecs.CODECS) for c in header.codecs]
                warm_soon(chains, header.layout.dtype)
            opened.append(Opened(index, reader, header, ref.shift or 0))
        return opened

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
