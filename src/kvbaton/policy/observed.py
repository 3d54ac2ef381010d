"""What a receipt says of speeds: seconds of phases beside those that the cost model expects."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvbaton.policy.costs import SEGMENT_TOKENS, CacheTake, cache_phases
from kvbaton.policy.speeds import EXACT_CODEC, Speeds, StoreSpeed, store_name

_HOST = ("verify", "decode", "probe", "align", "attach", "first_forward")
"""Phases of a receipt that the host's processor pays for."""
_ATTEMPTED = ("verify", "decode", "attach")
_LEAST_SHARE = 0.3
"""Part of the waiting that must be the store's before it says something of the store."""
_LEAST_S = 1e-4
"""Phases that are expected to be shorter say nothing: clocks and threads are coarser."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What one receipt says.

    Parameters
    ----------
    phases
        By name of the phase: seconds that it took over seconds that were expected.
    host
        The same for everything that the host's processor pays for.
    route
        ``text`` or ``cache``.
    seconds_per_byte
        Of the store, for one that was not measured; 0 where the receipt does not say.
    get_s, host_s, ttft_s
        Seconds expected of store and host, and seconds to the first token as they came; the last
        is 0 where no take was timed.
    """

    phases: Mapping[str, float]
    host: float
    route: str
    seconds_per_byte: float = 0.0
    get_s: float = 0.0
    host_s: float = 0.0
    ttft_s: float = 0.0


def observed(speeds: Speeds, receipt: Mapping[str, Any], store: str) -> Observed | None:
    """Hold a receipt's seconds against those expected; None where it says nothing.

    Turns that read everything, went on behind an own cache, or took a whole baton are looked at;
    what fell back, was sliced or mended is left alone, as is whatever is no receipt.

    Parameters
    ----------
    receipt
        A receipt's JSON object.
    store
        URL of the store that the baton lay in; empty where there was none.
    """
    try:
        turn = _Turn.of(receipt)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None
    if not turn.plain or min(turn.prompt - turn.reused, turn.forward_s) <= 0:
        return None
    return _by_text(speeds, turn) if turn.reused == 0 else _by_cache(speeds, turn, store)


@dataclass(frozen=True, slots=True)
class _Turn:
    """The figures of a receipt that matter here."""

    prompt: int
    reused: int
    moved_bytes: int
    codec: str
    seconds: dict[str, float]
    by_baton: bool
    plain: bool

    @classmethod
    def of(cls, receipt: Mapping[str, Any]) -> _Turn:
        """Raises anything where it is none."""
        seconds = {str(name): float(one) for name, one in receipt["seconds"].items()}
        if not all(math.isfinite(one) and one >= 0 for one in seconds.values()):
            raise ValueError("seconds")
        prompt, reused = _count(receipt["context_tokens"]), _count(receipt["reused_tokens"])
        codec = str(receipt["fidelity"]["codec"])
        whole = _count(receipt["computed_tokens"]) == prompt - reused
        simple = (
            receipt["mode"] != "slice"
            and receipt["outcome"] in {"used", "no-baton", "kv-unusable"}
            and not _count(receipt["recomputed_token_layers"])
        )
        return cls(
            prompt,
            reused,
            _count(receipt["bytes_moved"]),
            EXACT_CODEC if codec == "raw" else codec,
            seconds,
            receipt["baton"] is not None,
            whole and simple,
        )

    @property
    def forward_s(self) -> float:
        return self.seconds.get("first_forward", 0.0)

    @property
    def host_s(self) -> float:
        return sum(self.seconds.get(name, 0.0) for name in _HOST)

    @property
    def ttft_s(self) -> float:
        return self.seconds.get("ttft", 0.0)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 50:
        raise ValueError(value)
    return value


def _by_text(speeds: Speeds, turn: _Turn) -> Observed:
    """Everything was read: this is what prefill costs, and what a take costs besides."""
    expected_s = speeds.prefill_s(turn.prompt)
    ratio = turn.forward_s / expected_s
    phases = {f"prefill/{nearest_knot(speeds, turn.prompt)}": ratio, "prefill": ratio}
    overhead_s = speeds.overhead.seconds(turn.prompt)
    besides_s = turn.ttft_s - turn.host_s
    tried = any(name in turn.seconds for name in _ATTEMPTED)  # and failed: that is no text route
    timed = turn.by_baton and besides_s > 0 and not tried
    if timed and overhead_s >= _LEAST_S:
        phases["overhead"] = besides_s / overhead_s
    return Observed(
        phases,
        ratio,
        "text",
        host_s=expected_s + overhead_s,
        ttft_s=turn.ttft_s if timed else 0.0,
    )


def nearest_knot(speeds: Speeds, tokens: int) -> int:
    """The measured length that is nearest to one, by their ratio."""
    lengths = (knot.tokens for knot in speeds.prefill)
    return min(lengths, key=lambda known: abs(math.log(known / max(1, tokens))))


def _by_cache(speeds: Speeds, turn: _Turn, store: str) -> Observed | None:
    if not turn.by_baton or not turn.moved_bytes:  # an own cache went on, or one in memory
        ratio = turn.forward_s / speeds.forward_s(turn.prompt - turn.reused, turn.reused)
        return Observed(_forward(speeds, turn, ratio), ratio, "cache")
    line = speeds.stores.get(store_name(store)) if store else None
    take = CacheTake(
        turn.prompt,
        turn.reused,
        turn.reused,
        turn.moved_bytes,
        -(-turn.reused // SEGMENT_TOKENS),
        turn.codec,
    )
    expected = cache_phases(speeds, take, line or _NO_LINE)
    if expected is None:
        return None
    pairs = {
        "verify": expected.verify_s,
        f"decode/{turn.codec}": expected.decode_s,
        "probe": expected.probe_s,
        "attach": expected.attach_s,
    }
    phases = {
        name: turn.seconds.get(name.partition("/")[0], 0.0) / expected_s
        for name, expected_s in pairs.items()
        if expected_s >= _LEAST_S
    }
    phases |= _forward(speeds, turn, turn.forward_s / expected.forward_s)
    host_s = sum(pairs.values()) + expected.forward_s
    # the manifest is read in the same phase as the segments, and is part of what is aside; what
    # else was waited for, such as a ledger, is no part of that phase
    aside_s = expected.opening_s + expected.overhead_s
    waited_s = min(turn.ttft_s - turn.host_s - aside_s, turn.seconds.get("get", 0.0))
    if line is not None and store and expected.get_s > _LEAST_SHARE * (expected.get_s + aside_s):
        phases[f"get/{store_name(store)}"] = max(waited_s / expected.get_s, _LEAST_S)
    return Observed(
        phases,
        turn.host_s / host_s,
        "cache",
        seconds_per_byte=max(waited_s, 0.0) / turn.moved_bytes if line is None else 0.0,
        get_s=expected.get_s,
        host_s=expected.host_s,
        ttft_s=turn.ttft_s if line is not None else 0.0,
    )


def _forward(speeds: Speeds, turn: _Turn, ratio: float) -> dict[str, float]:
    """A short pass behind a cache is mostly what it would be from nothing."""
    return {"forward": ratio, f"prefill/{nearest_knot(speeds, turn.prompt - turn.reused)}": ratio}


_NO_LINE = StoreSpeed(0.0, 0.0, math.inf, math.inf)
"""For a store of which nothing is known: only the host's phases are looked at."""
