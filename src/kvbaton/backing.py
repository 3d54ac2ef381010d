"""What backs a cache: which of its positions were computed here, and which came from where.

Some positions of a receiver's cache are those of segments in a store, byte for byte; a hand-off
lists those segments again instead of writing them anew.  Some have lost something on the way;
whatever attended to them has lost it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvbaton.errors import LossySource
from kvbaton.hedging import Late
from kvbaton.policy.base import Decision
from kvbaton.types import (
    Fidelity,
    FidelityClass,
    Hops,
    Reason,
    Route,
    SegmentKind,
    SegmentRef,
    SegmentSpan,
    TokenRun,
    worst_fidelity,
)
from kvbaton.wire.limits import MAX_HOPS


@dataclass(frozen=True, slots=True)
class Inherited:
    """Positions of a cache whose KV is not what the model would have computed there."""

    run: TokenRun
    fidelity: Fidelity


@dataclass(frozen=True)
class Source:
    """What a sender hands off.

    ``ids`` are the tokens of the conversation: the first ``cached`` have KV in ``cache``, the rest
    are pending.  ``held`` are segments of a store that back positions of the cache already;
    ``inherited`` are the positions that are not exact.  ``parts`` are the runs of ``ids`` that are
    handed off, ascending: all of them by default.  ``signers`` are the key ids of all who have
    had a part in it.
    """

    cache: Any
    cached: int
    ids: tuple[int, ...]
    held: tuple[SegmentRef, ...] = ()
    parents: tuple[str, ...] = ()
    hops: Hops = field(default_factory=Hops)
    inherited: tuple[Inherited, ...] = ()
    parts: tuple[TokenRun, ...] = ()
    signers: tuple[str, ...] = ()

    @property
    def runs(self) -> tuple[TokenRun, ...]:
        """The runs of ids that are handed off."""
        return self.parts or (TokenRun(0, len(self.ids)),)

    @property
    def packed_ids(self) -> tuple[int, ...]:
        """The ids that are handed off, one run behind the other."""
        return tuple(i for run in self.runs for i in self.ids[run.first : run.stop])

    @property
    def packed_cached(self) -> int:
        """How many of them have KV."""
        return sum(max(0, min(run.stop, self.cached) - run.first) for run in self.runs)

    def attended(self, span: TokenRun) -> Fidelity:
        """The worst of everything that the positions of ``span`` attended to."""
        return worst_fidelity(*(i.fidelity for i in self.inherited if i.run.first < span.stop))

    def compressed(self, span: TokenRun) -> bool:
        """Whether positions of ``span`` were themselves decoded from a lossy codec."""
        return any(
            i.fidelity.compressed and i.run.first < span.stop and span.first < i.run.stop
            for i in self.inherited
        )

    def terms(self, span: TokenRun) -> tuple[bool, Fidelity]:
        """Whether ``span`` was decoded from a lossy codec, and the worst that it attended to."""
        return self.compressed(span), self.attended(span)

    def require_original(self, codec: str) -> None:
        """Raise ``LossySource`` where another codec than ``codec`` has quantized something."""
        for known in self.inherited:
            if known.fidelity.compressed and known.fidelity.codec != codec:
                raise LossySource(
                    f"tokens {known.run.first} to {known.run.stop - 1} were decoded from "
                    f"{known.fidelity.codec!r}: encoding them by {codec!r} would lose more",
                    hint="hand them off without naming a plan, or with requantize=True",
                )


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a cache comes from that a user's own code goes on with: see ``Source``."""

    parents: tuple[str, ...]
    hops: Hops
    inherited: tuple[Inherited, ...]
    signers: tuple[str, ...]


NOWHERE = Origin((), Hops(), (), ())


@dataclass(frozen=True, slots=True)
class Piece:
    """Positions of a cache that become one segment: one that is ``held``, or one to be made."""

    span: TokenRun
    held: SegmentRef | None = None


def cut(start: int, stop: int, size: int) -> Iterator[SegmentSpan]:
    """Positions ``start`` to ``stop``, cut at multiples of ``size``."""
    while start < stop:
        end = min(stop, (start // size + 1) * size)
        yield SegmentSpan(start, end - start)
        start = end


def pieces(
    source: Source, run: TokenRun, size: int, usable: Callable[[SegmentRef], bool]
) -> Iterator[Piece]:
    """How the positions of ``run`` are stored: segments that are held, and spans between them.

    Spans of a compressed run and of what was computed here never share a segment, so that
    nothing is quantized twice.
    """
    held = {
        ref.run.first: ref
        for ref in source.held
        if ref.span.kind is SegmentKind.RUN and run.first <= ref.run.first <= run.stop
    }
    edges = sorted(
        {edge for i in source.inherited if i.fidelity.compressed for edge in _edges(i.run)}
    )
    position = run.first
    while position < run.stop:
        ref = held.get(position)
        if ref is not None and _serves(ref, run, size) and usable(ref):
            yield Piece(ref.run, ref)
            position = ref.run.stop
            continue
        marks = [p for p in (*held, *edges) if position < p < run.stop]
        stop = min(marks, default=run.stop)
        yield from map(Piece, cut(position, stop, size))
        position = stop


def _edges(run: TokenRun) -> tuple[int, int]:
    return run.first, run.stop


def _serves(ref: SegmentRef, run: TokenRun, size: int) -> bool:
    """Whether a held segment can be listed again.

    A short one inside the sequence is exported anew, so that segments stay on the grid, unless
    that would quantize it again or lose what it was before it was moved.
    """
    if ref.run.stop > run.stop:
        return False
    whole = ref.span.count % size == 0 or ref.run.stop == run.stop
    return whole or ref.fidelity.compressed or ref.moved


def placed_ref(ref: SegmentRef, to: int, *, in_place: bool) -> SegmentRef:
    """The segment listed so that its first token stands at ``to``."""
    return replace(ref, shift=None if in_place and not ref.moved else to - ref.span.first)


def covered(refs: Sequence[SegmentRef], stop: int) -> tuple[SegmentRef, ...]:
    """The segments that lie wholly before ``stop``."""
    return tuple(ref for ref in refs if ref.run.stop <= stop)


@dataclass(frozen=True)
class Shipment:
    """Segments that are in the store, and what it cost to bring them there."""

    segments: tuple[SegmentRef, ...]
    bytes_written: int
    bytes_deduplicated: int


@dataclass(frozen=True)
class Taken:
    """What a take attached: a cache of ``reused`` positions, or None with the reasons.

    ``held`` and ``inherited`` are at positions of the sequence that the cache belongs to;
    ``probed`` counts positions that a probe has looked at, ``decision`` is what the policy said,
    and ``late`` is the cache where it is still on its way.
    """

    cache: Any | None
    reused: int
    route: Route
    reasons: tuple[Reason, ...] = ()
    held: tuple[SegmentRef, ...] = ()
    inherited: tuple[Inherited, ...] = ()
    bytes_moved: int = 0
    probed: int = 0
    warnings: tuple[Reason, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    decision: Decision | None = None
    late: Late | None = None


def one_more(hops: Hops, fidelity: Fidelity) -> Hops:
    """One hand-off more; only those of exact batons count as exact."""
    if fidelity.kind is FidelityClass.EXACT:
        return replace(hops, exact=min(hops.exact + 1, MAX_HOPS))
    return replace(hops, lossy=min(hops.lossy + 1, MAX_HOPS))
