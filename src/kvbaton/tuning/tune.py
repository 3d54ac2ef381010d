"""Profiles measured on a model, and per-layer plans searched for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvbaton.bench.kl import (
    corpus_digest,
    references,
)
from kvbaton.codecs import CodecPlan
from kvbaton.codecs.calibration import CalibrationRecord
from kvbaton.codecs.plan import check_plan
from kvbaton.codecs.profiles import (
    PROFILES,
    RECOMMENDED,
    profile,
)
from kvbaton.errors import InputError
from kvbaton.tuning.corpus import Corpus
from kvbaton.tuning.measure import Floors, Measured, measure_plans, record_of
from kvbaton.tuning.plan_search import Search
from kvbaton.tuning.sensitivity import (
    Kept,
    Progress,
    measure_sensitivities,
)
from kvbaton.types import KVLayout

TUNED = "tuned"
"""Profile of a plan that was searched under a bound of the user's own."""
_CLEARLY = 1.25
_QUIET = frozenset({"F32", "F64"})


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
    noisy = engine.layout.dtype not in _QUIET
    best: dict[str, tuple[tuple[bool, float], Measured, bool]] = {}
    for (name, _, searched), one in zip(wanted, measured, strict=True):
        worth = _worth(name, one, searched=searched, noisy=noisy)
        if name not in best or worth > best[name][0]:
            best[name] = worth, one, searched
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
        for name, (_, one, searched) in best.items()
    )


def _worth(name: str, measured: Measured, *, searched: bool, noisy: bool) -> tuple[bool, float]:
    """Plans that keep the profile's bits first, then those that lose less.

    In float32 the figures decide.  In other dtypes the model's own noise hides small losses, and
    two plans seem alike: the searched one lost less without noise, so the other has to be clearly
    better.
    """
    limit = PROFILES[name].max_bits if name in PROFILES else None
    fits = limit is None or measured.bits_per_element <= limit
    doubted = noisy and not searched
    return fits, -measured.losses.kl * (_CLEARLY if doubted else 1.0)


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
