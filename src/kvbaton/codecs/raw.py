"""The raw codec: the cache's own bytes, dtype preserved, nothing copied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvbaton.codecs.base import Shape, StoredShape, TensorToBytes
from kvbaton.types import JSON, Place, StoredTensor

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Raw(TensorToBytes):
    """Little-endian bytes of the tensor in C order: lossless, so its fidelity is exact."""

    name: ClassVar[str] = "raw"
    views: ClassVar[bool] = True

    def to_json(self) -> JSON:
        """The name alone, as the segment's specification spells it."""
        return {"name": self.name}

    def storage(self, dtype: str, shape: Shape, place: Place) -> Mapping[str, StoredShape]:
        """One stored tensor of the same dtype and shape."""
        return {"": StoredShape(dtype, shape)}

    def pack(self, tensor: torch.Tensor, dtype: str, place: Place) -> Mapping[str, StoredTensor]:
        """The tensor's own memory, if it is contiguous on the host."""
        import torch

        from kvbaton.codecs.conversion import to_dtype

        flat = to_dtype(tensor, dtype, place).cpu().contiguous().view(-1).view(torch.uint8)
        data = memoryview(flat.numpy()).cast("B")
        return {"": StoredTensor("", dtype, tuple(tensor.shape), data)}

    def unpack(
        self, stored: Mapping[str, memoryview], dtype: str, shape: Shape, place: Place
    ) -> torch.Tensor:
        """A tensor over the stored bytes; nothing is copied."""
        import torch

        from kvbaton.codecs.dtypes import TORCH_DTYPES

        return torch.frombuffer(stored[""], dtype=TORCH_DTYPES[dtype]).view(shape)
