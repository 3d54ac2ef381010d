"""Chains that one compiled kernel computes: [un-rotate] [Hadamard] integers, on the host.

``fused(chain)`` is None for every other chain.  A kernel gives None where it meets anything odd;
the chain's readable codecs then decide, and name what is wrong.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvbaton.codecs.blocks import IntBlocks
from kvbaton.codecs.hadamard import Hadamard
from kvbaton.codecs.integer import Int
from kvbaton.codecs.kernel_tables import decoders, encoders
from kvbaton.codecs.scales import KINDS, scale_table, scale_thresholds
from kvbaton.codecs.unrotate import Unrotate, turns
from kvbaton.types import Place, RopeSpec

if TYPE_CHECKING:
    import numpy as np
    import torch

    from kvbaton.codecs.base import CodecChain, Shape

    _Floats = np.ndarray[Any, np.dtype[np.float32]]

DTYPES = ("F32", "BF16", "F16")
_REMEMBERED = 128
_JOBS_REMEMBERED = 4096


@dataclass(frozen=True, eq=False, slots=True)
class Job:
    """A kernel's integers for one dtype and shape, and the memory that it needs."""

    integers: Any
    size: int
    exact: int
    floats: int
    keys: int
    codes: int
    table: _Floats | None


class Fused:
    """A chain of the known pattern.

    A segment of a small model is encoded in some microseconds, so what can be looked up is.
    """

    def __init__(
        self, turn: Unrotate | None, rotation: Hadamard | None, packer: Int | IntBlocks
    ) -> None:
        self._turn, self._rotation, self._packer = turn, rotation, packer
        self._jobs: dict[tuple[Any, ...], Job] = {}

    def pack(self, tensor: torch.Tensor, place: Place) -> memoryview | None:
        """Stored bytes of a tensor on the host, or None."""
        import numpy as np

        encode = encoders("encode").get(tensor.dtype)
        if encode is None or not tensor.is_cpu or not tensor.numel() or others_warm():
            return None
        job = self._job(tensor.dtype, tensor.shape, place)
        if not tensor.is_contiguous():
            tensor = tensor.contiguous()
        out = np.empty((job.size + 7) & ~7, np.uint8)
        table = job.table if job.table is not None else self._turns(place, job, tensor.shape)
        failed = encode(tensor.data_ptr(), out, job.integers, table, *memory(job))
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

        dtype, decode = decoders("decode").get(name, (None, None))
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
        failed = decode(read, out.data_ptr(), job.integers, table, floats, codes)
        return None if failed else out

    def _job(self, dtype: torch.dtype, shape: Shape, place: Place) -> Job:
        first = self._packer.first - place.first
        exact = 0 if first <= 0 else min(first, shape[1])
        rope = place.rope if self._turn is not None else None
        key = (dtype, shape, exact, rope and rope.table)
        job = self._jobs.get(key)
        if job is None:
            _bound(self._jobs)
            job = self._jobs[key] = self._described(dtype, tuple(shape), place, exact)
        return job

    def _rope(self, place: Place) -> RopeSpec | None:
        return place.rope if self._turn is not None else None

    def _described(self, dtype: torch.dtype, shape: Shape, place: Place, exact: int) -> Job:
        import numpy as np

        from kvbaton.codecs.dtypes import SAFETENSORS_NAMES
        from kvbaton.codecs.kernels import job as at

        for codec in (self._turn, self._rotation, self._packer):
            if codec is not None:
                codec.check(shape, place)
        packer, grid = self._packer, self._packer.grid(shape, place)
        parts = packer.sections(SAFETENSORS_NAMES[dtype], shape, place)
        rope = self._rope(place)
        integers = np.zeros(at.SIZE, np.int64)
        integers[[at.HEADS, at.TOKENS, at.DIM]] = shape
        integers[at.EXACT], integers[at.TILE], integers[at.GROUP] = exact, grid.tile, grid.size
        integers[at.AXIS] = at.TOKEN_AXIS if packer.axis == "token" else at.CHANNEL_AXIS
        integers[at.BITS], integers[at.KIND] = packer.code_bits, KINDS.index(packer.scales)
        integers[at.SYMMETRIC] = isinstance(packer, Int) and packer.symmetric
        if rope is not None:
            integers[at.ROTARY] = rope.rotary_dim
            integers[at.PAIRING] = 1 if rope.pairing == "half" else 2
        integers[at.BLOCK] = self._block(shape)
        integers[at.PARAMETERS], integers[at.CODES] = parts.parameters, parts.codes
        per_head = grid.count // shape[0]
        integers[at.COUNT_PER_HEAD] = per_head
        integers[at.PACKED_PER_HEAD] = packer.code_bytes(grid)
        integers[at.TABLE] = at.TURNS
        body = (shape[1] - exact) * shape[2]
        tile = min(grid.tile * shape[2], max(1, body))
        floats = body + 2 * per_head + 16 * shape[2] + tile
        table = _table(None, 0, 0, self._block(shape)) if rope is None else None
        return Job(integers, parts.stop, exact, floats, 2 * shape[2], tile, table)

    def _block(self, shape: Shape) -> int:
        return self._rotation.size(shape[2]) if self._rotation is not None else 1

    def _turns(self, place: Place, job: Job, shape: Shape) -> _Floats:
        rope, exact = self._rope(place), job.exact
        return _table(rope, place.first + exact, shape[1] - exact, self._block(shape))


def fused(chain: CodecChain) -> Fused | None:
    """The kernel of a chain, if there is one and numba is installed."""
    packer = chain.packer
    if type(packer) is IntBlocks:
        from kvbaton.codecs.fused_blocks import fused_blocks

        return fused_blocks(chain)
    if type(packer) is not Int or packer.clip or packer.axis == "tensor":
        return None
    kinds = [type(codec) for codec in chain.before]
    if kinds not in ([], [Unrotate], [Hadamard], [Unrotate, Hadamard]) or not encoders("encode"):
        return None
    turn = next((c for c in chain.before if isinstance(c, Unrotate)), None)
    rotation = next((c for c in chain.before if isinstance(c, Hadamard)), None)
    return Fused(turn, rotation, packer)


def warm(chains: Iterable[CodecChain], dtype: str) -> None:
    """Compile the kernels that chains need for a dtype, or load them from disk.

    Takes seconds the first time on a machine; call it in the background before the first take.
    Until it is done, other threads use the readable codecs rather than wait for it.
    """
    if dtype not in DTYPES:
        return
    kinds = {type(kernel): chain for chain in chains if (kernel := fused(chain)) is not None}
    _warming.add(threading.get_ident())
    try:
        for chain in kinds.values():
            _compile(chain, dtype)
    finally:
        _warming.discard(threading.get_ident())


def _compile(chain: CodecChain, dtype: str) -> None:
    import torch

    from kvbaton.codecs.dtypes import TORCH_DTYPES

    shape, place = (1, 2, 64 * max(1, _group(chain))), Place("v", 0, 1 << 20)
    (stored,) = chain.encode(torch.zeros(shape, dtype=TORCH_DTYPES[dtype]), place)
    chain.decode({"": stored.data}, dtype, shape, place)


def others_warm() -> bool:
    """Whether another thread compiles kernels now: the readable codecs are faster meanwhile."""
    return bool(_warming) and threading.get_ident() not in _warming


def _group(chain: CodecChain) -> int:
    """Channels that a multiple of 64 has to have."""
    packer = chain.packer
    if isinstance(packer, IntBlocks):
        return len(packer.bits)
    return packer.group if isinstance(packer, Int) and packer.axis == "token" else 1


# --- tables and memory -------------------------------------------------------------------------

_warming: set[int] = set()
"""Threads that compile kernels at this moment."""
_tables: OrderedDict[tuple[Any, ...], _Floats] = OrderedDict()
_scratch = threading.local()


def _table(rope: RopeSpec | None, first: int, count: int, block: int) -> _Floats:
    """Scales, thresholds, the norm, and the cosines and sines of positions, in one array."""
    key = (rope.table, rope.pairing, first, count, block) if rope is not None else (block,)
    found = _tables.get(key)
    if found is None:
        found = _tables[key] = _new_table(rope, first, count, block)
        while len(_tables) > _REMEMBERED:
            _tables.popitem(last=False)
    return found


def _new_table(rope: RopeSpec | None, first: int, count: int, block: int) -> _Floats:
    import numpy as np

    from kvbaton.codecs.kernels import job as at

    half = rope.rotary_dim // 2 if rope is not None else 0
    table = np.zeros(at.TURNS + 2 * count * half, np.float32)
    table[: at.THRESHOLDS] = scale_table().numpy()
    table[at.THRESHOLDS : at.BEYOND] = scale_thresholds().numpy()
    table[at.BEYOND] = 2.0
    table[at.NORM] = block**-0.5
    if rope is not None:
        cosines, sines = turns(rope, first, count)
        table[at.TURNS :] = np.concatenate([cosines.numpy().ravel(), sines.numpy().ravel()])
    return table


def memory(job: Job) -> tuple[Any, Any, Any]:
    """Floats, keys and codes to work in, of the running thread."""
    by_job: dict[Job, tuple[Any, Any, Any]] | None = getattr(_scratch, "by_job", None)
    if by_job is None:
        by_job = _scratch.by_job = {}
    held = by_job.get(job)
    if held is None:
        _bound(by_job)
        held = by_job[job] = _shared(job, list(by_job.values()))
    return held


def _bound(remembered: dict[Any, Any]) -> None:
    """Headers of others bring any shape: what is kept for each must not grow without end."""
    if len(remembered) >= _JOBS_REMEMBERED:
        remembered.clear()


def _shared(job: Job, others: list[tuple[Any, Any, Any]]) -> tuple[Any, Any, Any]:
    """Memory that another job has already, where it is large enough."""
    import numpy as np

    sizes = (job.floats, job.keys, job.codes)
    for held in others:
        if all(len(part) >= size for part, size in zip(held, sizes, strict=True)):
            return held
    kinds = (np.float32, np.int32, np.uint8)
    floats, keys, codes = (np.empty(n, kind) for n, kind in zip(sizes, kinds, strict=True))
    return floats, keys, codes
