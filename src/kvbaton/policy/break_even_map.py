"""The break-even map: which route is fastest, by length of the context and bandwidth of the store.

It is drawn from speeds that were measured on this machine, and says nothing of another one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvbaton.errors import InputError
from kvbaton.policy.costs import SEGMENT_TOKENS, cache_phases, take_ahead, text_s
from kvbaton.policy.routes import TEXT, TIE, Prediction, fastest
from kvbaton.policy.speeds import EXACT_CODEC, Speeds, StoreSpeed
from kvbaton.types import JSON

TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
BANDWIDTHS_MB_S = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
NEW_TOKENS = 24
_MOST = 10_000


@dataclass(frozen=True, slots=True)
class MapCell:
    """One length at one bandwidth: the route that wins, and seconds to the first token by route,
    in the order of the map's routes."""

    tokens: int
    bandwidth_mb_s: float
    winner: str
    ttft_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class EvenPoint:
    """The bandwidth from which on a route is faster than text at one length, in 10^6 bytes per
    second; None where it never is, however fast the store."""

    route: str
    tokens: int
    bandwidth_mb_s: float | None


@dataclass(frozen=True, slots=True)
class BreakEvenMap:
    """Where each route wins.

    Parameters
    ----------
    tokens, bandwidths_mb_s
        Lengths of the context that is handed off, and bandwidths, both ascending.
    new_tokens
        What the receiver adds behind it.
    routes
        ``text`` and the profiles, most faithful first.
    cells
        By length and then by bandwidth.
    even
        By route and then by length.
    measured_to
        The longest context that was measured; beyond it lengths are extrapolated.
    """

    model: str
    tokens: tuple[int, ...]
    bandwidths_mb_s: tuple[float, ...]
    new_tokens: int
    routes: tuple[str, ...]
    cells: tuple[MapCell, ...]
    even: tuple[EvenPoint, ...]
    measured_to: int

    def row(self, tokens: int) -> tuple[MapCell, ...]:
        """Cells of one length, by bandwidth."""
        return tuple(cell for cell in self.cells if cell.tokens == tokens)

    def to_json(self) -> JSON:
        """A JSON object of all fields."""
        return {
            "model": self.model,
            "tokens": list(self.tokens),
            "bandwidths_mb_s": list(self.bandwidths_mb_s),
            "new_tokens": self.new_tokens,
            "routes": list(self.routes),
            "cells": [
                {
                    "tokens": cell.tokens,
                    "bandwidth_mb_s": cell.bandwidth_mb_s,
                    "winner": cell.winner,
                    "ttft_s": dict(zip(self.routes, cell.ttft_s, strict=True)),
                }
                for cell in self.cells
            ],
            "even": [
                {"route": one.route, "tokens": one.tokens, "bandwidth_mb_s": one.bandwidth_mb_s}
                for one in self.even
            ],
            "measured_to": self.measured_to,
        }


def break_even_map(
    speeds: Speeds,
    *,
    tokens: Sequence[int] = TOKENS,
    bandwidths_mb_s: Sequence[float] = BANDWIDTHS_MB_S,
    new_tokens: int = NEW_TOKENS,
    store: StoreSpeed | None = None,
    tie: float = TIE,
    segment_tokens: int = SEGMENT_TOKENS,
) -> BreakEvenMap:
    """Predict every route at every length and bandwidth.

    Parameters
    ----------
    store
        Its seconds to open and to ask are kept; none by default.
    tie
        Share by which a route may be slower and still be as fast: ties go to the more faithful.

    Raises
    ------
    InputError
        There are no lengths or bandwidths, too many, or some that are not positive.
    """
    lengths, speeds_mb_s = sorted(set(tokens)), sorted(set(bandwidths_mb_s))
    if not lengths or not speeds_mb_s or len(lengths) * len(speeds_mb_s) > _MOST:
        raise InputError(f"a map has 1 to {_MOST} cells", at="$.tokens")
    if lengths[0] < 1 or not all(math.isfinite(one) and one > 0 for one in speeds_mb_s):
        raise InputError("lengths and bandwidths are positive", at="$.bandwidths_mb_s")
    if new_tokens < 1:
        raise InputError("a receiver adds at least one token", at="$.new_tokens")
    codecs = sorted(
        speeds.codecs, key=lambda name: (name != EXACT_CODEC, -speeds.codecs[name].token_bytes)
    )
    base = store or StoreSpeed(0.0, 0.0, 1.0, 1.0)
    found = _Costs(speeds, base, new_tokens, segment_tokens)
    cells = []
    for length in lengths:
        by_text = found.text_s(length)
        for speed in speeds_mb_s:
            seconds = (by_text, *(found.cache_s(name, length, 1e6 * speed) for name in codecs))
            cells.append(MapCell(length, speed, _winner((TEXT, *codecs), seconds, tie), seconds))
    return BreakEvenMap(
        model=speeds.model,
        tokens=tuple(lengths),
        bandwidths_mb_s=tuple(speeds_mb_s),
        new_tokens=new_tokens,
        routes=(TEXT, *codecs),
        cells=tuple(cells),
        even=tuple(
            EvenPoint(name, length, found.even_mb_s(name, length))
            for name in codecs
            for length in lengths
        ),
        measured_to=speeds.prefill[-1].tokens,
    )


def _winner(routes: Sequence[str], seconds: Sequence[float], tie: float) -> str:
    predictions = [Prediction(r, s, s, s) for r, s in zip(routes, seconds, strict=True)]
    best = fastest(predictions, routes, tie=tie)
    return TEXT if best is None else best.route


@dataclass(frozen=True, slots=True)
class _Costs:
    speeds: Speeds
    base: StoreSpeed
    new_tokens: int
    segment_tokens: int

    def text_s(self, tokens: int) -> float:
        return text_s(self.speeds, tokens + self.new_tokens)

    def cache_s(self, codec: str, tokens: int, bytes_per_s: float) -> float:
        """Seconds by cache; infinity stands for no bandwidth at all."""
        take = take_ahead(
            self.speeds,
            codec,
            tokens,
            tokens + self.new_tokens,
            segment_tokens=self.segment_tokens,
        )
        line = StoreSpeed(self.base.open_s, self.base.read_s, bytes_per_s, bytes_per_s)
        phases = cache_phases(self.speeds, take, line)
        return math.inf if phases is None else phases.get_s + phases.host_s

    def even_mb_s(self, codec: str, tokens: int) -> float | None:
        left_s = self.text_s(tokens) - self.cache_s(codec, tokens, math.inf)
        size_bytes = tokens * self.speeds.codecs[codec].token_bytes
        return size_bytes / left_s / 1e6 if left_s > 0 else None
