"""How much attention the last tokens of a cache pay to every position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers.cache_utils import DynamicCache

from kvbaton.engines.transformers.cache import KVCache
from kvbaton.engines.transformers.recompute import causal_rows
from kvbaton.errors import UnsupportedModel


class _Reading(DynamicCache):
    """A cache that shows the model another one and keeps nothing of what it computes."""

    def __init__(self, cache: KVCache) -> None:
        super().__init__()
        self._cache = cache

    def update(
        self, key_states: Any, value_states: Any, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of all positions; the rows' own are there already."""
        state = self._cache.layers[layer_idx]
        return state.keys, state.values


class _Watching(TorchFunctionMode):
    """Sees the fused attention of this thread's models, and computes its weights beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[torch.Tensor] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention:
            self.weights.append(_mean_weights(*args[:2], **kwargs))
        return func(*args, **kwargs)


def _mean_weights(
    query: torch.Tensor,
    key: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
    **_: Any,
) -> torch.Tensor:
    """Attention weights ``[n]`` float32, the mean over all heads and queries."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.matmul(query, key.transpose(-1, -2)).float() * scale
    if attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(dim=-1).mean(dim=(0, 1, 2))


@torch.inference_mode()
def attention_importance(
    model: Any, argument: str, cache: KVCache, ids: Sequence[int], *, queries: int
) -> torch.Tensor:
    """Share ``[layers, n]`` float32 of the attention of the last ``queries`` tokens.

    The mean over heads and queries; every row adds up to 1.  The cache is only read, and so is
    the model: fused attention is watched in this thread alone.

    Parameters
    ----------
    argument
        Name of the model's argument that takes a cache.
    ids
        Ids of all positions of the cache.

    Raises
    ------
    UnsupportedModel
        The model's attention shows no weights.
    """
    rows = range(max(0, cache.length - queries), cache.length)
    device = cache.layers[0].k_store.device
    places = torch.tensor(list(rows), device=device)
    eager = model.config._attn_implementation == "eager"
    with _Watching() as watching:
        output = model(
            input_ids=torch.tensor([[ids[row] for row in rows]], device=device),
            position_ids=places[None],
            attention_mask=causal_rows(places, cache.length, cache.layers[0].dtype),
            use_cache=True,
            logits_to_keep=1,
            output_attentions=eager,
            **{argument: _Reading(cache)},
        )
    found = (
        [w.float().mean(dim=(0, 1, 2)) for w in output.attentions] if eager else watching.weights
    )
    if len(found) != len(cache.layers):
        raise UnsupportedModel(
            f"attention by {model.config._attn_implementation!r} shows no weights",
            hint="load the model with sdpa or eager attention",
        )
    return torch.stack(found).cpu()
