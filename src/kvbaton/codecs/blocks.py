"""Integers with other bits for each block of channels: precise where keys matter, coarse elsewhere.

Rotary position embedding turns pairs of channels at frequencies from fast to slow.  Before it is
applied, the slow channels of keys hold most of their size and nearly all that attention reads:
measured on SmolLM2-135M, quantizing the slowest eighth of them to 3 bits costs about 500 times the
KL that the fastest eighth costs.  Squared errors fall by four per bit, so equal losses mean bits
that differ by up to four between blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvbaton.codecs import planes
from kvbaton.codecs import scales as stored
from kvbaton.codecs.base import Shape
from kvbaton.codecs.grouped import Grouped
from kvbaton.codecs.groups import Grid
from kvbaton.errors import InputError
from kvbaton.types import Fidelity, FidelityClass, Place

if TYPE_CHECKING:
    import torch

MAX_BLOCKS = 64
_DIGITS = frozenset("2345678")


@dataclass(frozen=True, kw_only=True)
class IntBlocks(Grouped):
    """As :class:`~kvbaton.codecs.integer.Int` per channel, each block in its own number of bits.

    Parameters are stored as ``Int`` stores them.  Codes are packed tile by tile and, within a
    tile, block by block.

    Parameters
    ----------
    bits
        One digit per block, 2 to 8; blocks are equal runs of channels, in order.
    axis
        ``channel``; groups of one token's channels would lie in several blocks.
    group
        Tokens of a channel that share offset and scale; 0 takes all of a segment.
    first
        Tokens at positions below this are stored as they are.
    scales
        How parameters are stored: ``f32`` or ``f16``.
    """

    name: ClassVar[str] = "int-blocks"
    fidelity: ClassVar[Fidelity] = Fidelity(FidelityClass.LOSSY, "int-blocks")

    bits: str = "24462446"
    group: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        digits = self.bits
        good = type(digits) is str and 1 <= len(digits) <= MAX_BLOCKS
        if not (good and _DIGITS.issuperset(digits)):
            raise InputError(
                f"bits is {str(digits)[:80]!r}, not 1 to {MAX_BLOCKS} digits from 2 to 8",
                at="$.bits",
            )
        if self.axis != "channel":
            raise InputError(f"axis is {self.axis!r}, not channel", at="$.axis")
        if self.scales == "u8":
            raise InputError("scales is 'u8', not f32 or f16", at="$.scales")

    def check(self, shape: Shape, place: Place) -> None:
        """Refuse blocks that do not divide ``head_dim``."""
        if shape[-1] % len(self.bits):
            raise InputError(
                f"{len(self.bits)} blocks do not divide a head_dim of {shape[-1]}", at="$.bits"
            )

    @property
    def code_bits(self) -> int:
        """Bits of the longest code."""
        return int(max(self.bits))

    def parameter_bytes(self, grid: Grid) -> int:
        """Offsets and scales of all channels."""
        return stored.stored_bytes(self.scales, grid, offsets=True)

    def code_bytes(self, grid: Grid) -> int:
        """Bytes of the codes of one head."""
        return sum(size for _, parts in self._places(grid) for _, size in parts)

    def levels(self, dim: int) -> tuple[int, ...]:
        """The largest code of each channel."""
        width = dim // len(self.bits)
        return tuple((1 << int(digit)) - 1 for digit in self.bits for _ in range(width))

    def _levels(self, like: torch.Tensor) -> torch.Tensor:
        import torch

        return torch.tensor(self.levels(like.shape[-1]), dtype=torch.float32, device=like.device)

    def quantize(
        self, body: torch.Tensor, grid: Grid, place: Place
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Parameters as bytes, and codes ``[heads, tokens, dim]`` uint8."""
        import torch

        from kvbaton.codecs.conversion import refuse_input

        low, high = grid.reduced(body, torch.amin) + 0.0, grid.reduced(body, torch.amax) + 0.0
        levels = self._levels(low)
        data, ranges = stored.store(low, high, levels, self.scales, self.axis)
        wrong = stored.bad_parameters(ranges, levels)
        if wrong:
            raise refuse_input(f"{wrong[0]}: numbers beyond what {self.scales} can hold", place)
        inverse = stored.inverses(ranges.scales)
        scaled = (body - grid.spread(ranges.offsets)) * grid.spread(inverse)
        return data, scaled.round().clamp(min=0).minimum(levels).to(torch.uint8)

    def dequantize(
        self, parameters: torch.Tensor, codes: torch.Tensor, grid: Grid, place: Place
    ) -> torch.Tensor:
        """``offset + code * scale``, float32."""
        from kvbaton.codecs.conversion import refuse_stored

        ranges = stored.load(parameters, self.scales, grid, 1)
        wrong = stored.bad_parameters(ranges, self._levels(ranges.scales))
        if wrong:
            raise refuse_stored(*wrong, place)
        return codes.float() * grid.spread(ranges.scales) + grid.spread(ranges.offsets)

    def pack_codes(self, codes: torch.Tensor, grid: Grid) -> torch.Tensor:
        """Bytes of codes: head by head, tile by tile, block by block."""
        import torch

        parts, start = [], 0
        for tile in grid.tiles:
            blocks = codes[:, start : start + tile].split(self._width(grid), dim=2)
            parts += [
                planes.pack(block.flatten(1), int(digit))
                for block, digit in zip(blocks, self.bits, strict=True)
            ]
            start += tile
        return torch.cat(parts, dim=1).flatten()

    def unpack_codes(self, data: torch.Tensor, grid: Grid) -> torch.Tensor:
        """Inverse of :meth:`pack_codes`."""
        import torch

        rows, at, tiles = data.view(grid.heads, -1), 0, []
        for tile, parts in self._places(grid):
            blocks = []
            for digit, size in parts:
                codes = planes.unpack(rows[:, at : at + size], tile * self._width(grid), digit)
                blocks.append(codes.view(grid.heads, tile, -1))
                at += size
            tiles.append(torch.cat(blocks, dim=2))
        return torch.cat(tiles, dim=1)

    def _width(self, grid: Grid) -> int:
        return grid.dim // len(self.bits)

    def _places(self, grid: Grid) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Tokens of each tile, and bits and bytes of its blocks."""
        for tile in grid.tiles:
            count = tile * self._width(grid)
            yield (
                tile,
                [(int(digit), planes.packed_bytes(count, int(digit))) for digit in self.bits],
            )
