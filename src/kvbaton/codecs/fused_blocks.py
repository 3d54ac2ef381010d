"""Chains that one compiled kernel computes: [un-rotate] integers in blocks of unlike bits."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from kvbaton.codecs.blocks import IntBlocks
from kvbaton.codecs.fused import Fused, Job, memory, others_warm
from kvbaton.codecs.kernel_tables import decoders, encoders
from kvbaton.codecs.unrotate import Unrotate
from kvbaton.types import Place

if TYPE_CHECKING:
    import numpy as np
    import torch

    from kvbaton.codecs.base import CodecChain, Shape

_REPEATS = 8


class FusedBlocks(Fused):
    """A chain of the known pattern; parameters are float16."""

    def __init__(self, turn: Unrotate | None, packer: IntBlocks) -> None:
        super().__init__(turn, None, packer)
        self._blocks = packer
        self._tops: dict[int, np.ndarray[Any, np.dtype[np.float32]]] = {}

    def pack(self, tensor: torch.Tensor, place: Place) -> memoryview | None:
        """Stored bytes of a tensor on the host, or None."""
        import numpy as np

        encode = encoders("blocks_encode").get(tensor.dtype)
        if encode is None or not tensor.is_cpu or not tensor.numel() or others_warm():
            return None
        job = self._job(tensor.dtype, tensor.shape, place)
        if not tensor.is_contiguous():
            tensor = tensor.contiguous()
        out = np.empty((job.size + 7) & ~7, np.uint8)
        table = job.table if job.table is not None else self._turns(place, job, tensor.shape)
        tops = self._levels(tensor.shape[2])
        failed = encode(tensor.data_ptr(), out, job.integers, table, *memory(job), tops, self._bits)
        return None if failed else out.data[: job.size]

    def unpack(
        self,
        data: memoryview,
        name: str,
        shape: Shape,
        place: Place,
        out: torch.Tensor | None,
    ) -> torch.Tensor | None:
        """The tensor in the cache's dtype, in ``out`` where that is given; or None."""
        import numpy as np
        import torch

        dtype, decode = decoders("blocks_decode").get(name, (None, None))
        if dtype is None or decode is None or data.readonly or others_warm():
            return None
        job = self._job(dtype, shape, place)
        if len(data) != job.size:
            return None
        if out is None:
            out = torch.empty(shape, dtype=dtype)
        table = job.table if job.table is not None else self._turns(place, job, shape)
        floats, _, codes = memory(job)
        read = np.frombuffer(data, np.uint8)
        failed = decode(read, out.data_ptr(), job.integers, table, floats, codes, self._bits)
        return None if failed else out

    def _described(self, dtype: torch.dtype, shape: Shape, place: Place, exact: int) -> Job:
        from dataclasses import replace

        from kvbaton.codecs.kernels import job as at

        found = super()._described(dtype, shape, place, exact)
        found.integers[at.BITS] = 8  # ranges are checked as if every block had as many
        # A tile's codes twice, by rows and by blocks; a row's largest codes, repeated.
        return replace(found, codes=2 * found.codes, floats=found.floats + 2 * _REPEATS * shape[2])

    @cached_property
    def _bits(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        import numpy as np

        return np.array([int(digit) for digit in self._blocks.bits], np.int64)

    def _levels(self, dim: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        import numpy as np

        found = self._tops.get(dim)
        if found is None:
            found = self._tops[dim] = np.array(self._blocks.levels(dim), np.float32)
        return found


def fused_blocks(chain: CodecChain) -> FusedBlocks | None:
    """The kernel of a chain whose packer is ``int-blocks``, if there is one."""
    packer = chain.packer
    if not isinstance(packer, IntBlocks) or packer.scales != "f16" or not encoders("blocks_encode"):
        return None
    if [type(codec) for codec in chain.before] not in ([], [Unrotate]):
        return None
    turn = next((c for c in chain.before if isinstance(c, Unrotate)), None)
    return FusedBlocks(turn, packer)
