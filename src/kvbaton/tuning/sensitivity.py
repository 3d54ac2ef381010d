"""How much the model minds when K or V of one single layer is quantized to so many bits.

Each is measured by itself, everything else exact, at a few numbers of bits; between and beyond
them the loss is taken to fall by a factor of four per bit, as the squared error does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from kvbaton.bench.kl import SEGMENT_TOKENS, Reference
from kvbaton.codecs import CodecChain
from kvbaton.codecs.profiles import SINKS, key_chain, value_chain
from kvbaton.errors import Fault, FormatError
from kvbaton.types import JSON, KVLayout, LayerKind
from kvbaton.wire.structure import layer_places

if TYPE_CHECKING:
    import torch

FORMAT = "kvbaton sensitivities 1"
KEY_BITS, VALUE_BITS = (3, 4, 5, 6), (3, 4, 5)
CHOICES = (2, 3, 4, 5, 6, 7, 8)
"""Bits that a plan may choose from."""
PER_BIT = 4.0
"""Factor by which the loss falls per bit."""
_SMALLEST = 1e-12

Slot = tuple[int, str]
"""Layer, and ``k`` or ``v``."""
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Sensitivities:
    """Mean KL in nats by layer, ``k`` or ``v``, and bits, as far as it was measured."""

    measured: Mapping[tuple[int, str, int], float]

    def loss(self, slot: Slot, bits: int) -> float:
        """Loss of one slot in so many bits: measured, interpolated, or by the factor per bit."""
        layer, name = slot
        known = {b: max(v, _SMALLEST) for (i, n, b), v in self._of(layer, name)}
        below = [b for b in known if b <= bits]
        above = [b for b in known if b >= bits]
        if not below:
            return known[min(above)] * PER_BIT ** (min(above) - bits)
        if not above:
            return known[max(below)] / PER_BIT ** (bits - max(below))
        low, high = max(below), min(above)
        if low == high:
            return known[low]
        share = (bits - low) / (high - low)
        return math.exp((1 - share) * math.log(known[low]) + share * math.log(known[high]))

    def _of(self, layer: int, name: str) -> Iterator[tuple[tuple[int, str, int], float]]:
        return ((key, value) for key, value in self.measured.items() if key[:2] == (layer, name))

    def to_json(self) -> JSON:
        """As it is kept between runs."""
        rows = [[*key, value] for key, value in sorted(self.measured.items())]
        return {"format": FORMAT, "rows": rows}

    @classmethod
    def from_json(cls, value: Any) -> Sensitivities:
        """Inverse of :meth:`to_json`.

        Raises
        ------
        FormatError
            It is something else.
        """
        try:
            if value["format"] != FORMAT:
                raise KeyError(value["format"])
            rows = value["rows"]
            return cls({(int(i), str(n), int(b)): float(kl) for i, n, b, kl in rows})
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError("not sensitivities", fault=Fault.UNKNOWN_FORMAT) from error


def slot_chain(layout: KVLayout, slot: Slot, bits: int, *, first: int = SINKS) -> CodecChain:
    """The chain of one slot in so many bits."""
    layer, name = slot
    make = key_chain if name == "k" else value_chain
    return make(layout, layer, bits, first=first)


def slots(layout: KVLayout) -> tuple[Slot, ...]:
    """All that a plan may choose bits for: K and V of every layer but the first."""
    return tuple((layer, name) for layer in range(1, len(layout.layers)) for name in "kv")


def measure_sensitivities(
    references: Sequence[Reference],
    *,
    positions: int,
    key_bits: Sequence[int] = KEY_BITS,
    value_bits: Sequence[int] = VALUE_BITS,
    first: int = SINKS,
    known: Sensitivities | None = None,
    keep: Callable[[Sensitivities], None] | None = None,
    progress: Progress | None = None,
) -> Sensitivities:
    """Measure every layer's K and V at a few numbers of bits, each by itself.

    Parameters
    ----------
    references
        Texts with their exact caches; the mean over them is taken.
    positions
        Positions that are compared, from the first on.
    known, keep
        What an earlier run has measured already, and a function that is given what is known
        after each layer, so that an interrupted run can go on.
    progress
        Is told what is being measured, and about how long it will still take.
    """
    layout = references[0].engine.layout
    measured = dict(known.measured) if known else {}
    todo = [
        (layer, name, bits)
        for layer, name in slots(layout)
        for bits in (key_bits if name == "k" else value_bits)
        if (layer, name, bits) not in measured
    ]
    started = time.perf_counter()
    for done, (layer, name, bits) in enumerate(todo):
        if progress is not None:
            progress(_said(layer, name, bits, done, len(todo), time.perf_counter() - started))
        chain = slot_chain(layout, (layer, name), bits, first=first)
        losses = [_loss(reference, layer, name, chain, positions) for reference in references]
        measured[layer, name, bits] = fmean(losses)
        if keep is not None and (done + 1 == len(todo) or todo[done + 1][0] != layer):
            keep(Sensitivities(measured))
    return Sensitivities(measured)


def _said(layer: int, name: str, bits: int, done: int, total: int, seconds: float) -> str:
    label = f"layer {layer}, {'keys' if name == 'k' else 'values'} in {bits} bits"
    return f"{label} ({done + 1} of {total}{time_left(done, total, seconds)})"


def time_left(done: int, total: int, seconds: float) -> str:
    """``, about 3 min left``, once something is done."""
    if not done:
        return ""
    left = seconds / done * (total - done)
    return f", about {left:.0f} s left" if left < 90 else f", about {left / 60:.0f} min left"


def _loss(reference: Reference, layer: int, name: str, chain: CodecChain, positions: int) -> float:
    """Mean KL with K or V of one layer encoded and decoded; the cache is as before afterwards."""
    exact = held(reference, layer, name).clone()
    held(reference, layer, name).copy_(coded(reference, layer, name, chain, exact))
    try:
        return reference.loss(reference.cache, positions).kl_mean
    finally:
        held(reference, layer, name).copy_(exact)


def held(reference: Reference, layer: int, name: str) -> torch.Tensor:
    """View ``[kv_heads, n, dim]`` of what the cache holds of K or V of one layer."""
    first, count = held_run(reference, layer)
    keys, values = reference.cache.layer_view(layer, first, count)
    return keys if name == "k" else values


def held_run(reference: Reference, layer: int) -> tuple[int, int]:
    """First position, and number of positions, that a layer holds of the context."""
    spec, tokens = reference.engine.layout.layers[layer], reference.tokens
    count = tokens if spec.kind is LayerKind.FULL else min(tokens, spec.window - 1)
    return tokens - count, count


def coded(
    reference: Reference, layer: int, name: str, chain: CodecChain, exact: torch.Tensor
) -> torch.Tensor:
    """K or V of a layer after encoding and decoding, cut as the relay cuts segments."""
    import torch

    layout = reference.engine.layout
    first, count = held_run(reference, layer)
    full = layout.layers[layer].kind is LayerKind.FULL
    size = SEGMENT_TOKENS if full else count
    parts = []
    for start in range(0, count, size):
        place = layer_places(layout, layer, first + start)[0 if name == "k" else 1]
        part = exact[:, start : start + size].cpu().contiguous()
        stored = {
            tensor.name.partition(".")[2]: memoryview(bytearray(tensor.data))
            for tensor in chain.encode(part, place)
        }
        parts.append(chain.decode(stored, layout.dtype, tuple(part.shape), place))
    return torch.cat(parts, dim=1)
