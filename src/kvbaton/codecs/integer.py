"""Integers of 2 to 8 bits with an offset and a scale per group, rounded to nearest.

Keys per channel over groups of tokens and values per token over groups of channels is the default
granularity of KIVI (Liu et al. 2024): keys have channels far larger than others, values do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvbaton.codecs import scales as stored
from kvbaton.codecs.base import require_bool, require_int
from kvbaton.codecs.clipping import clipped
from kvbaton.codecs.grouped import Grouped
from kvbaton.codecs.groups import Grid
from kvbaton.types import Fidelity, FidelityClass, Place

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Int(Grouped):
    """``code = round((x - offset) / scale)``.

    An element changes by at most half a scale, and by what storing the parameters adds: see
    :mod:`kvbaton.codecs.scales`.  With ``clip`` there is no such bound.

    Parameters
    ----------
    bits
        Of a code, 2 to 8.
    symmetric
        No offset is stored: a group's codes reach as far below zero as above.  All of them are
        used, so zero lies between two.
    clip
        Each group's range is narrowed to where the squared error is smallest (robust to outliers).
    """

    name: ClassVar[str] = "int"
    fidelity: ClassVar[Fidelity] = Fidelity(FidelityClass.LOSSY, "int")

    bits: int = 8
    symmetric: bool = False
    clip: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int(self.bits, 2, 8, "bits")
        require_bool(self.symmetric, "symmetric")
        require_bool(self.clip, "clip")

    @property
    def code_bits(self) -> int:
        """Bits of a code."""
        return self.bits

    @property
    def levels(self) -> int:
        """The largest code."""
        return (1 << self.bits) - 1

    def parameter_bytes(self, grid: Grid) -> int:
        """Offsets, unless symmetric, and scales."""
        return stored.stored_bytes(self.scales, grid, offsets=not self.symmetric)

    def quantize(
        self, body: torch.Tensor, grid: Grid, place: Place
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Parameters as bytes, and codes ``[heads, tokens, dim]`` uint8."""
        import torch

        from kvbaton.codecs.conversion import refuse_input

        low, high = self._range(body, grid)
        data, ranges = self._store(low, high)
        wrong = stored.bad_parameters(ranges, self.levels)
        if wrong:
            raise refuse_input(f"{wrong[0]}: numbers beyond what {self.scales} can hold", place)
        inverse = stored.inverses(ranges.scales)
        scaled = (body - grid.spread(ranges.offsets)) * grid.spread(inverse)
        return data, scaled.round().clamp(0, self.levels).to(torch.uint8)

    def _range(self, body: torch.Tensor, grid: Grid) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        # Adding zero makes negative zero positive: equal numbers, equal bytes.
        low, high = grid.reduced(body, torch.amin) + 0.0, grid.reduced(body, torch.amax) + 0.0
        if self.symmetric:
            high = torch.maximum(high, -low) + 0.0
            low = -high
        return clipped(body, low, high, self.levels, grid) if self.clip else (low, high)

    def _store(self, low: torch.Tensor, high: torch.Tensor) -> tuple[torch.Tensor, stored.Ranges]:
        if not self.symmetric:
            return stored.store(low, high, self.levels, self.scales, self.axis)
        data, scales = stored.store_scales(stored.over(2.0 * high, self.levels), self.scales)
        return data, stored.Ranges(-(scales * self._half), scales)

    @property
    def _half(self) -> float:
        return self.levels / 2

    def dequantize(
        self, parameters: torch.Tensor, codes: torch.Tensor, grid: Grid, place: Place
    ) -> torch.Tensor:
        """``offset + code * scale``, float32."""
        from kvbaton.codecs.conversion import refuse_stored

        ranges = self._load(parameters, grid)
        wrong = stored.bad_parameters(ranges, self.levels)
        if wrong:
            raise refuse_stored(*wrong, place)
        return codes.float() * grid.spread(ranges.scales) + grid.spread(ranges.offsets)

    def _load(self, parameters: torch.Tensor, grid: Grid) -> stored.Ranges:
        if not self.symmetric:
            return stored.load(parameters, self.scales, grid, self.levels)
        scales = stored.load_scales(parameters, self.scales, grid)
        return stored.Ranges(-(scales * self._half), scales)
