"""The decoding kernel of integers with other bits for each block of channels."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvbaton.codecs.kernels import parameters
from kvbaton.codecs.kernels.compiling import carray, inlined, kernel, pointer, sources
from kvbaton.codecs.kernels.decode import (
    LIMIT_BF16,
    LIMIT_F16,
    LIMIT_F32,
    _numbers,
    _restore,
    _small,
    _turn,
)
from kvbaton.codecs.kernels.job import (
    CODES,
    COUNT_PER_HEAD,
    DIM,
    EXACT,
    HEADS,
    KIND,
    PACKED_PER_HEAD,
    PARAMETERS,
    ROTARY,
    SYMMETRIC,
    TILE,
    TOKENS,
)
from kvbaton.codecs.kernels.numbers import U
from kvbaton.codecs.kernels.packing import unpack_codes

_MOST = 255
"""Steps that no block has more of: ranges are checked for the worst case."""


def _entry_points(source_digest: int) -> tuple[Any, Any, Any]:
    """Kernels of float32, bfloat16 and float16; each returns 0 where all went well."""

    @kernel
    def decode_f32(
        data: Any, target: Any, job: Any, table: Any, floats: Any, codes: Any, bits: Any
    ) -> Any:
        size = job[HEADS] * job[TOKENS] * job[DIM] + 0 * source_digest
        numbers = carray(pointer(target), size, np.float32)
        return _decode(data, numbers, job, table, floats, codes, bits, LIMIT_F32)

    @kernel
    def decode_bf16(
        data: Any, target: Any, job: Any, table: Any, floats: Any, codes: Any, bits: Any
    ) -> Any:
        size = job[HEADS] * job[TOKENS] * job[DIM] + 0 * source_digest
        numbers = carray(pointer(target), size, np.uint16)
        return _decode(data, numbers, job, table, floats, codes, bits, LIMIT_BF16)

    @kernel
    def decode_f16(
        data: Any, target: Any, job: Any, table: Any, floats: Any, codes: Any, bits: Any
    ) -> Any:
        size = job[HEADS] * job[TOKENS] * job[DIM] + 0 * source_digest
        numbers = carray(pointer(target), size, np.int16)
        return _decode(data, numbers, job, table, floats, codes, bits, LIMIT_F16)

    return decode_f32, decode_bf16, decode_f16


@inlined
def _decode(
    data: Any, out: Any, job: Any, table: Any, floats: Any, codes: Any, bits: Any, limit: Any
) -> Any:
    heads, tokens, dim = U(job[HEADS]), U(job[TOKENS]), U(job[DIM])
    exact, count = U(job[EXACT]), U(job[COUNT_PER_HEAD])
    left = tokens - exact
    raw = data[: heads * exact * dim * U(out.itemsize)].view(out.dtype)
    if not _restore(raw, heads, tokens, dim, exact, out):
        return 1
    words = data[: U(len(data)) // U(4) * U(4)]
    low, high, rest = floats[:count], floats[count : U(2) * count], floats[U(2) * count :]
    for head in range(heads if left else U(0)):
        good = parameters.read(
            low, high, count, head, heads, U(job[PARAMETERS]), data, words.view(np.uint16),
            words.view(np.float32), job[KIND], job[SYMMETRIC] != 0, job[SYMMETRIC] != 0,
            U(_MOST), table,
        )  # fmt: skip
        if not good or not _small(low, high, count, job, limit):
            return 1
        _head(
            data, head, out, (head * tokens + exact) * dim, job, table, low, high, rest, codes,
            bits,
        )  # fmt: skip
    return 0


@inlined
def _head(
    data: Any, head: Any, out: Any, start: Any, job: Any, table: Any, low: Any, high: Any,
    floats: Any, codes: Any, bits: Any,
) -> None:  # fmt: skip
    dim, tile, left = U(job[DIM]), U(job[TILE]), U(job[TOKENS] - job[EXACT])
    at_byte: Any = U(job[CODES]) + head * U(job[PACKED_PER_HEAD])
    rotary = U(job[ROTARY])
    spread, rows = floats[: U(16) * dim], floats[U(16) * dim :]
    block = codes[min(tile, left) * dim :]
    for at in range(U(0), left, tile):
        held = min(tile, left - at) * dim
        at_byte = _blocks(data, at_byte, held // dim, dim, bits, block, codes)
        if rotary:
            _numbers(codes, U(0), at, held, job, low, high, spread, rows, U(0))
            _turn(rows, out, start + at * dim, held, dim, at, left, rotary, job, table)
        else:
            _numbers(codes, U(0), at, held, job, low, high, spread, out, start + at * dim)


@inlined
def _blocks(data: Any, at_byte: Any, rows: Any, dim: Any, bits: Any, block: Any, codes: Any) -> Any:
    """Unpack each block into its columns; returns where the last one ends."""
    width = dim // U(len(bits))
    for b in range(U(len(bits))):
        if bits[b] == 8:
            for j in range(rows * width):
                block[j] = data[at_byte + j]
            at_byte += rows * width
        else:
            at_byte = unpack_codes(data, at_byte, rows * width, U(bits[b]), block)
        scatter(block, rows, dim, b * width, width, codes)
    return at_byte


@inlined
def scatter(block: Any, rows: Any, dim: Any, first: Any, width: Any, codes: Any) -> None:
    """The inverse of ``gather``."""
    if width == U(8) and dim % U(8) == U(0):
        words, source = codes[: rows * dim].view(np.uint64), block[: rows * width].view(np.uint64)
        for r in range(rows):
            words[(r * dim + first) // U(8)] = source[r]
    elif width == U(16) and dim % U(16) == U(0):
        words, source = codes[: rows * dim].view(np.uint64), block[: rows * width].view(np.uint64)
        for r in range(rows):
            at = (r * dim + first) // U(8)
            words[at], words[at + U(1)] = source[U(2) * r], source[U(2) * r + U(1)]
    else:
        for r in range(rows):
            for j in range(width):
                codes[r * dim + first + j] = block[r * width + j]


decode_f32, decode_bf16, decode_f16 = _entry_points(sources())
