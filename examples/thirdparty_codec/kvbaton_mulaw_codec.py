"""A kvbaton codec of 8 bits on a logarithmic scale, as telephones use it (mu-law, ITU-T G.711)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvbaton.codecs import Shape, StoredShape, TensorToBytes, require_int
from kvbaton.errors import Fault, FormatError, InputError
from kvbaton.types import Fidelity, FidelityClass, Place, StoredTensor

if TYPE_CHECKING:
    import torch

_LEVELS = 127


@dataclass(frozen=True, kw_only=True)
class MuLaw(TensorToBytes):
    """Small numbers have fine steps, large ones coarse steps; each head has a scale."""

    name: ClassVar[str] = "mulaw"
    fidelity: ClassVar[Fidelity] = Fidelity(FidelityClass.LOSSY, "mulaw")

    mu: int = 255

    def __post_init__(self) -> None:
        require_int(self.mu, 1, 65535, "mu")

    def storage(self, dtype: str, shape: Shape, place: Place) -> Mapping[str, StoredShape]:
        """Codes, and a float32 per head: known without torch, so headers can be checked."""
        return {"": StoredShape("I8", shape), "scale": StoredShape("F32", (shape[0],))}

    def pack(self, tensor: torch.Tensor, dtype: str, place: Place) -> Mapping[str, StoredTensor]:
        """Codes of ``[kv_heads, tokens, head_dim]``."""
        import torch

        numbers = tensor.float()
        if not bool(torch.isfinite(numbers).all()):
            raise InputError("numbers that are not finite", at=_path(place))
        scale = numbers.abs().amax((1, 2))
        parts = (numbers / scale.clamp(min=1e-30)[:, None, None]).clamp(-1, 1)
        bent = torch.log1p(self.mu * parts.abs()) / math.log1p(self.mu)
        codes = (bent * _LEVELS).round().copysign(parts).to(torch.int8)
        return {"": _stored("I8", codes), "scale": _stored("F32", scale)}

    def unpack(
        self, stored: Mapping[str, memoryview], dtype: str, shape: Shape, place: Place
    ) -> torch.Tensor:
        """Numbers again, in float32: the chain brings them into the cache's dtype."""
        import torch

        codes = torch.frombuffer(stored[""], dtype=torch.int8).view(shape).float()
        scale = torch.frombuffer(stored["scale"], dtype=torch.float32)
        if not bool((torch.isfinite(scale) & (scale >= 0)).all()):
            raise FormatError("a bad scale", fault=Fault.NOT_FINITE, at=_path(place))
        bent = codes.abs().clamp(max=_LEVELS) / _LEVELS
        parts = torch.expm1(bent * math.log1p(self.mu)) / self.mu
        return parts.clamp(max=1.0).copysign(codes) * scale[:, None, None]


def _stored(dtype: str, tensor: torch.Tensor) -> StoredTensor:
    """The chain gives it its name."""
    data = memoryview(tensor.contiguous().cpu().numpy()).cast("B")
    return StoredTensor("", dtype, tuple(tensor.shape), data)


def _path(place: Place) -> str:
    return f"$.layers[{place.layer}].{place.name}"
