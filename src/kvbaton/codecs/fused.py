"""Chains that one compiled kernel computes: [un-rotate] [Hadamard] integers, on the host.

``fused(chain)`` is None for every other chain.  A kernel gives None where it meets anything odd;
the chain's readable codecs then decide, and name what is wrong.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from kvbaton.codecs import planes
from kvbaton.codecs.grouped import exact_tokens
from kvbaton.codecs.groups import Grid
from kvbaton.codecs.hadamard import Hadamard
from kvbaton.codecs.integer import Int
from kvbaton.codecs.scales import KINDS, scale_table, scale_thresholds
from kvbaton.codecs.unrotate import Unrotate, turns
from kvbaton.types import Place, RopeSpec, StoredTensor

if TYPE_CHECKING:
    import numpy as np
    import torch

    from kvbaton.codecs.base import CodecChain, Shape

    _Floats = np.ndarray[Any, np.dtype[np.float32]]

DTYPES = ("F32", "BF16", "F16")
_REMEMBERED = 128
_NORM = 512
_TURNS = 520
"""Places in a kernel's table: the Hadamard transform's norm, and where cosines begin."""


@dataclass(frozen=True)
class _Job:
    """A kernel's integers for one dtype and shape, and the memory that it needs."""

    integers: Any
    size: int
    exact: int
    floats: int
    keys: int
    codes: int


class Fused:
    """A chain of the known pattern."""

    def __init__(self, turn: Unrotate | None, rotation: Hadamard | None, packer: Int) -> None:
        self._turn, self._rotation, self._packer = turn, rotation, packer
        self._jobs: dict[tuple[Any, ...], _Job] = {}

    def pack(
        self, tensor: torch.Tensor, dtype: str, place: Place
    ) -> Mapping[str, StoredTensor] | None:
        """Stored bytes of a tensor on the host, or None."""
        import numpy as np

        encode = _kernels("encode").get(dtype)
        if encode is None or tensor.is_cuda or tensor.device.type != "cpu":
            return None
        shape = tuple(tensor.shape)
        job = self._job(dtype, shape, place)
        if not tensor.is_contiguous():
            tensor = tensor.contiguous()
        memory = _memory(job)
        out = np.empty(-(-job.size // 8) * 8, np.uint8)
        failed = encode(
            tensor.data_ptr(), out, job.integers, self._table(place, job.exact, shape), *memory
        )
        if failed:
            return None
        return {"": StoredTensor("", "U8", (job.size,), memoryview(out.data)[: job.size])}

    def unpack(
        self,
        stored: Mapping[str, memoryview],
        dtype: str,
        shape: Shape,
        place: Place,
        out: torch.Tensor | None,
    ) -> torch.Tensor | None:
        """The tensor in the cache's dtype, in ``out`` where that is given; or None."""
        import numpy as np
        import torch

        from kvbaton.codecs.dtypes import TORCH_DTYPES

        decode, data = _kernels("decode").get(dtype), stored[""]
        if decode is None or data.readonly:
            return None
        job = self._job(dtype, shape, place)
        if len(data) != job.size:
            return None
        if out is None:
            out = torch.empty(shape, dtype=TORCH_DTYPES[dtype])
        floats, _, codes = _memory(job)
        failed = decode(
            np.frombuffer(data, np.uint8), out.data_ptr(), job.integers,
            self._table(place, job.exact, shape), floats, codes,
        )  # fmt: skip
        return None if failed else out

    def _job(self, dtype: str, shape: Shape, place: Place) -> _Job:
        exact = exact_tokens(self._packer.first, shape[1], place)
        rope = self._rope(place)
        key = (dtype, shape, exact, rope and (rope.table, rope.pairing))
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = self._described(dtype, shape, place, exact)
        return job

    def _rope(self, place: Place) -> RopeSpec | None:
        return place.rope if self._turn is not None else None

    def _described(self, dtype: str, shape: Shape, place: Place, exact: int) -> _Job:
        import numpy as np

        from kvbaton.codecs.kernels import job as at

        packer, grid = self._packer, self._packer.grid(shape, place)
        parts = packer.sections(dtype, shape, place)
        rope = self._rope(place)
        integers = np.zeros(at.SIZE, np.int64)
        integers[[at.HEADS, at.TOKENS, at.DIM]] = shape
        integers[at.EXACT], integers[at.TILE], integers[at.GROUP] = exact, grid.tile, grid.size
        integers[at.AXIS] = at.TOKEN_AXIS if packer.axis == "token" else at.CHANNEL_AXIS
        integers[at.BITS], integers[at.KIND] = packer.bits, KINDS.index(packer.scales)
        integers[at.SYMMETRIC] = packer.symmetric
        if rope is not None:
            integers[at.ROTARY] = rope.rotary_dim
            integers[at.PAIRING] = 1 if rope.pairing == "half" else 2
        integers[at.BLOCK] = self._block(shape)
        integers[at.PARAMETERS], integers[at.CODES] = parts.parameters, parts.codes
        per_head = grid.count // shape[0]
        integers[at.COUNT_PER_HEAD] = per_head
        integers[at.PACKED_PER_HEAD] = _packed(grid, packer.bits)
        integers[at.TABLE] = _TURNS
        body = (shape[1] - exact) * shape[2]
        tile = min(grid.tile * shape[2], max(1, body))
        floats = body + 2 * per_head + 16 * shape[2] + tile
        return _Job(integers, parts.stop, exact, floats, 2 * shape[2], tile)

    def _block(self, shape: Shape) -> int:
        return self._rotation.size(shape[2]) if self._rotation is not None else 1

    def _table(self, place: Place, exact: int, shape: Shape) -> _Floats:
        rope = self._rope(place)
        return _table(rope, place.first + exact, shape[1] - exact, self._block(shape))


def _packed(grid: Grid, bits: int) -> int:
    return sum(planes.packed_bytes(tile * grid.dim, bits) for tile in grid.tiles)


def fused(chain: CodecChain) -> Fused | None:
    """The kernel of a chain, if there is one and numba is installed."""
    packer = chain.packer
    if type(packer) is not Int or packer.clip or packer.axis == "tensor":
        return None
    kinds = [type(codec) for codec in chain.before]
    if kinds not in ([], [Unrotate], [Hadamard], [Unrotate, Hadamard]) or not _kernels("encode"):
        return None
    turn = next((c for c in chain.before if isinstance(c, Unrotate)), None)
    rotation = next((c for c in chain.before if isinstance(c, Hadamard)), None)
    return Fused(turn, rotation, packer)


@cache
def _kernels(way: str) -> Mapping[str, Callable[..., int]]:
    """Entry points by dtype; none where numba does not run."""
    try:
        from kvbaton.codecs.kernels import decode, encode
    except ImportError:
        return {}
    if way == "encode":
        return {"F32": encode.encode_f32, "BF16": encode.encode_bf16, "F16": encode.encode_f16}
    return {"F32": decode.decode_f32, "BF16": decode.decode_bf16, "F16": decode.decode_f16}


def warm(chains: Iterable[CodecChain], dtype: str) -> None:
    """Compile the kernels that chains need for a dtype, or load them from disk.

    Takes seconds the first time on a machine; call it in the background before the first take.
    """
    import torch

    from kvbaton.codecs.dtypes import TORCH_DTYPES

    chain = next((c for c in chains if fused(c) is not None), None)
    if chain is None or dtype not in DTYPES:
        return
    shape, place = (1, 2, 64 * max(1, _group(chain))), Place("v", 0, 1 << 20)
    tensor = torch.zeros(shape, dtype=TORCH_DTYPES[dtype])
    (stored,) = chain.encode(tensor, place)
    chain.decode({"": stored.data}, dtype, shape, place)


def _group(chain: CodecChain) -> int:
    packer = chain.packer
    return packer.group if isinstance(packer, Int) and packer.axis == "token" else 1


# --- tables and memory -------------------------------------------------------------------------

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

    half = rope.rotary_dim // 2 if rope is not None else 0
    table = np.zeros(_TURNS + 2 * count * half, np.float32)
    table[:256], table[256:_NORM] = scale_table().numpy(), scale_thresholds().numpy()
    table[_NORM] = block**-0.5
    if rope is not None:
        cosines, sines = turns(rope, first, count)
        table[_TURNS:] = np.concatenate([cosines.numpy().ravel(), sines.numpy().ravel()])
    return table


def _memory(job: _Job) -> tuple[Any, Any, Any]:
    """Floats, keys and codes to work in, of the running thread."""
    import numpy as np

    held = getattr(_scratch, "memory", None)
    if (
        held is None
        or len(held[0]) < job.floats
        or len(held[1]) < job.keys
        or (len(held[2]) < job.codes)
    ):
        sizes = (job.floats, job.keys, job.codes)
        old = (0, 0, 0) if held is None else tuple(map(len, held))
        kinds = (np.float32, np.int32, np.uint8)
        held = _scratch.memory = tuple(
            np.empty(max(a, b), kind) for a, b, kind in zip(sizes, old, kinds, strict=True)
        )
    return held
