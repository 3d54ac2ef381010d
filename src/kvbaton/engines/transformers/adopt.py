"""Users' own caches: from a library cache of any batch to one ``KVCache`` per sequence.

What the library knows of a cache is columns: one per position and sequence, padding included.
What leaves here is sequences: valid tokens only, counted from 0.  Nothing is believed: the first
layer is computed again and must agree with the ids at the positions that follow from the mask.
(A first layer with a window shows its window only.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)

from kvbaton.engines.base import Engine
from kvbaton.engines.transformers import compat, first_layer, identity
from kvbaton.engines.transformers.cache import KVCache
from kvbaton.engines.transformers.engine import TransformersEngine
from kvbaton.engines.transformers.padding import valid_columns
from kvbaton.errors import EmptyInput, InputError, UnsupportedLayout
from kvbaton.types import LayerKind, LayerLayout

Ids: TypeAlias = torch.Tensor | Sequence[int] | Sequence[Sequence[int]]
"""Token ids ``[n]`` or ``[batch, n]``."""


@dataclass(frozen=True)
class Adopted:
    """One sequence of a user's cache: the first ``cache.length`` of ``ids`` have KV in it."""

    cache: KVCache
    ids: tuple[int, ...]


@dataclass(frozen=True)
class _Columns:
    """One layer of a library cache: K and V ``[batch, kv_heads, n, head_dim]`` of the columns
    ``stop - n`` to ``stop - 1``."""

    keys: torch.Tensor
    values: torch.Tensor
    stop: int

    @property
    def first(self) -> int:
        return self.stop - int(self.keys.shape[2])


def adopt(
    engine: Engine,
    cache: Any,
    ids: Ids,
    attention_mask: Any = None,
) -> list[Adopted]:
    """Take the sequences out of a cache that the user's own code has filled.

    The results share the cache's memory: use them before the cache is changed in place.

    Parameters
    ----------
    cache
        A ``DynamicCache``, a ``KVCache``, or an output of the model or of ``generate`` with one.
    ids
        Token ids ``[n]`` or ``[batch, n]``: a column for every column of the cache, and possibly
        more behind them, which have no KV yet.
    attention_mask
        0 for padding, as the model ran with it.  Columns behind the mask were generated: they are
        valid up to the first end-of-sequence token.

    Raises
    ------
    UnsupportedLayout
        A cache that cannot be read faithfully: quantized, offloaded, static, or of another model.
    InputError
        Ids or mask do not fit the cache, or are not the ones it was computed from.
    EmptyInput
        A sequence has no KV at all.
    """
    if not isinstance(engine, TransformersEngine):
        raise InputError("only an engine for transformers can read a cache of transformers")
    rows = as_rows(ids)
    engine.require_known([int(rows.min()), int(rows.max())])
    found = cache if isinstance(cache, Cache) else compat.returned_cache(cache) or cache
    if isinstance(found, KVCache):
        adopted = [_own(engine, found, rows, attention_mask)]
    else:
        layers = _layers(engine, found, len(rows))
        valid = valid_columns(rows, attention_mask, engine.model, engine.tokenizer)
        adopted = [
            _sequence(engine, layers, row, rows[row], valid[row]) for row in range(len(rows))
        ]
    fixed = max(one.cache.length for one in adopted) <= _fixed_up_to(engine)
    if not fixed and len(adopted) > 1:
        raise InputError(
            "this model's RoPE table changes with the length, and a batch has one for all",
            hint="run long sequences one by one",
        )
    for one in adopted:
        _prove(engine, one, positions=fixed)
    return adopted


def is_batch(ids: Ids) -> bool:
    """Whether these are ids of several sequences, ``[batch, n]``."""
    return bool(np.ndim(ids) == 2)


def as_batch(engine: Engine, ids: Sequence[int]) -> torch.Tensor:
    """Ids as int64 ``[1, n]`` on the engine's device, as ``generate`` takes them."""
    return torch.tensor([list(ids)], dtype=torch.long, device=engine.device)


def as_rows(ids: Ids) -> torch.Tensor:
    """Ids as int64 ``[batch, n]`` on the host.

    Raises
    ------
    InputError
        They are not integers, or sequences of different lengths.
    """
    try:
        rows = torch.as_tensor(ids).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"ids are not one row of integers per sequence: {error}",
            hint="pad sequences of different lengths and pass the attention mask",
        ) from error
    rows = rows.unsqueeze(0) if rows.dim() == 1 else rows
    if rows.dim() != 2 or rows.numel() == 0 or rows.is_floating_point():
        raise InputError(f"ids must be integers [n] or [batch, n], not {tuple(rows.shape)}")
    return rows.long()


def _own(engine: TransformersEngine, cache: KVCache, rows: torch.Tensor, mask: Any) -> Adopted:
    """A cache of ours, as ``attach_cache`` gives it: one sequence without padding."""
    if cache.layout != engine.layout:
        raise UnsupportedLayout("the cache was made for another model")
    padded = mask is not None and not bool(torch.as_tensor(mask).bool().all())
    if len(rows) != 1 or padded:
        raise InputError("this cache holds one sequence without padding")
    _require_ids(rows, cache.length)
    if cache.length == 0:
        raise EmptyInput("the cache is empty")
    return Adopted(cache, tuple(rows[0].tolist()))


def _require_ids(rows: torch.Tensor, columns: int) -> None:
    if rows.shape[1] < columns:
        raise InputError(
            f"the cache holds {columns} positions and there are ids for {rows.shape[1]}",
            hint="pass all ids: the prompt and what was generated",
        )


def _layers(engine: TransformersEngine, cache: Any, batch: int) -> list[_Columns]:
    """The layers of a library cache, each checked against the model's layout."""
    if type(cache) is not DynamicCache or cache.offloading:
        kind = "offloaded cache" if getattr(cache, "offloading", False) else type(cache).__name__
        raise UnsupportedLayout(
            f"a cache of kind {kind} cannot be read faithfully",
            hint="run the model with the library's default cache, DynamicCache",
        )
    specs = engine.layout.layers
    if len(cache.layers) != len(specs):
        raise UnsupportedLayout(
            f"the cache has {len(cache.layers)} layers and the model {len(specs)}",
            at="$.layers",
        )
    pairs = enumerate(zip(cache.layers, specs, strict=True))
    layers = [_layer(engine, index, layer, spec, batch) for index, (layer, spec) in pairs]
    if len({layer.stop for layer in layers}) > 1:
        raise InputError("the layers of the cache have seen different numbers of positions")
    return layers


def _layer(
    engine: TransformersEngine, index: int, layer: Any, spec: LayerLayout, batch: int
) -> _Columns:
    at = f"$.layers[{index}]"
    sliding = type(layer) is DynamicSlidingWindowLayer
    if not sliding and type(layer) is not DynamicLayer:
        raise UnsupportedLayout(
            f"a layer of kind {type(layer).__name__} cannot be read faithfully", at=at
        )
    if sliding and spec.window != layer.sliding_window:
        raise UnsupportedLayout(
            f"the cache keeps a window of {layer.sliding_window} where the model's is "
            f"{spec.window or 'unlimited'}",
            at=at,
        )
    if layer.get_seq_length() == 0:
        raise EmptyInput("the cache is empty")
    for tensor, dim in ((layer.keys, spec.k_dim), (layer.values, spec.v_dim)):
        wanted = (batch, spec.kv_heads, int(layer.keys.shape[2]), dim)
        if tuple(tensor.shape) != wanted or tensor.dtype != engine.dtype:
            raise InputError(
                f"the cache holds {tuple(tensor.shape)} in {tensor.dtype} instead of {wanted} in "
                f"{engine.dtype}",
                at=at,
            )
    return _Columns(layer.keys, layer.values, int(layer.get_seq_length()))


def _sequence(
    engine: TransformersEngine,
    layers: list[_Columns],
    row: int,
    ids: torch.Tensor,
    valid: torch.Tensor,
) -> Adopted:
    """One row without its padding."""
    columns = layers[0].stop
    _require_ids(ids.unsqueeze(0), columns)
    cached = valid[:columns].nonzero().flatten()
    if len(cached) == 0:
        raise EmptyInput(f"sequence {row} has no valid token in the cache")
    if engine.layout.window_layers and int(cached[-1] - cached[0]) + 1 != len(cached):
        raise InputError(
            f"sequence {row} has padding between its tokens, which window layers count in",
            hint="pad on the left",
        )
    taken = KVCache(engine.layout, 0, engine.dtype, engine.device)
    for index, (layer, spec) in enumerate(zip(layers, engine.layout.layers, strict=True)):
        kept = cached if spec.kind is LayerKind.FULL else cached[-(spec.window - 1) :]
        if int(kept[0]) < layer.first:
            raise InputError(
                f"padding has pushed tokens of sequence {row} out of the window",
                at=f"$.layers[{index}]",
                hint="pad on the left",
            )
        keys, values = (
            _pick(tensor[row : row + 1], kept - layer.first).to(engine.device)
            for tensor in (layer.keys, layer.values)
        )
        taken.layers[index].hold(keys, values, len(cached))
    return Adopted(taken, tuple(ids[valid].tolist()))


def _pick(tensor: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Columns of K or V; a view where they stand side by side."""
    first, last = int(columns[0]), int(columns[-1])
    if last - first + 1 == len(columns):
        return tensor[:, :, first : last + 1]
    return tensor.index_select(2, columns.to(tensor.device))


def _prove(engine: TransformersEngine, adopted: Adopted, *, positions: bool) -> None:
    """Require that layer 0 holds the ids, and at their positions, as far as it holds any."""
    cache = adopted.cache
    spec, state = engine.layout.layers[0], cache.layers[0]
    count = state.end - state.begin
    first = cache.length - count
    first_layer.belongs(
        cache.layer_view(0, first, count),
        engine.first_layer(adopted.ids[first : cache.length], first),
        first=first,
        rotary_dim=engine.layout.ropes[spec.rope].rotary_dim if positions else 0,
    )


def _fixed_up_to(engine: TransformersEngine) -> float:
    """Number of positions up to which no RoPE table changes with the length."""
    changing = [r for r in engine.layout.ropes if r.kind in identity.STATEFUL_ROPE]
    limits = [dict(r.parameters).get("original_max_position_embeddings") for r in changing]
    return min((float(str(n or engine.max_tokens)) for n in limits), default=math.inf)
