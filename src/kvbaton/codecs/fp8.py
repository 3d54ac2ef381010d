"""8-bit floats (e4m3: 4 bits of exponent, 3 of mantissa) with a scale per group.

Micikevicius et al. 2022.  Without scales keys with outlier channels overflow or lose their small
numbers; with them the largest number of a group becomes 448, the largest that e4m3 has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvbaton.codecs.absmax import AbsMax
from kvbaton.errors import Fault
from kvbaton.types import Fidelity, FidelityClass, Place

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Fp8(AbsMax):
    """An element changes by at most 1/16 of itself, or by 2**-10 scales where it is tiny."""

    name: ClassVar[str] = "fp8"
    fidelity: ClassVar[Fidelity] = Fidelity(FidelityClass.LOSSY, "fp8")
    top: ClassVar[float] = 448.0

    @property
    def code_bits(self) -> int:
        """8."""
        return 8

    def coded(self, numbers: torch.Tensor) -> torch.Tensor:
        """Rounded to nearest, ties to even."""
        import torch

        return numbers.clamp(-self.top, self.top).to(torch.float8_e4m3fn).view(torch.uint8)

    def decoded(self, codes: torch.Tensor, place: Place) -> torch.Tensor:
        """The floats that the codes are; two of them are NaN and refused."""
        import torch

        from kvbaton.codecs.conversion import refuse_stored

        if bool(((codes & 0x7F) == 0x7F).any()):
            raise refuse_stored("8-bit floats that are NaN", Fault.NOT_FINITE, place)
        return codes.contiguous().view(torch.float8_e4m3fn).float()
