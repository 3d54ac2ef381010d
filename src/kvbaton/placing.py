"""Where the positions of a baton go when they are attached."""

from __future__ import annotations

from collections.abc import Sequence

from kvbaton.alignment.slicing import slice_refusal
from kvbaton.arrows import Cut
from kvbaton.backing import Inherited, placed_ref
from kvbaton.types import EXACT, KVLayout, Move, SegmentKind, SegmentRef, TokenRun


def move_refusal(layout: KVLayout, stop: int, *, window: int) -> str | None:
    """Why keys of a sequence of ``stop`` tokens cannot be moved; None if they can.

    ``window`` is the model's, up to which the tables of some kinds of RoPE are known.
    """
    from kvbaton import rope

    refusal = slice_refusal(layout)
    known = all(rope.table_known(spec, stop, original=window) for spec in layout.ropes)
    if refusal is None and not known:
        return (
            "its rotary table depends on the length, and the sequence is longer than the "
            "original one"
        )
    return refusal


def moves_to(runs: Sequence[TokenRun], at: int, *, cached: int) -> tuple[tuple[Move, ...], int]:
    """Where runs of a baton go that stand one behind the other from position ``at`` on.

    Only the first ``cached`` positions have KV; also the number of all positions.
    """
    moves, to = [], at
    for run in runs:
        kept = TokenRun(run.first, max(0, min(run.stop, cached) - run.first))
        if kept.count:
            moves.append(Move(kept, to))
        to += kept.count
    return tuple(moves), to - at


class Target:
    """Where the positions of a baton go: behind other tokens or in their place.

    Parameters
    ----------
    moves
        Positions of the baton, ascending, and where they go; or how many of the first stay where
        they are.
    behind
        Positions of other tokens that will stand before them; None where there are none.
    """

    def __init__(self, moves: Sequence[Move] | int, behind: int | None) -> None:
        if isinstance(moves, int):
            moves = (Move(TokenRun(0, moves), 0),)
        self._moves, self._behind = tuple(moves), behind
        self._base = behind or 0
        self.tokens = sum(move.run.count for move in moves)

    def cuts(self, ref: SegmentRef) -> tuple[Cut, ...]:
        """What of a segment is attached, in positions at which it was computed."""
        if ref.span.kind is SegmentKind.WINDOW:
            whole = ref.run.stop == self.tokens
            return (Cut(ref.span, ref.span.first, ref.span.first),) if whole else ()
        found, shift = [], ref.shift or 0
        for move in self._moves:
            first = max(ref.run.first, move.run.first)
            count = min(ref.run.stop, move.run.stop) - first
            if count > 0:
                position = first - move.run.first + move.to
                run = TokenRun(first - shift, count)
                found.append(Cut(run, position - self._base, position))
        return tuple(found)

    def _placed(self, ref: SegmentRef, move: Move) -> SegmentRef:
        to = ref.run.first - move.run.first + move.to
        in_place = self._behind is None and move.to == move.run.first
        return placed_ref(ref, to, in_place=in_place)

    def held(self, refs: Sequence[SegmentRef]) -> tuple[SegmentRef, ...]:
        """The segments that are attached as a whole, where they stand now."""
        return tuple(
            self._placed(ref, move)
            for ref in refs
            for move in self._moves
            if ref.span.kind is SegmentKind.RUN
            and move.run.first <= ref.run.first
            and ref.run.stop <= move.run.stop
        )

    def inherited(self, refs: Sequence[SegmentRef]) -> tuple[Inherited, ...]:
        """The positions that are not exact where they stand now."""
        found = []
        for ref in refs:
            for move in self._moves:
                first = max(ref.run.first, move.run.first)
                count = min(ref.run.stop, move.run.stop) - first
                fidelity = self._placed(ref, move).promised
                if count > 0 and fidelity != EXACT:
                    run = TokenRun(first - move.run.first + move.to, count)
                    found.append(Inherited(run, fidelity))
        return tuple(found)
