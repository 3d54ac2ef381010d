"""What was promised of codecs and slices, held against a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvbaton.types import JSON

TOKENS = 1024
"""Tokens of context for which bounds of the KL are stated."""
_POINTS: Mapping[str, float] = {"smollm2-135m": 8.0}
_CLOSED: Mapping[str, float] = {"smollm2-135m": 0.5}
"""Bounds of models that are weaker or stronger than the others."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A promise: what it is about, its limit, and how its value is found in a result.

    ``at_least`` turns the limit around.  ``exact_only`` promises hold in float32.
    """

    name: str
    limit: float
    value: Callable[[JSON], float | None]
    at_least: bool = False
    exact_only: bool = True

    def held_against(self, result: JSON) -> JSON:
        """``{"target", "limit", "at_least", "value", "met"}``; None where it was not measured."""
        dtypes = {row["dtype"] for row in result["rows"]} | {
            one["dtype"] for part in ("takes", "costs") for one in result[part]
        }
        counts = not self.exact_only or dtypes == {"F32"}
        value = self.value(result) if counts else None
        met = None
        if value is not None:
            met = value >= self.limit if self.at_least else value <= self.limit
        return {
            "target": self.name,
            "limit": self.limit,
            "at_least": self.at_least,
            "value": value,
            "met": met,
        }


def targets(result: JSON) -> list[JSON]:
    """Every promise held against a result."""
    return [bound.held_against(result) for bound in _bounds(str(result["model"]))]


def _bounds(model: str) -> list[Bound]:
    points, closed = _POINTS.get(model, 3.0), _CLOSED.get(model, 1 / 3)
    profiles = {
        "near-lossless": (4e-5, 8.6),
        "layered": (3e-4, 6.0),
        "compact": (8e-4, 5.0),
        "tiny": (2e-3, 4.5),
    }
    return [
        *(Bound(f"{name}: KL", kl, _whole(name, "kl")) for name, (kl, _) in profiles.items()),
        Bound("compact: KL of the worst text", 3e-3, _whole("compact", "kl_worst")),
        *(
            Bound(f"{name}: bits per element", bits, _whole(name, "bits_per_element"))
            for name, (_, bits) in profiles.items()
        ),
        Bound("slice: KL over that of the un-shifted one", 0.1, _over_unshifted),
        Bound("30% recomputed: share of the gap closed", closed, _closed, at_least=True),
        Bound("slice: points below text", points, _points_below),
        Bound("mismatched slice: share of answers", 0.01, _mismatched),
        Bound("ten hops: KL over one hand-off", 1.5, _drift),
        Bound("store of 100 MB/s: exact over compact", 2.5, _slow, at_least=True, exact_only=False),
        Bound("shift and repair over prefill", 0.1, _share("slice"), exact_only=False),
        Bound("hand-off over one segment", 1.0, _share("hand-off"), exact_only=False),
    ]


def find(result: JSON, **wanted: object) -> JSON | None:
    """The first row whose columns are as wanted."""
    for row in result["rows"]:
        if all(row.get(name) == value for name, value in wanted.items()):
            found: JSON = row
            return found
    return None


def _whole(profile: str, column: str) -> Callable[[JSON], float | None]:
    def value(result: JSON) -> float | None:
        row = find(result, profile=profile, mode="continue", tokens=TOKENS, hops=None)
        return float(row[column]) if row is not None and row[column] is not None else None

    return value


def _slice_kl(result: JSON, mode: str, **wanted: object) -> float | None:
    row = find(result, mode=mode, profile="exact", slices=1, **wanted)
    return float(row["kl"]) if row is not None else None


def _over_unshifted(result: JSON) -> float | None:
    shifted, left = _slice_kl(result, "slice"), _slice_kl(result, "slice-unshifted")
    return shifted / left if shifted is not None and left else None


def _closed(result: JSON) -> float | None:
    """By the best way to choose rows."""
    before = _slice_kl(result, "slice")
    after = [
        float(row["kl"])
        for row in result["rows"]
        if row["mode"] == "slice-recompute"
        and row.get("slices") == 1
        and row["recompute_fraction"] == 0.3
    ]
    return 1 - min(after) / before if before and after else None


def _points_below(result: JSON) -> float | None:
    row = find(result, mode="slice", profile="exact", spans="prompt", includes_private=False)
    return None if row is None else 100 * (row["qa_text_accuracy"] - row["qa_accuracy"])


def _mismatched(result: JSON) -> float | None:
    row = find(result, mode="slice-mismatched")
    return None if row is None else float(row["qa_accuracy"])


def _drift(result: JSON) -> float | None:
    row = find(result, hops=10)
    return None if row is None else row["kl_over_once"]


def _slow(result: JSON) -> float | None:
    return min((float(one["ratio"]) for one in result["takes"]), default=None)


def _share(what: str) -> Callable[[JSON], float | None]:
    def value(result: JSON) -> float | None:
        shares = [float(one["share"]) for one in result["costs"] if one["what"] == what]
        return max(shares, default=None)

    return value
