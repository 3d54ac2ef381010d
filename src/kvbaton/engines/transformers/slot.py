"""Filling a cache from a baton: every position of every layer exactly once, or nothing.

Numbers that are not finite are refused: one of them spreads to all that attends to it.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from kvbaton.engines.base import Slot
from kvbaton.engines.transformers.cache import KVCache
from kvbaton.errors import Fault, FormatError
from kvbaton.types import AlignedLayer, KVLayout, LayerKind

_AS_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _at(layer: int) -> str:
    return f"$.layers[{layer}]"


def _not_finite(layer: int, what: str) -> FormatError:
    return FormatError(
        f"{what} hold numbers that are not finite", fault=Fault.NOT_FINITE, at=_at(layer)
    )


def integer_view(tensor: torch.Tensor) -> np.ndarray:
    """The same memory as integers of the same width: numpy knows no bfloat16."""
    return tensor.view(_AS_INTEGERS[tensor.element_size()]).numpy()


class _Finite:
    """Whether numbers of a dtype are finite, judged by their bits.

    As integers, infinities and NaNs are the largest of either sign: two maxima without any
    intermediate array, at several times the speed of the hash that was computed before.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        integer = _AS_INTEGERS[dtype.itemsize]
        self._positive = int(torch.tensor(math.inf, dtype=dtype).view(integer))
        self._negative = self._positive | 1 << (8 * dtype.itemsize - 1)
        self._unsigned = np.dtype(f"u{dtype.itemsize}")

    def __call__(self, integers: np.ndarray) -> bool:
        """Whether all are finite; ``integers`` are the same memory as integers."""
        if integers.max(initial=0) >= self._positive:
            return False
        return bool(integers.view(self._unsigned).max(initial=0) < self._negative)


class CacheSlot(Slot):
    """A cache being filled.

    On the CPU, bytes are copied by numpy on one thread: thousands of small copies that each wake
    a thread pool take many times longer when the cores are busy.
    """

    def __init__(self, cache: KVCache, tokens: int, layout: KVLayout) -> None:
        self._cache, self._tokens, self._layout = cache, tokens, layout
        self._missing = [self._held(i) for i in range(len(layout.layers))]
        self._next = [tokens - held for held in self._missing]
        self._on_cpu = cache.layers[0].k_store.device.type == "cpu"
        self._finite = _Finite(cache.layers[0].dtype)
        self._on_device: list[tuple[int, torch.Tensor]] = []
        self._views: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._last: tuple[AlignedLayer, np.ndarray, np.ndarray] | None = None

    def _held(self, layer: int) -> int:
        spec = self._layout.layers[layer]
        return self._tokens if spec.kind is LayerKind.FULL else min(self._tokens, spec.window - 1)

    def write(self, part: AlignedLayer) -> None:
        """Copy one part in; parts of a layer come in order of position."""
        self._check(part)
        start = part.run.first - (self._tokens - self._held(part.layer))
        stop = start + part.run.count
        if self._on_cpu:
            sources = self._sources(part)
            self._require_finite(part.layer, *sources)
            keys, values = self._targets(part.layer)
            keys[:, start:stop], values[:, start:stop] = sources
        else:
            state = self._cache.layers[part.layer]
            state.k_store[0, :, start:stop].copy_(part.keys)
            state.v_store[0, :, start:stop].copy_(part.values)
            self._look_later(part.layer, state.k_store[0, :, start:stop])
            self._look_later(part.layer, state.v_store[0, :, start:stop])
        self._next[part.layer] = part.run.stop
        self._missing[part.layer] -= part.run.count

    def _require_finite(self, layer: int, *sources: np.ndarray) -> None:
        for name, source in zip(("keys", "values"), sources, strict=True):
            if not self._finite(source):
                raise _not_finite(layer, f"{name} of layer {layer}")

    def _look_later(self, layer: int, tensor: torch.Tensor) -> None:
        """Ask the device, but do not wait for its answer before ``finish``."""
        self._on_device.append((layer, torch.isfinite(tensor).all()))

    def _targets(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        views = self._views.get(layer)
        if views is None:
            state = self._cache.layers[layer]
            views = integer_view(state.k_store[0]), integer_view(state.v_store[0])
            self._views[layer] = views
        return views

    def _sources(self, part: AlignedLayer) -> tuple[np.ndarray, np.ndarray]:
        """Views of the part's memory: those of the last part, if its tensors are the same."""
        if self._last is not None:
            last, keys, values = self._last
            if last.keys is part.keys and last.values is part.values:
                return keys, values
        views = integer_view(part.keys), integer_view(part.values)
        self._last = part, *views
        return views

    def _check(self, part: AlignedLayer) -> None:
        layer, run = part.layer, part.run
        if not 0 <= layer < len(self._layout.layers):
            raise FormatError(
                f"the model has no layer {layer}", fault=Fault.OUT_OF_RANGE, at=_at(layer)
            )
        if run.first != self._next[layer] or run.stop > self._tokens:
            raise FormatError(
                f"layer {layer} goes on at position {run.first} instead of {self._next[layer]}",
                fault=Fault.RANGES,
                at=_at(layer),
            )
        spec, dtype = self._layout.layers[layer], self._cache.layers[layer].dtype
        k_shape = (spec.kv_heads, run.count, spec.k_dim)
        v_shape = (spec.kv_heads, run.count, spec.v_dim)
        keys, values = part.keys, part.values
        same = keys.shape == k_shape and values.shape == v_shape
        if not (same and keys.dtype == dtype and values.dtype == dtype):
            raise FormatError(
                f"layer {layer} has K {tuple(keys.shape)} and V {tuple(values.shape)} in "
                f"{keys.dtype} and {values.dtype} instead of {k_shape} and {v_shape} in {dtype}",
                fault=Fault.SHAPE_MISMATCH,
                at=_at(layer),
            )

    def finish(self) -> KVCache:
        """Declare the cache filled."""
        for layer, missing in enumerate(self._missing):
            if missing:
                raise FormatError(
                    f"layer {layer} lacks {missing} of its positions",
                    fault=Fault.RANGES,
                    at=_at(layer),
                )
        for layer, finite in self._on_device:
            if not bool(finite):
                raise _not_finite(layer, f"keys or values of layer {layer}")
        for state in self._cache.layers:
            state.filled(self._tokens)
        return self._cache
