"""From what the rounds of a calibration brought to speeds: lines through medians."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from kvbaton.policy.costs import CacheTake, cache_phases, text_s
from kvbaton.policy.fits import Point, line_of, spread_of
from kvbaton.policy.hosts import host_id
from kvbaton.policy.speeds import CodecSpeed, Knot, Line, Speeds, StoreSpeed, rising
from kvbaton.types import Baton, Receipt

MEMORY = "memory://"
"""The store that the takes go through."""


@dataclass
class Samples:
    """What the rounds bring: receipts of takes, seconds of short passes."""

    text: list[Receipt] = field(default_factory=list)
    cache: list[tuple[str, Baton, Receipt]] = field(default_factory=list)
    few: list[Point] = field(default_factory=list)
    encode: dict[str, list[Point]] = field(default_factory=dict)
    align: list[Point] = field(default_factory=list)
    again: list[Point] = field(default_factory=list)
    token_s: list[float] = field(default_factory=list)


def speeds_from(
    engine: Any, samples: Samples, memory: StoreSpeed, sizes: Mapping[str, float]
) -> Speeds:
    """Lines through the samples, and how far the samples lie from what they predict."""
    layers = len(engine.layout.layers)
    texts = samples.text
    prefill = _knots(samples)
    asked = line_of((one.context_tokens, one.seconds.get("get", 0.0)) for one in texts)
    speeds = Speeds(
        host=host_id(),
        function=engine.function.digest,
        model=engine.name,
        created_s=int(time.time()),
        layers=layers,
        token_bytes=engine.layout.cache_bytes(1),
        prefill=prefill,
        generate_s=median(samples.token_s),
        overhead=line_of((one.context_tokens, _overhead_s(one)) for one in texts),
        verify=_phase(samples, "verify", lambda baton, receipt: receipt.bytes_moved),
        probe=_phase(samples, "probe", lambda baton, receipt: receipt.reused_tokens),
        attach=_phase(samples, "attach", lambda baton, receipt: receipt.reused_tokens),
        align=line_of(samples.align),
        recompute=line_of(samples.again),
        codecs={name: _codec(samples, name, size) for name, size in sizes.items()},
        stores={MEMORY: memory},
    )
    # the manifest is read in the phase of the segments, but is part of what every route costs
    opening = []
    for _, baton, one in samples.cache:
        segments = len(baton.manifest.segments)
        line_s = memory.get_s(one.bytes_moved, objects=segments, reads=segments * layers)
        found_s = one.seconds.get("get", 0.0) - asked.seconds(one.context_tokens) - line_s
        opening.append((float(segments), max(0.0, found_s)))
    past = line_of(_behind(samples, speeds))
    speeds = replace(speeds, opening=line_of(opening), past_s=past.fixed_s, pair_s=past.unit_s)
    return _with_spreads(speeds, samples)


def _knots(samples: Samples) -> tuple[Knot, ...]:
    """Prefill by length: short passes, and what takes by text took."""
    found: dict[int, list[float]] = {}
    for tokens, seconds in samples.few:
        found.setdefault(int(tokens), []).append(seconds)
    for one in samples.text:
        found.setdefault(one.context_tokens, []).append(one.seconds["first_forward"])
    return rising([Knot(tokens, median(times)) for tokens, times in sorted(found.items())])


def _overhead_s(receipt: Receipt) -> float:
    """What a take by text took besides its prefill."""
    return receipt.seconds["ttft"] - receipt.seconds["first_forward"]


def _phase(samples: Samples, name: str, units: Callable[[Baton, Receipt], float]) -> Line:
    return line_of(
        (float(units(baton, one)), one.seconds.get(name, 0.0)) for _, baton, one in samples.cache
    )


def _codec(samples: Samples, name: str, token_bytes: float) -> CodecSpeed:
    decode = [
        (float(one.reused_tokens), one.seconds.get("decode", 0.0))
        for codec, _, one in samples.cache
        if codec == name
    ]
    return CodecSpeed(line_of(samples.encode[name]), line_of(decode), token_bytes)


def _behind(samples: Samples, speeds: Speeds) -> Iterator[Point]:
    """New tokens of passes behind a cache, and seconds more for each token in it."""
    for _, _, one in samples.cache:
        new = one.context_tokens - one.reused_tokens
        more_s = one.seconds["first_forward"] - speeds.prefill_s(new)
        yield float(new), max(more_s, 0.0) / one.reused_tokens


def _with_spreads(speeds: Speeds, samples: Samples) -> Speeds:
    """How far the times that were measured lie from what is predicted of them."""
    text = [one.seconds["ttft"] / text_s(speeds, one.context_tokens) for one in samples.text]
    cache = []
    for name, baton, one in samples.cache:
        refs = baton.manifest.segments
        take = CacheTake(
            one.context_tokens, one.reused_tokens, one.reused_tokens, one.bytes_moved, len(refs),
            name,
        )  # fmt: skip
        phases = cache_phases(speeds, take, speeds.stores[MEMORY])
        if phases is not None:
            cache.append(one.seconds["ttft"] / (phases.get_s + phases.host_s))
    return replace(speeds, text_spread=spread_of(text), cache_spread=spread_of(cache))
