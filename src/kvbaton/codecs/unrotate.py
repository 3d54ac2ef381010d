"""Takes RoPE off keys before they are quantized, and puts it back.

Channels of keys before RoPE are steadier over tokens (KVQuant, Hooper et al. 2024), so groups of
tokens of one channel have smaller ranges.  The rotation has unit norm and one table serves both
directions, so it is its own inverse whatever table the model used.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvbaton.codecs.base import Shape, TensorToTensor, require_int
from kvbaton.codecs.grouped import MAX_FIRST, exact_tokens
from kvbaton.errors import InputError
from kvbaton.types import Fidelity, FidelityClass, Place, RopeSpec

if TYPE_CHECKING:
    import torch

    _Table = tuple[torch.Tensor, torch.Tensor]

_REMEMBERED = 128
"""Tables of as many runs of tokens are kept: every layer of a segment asks for the same one."""


@dataclass(frozen=True, kw_only=True)
class Unrotate(TensorToTensor):
    """Keys as they were before RoPE; what was not rotated passes unchanged, as values do.

    Parameters
    ----------
    first
        Tokens at positions below this pass unchanged.
    """

    name: ClassVar[str] = "unrotate"
    fidelity: ClassVar[Fidelity] = Fidelity(FidelityClass.LOSSY, "unrotate")

    first: int = 0

    def __post_init__(self) -> None:
        require_int(self.first, 0, MAX_FIRST, "first")

    def check(self, shape: Shape, place: Place) -> None:
        """Refuse keys with fewer channels than are rotated."""
        if place.rope is not None and place.rope.rotary_dim > shape[-1]:
            raise InputError(
                f"RoPE turns {place.rope.rotary_dim} channels of keys with {shape[-1]}",
                at="$.layout",
            )

    def forward(self, tensor: torch.Tensor, place: Place) -> torch.Tensor:
        """``[kv_heads, tokens, head_dim]`` float32, turned back by each position."""
        return self._turned(tensor, place, -1.0)

    def inverse(self, tensor: torch.Tensor, place: Place) -> torch.Tensor:
        """Turned again."""
        return self._turned(tensor, place, 1.0)

    def _turned(self, tensor: torch.Tensor, place: Place, sign: float) -> torch.Tensor:
        import torch

        exact = exact_tokens(self.first, tensor.shape[1], place)
        if place.rope is None or exact == tensor.shape[1]:
            return tensor
        cosines, sines = turns(place.rope, place.first + exact, tensor.shape[1] - exact)
        cosines, sines = cosines.to(tensor.device), sines.to(tensor.device) * sign
        turned = turn(tensor[:, exact:], cosines, sines, place.rope)
        return torch.cat([tensor[:, :exact], turned], dim=1) if exact else turned


def turn(
    keys: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, rope: RopeSpec
) -> torch.Tensor:
    """Keys ``[heads, tokens, dim]`` float32, turned by angles ``[tokens, rotary_dim / 2]``."""
    import torch

    rotary = rope.rotary_dim
    if rope.pairing == "half":
        a, b = keys[..., : rotary // 2], keys[..., rotary // 2 : rotary]
    else:
        a, b = keys[..., 0:rotary:2], keys[..., 1:rotary:2]
    x, y = a * cosines - b * sines, b * cosines + a * sines
    if rope.pairing == "half":
        parts = [x, y]
    else:
        parts = [torch.stack([x, y], dim=-1).flatten(-2)]
    return torch.cat([*parts, keys[..., rotary:]], dim=-1)


_tables: OrderedDict[tuple[str, int, int], _Table] = OrderedDict()


def turns(rope: RopeSpec, first: int, count: int) -> _Table:
    """Cosines and sines ``[count, rotary_dim / 2]`` float32 of positions from ``first`` on.

    They are computed on the host, so that every device turns by the same numbers.
    """
    key = rope.table, first, count
    found = _tables.get(key)
    if found is None:
        found = _computed(rope, first, count)
        _tables[key] = found
        while len(_tables) > _REMEMBERED:
            _tables.popitem(last=False)
    return found


def _computed(rope: RopeSpec, first: int, count: int) -> _Table:
    import torch

    from kvbaton.rope import angles, inverse_frequencies

    at = angles(inverse_frequencies(rope), torch.arange(first, first + count))
    return at.cos(), at.sin()
