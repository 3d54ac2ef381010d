"""Keys and values of the first layer, without running the others.

In layer 0 they depend on nothing but a token and its position: however a cache was made, one shot
or chunks, padded or not, they are the same.  So they show whether a cache belongs to given ids.
Values tell tokens apart, keys tell positions apart.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers.cache_utils import DynamicCache

from kvbaton.errors import InputError, UnsupportedModel

TOLERANCE = 0.05
"""Relative difference that is taken for another token or position.  Honest differences were
measured below 0.001, other tokens above 0.15, and one position apart is about 0.2 or more."""


class _FirstReached(Exception):
    """Layer 0 has computed its keys and values."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self.keys, self.values = keys, values


class _FirstOnly(DynamicCache):
    """A cache that stops the model at its first layer."""

    def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> Any:
        """Leave the forward pass with what would have been cached."""
        raise _FirstReached(key_states, value_states)


_KEPT: WeakKeyDictionary[Any, _FirstOnly] = WeakKeyDictionary()
"""One for each model: nothing is ever written to it, and making one takes longer than layer 0."""


@torch.inference_mode()
def compute(
    model: Any, argument: str, ids: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V ``[kv_heads, n, head_dim]`` of layer 0 for ids ``[1, n]`` at positions ``[1, n]``.

    Raises
    ------
    UnsupportedModel
        The model does not keep its cache where it should.
    """
    cache = _KEPT.get(model)
    if cache is None:
        cache = _KEPT[model] = _FirstOnly(config=model.config)
    try:
        model(input_ids=ids, position_ids=positions, use_cache=True, **{argument: cache})
    except _FirstReached as reached:
        return reached.keys[0], reached.values[0]
    raise UnsupportedModel("the model does not write to the cache that it is given")


def other_token(held: torch.Tensor, expected: torch.Tensor) -> int | None:
    """Index of the first token whose V ``[kv_heads, n, v_dim]`` is not the expected one."""
    off = (held.float() - expected.float()).norm(dim=(0, 2))
    return _first_above(off, expected.float().norm(dim=(0, 2)))


def other_position(held: torch.Tensor, expected: torch.Tensor, rotary_dim: int) -> int | None:
    """Index of the first token whose K ``[kv_heads, n, k_dim]`` is rotated otherwise.

    Each pair of channels counts alike, whatever its size: few channels may hold most of a key.
    """
    pairs = _in_pairs(expected, rotary_dim)
    off = (_in_pairs(held, rotary_dim) - pairs).norm(dim=2)
    size = pairs.norm(dim=2).square().mean(dim=1, keepdim=True).sqrt()
    share = off / size.clamp_min(torch.finfo(torch.float32).tiny)
    score = share.square().mean(dim=(0, 2)).sqrt()
    return _first_above(score, torch.ones_like(score))


def _in_pairs(keys: torch.Tensor, rotary_dim: int) -> torch.Tensor:
    """Rotated channels as float32 pairs ``[kv_heads, n, 2, rotary_dim / 2]``."""
    return keys[..., :rotary_dim].float().unflatten(-1, (2, rotary_dim // 2))


def _first_above(off: torch.Tensor, size: torch.Tensor) -> int | None:
    wrong = ~(off <= TOLERANCE * size)  # a NaN is wrong, too
    return int(wrong.nonzero()[0]) if bool(wrong.any()) else None


def belongs(
    held: tuple[torch.Tensor, torch.Tensor],
    expected: tuple[torch.Tensor, torch.Tensor],
    *,
    first: int,
    rotary_dim: int,
) -> None:
    """Require that K and V of layer 0 at positions ``first`` on are the expected ones.

    ``rotary_dim`` is 0 where the table of the time is not known: then positions are not compared.

    Raises
    ------
    InputError
        Another token, or another position; the sentence names the first.
    """
    wrong = other_token(held[1], expected[1])
    if wrong is not None:
        raise InputError(
            f"the cache was not computed from these ids: they differ at position {first + wrong}",
            hint="pass the ids and the attention mask that the model ran with",
        )
    wrong = other_position(held[0], expected[0], rotary_dim) if rotary_dim else None
    if wrong is not None:
        raise InputError(
            f"the cache holds position {first + wrong} of these ids under another position",
            hint="give the model position_ids that count valid tokens only, as generate does",
        )
