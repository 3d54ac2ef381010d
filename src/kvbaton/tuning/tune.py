"""Profiles measured on a model, and per-layer plans searched for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from kvbaton.bench.kl import SEGMENT_TOKENS, Reference, coded_cache, references, segment_spans
from kvbaton.codecs import CodecPlan
from kvbaton.codecs.calibration import CalibrationRecord
from kvbaton.codecs.plan import check_plan
from kvbaton.codecs.profiles import (
    FIRST_LAYER_BITS,
    RECOMMENDED,
    SINKS,
    bits_plan,
    profile,
)
from kvbaton.errors import InputError
from kvbaton.tuning.corpus import Corpus
from kvbaton.tuning.measure import Floors, Measured, measure_on, measure_plans, record_of
from kvbaton.tuning.search import Choice, Picked, within_cost, within_loss
from kvbaton.tuning.sensitivity import CHOICES, Progress, Sensitivities, Slot, slot_chain, slots
from kvbaton.types import KVLayout, TokenRun
from kvbaton.wire.limits import ALIGNMENT
from kvbaton.wire.structure import layer_places

TUNED = "tuned"
"""Profile of a plan that was searched under a bound of the user's own."""
_ROUNDS = 5
_NEAR = 0.9
"""A plan whose loss is that share of the bound is good enough."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a searched plan has to keep: KL in nats, bits per element, or both."""

    kl: float | None = None
    bits: float | None = None

    def __post_init__(self) -> None:
        if self.kl is None and self.bits is None:
            raise InputError("a search needs a bound: a KL, or bits per element")
        for value, name in ((self.kl, "KL"), (self.bits, "bits")):
            if value is not None and not 0 < value < float("inf"):
                raise InputError(f"a bound of {value} for the {name} makes no sense")


# --- from chosen bits to a plan, and to bytes ---------------------------------------------------


def picked_plan(name: str, layout: KVLayout, picked: Picked, *, first: int = SINKS) -> CodecPlan:
    """The plan of what a search has picked, in the order of :func:`slots`."""
    bits = dict(zip(slots(layout), (choice.name for choice in picked), strict=True))
    return bits_plan(
        name,
        layout,
        lambda layer: (
            (bits[layer, "k"], bits[layer, "v"]) if layer else (FIRST_LAYER_BITS, FIRST_LAYER_BITS)
        ),
        first=first,
    )


def slot_bytes(layout: KVLayout, slot: Slot, bits: int, tokens: int, *, first: int = SINKS) -> int:
    """Bytes of the stored tensors of one slot and their pads, over all segments of a context."""
    layer, name = slot
    spec = layout.layers[layer]
    dim = spec.k_dim if name == "k" else spec.v_dim
    chain, total = slot_chain(layout, slot, bits, first=first), 0
    for run in _runs(layout, layer, tokens):
        place = layer_places(layout, layer, run.first)[0 if name == "k" else 1]
        stored = chain.stored_bytes(layout.dtype, (spec.kv_heads, run.count, dim), place)
        total += -(-stored // ALIGNMENT) * ALIGNMENT
    return total


def _runs(layout: KVLayout, layer: int, tokens: int) -> Iterator[TokenRun]:
    """Positions of a layer that each segment of its kind holds."""
    spec = layout.layers[layer]
    for span in segment_spans(layout, tokens, SEGMENT_TOKENS):
        if span.kind.value == ("window" if spec.window else "run"):
            held = min(span.count, spec.window - 1) if spec.window else span.count
            yield TokenRun(span.stop - held, held)


def choices(
    layout: KVLayout, sensitivities: Sensitivities, tokens: int, *, first: int = SINKS
) -> list[list[Choice]]:
    """What a search may choose from, in the order of :func:`slots`."""
    return [
        [
            Choice(
                bits,
                slot_bytes(layout, slot, bits, tokens, first=first),
                sensitivities.loss(slot, bits),
            )
            for bits in CHOICES
        ]
        for slot in slots(layout)
    ]


# --- searches ------------------------------------------------------------------------------------


class Search:
    """Searches plans for one engine by sensitivities, and checks them on the search's own texts.

    Parameters
    ----------
    references
        Texts to search with, and their exact caches.
    sensitivities
        What single slots cost.
    first
        Tokens that stay exact.
    """

    def __init__(
        self,
        references: Sequence[Reference],
        sensitivities: Sensitivities,
        *,
        first: int = SINKS,
        progress: Progress | None = None,
    ) -> None:
        self.references, self.first = references, first
        self.layout: KVLayout = references[0].engine.layout
        self.tokens = references[0].tokens
        self.options = choices(self.layout, sensitivities, self.tokens, first=first)
        self._say: Progress = progress or (lambda label: None)

    def under_bits(self, name: str, max_bits: float) -> CodecPlan:
        """The plan with the smallest predicted loss of at most ``max_bits`` per element.

        Raises
        ------
        InputError
            Even the smallest plan has more.
        """
        budget = max_bits * self._elements / 8
        wanted = budget - self._rest(self._plan(name, within_cost(self.options, float("inf"))))
        for _ in range(_ROUNDS):
            self._say(f"searching {name}: at most {max_bits} bits per element")
            plan = self._plan(name, within_cost(self.options, wanted))
            over = self._size(plan) - budget
            if over <= 0:
                return plan
            wanted -= over
        raise InputError(f"no plan of at most {max_bits} bits per element was found")

    def under_loss(self, name: str, max_kl: float, *, max_bits: float | None = None) -> CodecPlan:
        """The smallest plan whose loss on the search's texts is at most ``max_kl``.

        Predictions are corrected by what is measured, a few times.

        Raises
        ------
        InputError
            There is none, or none of at most ``max_bits``.
        """
        best: tuple[int, CodecPlan] | None = None
        scale = 1.0
        for _ in range(_ROUNDS):
            picked = within_loss(self.options, max_kl * scale)
            plan = self._plan(name, picked)
            kl = self.kl(plan)
            self._say(f"searching {name}: KL {kl:.1e} of at most {max_kl:.1e}")
            if kl <= max_kl and (best is None or self._size(plan) < best[0]):
                best = self._size(plan), plan
            if _NEAR * max_kl <= kl <= max_kl:
                break
            scale *= 0.97 * max_kl / max(kl, 1e-12)
        return self._bounded(best, max_kl, max_bits)

    def _bounded(
        self, best: tuple[int, CodecPlan] | None, max_kl: float, max_bits: float | None
    ) -> CodecPlan:
        if best is None:
            raise InputError(f"no plan with a KL of at most {max_kl:.1e} was found")
        bits = 8 * best[0] / self._elements
        if max_bits is not None and bits > max_bits:
            raise InputError(
                f"a KL of at most {max_kl:.1e} takes {bits:.2f} bits per element, "
                f"more than {max_bits}"
            )
        return best[1]

    def kl(self, plan: CodecPlan) -> float:
        """Mean loss of a plan on the search's texts, in nats."""
        return fmean(measure_on(one, plan)[0].kl_mean for one in self.references)

    def _plan(self, name: str, picked: Picked) -> CodecPlan:
        return picked_plan(name, self.layout, picked, first=self.first)

    @property
    def _elements(self) -> int:
        return sum(
            spec.kv_heads * (spec.k_dim + spec.v_dim) * run.count
            for layer, spec in enumerate(self.layout.layers)
            for run in _runs(self.layout, layer, self.tokens)
        )

    def _size(self, plan: CodecPlan) -> int:
        """Bytes of the segment files, by making them."""
        one = self.references[0]
        return coded_cache(one.engine, one.cache, plan, tokens=self.tokens, room=1).size_bytes

    def _rest(self, plan: CodecPlan) -> float:
        """Bytes of a plan's files that no slot accounts for: headers, and layer 0."""
        most = sum(max(choice.cost for choice in slot) for slot in self.options)
        return self._size(plan) - most


# --- the whole -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tuning:
    """What is tuned, and how thoroughly.

    ``bounds`` asks for a plan of the user's own bound beside the profiles' (named ``tuned``, or as
    the only profile where one is named).  ``positions`` are compared to verify; the search
    compares ``search_positions``.
    """

    profiles: tuple[str, ...] = RECOMMENDED
    bounds: Bounds | None = None
    tokens: int = 1024
    positions: int = 128
    search_positions: int = 64
    floors: Floors | None = None


def wanted_plans(
    layout: KVLayout, tuning: Tuning, search: Callable[[], Search]
) -> list[tuple[str, CodecPlan, bool]]:
    """Plans to measure: ``(profile, plan, whether it was searched)``; the search is made if needed.

    Raises
    ------
    InputError
        Unknown profile, or a bound that cannot be kept.
    """
    known = [profile(name) for name in tuning.profiles]
    found: list[tuple[str, CodecPlan, bool]] = []
    own = tuning.bounds
    if own is not None:
        name = known[0].name if len(known) == 1 else TUNED
        found.append((name, _under(search(), name, own), True))
        if len(known) == 1:
            return found
    for one in known:
        found.append((one.name, one.plan(layout), False))
        if one.max_bits is not None:
            found.append((one.name, search().under_bits(one.name, one.max_bits), True))
    return found


def _under(search: Search, name: str, bounds: Bounds) -> CodecPlan:
    if bounds.kl is None:
        return search.under_bits(name, bounds.bits or 0.0)
    return search.under_loss(name, bounds.kl, max_bits=bounds.bits)


def tune(
    engine: Any,
    corpus: Corpus,
    tuning: Tuning,
    *,
    search: Callable[[], Search],
    progress: Progress | None = None,
) -> tuple[CalibrationRecord, ...]:
    """Measure profiles, searched ones among them, on held-out texts.

    Where a profile has both a plan of its own and a searched one, the record is of the one that
    keeps the profile's bits and loses less.

    Parameters
    ----------
    engine
        The engine that the records are for.
    corpus
        The records state figures of its held-out texts.
    search
        Makes the search when a plan has to be searched; it may be for the same model in float32,
        where the model's own noise does not hide small losses.

    Raises
    ------
    InputError
        Unknown profile, or a bound that cannot be kept.
    """
    wanted = wanted_plans(engine.layout, tuning, search)
    for _, plan, _ in wanted:
        check_plan(plan, engine.layout)
    measured = measure_plans(
        engine,
        [plan for _, plan, _ in wanted],
        corpus.held_out,
        tokens=tuning.tokens,
        positions=tuning.positions,
        progress=progress,
    )
    best: dict[str, tuple[Measured, bool]] = {}
    for (name, _, searched), one in zip(wanted, measured, strict=True):
        if name not in best or _better(name, one, best[name][0]):
            best[name] = one, searched
    return tuple(
        record_of(
            engine,
            name,
            one,
            corpus.held_out,
            tokens=tuning.tokens,
            positions=tuning.positions,
            searched=searched,
            floors=tuning.floors,
        )
        for name, (one, searched) in best.items()
    )


def _better(name: str, one: Measured, other: Measured) -> bool:
    """Whether a plan keeps the profile's bits where the other does not, or loses less."""
    limit = profile(name).max_bits or float("inf")
    fits, other_fits = one.bits_per_element <= limit, other.bits_per_element <= limit
    return (fits, -one.losses.kl) > (other_fits, -other.losses.kl)


def search_references(engine: Any, corpus: Corpus, tuning: Tuning) -> tuple[Reference, ...]:
    """The search's texts with their exact caches; all of them are in memory together."""
    return tuple(
        references(engine, corpus.search, tokens=tuning.tokens, positions=tuning.search_positions)
    )


def with_bounds(tuning: Tuning, *, kl: float | None, bits: float | None) -> Tuning:
    """The same tuning with bounds of the user's own, if any is given."""
    if kl is None and bits is None:
        return tuning
    return replace(tuning, bounds=Bounds(kl, bits))
