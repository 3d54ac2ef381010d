"""Hadamard rotation: spreads the outliers of a token over its channels before quantizing.

The orthonormal Walsh-Hadamard transform over blocks of channels (QuaRot, Ashkboos et al. 2024, uses
it so).  It is its own inverse but for float32 rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvbaton.codecs.base import Shape, TensorToTensor, require_int
from kvbaton.codecs.grouped import MAX_FIRST, exact_tokens
from kvbaton.errors import InputError
from kvbaton.types import Fidelity, FidelityClass, Place

if TYPE_CHECKING:
    import torch

MAX_BLOCK = 1 << 12


@dataclass(frozen=True, kw_only=True)
class Hadamard(TensorToTensor):
    """Rotates blocks of channels of each token.

    Parameters
    ----------
    block
        Channels of a block, a power of two that divides ``head_dim``; 0 takes the largest one.
    first
        Tokens at positions below this pass unchanged.
    """

    name: ClassVar[str] = "hadamard"
    fidelity: ClassVar[Fidelity] = Fidelity(FidelityClass.LOSSY, "hadamard")

    block: int = 0
    first: int = 0

    def __post_init__(self) -> None:
        require_int(self.block, 0, MAX_BLOCK, "block")
        require_int(self.first, 0, MAX_FIRST, "first")
        if self.block & (self.block - 1):
            raise InputError(f"block is {self.block}, no power of two", at="$.block")

    def check(self, shape: Shape, place: Place) -> None:
        """Refuse blocks that do not divide ``head_dim``."""
        if self.block and shape[-1] % self.block:
            raise InputError(
                f"blocks of {self.block} channels do not divide a head_dim of {shape[-1]}",
                at="$.block",
                hint="0 takes the largest power of two that does",
            )

    def size(self, dim: int) -> int:
        """Channels of a block."""
        return self.block or min(dim & -dim, MAX_BLOCK)

    def forward(self, tensor: torch.Tensor, place: Place) -> torch.Tensor:
        """``[kv_heads, tokens, head_dim]`` float32, rotated."""
        import torch

        exact = exact_tokens(self.first, tensor.shape[1], place)
        rotated = transform(tensor[:, exact:], self.size(tensor.shape[2]))
        return torch.cat([tensor[:, :exact], rotated], dim=1) if exact else rotated

    def inverse(self, tensor: torch.Tensor, place: Place) -> torch.Tensor:
        """The same again."""
        return self.forward(tensor, place)


def transform(tensor: torch.Tensor, block: int) -> torch.Tensor:
    """Orthonormal Walsh-Hadamard transform of blocks of the last axis, in natural order."""
    import torch

    shape, stride = tensor.shape, block // 2
    while stride:
        pairs = tensor.reshape(*shape[:-1], shape[-1] // (2 * stride), 2, stride)
        above, below = pairs[..., 0, :], pairs[..., 1, :]
        tensor = torch.stack([above + below, above - below], dim=-2)
        stride //= 2
    return tensor.reshape(shape) * block**-0.5
