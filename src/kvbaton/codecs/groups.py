"""Groups of elements that share a scale: which there are, what is reduced over, what is spread.

======== ============================== ===============================================
axis     one group                      parameters
======== ============================== ===============================================
channel  ``group`` tokens of a channel  ``[kv_heads, ceil(tokens / group), head_dim]``
token    ``group`` channels of a token  ``[kv_heads, tokens, head_dim / group]``
tensor   everything                     ``[1, 1, 1]``
======== ============================== ===============================================

The last tokens that do not fill a group make a shorter one.  Codes are packed in tiles of
tokens, so that a tile's numbers stay in the nearest cache: a group of tokens, or 64 tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from kvbaton.errors import InputError

if TYPE_CHECKING:
    import torch

    _Reduce = Callable[[torch.Tensor, int], torch.Tensor]

AXES = ("channel", "token", "tensor")
MAX_GROUP = 4096
TILE_TOKENS = 64
"""Tokens of a tile where groups are not made of tokens."""


@dataclass(frozen=True)
class Grid:
    """The groups of a tensor ``[heads, tokens, dim]``.

    ``group`` is 0 for the whole axis.
    """

    axis: str
    group: int
    heads: int
    tokens: int
    dim: int

    @cached_property
    def size(self) -> int:
        """Elements along the axis that share a parameter; the last group may have fewer."""
        whole = self.dim if self.axis == "token" else max(1, self.tokens)
        return self.group or whole

    @cached_property
    def tile(self) -> int:
        """Tokens of a tile."""
        return self.size if self.axis == "channel" else TILE_TOKENS

    @cached_property
    def tiles(self) -> tuple[int, ...]:
        """Tokens of each tile of a head."""
        full, rest = divmod(self.tokens, self.tile)
        return (self.tile,) * full + ((rest,) if rest else ())

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the parameters; there are none where there are no tokens."""
        if self.axis == "channel":
            return self.heads, len(self.tiles), self.dim
        if self.axis == "token":
            return self.heads, self.tokens, self.dim // self.size
        return (1, 1, 1) if self.tokens else (0, 0, 0)

    @cached_property
    def count(self) -> int:
        """Number of groups."""
        heads, rows, columns = self.shape
        return heads * rows * columns

    def reduced(self, body: torch.Tensor, reduce: _Reduce) -> torch.Tensor:
        """One number per group; ``reduce(tensor, dim)`` takes away an axis."""
        import torch

        if self.axis == "channel":
            parts = torch.split(body, self.tile, dim=1)
            return torch.stack([reduce(part, 1) for part in parts], dim=1)
        if self.axis == "token":
            return reduce(body.unflatten(2, (-1, self.size)), 3)
        return reduce(body.flatten(), 0).reshape(1, 1, 1)

    def spread(self, parameters: torch.Tensor) -> torch.Tensor:
        """Parameters for each element, ``[heads, tokens, dim]`` or what broadcasts to it."""
        if self.axis == "channel":
            return parameters.repeat_interleave(self.tile, dim=1)[:, : self.tokens]
        if self.axis == "token":
            return parameters.repeat_interleave(self.size, dim=2)
        return parameters


def check_groups(axis: str, group: int, dim: int) -> None:
    """Refuse groups of channels that do not divide ``head_dim``.

    Raises
    ------
    InputError
        With the field's path.
    """
    if axis == "token" and group and dim % group:
        raise InputError(
            f"groups of {group} channels do not divide a head_dim of {dim}",
            at="$.group",
            hint="0 takes all channels of a head as one group",
        )
