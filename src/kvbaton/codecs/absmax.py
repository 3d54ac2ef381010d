"""What quantizers without offsets share: a scale takes its group's largest number to the top."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvbaton.codecs import scales as stored
from kvbaton.codecs.grouped import Grouped
from kvbaton.codecs.groups import Grid
from kvbaton.types import Place

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class AbsMax(Grouped):
    """``code = coded(x / scale)``, where ``scale`` is the largest magnitude over ``top``."""

    top: ClassVar[float]

    @abstractmethod
    def coded(self, numbers: torch.Tensor) -> torch.Tensor:
        """Codes (uint8) of numbers within ``top``, or beyond it by a rounding error."""

    @abstractmethod
    def decoded(self, codes: torch.Tensor, place: Place) -> torch.Tensor:
        """Inverse of :meth:`coded`, float32."""

    def parameter_bytes(self, grid: Grid) -> int:
        """Scales only."""
        return stored.stored_bytes(self.scales, grid, offsets=False)

    def quantize(
        self, body: torch.Tensor, grid: Grid, place: Place
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Parameters as bytes, and codes ``[heads, tokens, dim]`` uint8."""
        import torch

        from kvbaton.codecs.conversion import refuse_input

        largest = grid.reduced(body.abs(), torch.amax)
        data, scales = stored.store_scales(stored.over(largest, self.top), self.scales)
        if not bool(torch.isfinite(scales).all()):
            raise refuse_input(f"numbers beyond what {self.scales} scales can hold", place)
        inverse = stored.inverses(scales)
        return data, self.coded(body * grid.spread(inverse))

    def dequantize(
        self, parameters: torch.Tensor, codes: torch.Tensor, grid: Grid, place: Place
    ) -> torch.Tensor:
        """``decoded(code) * scale``, float32."""
        import torch

        from kvbaton.codecs.conversion import refuse_stored

        scales = stored.load_scales(parameters, self.scales, grid)
        wrong = stored.bad_parameters(stored.Ranges(torch.zeros_like(scales), scales), 1)
        if wrong:
            raise refuse_stored(*wrong, place)
        return self.decoded(codes, place) * grid.spread(scales)
