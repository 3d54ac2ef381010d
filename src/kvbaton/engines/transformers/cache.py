"""Cache storage with room: new positions are written in place, nothing is concatenated.

The library's dynamic layers concatenate, so every decode step copies the whole cache.  These
layers keep one buffer per layer, ``[1, kv_heads, capacity, head_dim]``, and hand out views of
its filled part.  They behave like the library's own in what they return and in the mask sizes
that they state, so the model cannot tell them apart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from kvbaton.engines.base import Overtaken
from kvbaton.engines.transformers import compat
from kvbaton.errors import CacheBusy, InputError, StaleTurn
from kvbaton.types import KVLayout, LayerKind, LayerLayout

_GROWTH = 1.5


class _RoomyLayer(CacheLayerMixin):
    """What both kinds of layer share: one buffer for K, one for V, and the true length."""

    is_compileable = False
    is_croppable = False
    supports_early_init = False

    def __init__(self, spec: LayerLayout, room: int, dtype: torch.dtype, device: torch.device):
        super().__init__()
        self.spec, self.dtype, self.device = spec, dtype, device
        self.cumulative_length = 0
        self.k_store = self._allocate(spec.k_dim, room)
        self.v_store = self._allocate(spec.v_dim, room)
        self.is_initialized = True
        self._show(0, 0)

    def _allocate(self, head_dim: int, room: int) -> torch.Tensor:
        shape = (1, self.spec.kv_heads, room, head_dim)
        # What is made in inference mode could not be written outside of it, as `generate` does.
        with torch.inference_mode(mode=False):
            return torch.empty(shape, dtype=self.dtype, device=self.device)

    @property
    def room(self) -> int:
        """Positions that the buffers can hold."""
        return int(self.k_store.shape[2])

    def _show(self, begin: int, end: int) -> None:
        """Point the library-visible ``keys`` and ``values`` at positions of the buffers."""
        self.begin, self.end = begin, end
        self.keys = self.k_store[:, :, begin:end]
        self.values = self.v_store[:, :, begin:end]

    def _resize(self, room: int, begin: int, end: int) -> None:
        """Move positions ``begin`` to ``end`` to the head of new buffers; both or neither."""
        stores = tuple(self._allocate(old.shape[3], room) for old in (self.k_store, self.v_store))
        for new, old in zip(stores, (self.k_store, self.v_store), strict=True):
            new[:, :, : end - begin].copy_(old[:, :, begin:end])
        self.k_store, self.v_store = stores

    def hold(self, keys: torch.Tensor, values: torch.Tensor, length: int) -> None:
        """Make K and V ``[1, kv_heads, n, head_dim]`` the state after ``length`` positions.

        Nothing is copied, and nothing is ever written there: the buffers are full.
        """
        self.k_store, self.v_store = keys, values
        self.cumulative_length = length
        self._show(0, keys.shape[2])

    def _check(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Refuse what a plain copy into the buffers would convert or spread."""
        if keys.shape[0] != 1:
            self._refuse_batches()
        if keys.dtype != self.dtype or values.dtype != self.dtype:
            raise InputError(
                f"the model computes keys and values in {keys.dtype}, the cache is in {self.dtype}",
                hint="run the model in its own dtype, without autocast",
            )

    def lazy_initialization(self, *states: torch.Tensor) -> None:
        """Nothing to do: the buffers exist from the start."""

    def get_seq_length(self) -> int:
        """True number of positions that this layer has seen."""
        return self.cumulative_length

    def _refuse_batches(self, *_: Any, **__: Any) -> None:
        raise InputError(
            "a kvbaton cache holds one sequence",
            hint="generate with num_beams=1, one prompt at a time",
        )

    reorder_cache = batch_repeat_interleave = batch_select_indices = _refuse_batches

    def crop(self, *_: Any, **__: Any) -> None:
        """Refused: caches only grow, so that turns stay valid."""
        raise InputError("a kvbaton cache only grows, so that earlier turns stay valid")

    reset = crop


class FullLayer(_RoomyLayer):
    """A full-attention layer."""

    is_sliding = False

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append K and V ``[1, kv_heads, n, head_dim]`` and return all of both."""
        self._check(key_states, value_states)
        start = self.cumulative_length
        stop = start + key_states.shape[2]
        if stop > self.room:
            self._resize(max(stop, int(self.room * _GROWTH)), 0, start)
        self.k_store[:, :, start:stop].copy_(key_states.detach())
        self.v_store[:, :, start:stop].copy_(value_states.detach())
        self.cumulative_length = stop
        self._show(0, stop)
        return self.keys, self.values

    def filled(self, length: int) -> None:
        """Declare the first ``length`` positions of the buffers as written."""
        self.cumulative_length = length
        self._show(0, length)

    take_back = filled

    def get_mask_sizes(self, query: Any) -> tuple[int, int]:
        """Length and offset of what ``update`` will return."""
        return self.cumulative_length + compat.query_length(query), 0

    def get_max_length(self) -> int:
        """-1: the layer grows."""
        return -1

    get_max_cache_shape = get_max_length


class WindowLayer(_RoomyLayer):
    """A layer that attends to the last ``window`` positions; it keeps ``window - 1`` of them."""

    is_sliding = True

    def __init__(self, spec: LayerLayout, room: int, dtype: torch.dtype, device: torch.device):
        self.kept = spec.window - 1
        super().__init__(spec, min(room, 2 * self.kept + 64), dtype, device)
        self._before = (0, 0, 0)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append K and V and return the kept positions followed by the new ones."""
        self._check(key_states, value_states)
        self._before = (self.begin, self.end, self.cumulative_length)
        new = key_states.shape[2]
        if new + self.end > self.room:
            self._make_room(new)
        begin, stop = self.begin, self.end + new
        self.k_store[:, :, self.end : stop].copy_(key_states.detach())
        self.v_store[:, :, self.end : stop].copy_(value_states.detach())
        self.cumulative_length += new
        seen = self.k_store[:, :, begin:stop], self.v_store[:, :, begin:stop]
        self._show(max(begin, stop - self.kept), stop)
        return seen

    def _make_room(self, new: int) -> None:
        """Move the kept positions to the head of buffers that hold them and ``new`` more.

        New buffers rather than a move in place: views of the old ones may still be in use.
        """
        held = self.end - self.begin
        self._resize(max(held + new, min(2 * self.kept + 64, 2 * self.room)), self.begin, self.end)
        self._show(0, held)
        self._before = (0, held, self.cumulative_length)

    def filled(self, length: int) -> None:
        """Declare the head of the buffers as the state after ``length`` positions."""
        self.cumulative_length = length
        self._show(0, min(length, self.kept))

    def take_back(self, length: int) -> None:
        """Undo the last update, if it began at ``length`` positions."""
        begin, end, before = self._before
        if before == length:
            self.cumulative_length = length
            self._show(begin, end)

    def get_mask_sizes(self, query: Any) -> tuple[int, int]:
        """Length and offset of what ``update`` will return."""
        held = min(self.cumulative_length, self.kept)
        return held + compat.query_length(query), self.cumulative_length - held

    def get_max_length(self) -> int:
        """The window."""
        return self.spec.window

    get_max_cache_shape = get_max_length


class KVCache(Cache):
    """The cache of one sequence, usable wherever transformers takes a cache.

    Positions are append-only: what was exported once stays what it was.  One request at a time
    may write to it (``exclusive``).
    """

    def __init__(self, layout: KVLayout, room: int, dtype: torch.dtype, device: torch.device):
        self.layout = layout
        self.origin: Any = None
        """Where it was taken from, for who hands it off again; None where nothing was."""
        self.overtaken: Callable[[], bool] | None = None
        """Asked before each layer of a pass, which ends with ``Overtaken`` once it says so."""
        self._lock = threading.Lock()
        kinds = {LayerKind.FULL: FullLayer, LayerKind.WINDOW: WindowLayer}
        super().__init__(
            layers=[kinds[spec.kind](spec, max(room, 1), dtype, device) for spec in layout.layers]
        )

    def __getstate__(self) -> dict[str, Any]:
        return {n: v for n, v in vars(self).items() if n not in ("_lock", "overtaken")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # a copy is free for another request
        self.__dict__.update(state, _lock=threading.Lock(), overtaken=None)

    @property
    def length(self) -> int:
        """Positions that have KV."""
        return int(self.layers[0].cumulative_length)

    @property
    def size_bytes(self) -> int:
        """Bytes of all buffers, their unused room included."""
        return sum(layer.k_store.nbytes + layer.v_store.nbytes for layer in self.layers)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the cache for one request.

        Raises
        ------
        CacheBusy
            Another request holds it: two writers would mix their contexts.
        """
        if not self._lock.acquire(blocking=False):
            raise CacheBusy("this cache is in use by another request")
        try:
            yield
        finally:
            self._lock.release()

    def update(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Append K and V of a layer; parameters as transformers has them.

        Raises
        ------
        Overtaken
            Nobody needs this pass any more.
        """
        if self.overtaken is not None and self.overtaken():
            raise Overtaken
        found: tuple[torch.Tensor, torch.Tensor] = super().update(*args, **kwargs)
        return found

    def take_back(self, length: int) -> None:
        """Be again as before the last forward pass, which began at ``length`` and has failed.

        Some layers have its positions and some do not: left so, they would mix contexts.
        """
        for layer in self.layers:
            layer.take_back(length)

    def layer_view(self, layer: int, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views ``[kv_heads, count, head_dim]`` of K and V at true positions ``first`` on.

        Raises
        ------
        StaleTurn
            The layer no longer holds those positions.
        """
        state = self.layers[layer]
        offset = first - (state.cumulative_length - (state.end - state.begin))
        if offset < 0 or first + count > state.cumulative_length:
            raise StaleTurn(
                f"layer {layer} no longer holds positions {first} to {first + count - 1}",
                hint="hand a turn off before the agent's next turn",
            )
        window = slice(state.begin + offset, state.begin + offset + count)
        return state.k_store[0, :, window], state.v_store[0, :, window]
