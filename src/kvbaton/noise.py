"""Noise on keys and values, on request (``docs/guides/noise.md``).

It makes a cache that is stolen worse to read, and every answer from it worse.  It guarantees
nothing: no claim about an attacker follows from a level.  Whoever has the domain's secret and the
tokens can compute the noise and take it away again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from blake3 import blake3

from kvbaton.errors import InputError
from kvbaton.types import Fidelity, FidelityClass, SegmentSpan, SlicedLayer
from kvbaton.wire.digests import DomainKeys, token_bytes

if TYPE_CHECKING:
    import torch

MAX_LEVEL = 10.0
BLURRED = Fidelity(FidelityClass.APPROXIMATE)
"""What a blurred cache promises at best."""

_CONTEXT = "kvbaton format 1 noise"
_KEY_BYTES = 16

SeedOf = Callable[[SegmentSpan], bytes]
"""Secret bytes of a span: the same ones whenever the same tokens stand there."""


def span_seeds(keys: DomainKeys, function: str, ids: Sequence[int]) -> SeedOf:
    """Seeds of the spans of a sequence, which the domain's secret keys.

    A seed depends on the function, on the span, and on all tokens up to its end.  So a longer
    conversation blurs its beginning as the shorter one did: a second hand-off writes nothing
    anew, and a store never holds two copies of one state with noise of their own, which could be
    averaged.

    Parameters
    ----------
    function
        Digest of the function whose cache it is.
    ids
        The tokens from position 0 on.

    Raises
    ------
    InputError
        An id is out of range.
    """
    secret = blake3(keys.secret, derive_key_context=_CONTEXT).digest()
    data = memoryview(token_bytes(ids))

    def seed_of(span: SegmentSpan) -> bytes:
        hasher = blake3(f"{function} {span.kind} {span.first} {span.count}\n".encode(), key=secret)
        return hasher.update(data[: 4 * span.stop]).digest()

    return seed_of


def blur_layers(
    sliced: Iterable[SlicedLayer], level: float, seed_of: SeedOf
) -> Iterator[SlicedLayer]:
    """Gaussian noise on K and V of each layer.

    Its standard deviation is ``level`` times the root mean square of each head's vector at each
    token.  The sum is made in float32 and rounded to the cache's dtype; what would leave the
    dtype's range ends at its bound.  One seed, span, layer and bytes give one result, in any
    process and with any number of threads.

    Parameters
    ----------
    level
        0 for none, at most ``MAX_LEVEL``.
    seed_of
        See :func:`span_seeds`.

    Raises
    ------
    InputError
        The level is not a number in this range.
    """
    checked_level(level)
    for part in sliced:
        if level == 0:
            yield part
            continue
        seed = seed_of(part.span)
        keys = _blurred(part.keys, level, _generator(seed, part, "k", level))
        values = _blurred(part.values, level, _generator(seed, part, "v", level))
        yield replace(part, keys=keys, values=values)


def checked_level(level: float) -> float:
    """The level itself.

    Raises
    ------
    InputError
        It is no number from 0 to ``MAX_LEVEL``.
    """
    if type(level) not in (int, float) or not (math.isfinite(level) and 0 <= level <= MAX_LEVEL):
        raise InputError(f"a level of noise is a number from 0 to {MAX_LEVEL:g}, not {level!r:.40}")
    return level


def _generator(
    seed: bytes, part: SlicedLayer, name: Literal["k", "v"], level: float
) -> np.random.Generator:
    """A stream of its own for each tensor and level: the same noise at two levels would tell the
    clean values."""
    place = f"{name} {part.layer} {part.run.first} {part.run.count} {float(level).hex()}\n"
    key = blake3(seed + place.encode(), derive_key_context=_CONTEXT).digest(length=_KEY_BYTES)
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))


def _blurred(clean: torch.Tensor, level: float, noise: np.random.Generator) -> torch.Tensor:
    """One tensor ``[kv_heads, tokens, dim]`` with its noise, in its own dtype."""
    import torch

    exact = clean.float().contiguous().numpy()  # numpy sums in one thread: always the same bits
    scale = level * np.sqrt(np.mean(np.square(exact, dtype=np.float64), axis=-1, keepdims=True))
    drawn = noise.standard_normal(exact.shape)
    with np.errstate(over="ignore"):
        moved = exact + (scale * drawn).astype(np.float32)
    bound = torch.finfo(clean.dtype).max
    return torch.from_numpy(moved).clamp_(-bound, bound).to(clean.dtype)
