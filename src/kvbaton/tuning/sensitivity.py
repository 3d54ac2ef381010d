"""How much the model minds when K or V of one single layer is quantized to so many bits.

Each is measured by itself, everything else exact, at a few numbers of bits; between and beyond
them the loss is taken to fall by a factor of four per bit, as the squared error does.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from kvbaton.bench.kl import SEGMENT_TOKENS, Reference
from kvbaton.codecs import CodecChain
from kvbaton.codecs.profiles import SINKS, bands, key_chain, value_chain
from kvbaton.errors import Fault, FormatError
from kvbaton.records import keep
from kvbaton.types import JSON, KVLayout, LayerKind
from kvbaton.wire.structure import layer_places

if TYPE_CHECKING:
    import torch

FORMAT = "kvbaton sensitivities 1"
CHOICES = (2, 3, 4, 5, 6, 7, 8)
"""Bits that a plan may choose from."""
PER_BIT = 4.0
"""Factor by which the loss falls per bit."""
FINE = 8
"""Bits of the other bands while one band of keys is measured: next to exact."""
SHRINKAGE = 0.5
"""Weight of the mean of all layers."""
_SMALLEST = 1e-12
_BAND_BITS = ((2,), (3,), (4,), (5,))
_KEY_BITS, _VALUE_BITS = (4, 5), (3, 5)

Slot = tuple[int, str]
"""Layer, and ``v``, ``k`` or, where keys have bands of rotary frequencies, ``k0`` to ``k3``."""
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Sensitivities:
    """Mean KL in nats by slot (layer, and what of it) and bits, as far as it was measured."""

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

    def steady_loss(self, slot: Slot, bits: int) -> float:
        """The loss of a slot, drawn half way to the mean of all layers (geometrically).

        Single measurements on few tokens are rough, and a search takes those for small that
        happen to be: drawn to the mean, its plans were found to lose up to half as much.
        """
        mean = self._means.get((slot[1], bits))
        if mean is None:
            layers = {layer for layer, what, _ in self.measured if what == slot[1]}
            logs = [math.log(self.loss((layer, slot[1]), bits)) for layer in layers]
            mean = self._means[slot[1], bits] = fmean(logs)
        return math.exp((1 - SHRINKAGE) * math.log(self.loss(slot, bits)) + SHRINKAGE * mean)

    @cached_property
    def _means(self) -> dict[tuple[str, int], float]:
        return {}

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


def slots(layout: KVLayout) -> tuple[Slot, ...]:
    """All that a plan may choose bits for: every layer but the first."""
    found: list[Slot] = []
    for layer in range(1, len(layout.layers)):
        count = bands(layout, layer)
        found += [(layer, f"k{band}") for band in range(count)] if count > 1 else [(layer, "k")]
        found.append((layer, "v"))
    return tuple(found)


def measured_bits(slot: Slot) -> tuple[int, ...]:
    """Bits at which a slot is measured: near those that plans of 4 to 6 bits choose."""
    what = slot[1]
    if what == "v":
        return _VALUE_BITS
    return _BAND_BITS[int(what[1:])] if what[1:] else _KEY_BITS


def slot_chain(layout: KVLayout, slot: Slot, bits: int, *, first: int = SINKS) -> CodecChain:
    """The chain that measures a slot: one band in so many bits, the others next to exact."""
    layer, what = slot
    if what == "v":
        return value_chain(layout, layer, bits, first=first)
    if what == "k":
        return key_chain(layout, layer, bits, first=first)
    others = [FINE] * bands(layout, layer)
    others[int(what[1:])] = bits
    return key_chain(layout, layer, tuple(others), first=first)


def measure_sensitivities(
    references: Sequence[Reference],
    *,
    positions: int,
    first: int = SINKS,
    known: Sensitivities | None = None,
    keep: Callable[[Sensitivities], None] | None = None,
    progress: Progress | None = None,
) -> Sensitivities:
    """Measure every slot at a few numbers of bits, each by itself.

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
        (slot, bits)
        for slot in slots(layout)
        for bits in measured_bits(slot)
        if (*slot, bits) not in measured
    ]
    started = time.perf_counter()
    for done, (slot, bits) in enumerate(todo):
        if progress is not None:
            progress(_said(slot, bits, done, len(todo), time.perf_counter() - started))
        chain = slot_chain(layout, slot, bits, first=first)
        layer, name = slot[0], slot[1][0]
        losses = [_loss(reference, layer, name, chain, positions) for reference in references]
        measured[*slot, bits] = fmean(losses)
        if keep is not None and (done + 1 == len(todo) or todo[done + 1][0][0] != layer):
            keep(Sensitivities(measured))
    return Sensitivities(measured)


def _said(slot: Slot, bits: int, done: int, total: int, seconds: float) -> str:
    layer, what = slot
    words = "values" if what == "v" else f"keys {what[1:]}".rstrip()
    left = time_left(done, total, seconds)
    return f"layer {layer}, {words} in {bits} bits ({done + 1} of {total}{left})"


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


@dataclass(frozen=True)
class Kept:
    """Sensitivities in a file, so that an interrupted run can go on."""

    path: Path

    def read(self) -> Sensitivities | None:
        """What is there already; None where there is nothing.

        Raises
        ------
        FormatError
            The file holds something else; ``at`` names it.
        """
        if not self.path.is_file():
            return None
        try:
            return Sensitivities.from_json(json.loads(self.path.read_text(encoding="utf-8")))
        except (ValueError, FormatError) as error:
            raise FormatError(
                "the file holds no sensitivities",
                fault=Fault.UNKNOWN_FORMAT,
                at=str(self.path),
                hint="delete it, and measure again",
            ) from error

    def write(self, found: Sensitivities) -> None:
        """Keep what is known so far; the file is there whole or as before.

        Raises
        ------
        InputError
            The folder cannot be written.
        """
        keep(self.path, json.dumps(found.to_json()), what="sensitivities")
