"""What users do with the library's own caches: prefill, decode, generate, in padded batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from kvbaton.testing.engines import continuation, hand_over

STEPS = [33, 101, 57]
TOLERANCE = 2e-4
"""float32: one forward pass against another cut of the same tokens."""
PAD = 0
"""``<pad>`` of the tiny tokenizers."""


def prompt(count: int, seed: int = 0) -> list[int]:
    """Ids without special tokens."""
    return [20 + (97 * i + 11 * i * i + 41 * seed) % 240 for i in range(count)]


def batch(rows: Sequence[Sequence[int]], side: str = "left") -> tuple[torch.Tensor, torch.Tensor]:
    """Rows padded to one length, and the attention mask."""
    longest = max(len(row) for row in rows)
    ids, mask = [], []
    for row in rows:
        padding, ones = [PAD] * (longest - len(row)), [1] * len(row)
        ids.append([*padding, *row] if side == "left" else [*row, *padding])
        mask.append([0] * len(padding) + ones if side == "left" else ones + [0] * len(padding))
    return torch.tensor(ids), torch.tensor(mask)


def positions_of(mask: torch.Tensor) -> torch.Tensor:
    """Positions that count valid tokens only, as ``generate`` makes them."""
    return (mask.cumsum(-1) - 1).clamp_min(0)


@torch.no_grad()
def forward(
    engine: Any,
    cache: Any,
    ids: torch.Tensor,
    mask: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
) -> torch.Tensor:
    """One forward pass of the user's own; logits ``[batch, n, vocab]``."""
    kwargs: dict[str, Any] = {engine.cache_argument: cache}
    if mask is not None:
        kwargs["attention_mask"] = mask
    if positions is not None:
        kwargs["position_ids"] = positions
    logits: torch.Tensor = engine.model(input_ids=ids, use_cache=True, **kwargs).logits
    return logits


def prefilled(engine: Any, rows: Sequence[Sequence[int]], side: str = "left") -> tuple[Any, ...]:
    """A library cache after one forward pass over a padded batch, with ids and mask."""
    ids, mask = batch(rows, side)
    cache = DynamicCache(config=engine.model.config)
    forward(engine, cache, ids, mask, positions_of(mask))
    return cache, ids, mask


def generate(engine: Any, ids: torch.Tensor, count: int, **options: Any) -> Any:
    """Greedy ``generate`` of exactly ``count`` tokens unless told otherwise."""
    greedy = {"do_sample": False, "max_new_tokens": count, "pad_token_id": PAD}
    greedy |= {"eos_token_id": None, "return_dict_in_generate": True}
    mask = options.pop("attention_mask", torch.ones_like(ids))
    return engine.model.generate(ids, attention_mask=mask, **(greedy | options))


def assert_like_alone(engine: Any, adopted: Any, ids: list[int], cached: int) -> None:
    """What was adopted is what the sequence alone would be: ids, keys, values, logits."""
    assert adopted.ids == tuple(ids)
    assert adopted.cache.length == cached
    alone = engine.new_cache(cached)
    engine.forward(alone, ids[:cached])
    for layer, state in enumerate(alone.layers):
        count = state.end - state.begin
        got = adopted.cache.layer_view(layer, cached - count, count)
        wanted = alone.layer_view(layer, cached - count, count)
        torch.testing.assert_close(got, wanted, atol=TOLERANCE, rtol=0)
    for got, wanted in zip(
        continuation(engine, hand_over(engine, adopted.cache), STEPS),
        continuation(engine, alone, STEPS),
        strict=True,
    ):
        torch.testing.assert_close(got, wanted, atol=TOLERANCE, rtol=0)
