"""Structure of a cache: a record per layer, its dtype, how keys are rotated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Pairing = Literal["half", "interleaved"]

DTYPE_BYTES: Mapping[str, int] = {
    "BF16": 2, "F16": 2, "F32": 4, "F64": 8, "U8": 1, "I8": 1, "I16": 2, "I32": 4, "I64": 8,
}  # fmt: skip
"""safetensors dtype name -> bytes per element."""


class LayerKind(StrEnum):
    """How a layer attends.  A white list: anything else is ``UnsupportedLayout``."""

    FULL = "full"
    WINDOW = "window"


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding of one or more layers.

    ``base`` and ``attention_factor`` are unitless; ``parameters`` holds the scaling parameters
    sorted by name; ``table`` is a BLAKE3 digest (hex) that identifies the inverse frequencies, the
    same on every machine.
    """

    kind: str
    pairing: Pairing
    rotary_dim: int
    base: float
    attention_factor: float
    table: str
    parameters: tuple[tuple[str, float | int | str | tuple[float, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class LayerLayout:
    """Structure of one layer's cache.  ``window`` is 0 for full attention; ``rope`` is an index
    into ``KVLayout.ropes``, or -1 for a layer without positions."""

    kind: LayerKind
    kv_heads: int
    k_dim: int
    v_dim: int
    window: int = 0
    rope: int = 0


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Structure of a cache: one record per layer, the dtype (safetensors name), the RoPE specs."""

    dtype: str
    layers: tuple[LayerLayout, ...]
    ropes: tuple[RopeSpec, ...] = ()

    @property
    def full_layers(self) -> tuple[int, ...]:
        """Indices of the full-attention layers, ascending."""
        return tuple(i for i, s in enumerate(self.layers) if s.kind is LayerKind.FULL)

    @property
    def window_layers(self) -> tuple[int, ...]:
        """Indices of the window layers, ascending."""
        return tuple(i for i, s in enumerate(self.layers) if s.kind is LayerKind.WINDOW)

    def layer_bytes(self, layer: int, tokens: int) -> int:
        """Bytes of K and V of ``tokens`` positions in one layer."""
        spec = self.layers[layer]
        return tokens * spec.kv_heads * (spec.k_dim + spec.v_dim) * DTYPE_BYTES[self.dtype]

    def cache_bytes(self, tokens: int) -> int:
        """Bytes of a cache of ``tokens`` positions; window layers hold at most window - 1."""
        total = 0
        for index, spec in enumerate(self.layers):
            held = tokens if spec.kind is LayerKind.FULL else min(tokens, spec.window - 1)
            total += self.layer_bytes(index, held)
        return total
