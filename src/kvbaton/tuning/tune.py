"""Profiles measured on a model, and per-layer plans searched for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from kvbaton.bench.kl import (
    SEGMENT_TOKENS,
    Reference,
    coded_cache,
    corpus_digest,
    references,
    segment_spans,
)
from kvbaton.codecs import CodecPlan
from kvbaton.codecs.calibration import CalibrationRecord
from kvbaton.codecs.plan import check_plan
from kvbaton.codecs.profiles import (
    PROFILES,
    RECOMMENDED,
    SINKS,
    bands,
    bits_plan,
    profile,
)
from kvbaton.errors import InputError
from kvbaton.tuning.corpus import Corpus
from kvbaton.tuning.measure import Floors, Measured, measure_on, measure_plans, record_of
from kvbaton.tuning.search import Choice, Picked, within_cost, within_loss
from kvbaton.tuning.sensitivity import (
    CHOICES,
    Kept,
    Progress,
    Sensitivities,
    Slot,
    measure_sensitivities,
    slots,
)
from kvbaton.types import KVLayout, TokenRun

TUNED = "tuned"
"""Profile of a plan that was searched under a bound of the user's own."""
_ROUNDS = 5
_CLEARLY = 1.25
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
    keys: dict[int, list[int]] = {}
    values: dict[int, int] = {}
    for (layer, what), choice in zip(slots(layout), picked, strict=True):
        if what == "v":
            values[layer] = choice.name
        else:
            keys.setdefault(layer, []).append(choice.name)
    return bits_plan(name, layout, lambda layer: (tuple(keys[layer]), values[layer]), first=first)


def slot_bytes(
    layout: KVLayout, slot: Slot, bits: int, tokens: int, *, first: int = SINKS
) -> float:
    """Bytes of a slot's codes over all segments of a context; parameters cost the same always."""
    layer, what = slot
    spec = layout.layers[layer]
    dim = spec.v_dim if what == "v" else spec.k_dim / (bands(layout, layer) if what != "k" else 1)
    held = sum(
        run.count - max(0, min(first - run.first, run.count))
        for run in _runs(layout, layer, tokens)
    )
    return spec.kv_heads * held * dim * bits / 8


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
        found = self.fitting(name, max_bits)
        if found is None:
            raise InputError(f"no plan takes at most {max_bits} bits per element")
        return found

    def fitting(self, name: str, max_bits: float) -> CodecPlan | None:
        """As :meth:`under_bits`; None where headers leave too little, as in short contexts."""
        budget = max_bits * self._elements / 8
        least = sum(min(choice.cost for choice in slot) for slot in self.options)
        picked = within_cost(self.options, max(budget, least))
        wanted = budget - self._rest(self._plan(name, picked), picked)
        for _ in range(_ROUNDS):
            if wanted < least:
                return None
            self._say(f"searching {name}: at most {max_bits} bits per element")
            plan = self._plan(name, within_cost(self.options, wanted))
            over = self._size(plan) - budget
            if over <= 0:
                return plan
            wanted -= over
        return None

    def under_loss(self, name: str, max_kl: float, *, max_bits: float | None = None) -> CodecPlan:
        """The smallest plan whose loss on the search's texts is at most ``max_kl``.

        Predictions are corrected by what is measured, a few times.

        Raises
        ------
        InputError
            There is none, or none of at most ``max_bits``.
        """
        finest = within_cost(self.options, float("inf"))
        plan = self._plan(name, finest)
        kl = self.kl(plan)
        rest = max(0.0, kl - sum(choice.loss for choice in finest))
        best = (self._size(plan), plan) if kl <= max_kl else None
        scale = 1.0
        for _ in range(_ROUNDS if best else 0):
            plan = self._plan(name, within_loss(self.options, (max_kl - rest) * scale))
            kl = self.kl(plan)
            self._say(f"searching {name}: KL {kl:.1e} of at most {max_kl:.1e}")
            if kl <= max_kl and best and self._size(plan) < best[0]:
                best = self._size(plan), plan
            if _NEAR * max_kl <= kl <= max_kl:
                break
            scale *= 0.97 * (max_kl - rest) / max(kl - rest, _NEAR * (max_kl - rest) / 8)
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

    def _rest(self, plan: CodecPlan, picked: Picked) -> float:
        """Bytes of a plan's files that no slot accounts for: headers, parameters, layer 0."""
        return self._size(plan) - sum(choice.cost for choice in picked)


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


Wanted = tuple[str, CodecPlan, bool]
"""Profile, plan, and whether the plan was searched."""


def needs_search(tuning: Tuning) -> bool:
    """Whether any plan has to be searched."""
    return tuning.bounds is not None or any(profile(n).max_bits for n in tuning.profiles)


def wanted_plans(
    layout: KVLayout, tuning: Tuning, search: Callable[[], Search]
) -> tuple[Wanted, ...]:
    """Plans to measure; the search is made when it is needed first.

    Raises
    ------
    InputError
        Unknown profile, or a bound that cannot be kept.
    """
    known = [profile(name) for name in tuning.profiles]
    found: list[Wanted] = []
    own = tuning.bounds
    if own is not None:
        name = known[0].name if len(known) == 1 else TUNED
        found.append((name, _under(search(), name, own), True))
        if len(known) == 1:
            return tuple(found)
    for one in known:
        found.append((one.name, one.plan(layout), False))
        better = None if one.max_bits is None else search().fitting(one.name, one.max_bits)
        if better is not None:
            found.append((one.name, better, True))
    return tuple(found)


def _under(search: Search, name: str, bounds: Bounds) -> CodecPlan:
    if bounds.kl is None:
        return search.under_bits(name, bounds.bits or 0.0)
    return search.under_loss(name, bounds.kl, max_bits=bounds.bits)


def measured_records(
    engine: Any,
    wanted: Sequence[Wanted],
    corpus: Corpus,
    tuning: Tuning,
    *,
    progress: Progress | None = None,
) -> tuple[CalibrationRecord, ...]:
    """Measure plans on the corpus's held-out texts, and make one record per profile.

    Where a profile has both a plan of its own and a searched one, the record is of the one that
    keeps the profile's bits and loses less.

    Raises
    ------
    InputError
        A plan does not fit the engine, or the texts are too short.
    """
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
        if name not in best or _worth(name, one, searched) > _worth(name, *best[name]):
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


def _worth(name: str, measured: Measured, searched: bool) -> tuple[bool, float]:  # noqa: FBT001
    """Plans that keep the profile's bits first, then those that lose less.

    Where a model's own noise hides small losses two plans seem alike: the searched one lost less
    where there was none, so the other has to be clearly better.
    """
    limit = PROFILES[name].max_bits if name in PROFILES else None
    fits = limit is None or measured.bits_per_element <= limit
    return fits, -measured.losses.kl * (1.0 if searched else _CLEARLY)


def make_search(
    engine: Any,
    corpus: Corpus,
    tuning: Tuning,
    *,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Search:
    """Measure sensitivities, or go on where an earlier run was interrupted, and be ready.

    Parameters
    ----------
    engine
        The model to search for; in float32 its own noise does not hide small losses.
    folder
        Where what is measured is kept between runs; None keeps nothing.

    Raises
    ------
    InputError
        The texts are too short, or the folder cannot be written.
    """
    texts = tuple(
        references(engine, corpus.search, tokens=tuning.tokens, positions=tuning.search_positions)
    )
    kept = None if folder is None else Kept(folder / _kept_name(engine, corpus, tuning))
    found = measure_sensitivities(
        texts,
        positions=tuning.search_positions,
        known=kept.read() if kept else None,
        keep=kept.write if kept else None,
        progress=progress,
    )
    return Search(texts, found, progress=progress)


def _kept_name(engine: Any, corpus: Corpus, tuning: Tuning) -> str:
    """Sensitivities are those of one function, on these texts, at this length."""
    texts = corpus_digest(corpus.search)[:16]
    return f"{engine.function.digest}-{texts}-{tuning.tokens}-{tuning.search_positions}.json"


def with_bounds(tuning: Tuning, *, kl: float | None, bits: float | None) -> Tuning:
    """The same tuning with bounds of the user's own, if any is given."""
    if kl is None and bits is None:
        return tuning
    return replace(tuning, bounds=Bounds(kl, bits))
