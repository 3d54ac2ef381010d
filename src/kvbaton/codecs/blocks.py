"""Integers with other bits for each block of channels: precise where keys matter, coarse elsewhere.

Rotary position embedding turns pairs of channels at frequencies from fast to slow.  Before it is
applied, the slow channels of keys hold most of their size and nearly all that attention reads:
measured on SmolLM2-135M, quantizing the slowest eighth of them to 3 bits costs about 500 times the
KL that the fastest eighth costs.  Squared errors fall by four per bit, so equal losses mean bits
that differ by up to four between blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from kvbaton.codecs.base import Shape, StoredShape, TensorToBytes, require_choice, require_int
from kvbaton.codecs.grouped import MAX_FIRST
from kvbaton.codecs.groups import MAX_GROUP
from kvbaton.codecs.integer import Int
from kvbaton.codecs.scales import KINDS
from kvbaton.errors import InputError
from kvbaton.types import Fidelity, FidelityClass, Place, StoredTensor

if TYPE_CHECKING:
    import torch

MAX_BLOCKS = 64
_DIGITS = frozenset("2345678")


@dataclass(frozen=True, kw_only=True)
class IntBlocks(TensorToBytes):
    """Each block of channels as :class:`~kvbaton.codecs.integer.Int` stores it, one after another.

    Parameters
    ----------
    bits
        One digit per block, 2 to 8; blocks are equal runs of channels, in order.
    group
        Tokens of a channel that share offset and scale; 0 takes all of a segment.
    first
        Tokens at positions below this are stored as they are.
    scales
        How parameters are stored: ``f32``, ``f16`` or ``u8``.
    """

    name: ClassVar[str] = "int-blocks"
    fidelity: ClassVar[Fidelity] = Fidelity(FidelityClass.LOSSY, "int-blocks")

    bits: str = "24462446"
    group: int = 128
    first: int = 0
    scales: str = "f16"

    def __post_init__(self) -> None:
        digits = self.bits
        if not (
            type(digits) is str and 1 <= len(digits) <= MAX_BLOCKS and _DIGITS.issuperset(digits)
        ):
            raise InputError(
                f"bits is {str(digits)[:80]!r}, not 1 to {MAX_BLOCKS} digits from 2 to 8",
                at="$.bits",
            )
        require_int(self.group, 0, MAX_GROUP, "group")
        require_int(self.first, 0, MAX_FIRST, "first")
        require_choice(self.scales, KINDS, "scales")

    def check(self, shape: Shape, place: Place) -> None:
        """Refuse blocks that do not divide ``head_dim``."""
        if shape[-1] % len(self.bits):
            raise InputError(
                f"{len(self.bits)} blocks do not divide a head_dim of {shape[-1]}", at="$.bits"
            )

    def parts(self) -> tuple[Int, ...]:
        """The codec of each block."""
        return _parts(self.bits, self.group, self.first, self.scales)

    def places(self, dtype: str, shape: Shape, place: Place) -> Iterator[tuple[Int, int, int]]:
        """Codec, first byte and end of each block: blocks begin at multiples of 8."""
        heads, tokens, dim = shape
        stop = 0
        for part in self.parts():
            (stored,) = part.storage(dtype, (heads, tokens, dim // len(self.bits)), place).values()
            start = -(-stop // 8) * 8
            stop = start + stored.shape[0]
            yield part, start, stop

    def storage(self, dtype: str, shape: Shape, place: Place) -> Mapping[str, StoredShape]:
        """One tensor of bytes."""
        self.check(shape, place)
        *_, (_, _, stop) = self.places(dtype, shape, place)
        return {"": StoredShape("U8", (stop,))}

    def pack(self, tensor: torch.Tensor, dtype: str, place: Place) -> Mapping[str, StoredTensor]:
        """Block after block."""
        shape = tuple(tensor.shape)
        (wanted,) = self.storage(dtype, shape, place).values()
        data = memoryview(bytearray(wanted.shape[0]))
        width = shape[-1] // len(self.bits)
        for index, (part, start, stop) in enumerate(self.places(dtype, shape, place)):
            block = tensor[..., index * width : (index + 1) * width].contiguous()
            data[start:stop] = part.pack(block, dtype, place)[""].data
        return {"": StoredTensor("", "U8", wanted.shape, data)}

    def unpack(
        self, stored: Mapping[str, memoryview], dtype: str, shape: Shape, place: Place
    ) -> torch.Tensor:
        """In float32, on the host."""
        import torch

        return self.unpack_on(stored, dtype, shape, place, device=torch.device("cpu"))

    def unpack_on(
        self,
        stored: Mapping[str, memoryview],
        dtype: str,
        shape: Shape,
        place: Place,
        *,
        device: torch.device,
    ) -> torch.Tensor:
        """In float32; stored bytes travel to the device, not numbers."""
        import torch

        heads, tokens, dim = shape
        width = dim // len(self.bits)
        result = torch.empty(shape, dtype=torch.float32, device=device)
        for index, (part, start, stop) in enumerate(self.places(dtype, shape, place)):
            block = part.unpack_on(
                {"": stored[""][start:stop]}, dtype, (heads, tokens, width), place, device=device
            )
            result[..., index * width : (index + 1) * width] = block
        return result


@cache
def _parts(bits: str, group: int, first: int, scales: str) -> tuple[Int, ...]:
    return tuple(
        Int(bits=int(digit), axis="channel", group=group, first=first, scales=scales)
        for digit in bits
    )
