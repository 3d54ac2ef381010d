"""Routes by name, what is predicted of them, and which is the fastest that may be taken.

A route is named finer than in receipts: ``text``, ``exact``, the profile that a lossy cache was
encoded with (``compact``), or ``slice`` for a cache that stands behind other tokens than those it
was computed behind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from kvbaton.types import JSON, FidelityClass, Manifest

TEXT, EXACT, SLICE = "text", "exact", "slice"

_RESERVED = frozenset({TEXT, EXACT, SLICE})

TIE = 0.05
"""Share of the faster prediction within which two routes count as equally fast."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds to the receiver's first token by a route, and the interval they should lie in."""

    route: str
    ttft_s: float
    low_s: float
    high_s: float

    def to_json(self) -> JSON:
        """A JSON object of all fields."""
        return {
            "route": self.route,
            "ttft_s": self.ttft_s,
            "low_s": self.low_s,
            "high_s": self.high_s,
        }


def route_name(manifest: Manifest, *, sliced: bool = False) -> str:
    """The route of a baton's cache, where ``sliced`` says that the receiver moves it, too."""
    fidelity = manifest.fidelity
    if sliced or any(ref.moved for ref in manifest.segments):
        return SLICE
    if fidelity.compressed:
        # a sender names its codec: none may pass for a route that is more faithful
        return SLICE if fidelity.codec in _RESERVED else fidelity.codec
    return EXACT if fidelity.kind is FidelityClass.EXACT else SLICE


def find_prediction(predictions: Iterable[Prediction], route: str) -> Prediction | None:
    """What is predicted of a route; None where nothing is."""
    return next((one for one in predictions if one.route == route), None)


def fastest(
    predictions: Sequence[Prediction], allowed: Collection[str], *, tie: float = TIE
) -> Prediction | None:
    """The fastest allowed route; of those that tie with it, the most faithful.

    Text is the most faithful, then ``exact``; profiles follow in the order in which they are
    given, and ``slice`` is the last.  None where nothing is predicted of any allowed route; what
    is no number predicts nothing.

    Parameters
    ----------
    tie
        Share of the fastest time by which a route may be slower and still be as fast.
    """
    open_to_us = [one for one in predictions if one.route in allowed and one.ttft_s >= 0]
    if not open_to_us:
        return None
    limit_s = min(one.ttft_s for one in open_to_us) * (1 + tie)
    # min keeps the first of equals, so profiles stay in their order
    return min((one for one in open_to_us if one.ttft_s <= limit_s), key=_faithfulness)


def _faithfulness(prediction: Prediction) -> int:
    return {TEXT: 0, EXACT: 1, SLICE: 3}.get(prediction.route, 2)
