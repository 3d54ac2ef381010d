"""Which positions of attached slices are computed again: choices, and one repair made of them.

A slice has attended to what stood before it at the sender.  Computing some of its rows anew,
against what stands before it now, closes a part of the gap to text; which rows are worth it is
chosen here, by their place, by how much later tokens look at them, or by how far they move.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kvbaton.errors import InputError, SliceError
from kvbaton.types import KVLayout, TokenRun

DEFAULT_CHOOSER = "auto"
"""The first rows where few are chosen, from ``_ENOUGH`` on half of them by importance."""
DEFAULT_FRACTION = 0.05
QUERIES = 32
"""Last tokens of the cache whose attention tells which rows matter."""
_ENOUGH = 0.1
"""Share of rows from which on it is worth asking for their importance, which has its price."""
CHECK_LAYER = 1
"""Layer at which deviation is measured, unless another is asked for."""

Ranking = Sequence[float]


@dataclass(frozen=True, slots=True)
class Scores:
    """What is known of the slices' positions, run by run; empty where it was not measured."""

    importance: Ranking = ()
    deviation: Ranking = ()


Chooser = Callable[[Sequence[TokenRun], int, Scores], set[int]]
"""Runs, a number of rows and scores -> so many rows (or fewer, where there are not so many)."""


@dataclass(frozen=True, slots=True)
class Repair:
    """How attached slices are mended.

    Parameters
    ----------
    fraction
        Share of the slices' rows that are computed anew, 0 to 1.
    chooser
        One of ``CHOOSERS``, or ``auto``.
    queries, check_layer
        For choosers that go by importance, and by deviation.
    layers
        Compute only the first so many layers anew, and keep the sender's deeper ones; None for
        all.

    Raises
    ------
    InputError
        An unknown chooser, or numbers outside of their range.
    """

    fraction: float = DEFAULT_FRACTION
    chooser: str = DEFAULT_CHOOSER
    queries: int = QUERIES
    check_layer: int = CHECK_LAYER
    layers: int | None = None

    def __post_init__(self) -> None:
        known = (DEFAULT_CHOOSER, *CHOOSERS)
        if self.chooser not in known:
            raise InputError(
                f"there is no chooser {self.chooser!r}", at="$.chooser", hint=", ".join(known)
            )
        if not 0 <= self.fraction <= 1:
            raise InputError(
                f"a share of rows lies between 0 and 1, not at {self.fraction}", at="$.fraction"
            )
        if self.queries < 1 or self.check_layer < 1:
            raise InputError("queries and the check layer are at least 1", at="$.queries")
        if self.layers is not None and self.layers < 1:
            raise InputError("at least one layer is computed anew", at="$.layers")

    @property
    def choice(self) -> str:
        """The name of the chooser in ``CHOOSERS`` that is used."""
        if self.chooser != DEFAULT_CHOOSER:
            return self.chooser
        worth_asking = _ENOUGH <= self.fraction < 1
        return "first+importance" if worth_asking else "first"

    @property
    def needs_importance(self) -> bool:
        """Whether the chooser goes by attention."""
        return "importance" in self.choice

    @property
    def needs_deviation(self) -> bool:
        """Whether the chooser goes by deviation at the check layer."""
        return "deviation" in self.choice


def chosen_rows(
    runs: Sequence[TokenRun], repair: Repair, scores: Scores | None = None
) -> tuple[int, ...]:
    """Rows of the slices to compute anew, ascending.

    Parameters
    ----------
    runs
        The slices at the receiver, ascending.
    scores
        What the chooser needs, for the positions of the runs in their order.

    Raises
    ------
    InputError
        Scores that the chooser needs are missing, or are not as many as positions.
    """
    scores, total = scores or Scores(), sum(run.count for run in runs)
    needed = {"importance": repair.needs_importance, "deviation": repair.needs_deviation}
    for name, is_needed in needed.items():
        given = len(getattr(scores, name))
        if is_needed and given != total:
            raise InputError(
                f"{given} scores of {name} for {total} positions", at=f"$.scores.{name}"
            )
    count = math.ceil(repair.fraction * total)
    return tuple(sorted(CHOOSERS[repair.choice](runs, count, scores))) if count else ()


# -- choosers ---------------------------------------------------------------------------------


def first_rows(runs: Sequence[TokenRun], count: int, scores: Scores) -> set[int]:
    """The first rows of every slice: they lean most on what stood before it."""
    del scores
    return {run.first + i for run, share in _shares(runs, count) for i in range(share)}


def last_rows(runs: Sequence[TokenRun], count: int, scores: Scores) -> set[int]:
    """The last rows of every slice: what follows looks at them most."""
    del scores
    return {run.stop - 1 - i for run, share in _shares(runs, count) for i in range(share)}


def every_row(runs: Sequence[TokenRun], count: int, scores: Scores) -> set[int]:
    """Rows at equal distances."""
    del scores
    return {
        run.first + i * run.count // share
        for run, share in _shares(runs, count)
        for i in range(share)
    }


def important_rows(runs: Sequence[TokenRun], count: int, scores: Scores) -> set[int]:
    """The rows that later tokens look at most."""
    return _best(runs, count, scores.importance)


def deviating_rows(runs: Sequence[TokenRun], count: int, scores: Scores) -> set[int]:
    """The rows that move farthest at the check layer (CacheBlend)."""
    return _best(runs, count, scores.deviation)


def _half(one: Chooser, other: Chooser) -> Chooser:
    """Half of the rows by one chooser, and the best of the others by another."""

    def both(runs: Sequence[TokenRun], count: int, scores: Scores) -> set[int]:
        rows = one(runs, (count + 1) // 2, scores)
        total = sum(run.count for run in runs)
        wanted = min(count, total)
        extra = count - len(rows)
        while len(rows) < wanted:  # what both would choose counts once
            missing = wanted - len(rows)
            new = sorted(other(runs, extra, scores) - rows)
            # shares of a larger count need not hold those of a smaller one
            rows = rows | set(new[-missing:])
            extra += wanted - len(rows)
        return rows

    return both


CHOOSERS: Mapping[str, Chooser] = {
    "first": first_rows,
    "last": last_rows,
    "every": every_row,
    "importance": important_rows,
    "deviation": deviating_rows,
    "first+importance": _half(first_rows, important_rows),
    "first+deviation": _half(first_rows, deviating_rows),
    "first+last": _half(first_rows, last_rows),
}


def _shares(runs: Sequence[TokenRun], count: int) -> list[tuple[TokenRun, int]]:
    """``count`` rows shared out among runs by their lengths; the first ones get what is over."""
    total = sum(run.count for run in runs)
    count = min(count, total)
    shares = [count * run.count // total for run in runs]
    for index, run in enumerate(runs):
        if sum(shares) == count:
            break
        shares[index] += shares[index] < run.count
    return list(zip(runs, shares, strict=True))


def _best(runs: Sequence[TokenRun], count: int, ranking: Ranking) -> set[int]:
    places = [p for run in runs for p in range(run.first, run.stop)]
    order = sorted(range(len(places)), key=lambda i: (-ranking[i], i))
    return {places[i] for i in order[:count]}


# -- one repair -------------------------------------------------------------------------------


class Recomputing(Protocol):
    """What a repair needs of an engine."""

    layout: KVLayout

    def recompute(
        self, cache: Any, ids: Sequence[int], rows: Sequence[int], *, layers: int | None = None
    ) -> int:
        """Compute rows anew in place; the number of rows times layers."""
        ...

    def deviation(
        self, cache: Any, ids: Sequence[int], first: int, stop: int, *, check_layer: int
    ) -> Any:
        """Squared distances ``[2, n]`` of K and V at a layer."""
        ...

    def attention_importance(self, cache: Any, ids: Sequence[int], *, queries: int) -> Any:
        """Shares ``[layers, n]`` of the last tokens' attention."""
        ...


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair did: the rows that were computed anew, and all rows times layers it ran."""

    rows: tuple[int, ...] = ()
    token_layers: int = 0


def mend(
    engine: Recomputing,
    cache: Any,
    ids: Sequence[int],
    runs: Sequence[TokenRun],
    repair: Repair | None = None,
) -> Repaired:
    """Compute chosen rows of attached slices anew, and every row behind the last slice.

    Rows behind the slices have looked at them; they are computed once more after them.  Choosers
    that go by importance ask the last tokens of the cache: those of the question, if it has been
    fed already.

    Parameters
    ----------
    cache, ids
        The receiver's cache and the ids of all its positions.
    runs
        The slices, by their positions in the cache.

    Raises
    ------
    SliceError
        A run is not in the cache.
    InputError
        The engine refuses the rows.
    UnsupportedLayout
        Rows of this model cannot be computed again.
    """
    repair = repair or Repair()
    _require_inside(runs, len(ids))
    if repair.fraction == 0:
        return Repaired()
    scores, spent = _measured(engine, cache, ids, runs, repair)
    rows = (*chosen_rows(runs, repair, scores), *range(runs[-1].stop, len(ids)))
    return Repaired(rows, spent + engine.recompute(cache, ids, rows, layers=repair.layers))


def _require_inside(runs: Sequence[TokenRun], tokens: int) -> None:
    before = 0
    for index, run in enumerate(runs):
        if run.first < before or run.stop > tokens or run.count < 1:
            raise SliceError(
                f"slice {run.first}:{run.stop} is not in its place in {tokens} positions",
                at=f"$.runs[{index}]",
            )
        before = run.stop
    if not runs:
        raise SliceError("there are no slices to mend", at="$.runs")


def _measured(
    engine: Recomputing,
    cache: Any,
    ids: Sequence[int],
    runs: Sequence[TokenRun],
    repair: Repair,
) -> tuple[Scores, int]:
    """The scores that the chooser needs, and the rows times layers that they took."""
    spent, importance, deviation = 0, list[float](), list[float]()
    if repair.needs_importance:
        share = engine.attention_importance(cache, ids, queries=repair.queries).sum(0).tolist()
        importance = [share[p] for run in runs for p in range(run.first, run.stop)]
        spent += min(repair.queries, len(ids)) * len(engine.layout.layers)
    if repair.needs_deviation:
        for run in runs:
            check = repair.check_layer
            moved = engine.deviation(cache, ids, run.first, run.stop, check_layer=check)
            deviation.extend(moved.sum(0).tolist())
            spent += run.count * (check + 1)
    return Scores(importance, deviation), spent
