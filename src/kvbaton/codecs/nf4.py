"""4-bit codes that stand for the quantiles of a normal distribution, with a scale per group.

NormalFloat of QLoRA (Dettmers et al. 2023): levels are dense where numbers are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvbaton.codecs.absmax import AbsMax
from kvbaton.types import Fidelity, FidelityClass, Place

if TYPE_CHECKING:
    import torch

LEVELS = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""What the codes 0 to 15 stand for, times the scale."""


@dataclass(frozen=True, kw_only=True)
class Nf4(AbsMax):
    """An element changes by at most 0.152 scales: half the widest gap between levels."""

    name: ClassVar[str] = "nf4"
    fidelity: ClassVar[Fidelity] = Fidelity(FidelityClass.LOSSY, "nf4")
    top: ClassVar[float] = 1.0

    @property
    def code_bits(self) -> int:
        """4."""
        return 4

    def coded(self, numbers: torch.Tensor) -> torch.Tensor:
        """The nearest level; the lower one in the middle."""
        import torch

        levels = torch.tensor(LEVELS, dtype=torch.float32, device=numbers.device)
        middles = (levels[1:] + levels[:-1]) / 2
        return torch.bucketize(numbers, middles).to(torch.uint8)

    def decoded(self, codes: torch.Tensor, place: Place) -> torch.Tensor:
        """The levels."""
        import torch

        return torch.tensor(LEVELS, dtype=torch.float32, device=codes.device)[codes.long()]
