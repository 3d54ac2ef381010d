"""How far honest caches lie from what their tokens give when they are computed anew.

Kernels, chunks and codecs make differences that nobody is to blame for.  They depend on the model,
the layer and the codec, so they are measured: for each codec, layer and K or V, the largest
difference of a token, and the largest mean of a run of tokens, over honest takes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from kvbaton.errors import Fault, FormatError, InputError
from kvbaton.kinds import Importance
from kvbaton.probes.windows import choose_windows, rows_of, run_means
from kvbaton.types import EXACT, JSON, Fidelity, FidelityClass

if TYPE_CHECKING:
    from kvbaton.engines.base import Engine

FORMAT = "kvbaton probe limits 1"
TOKEN_MARGIN, RUN_MARGIN = 3.0, 2.5
"""Times the largest honest difference of a token, and the largest mean of a run.  Single tokens
have a long tail: in one take of a hundred, one is off twice as far as in all of sixty others."""
FLOORS = {"BF16": (0.06, 0.032), "F16": (8e-3, 4e-3), "F32": (2e-3, 8e-4), "F64": (2e-6, 8e-7)}
"""Limits of a token and of a run are never below these, by the cache's dtype: other machines have
other kernels."""
UNMEASURED = {"BF16": (0.3, 0.12), "F16": (0.04, 0.016), "F32": (8e-3, 4e-3), "F64": (8e-6, 4e-6)}
"""Limits of lossless caches of a model that was not measured."""

ByLayer = tuple[tuple[float, ...], tuple[float, ...]]
"""Of K and of V, by layer."""
Caches = Mapping[Fidelity, Callable[[Any, Sequence[int]], Any]]
"""By what a codec promises: from a cache and its ids to the cache that a receiver would have."""


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """Largest relative differences that are honest, of single tokens and of runs' means."""

    token: ByLayer
    run: ByLayer

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Limits of tokens and of runs, each ``[2, layers]`` float32."""
        return torch.tensor(self.token), torch.tensor(self.run)


@dataclass(frozen=True, slots=True)
class CodecLimits:
    """Limits of what one codec makes of a cache; ``calibration`` is its record's digest."""

    codec: str
    calibration: str | None
    limits: WindowLimits


@dataclass(frozen=True)
class ProbeLimits:
    """Limits that were measured on one function.

    Parameters
    ----------
    function, model, dtype
        Digest of the function id, name, and the cache's dtype (safetensors name).
    takes
        Honest takes of each codec that were measured.
    codecs
        Limits of the codecs; ``raw`` is the lossless one.
    """

    function: str
    model: str
    dtype: str
    takes: int
    codecs: tuple[CodecLimits, ...]

    def find(self, fidelity: Fidelity) -> WindowLimits | None:
        """Limits of what was encoded so; None where that was not measured."""
        wanted = fidelity.codec, fidelity.calibration
        return next((c.limits for c in self.codecs if (c.codec, c.calibration) == wanted), None)

    def joined(self, older: ProbeLimits | None) -> ProbeLimits:
        """With the codecs of an older measurement that this one has not measured."""
        mine = {(one.codec, one.calibration) for one in self.codecs}
        kept = () if older is None else older.codecs
        return replace(
            self,
            codecs=self.codecs + tuple(c for c in kept if (c.codec, c.calibration) not in mine),
        )

    def to_json(self) -> JSON:
        """As it is stored."""
        return {
            "format": FORMAT,
            "function": self.function,
            "model": self.model,
            "dtype": self.dtype,
            "takes": self.takes,
            "codecs": [
                {
                    "codec": one.codec,
                    "calibration": one.calibration,
                    "token": [list(row) for row in one.limits.token],
                    "run": [list(row) for row in one.limits.run],
                }
                for one in self.codecs
            ],
        }

    @classmethod
    def from_json(cls, value: Any) -> ProbeLimits:
        """Read what ``to_json`` wrote.

        Raises
        ------
        FormatError
            It is something else.
        """
        try:
            if value["format"] != FORMAT:
                raise ValueError(value["format"])
            codecs = tuple(
                CodecLimits(
                    str(one["codec"]),
                    None if one["calibration"] is None else str(one["calibration"]),
                    WindowLimits(_by_layer(one["token"]), _by_layer(one["run"])),
                )
                for one in value["codecs"]
            )
            names = {name: str(value[name]) for name in ("function", "model", "dtype")}
            return cls(**names, takes=int(value["takes"]), codecs=codecs)
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError("not a record of limits", fault=Fault.UNKNOWN_FORMAT) from error


def _by_layer(value: Any) -> ByLayer:
    keys, values = (tuple(float(x) for x in row) for row in value)
    if len(keys) != len(values) or not all(math.isfinite(x) and x > 0 for x in (*keys, *values)):
        raise ValueError("limits out of range")
    return keys, values


def limits_for(
    promised: Iterable[Fidelity], known: ProbeLimits | None, *, dtype: str, layers: int
) -> WindowLimits | None:
    """Limits for a cache that is put together from segments; None where it cannot be examined.

    The widest of all its segments count.  What was computed behind other tokens, or by another
    model, has no limits; what is lossy has those that were measured.

    Parameters
    ----------
    promised
        Fidelities of the segments, as they stand in the baton.
    known
        What was measured on the function; None for nothing.
    """
    found: list[WindowLimits] = []
    for fidelity in dict.fromkeys(promised):
        if fidelity.kind is FidelityClass.APPROXIMATE:
            return None
        limits = None if known is None else known.find(fidelity)
        if limits is None and not fidelity.compressed:
            limits = _constant(UNMEASURED[dtype], layers)
        if limits is None:
            return None
        found.append(limits)
    return _widest(found) if found else None


def _constant(pair: tuple[float, float], layers: int) -> WindowLimits:
    token, run = ((limit,) * layers for limit in pair)
    return WindowLimits((token, token), (run, run))


def _widest(several: Sequence[WindowLimits]) -> WindowLimits:
    tokens, runs = zip(*(one.tensors() for one in several), strict=True)
    return WindowLimits(_plain(torch.stack(tokens).amax(0)), _plain(torch.stack(runs).amax(0)))


def _plain(limits: torch.Tensor) -> ByLayer:
    """Limits ``[2, layers]`` with four digits, rounded up."""
    keys, values = (tuple(_rounded_up(float(x)) for x in row) for row in limits)
    return keys, values


def _rounded_up(value: float) -> float:
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return float(f"{math.ceil(round(value / unit, 6)) * unit:.4g}")


# --- measuring ---------------------------------------------------------------------------------


def measure_limits(
    engine: Engine,
    texts: Sequence[str],
    caches: Caches | None = None,
    *,
    takes: int = 60,
    shortest: int = 24,
    longest: int = 640,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> ProbeLimits:
    """Measure limits on excerpts of real texts, made in one go, in chunks and token by token.

    Parameters
    ----------
    caches
        Makes the caches of codecs; the lossless one is always measured.
    takes
        Honest takes of each codec.
    shortest, longest
        Tokens of an excerpt.

    Raises
    ------
    InputError
        There are no texts, or all are too short.
    UnsupportedLayout
        Positions of this model's caches cannot be computed again.
    """
    chosen, longest = random.Random(seed), min(longest, engine.max_tokens)
    encoded = [engine.tokenizer.encode(text, add_special_tokens=False) for text in texts]
    encoded = [ids for ids in encoded if len(ids) >= shortest]
    if not encoded:
        raise InputError(f"no text has {shortest} tokens")
    coders = {EXACT: lambda cache, ids: cache} | dict(caches or {})
    widest = {name: _Widest() for name in coders}
    for number in range(takes):
        if progress is not None:
            progress(f"windows: {number + 1} of {takes} takes")
        text = encoded[number % len(encoded)]
        count = chosen.randint(shortest, min(longest, len(text)))
        first = chosen.randint(0, len(text) - count)
        ids = text[first : first + count]
        cache = honest_cache(engine, ids, chosen, way=number)
        for name, coded in coders.items():
            windows = choose_windows(count, Importance.CRITICAL, chosen)
            found = engine.window_differences(coded(cache, ids), ids, rows_of(windows))
            widest[name].add(found, run_means(found, windows))
    floor = FLOORS[engine.layout.dtype]
    return ProbeLimits(
        function=engine.function.digest,
        model=engine.name,
        dtype=engine.layout.dtype,
        takes=takes,
        codecs=tuple(
            CodecLimits(name.codec, name.calibration, one.limits(floor))
            for name, one in widest.items()
        ),
    )


def honest_cache(engine: Engine, ids: Sequence[int], chosen: random.Random, *, way: int) -> Any:
    """A cache of ids as honest senders make it: at once, in chunks, or the end token by token."""
    cache = engine.new_cache(len(ids))
    for part in _parts(ids, chosen, way % 3):
        engine.forward(cache, part)
    return cache


def _parts(ids: Sequence[int], chosen: random.Random, way: int) -> Iterator[Sequence[int]]:
    if way == 0:
        yield ids
        return
    start = 0
    if way == 2:
        start = max(1, len(ids) - 48)
        yield ids[:start]
    while start < len(ids):
        size = 1 if way == 2 else chosen.randint(1, 160)
        yield ids[start : start + size]
        start += size


class _Widest:
    """The largest honest differences so far."""

    def __init__(self) -> None:
        self._token: torch.Tensor | None = None
        self._run: torch.Tensor | None = None

    def add(self, differences: torch.Tensor, means: torch.Tensor) -> None:
        """One more take: differences ``[2, layers, n]`` and means ``[2, layers, runs]``."""
        self._token = _larger(self._token, differences)
        self._run = _larger(self._run, means)

    def limits(self, floor: tuple[float, float]) -> WindowLimits:
        """With margins, and never below the floor."""
        token, run = self._token, self._run
        if token is None or run is None:
            raise InputError("nothing was measured", hint="ask for at least one take")
        return WindowLimits(
            _plain((token * TOKEN_MARGIN).clamp_min(floor[0])),
            _plain((run * RUN_MARGIN).clamp_min(floor[1])),
        )


def _larger(known: torch.Tensor | None, new: torch.Tensor) -> torch.Tensor | None:
    if not new.shape[2]:
        return known
    most = new.amax(2)
    return most if known is None else known.maximum(most)
