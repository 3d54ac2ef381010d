"""Computing chosen positions of a cache again, against everything before them.

The chosen rows run through the model as a batch of queries with positions of their own; at every
layer their fresh K and V replace the old ones, and they attend to the merged cache, each to the
positions up to its own.  This is the partial recomputation of CacheBlend (Yao et al. 2025),
as one primitive: which rows are worth it is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from kvbaton.engines.transformers.cache import KVCache
from kvbaton.errors import InputError, UnsupportedLayout, UnsupportedModel
from kvbaton.rope import table_known
from kvbaton.types import KVLayout, LayerKind

ROWS_AT_ONCE = 256
"""Rows of one forward pass: they bound the memory of the mask."""
MASKED_KERNELS = ("eager", "sdpa")
"""Attention implementations that honour a mask of one's own."""


class _LastReached(Exception):
    """The last wanted layer has its keys and values; the rest of the pass is not needed."""


class _Written:
    """What was in the cache before: enough to put it back."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._old: list[tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def write(
        self, layer: int, rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Replace K and V ``[1, kv_heads, n, head_dim]`` of rows; returns what was there."""
        state = self._cache.layers[layer]
        old = state.k_store[:, :, rows], state.v_store[:, :, rows]
        self._old.append((layer, rows, *old))
        state.k_store[:, :, rows] = keys
        state.v_store[:, :, rows] = values
        return old

    def put_back(self) -> None:
        """Undo every write, the last one first."""
        for layer, rows, keys, values in reversed(self._old):
            state = self._cache.layers[layer]
            state.k_store[:, :, rows] = keys
            state.v_store[:, :, rows] = values
        self._old = []


Replaced = Callable[
    [int, tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]], None
]
"""Is told of a layer, of the old K and V of its rows, and of the new ones."""


class _Merging(DynamicCache):
    """A cache in whose place the model writes rows of another one."""

    def __init__(
        self, cache: KVCache, written: _Written, rows: torch.Tensor, *, layers: int, told: Replaced
    ) -> None:
        super().__init__()
        self._cache, self._written, self._rows = cache, written, rows
        self._last, self._told = layers - 1, told

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the rows' K and V and return those of all positions."""
        old = self._written.write(layer_idx, self._rows, key_states, value_states)
        self._told(layer_idx, old, (key_states, value_states))
        if layer_idx == self._last:
            raise _LastReached
        state = self._cache.layers[layer_idx]
        return state.keys, state.values


def refusal(layout: KVLayout, kernel: str, *, tokens: int, max_tokens: int) -> str | None:
    """Why rows of a cache of ``tokens`` positions cannot be computed again; None if they can."""
    window = next((i for i, s in enumerate(layout.layers) if s.kind is not LayerKind.FULL), None)
    if window is not None:
        return f"layer {window} is not full attention: it no longer has what a row attends to"
    if kernel not in MASKED_KERNELS:
        return f"attention by {kernel!r} takes no mask of one's own"
    if not all(table_known(rope, tokens, original=max_tokens) for rope in layout.ropes):
        return "its RoPE depends on the length, and the sequence is longer than the original one"
    return None


def require_rows(rows: Sequence[int], tokens: int) -> None:
    """Require rows that are in the cache, ascending, each once.

    Raises
    ------
    InputError
        They are not; the sentence names the first that is wrong.
    """
    before = -1
    for index, row in enumerate(rows):
        if not 0 <= row < tokens:
            raise InputError(f"row {row} is not in a cache of {tokens} positions", at=_at(index))
        if row <= before:
            raise InputError(f"row {row} comes after row {before}", at=_at(index))
        before = row


def _at(index: int) -> str:
    return f"$.rows[{index}]"


@torch.inference_mode()
def recompute(
    model: Any,
    argument: str,
    cache: KVCache,
    ids: Sequence[int],
    rows: Sequence[int],
    *,
    layers: int,
    told: Replaced | None = None,
) -> int:
    """Compute K and V of ``rows`` anew in the first ``layers`` layers, in place.

    Parameters
    ----------
    argument
        Name of the model's argument that takes a cache.
    ids
        Ids of all positions of the cache.
    rows
        Positions, ascending.
    told
        Is told what each layer's rows were and are.

    Returns
    -------
    int
        Rows times layers.  If the model fails or is interrupted, the cache is as it was.
    """
    written = _Written(cache)
    with _undoing(written):
        for start in range(0, len(rows), ROWS_AT_ONCE):
            part = list(rows[start : start + ROWS_AT_ONCE])
            places = torch.tensor(part, device=cache.layers[0].k_store.device)
            merging = _Merging(cache, written, places, layers=layers, told=told or _nobody)
            tokens = torch.tensor([[ids[row] for row in part]], device=places.device)
            _run(model, argument, merging, tokens, places, cache)
    return len(rows) * layers


def _nobody(*_: Any) -> None:
    """Nobody wants to know."""


@contextmanager
def _undoing(written: _Written) -> Iterator[None]:
    try:
        yield
    except BaseException:
        written.put_back()
        raise


def _run(
    model: Any,
    argument: str,
    merging: DynamicCache,
    tokens: torch.Tensor,
    places: torch.Tensor,
    cache: KVCache,
) -> None:
    mask = causal_rows(places, cache.length, cache.layers[0].dtype)
    try:
        model(
            input_ids=tokens,
            position_ids=places[None],
            attention_mask=mask,
            use_cache=True,
            logits_to_keep=1,
            **{argument: merging},
        )
    except _LastReached:
        return
    raise UnsupportedModel("the model does not write to the cache that it is given")


def causal_rows(places: torch.Tensor, tokens: int, dtype: torch.dtype) -> torch.Tensor:
    """Additive mask ``[1, 1, rows, tokens]``: a row sees the positions up to its own."""
    seen = torch.arange(tokens, device=places.device) <= places[:, None]
    mask = torch.zeros(seen.shape, dtype=dtype, device=places.device)
    return mask.masked_fill_(~seen, torch.finfo(dtype).min)[None, None]


@torch.inference_mode()
def differences(
    model: Any,
    argument: str,
    cache: KVCache,
    ids: Sequence[int],
    rows: Sequence[int],
    *,
    layers: int,
) -> torch.Tensor:
    """Relative differences ``[2, layers, n]`` of rows' K and V to those computed anew.

    All rows are computed anew as a whole, each layer behind the fresh one before it; what was in
    the cache is put back.  Arguments are as for ``recompute``.
    """
    written, found = _Written(cache), _Differences(layers)
    try:
        for start in range(0, len(rows), ROWS_AT_ONCE):
            part = list(rows[start : start + ROWS_AT_ONCE])
            places = torch.tensor(part, device=cache.layers[0].k_store.device)
            merging = _Merging(cache, written, places, layers=layers, told=found)
            tokens = torch.tensor([[ids[row] for row in part]], device=places.device)
            _run(model, argument, merging, tokens, places, cache)
    finally:
        written.put_back()
    return found.relative


class _Differences:
    """Gathers how far the rows' fresh K and V of every layer lie from the old ones."""

    def __init__(self, layers: int) -> None:
        self._parts: list[list[torch.Tensor]] = [[] for _ in range(layers)]

    def __call__(
        self,
        layer: int,
        old: tuple[torch.Tensor, torch.Tensor],
        new: tuple[torch.Tensor, torch.Tensor],
    ) -> None:
        pairs = [(a[0].float(), b[0].float()) for a, b in zip(old, new, strict=True)]
        off = [(b - a).norm(dim=(0, 2)) for a, b in pairs]
        size = [b.norm(dim=(0, 2)).clamp_min(torch.finfo(b.dtype).tiny) for _, b in pairs]
        self._parts[layer].append(torch.stack(off) / torch.stack(size))

    @property
    def relative(self) -> torch.Tensor:
        """``[2, layers, rows]`` float32: of K, and of V."""
        return torch.stack([torch.cat(parts, dim=1) for parts in self._parts], dim=1).cpu()


class Deviation:
    """Sums up how far the rows' fresh K and V of one layer lie from the old ones."""

    def __init__(self, layer: int) -> None:
        self._layer, self._parts = layer, list[torch.Tensor]()

    def __call__(
        self,
        layer: int,
        old: tuple[torch.Tensor, torch.Tensor],
        new: tuple[torch.Tensor, torch.Tensor],
    ) -> None:
        """Squared distances of this layer's rows; other layers do not count."""
        if layer == self._layer:
            pairs = zip(old, new, strict=True)
            off = [(b.float() - a.float()).square().sum(dim=(0, 1, 3)) for a, b in pairs]
            self._parts.append(torch.stack(off))

    @property
    def squared(self) -> torch.Tensor:
        """``[2, rows]`` float32: of K, and of V."""
        return torch.cat(self._parts, dim=1).cpu()


def require_recomputable(layout: KVLayout, kernel: str, *, tokens: int, max_tokens: int) -> None:
    """Raise ``UnsupportedLayout`` with the reason where rows cannot be computed again."""
    reason = refusal(layout, kernel, tokens=tokens, max_tokens=max_tokens)
    if reason is not None:
        raise UnsupportedLayout(f"positions cannot be computed again: {reason}", at="$.layers")
