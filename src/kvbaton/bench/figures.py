"""From samples to figures: medians, ratios, and whether the targets are met."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

from kvbaton.types import JSON

PHASES = ("get", "verify", "decode", "probe", "align", "attach", "first_forward")
"""Phases of a take, in their order; what is left of it is the chat format and the transcript."""

_TAKES = ("baton",)
_OF_RECEIVER = {
    "text_loop": "text_loop_s",
    "text_generate": "text_generate_s",
    "handmade": "handmade_s",
    "handmade_mapped": "handmade_mapped_s",
    "prefix_cache": "prefix_cache_s",
    "floor": "floor_s",
    "baton": "baton_s",
    "handoff": "handoff_s",
    "handoff_again": "handoff_again_s",
    "hash_speed": "hash_s",
}
"""Rival -> the name of its seconds in a row."""


def row_of(dtype: str, prepared: JSON, samples: Mapping[str, Sequence[JSON]], extras: JSON) -> JSON:
    """One row of the result; every ``_s`` is a median of seconds."""
    seconds = {
        name: median_of(samples.get(rival, ()), "seconds") for rival, name in _OF_RECEIVER.items()
    }
    floor, takes = samples["floor"], [s for rival in _TAKES for s in samples[rival]]
    phases = {p: statistics.median(s["phases"].get(p, 0.0) for s in takes) for p in PHASES}
    text_s = min(seconds["text_loop_s"], seconds["text_generate_s"])
    memcpy_s, peak = median_of(floor, "memcpy_s"), extras["peak_extra_bytes"]
    row: JSON = {
        "tokens": prepared["tokens"],
        "new_tokens": prepared["new_tokens"],
        "dtype": dtype,
        "kv_bytes": prepared["kv_bytes"],
        "text_s": text_s,
        **seconds,
        "handmade_handoff_s": median_of(samples.get("handmade", ()), "handoff_s"),
        "memcpy_s": memcpy_s,
        "forward_s": median_of(floor, "forward_s"),
        "speedup": text_s / seconds["baton_s"],
        "over_floor": seconds["baton_s"] / seconds["floor_s"],
        "peak_extra_bytes": peak,
        "peak_over_kv": None if peak is None else peak / prepared["kv_bytes"],
        "phases": phases,
        "sender_phases": _sender_phases(samples["handoff"]),
        "moved_over_memcpy": _moved(phases, seconds["hash_s"]) / memcpy_s,
        "computed_tokens": samples["baton"][0]["computed_tokens"],
        "same_first_token": _agree(samples),
        "second_handoff_bytes": extras["second_handoff_bytes"],
        "grown": extras["grown"],
        "decode_ratio": _decode_ratio(extras["decoded"]),
        "samples": {rival: [s["seconds"] for s in several] for rival, several in samples.items()},
    }
    return row


def median_of(samples: Iterable[JSON], field: str) -> Any:
    """Median of a field; None where there are no samples."""
    values = [sample[field] for sample in samples]
    return statistics.median(values) if values else None


def _moved(phases: Mapping[str, float], hash_s: float) -> float:
    """Seconds of get, verify and attach beyond hashing at BLAKE3's own speed."""
    return max(0.0, phases["get"] + phases["verify"] + phases["attach"] - hash_s)


def _sender_phases(samples: Sequence[JSON]) -> JSON:
    names = {name for sample in samples for name in sample["sent"]["phases"]}
    return {
        name: statistics.median(s["sent"]["phases"].get(name, 0.0) for s in samples)
        for name in sorted(names)
    }


def _agree(samples: Mapping[str, Sequence[JSON]]) -> bool:
    """Whether every rival found the same first token in every repeat."""
    apart = ("hash_speed",)
    tokens = {
        s["token"] for rival, several in samples.items() if rival not in apart for s in several
    }
    return len(tokens) == 1


def _decode_ratio(samples: Sequence[JSON]) -> float | None:
    """Seconds of our decode loop over those of ``generate``, for as many tokens."""
    if not samples:
        return None
    return float(median_of(samples, "baton_s") / median_of(samples, "generate_s"))


@dataclass(frozen=True, slots=True)
class Target:
    """A promise: ``value`` of a row must not pass ``limit`` (from above or from below)."""

    name: str
    value: Callable[[JSON], float | None]
    limit: float
    at_least: bool = False
    tokens: int | None = None
    dtype: str | None = None

    def applies_to(self, row: JSON) -> bool:
        """Whether the promise speaks of this row."""
        return self.tokens in (None, row["tokens"]) and self.dtype in (None, row["dtype"])

    def is_met(self, value: float) -> bool:
        """Whether a value keeps the promise."""
        return value >= self.limit if self.at_least else value <= self.limit


def _over_handmade(row: JSON) -> float | None:
    return row["baton_s"] / row["handmade_s"] if row["handmade_s"] else None


def _handoff_over_handmade(row: JSON) -> float | None:
    return row["handoff_s"] / row["handmade_handoff_s"] if row["handmade_handoff_s"] else None


def _grown(row: JSON) -> float | None:
    grown = row["grown"]
    return grown["bytes_written"] / grown["limit_bytes"] if grown else None


_Short = partial(Target, tokens=2048, dtype="bfloat16")
_Long = partial(Target, tokens=4096, dtype="bfloat16")
TARGETS = (
    _Short("text / baton", itemgetter("speedup"), 15, at_least=True),
    _Long("text / baton", itemgetter("speedup"), 30, at_least=True),
    _Short("baton / floor", itemgetter("over_floor"), 1.25),
    Target(
        "(get + verify + attach - hashing) / memcpy",
        itemgetter("moved_over_memcpy"),
        3,
        tokens=2048,
    ),
    Target("baton / torch.load", _over_handmade, 1),
    Target("hand-off / torch.save and torch.load", _handoff_over_handmade, 1),
    Target("decode / generate", itemgetter("decode_ratio"), 1),
    Target("peak extra memory / cache", itemgetter("peak_over_kv"), 1.3, tokens=2048),
    Target("segment bytes of a second hand-off", itemgetter("second_handoff_bytes"), 0),
    Target("bytes of a grown context / new tokens and a segment", _grown, 1),
)
"""What the project promises, on the built-in SmolLM2-135M."""

IMPORT_LIMIT_S = 0.2


def summary_of(rows: Sequence[JSON]) -> JSON:
    """Each target of ``bench ttft``, and the limit of the import."""
    return {"targets": checked(TARGETS, rows), "import_limit_s": IMPORT_LIMIT_S}


def checked(targets: Iterable[Target], rows: Sequence[JSON]) -> list[JSON]:
    """Each target with its worst value among the rows that it speaks of."""
    found = []
    for target in targets:
        values = [target.value(row) for row in rows if target.applies_to(row)]
        known = [value for value in values if value is not None]
        worst = (min if target.at_least else max)(known, default=None)
        found.append(
            {
                "target": target.name,
                "tokens": target.tokens,
                "dtype": target.dtype,
                "limit": target.limit,
                "at_least": target.at_least,
                "value": worst,
                "met": None if worst is None else target.is_met(worst),
            }
        )
    return found
