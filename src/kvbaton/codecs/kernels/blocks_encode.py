"""The encoding kernel of integers with other bits for each block of channels.

Beside what :mod:`kvbaton.codecs.kernels.encode` is told, it gets the largest code of each channel
(``tops``, float32) and the bits of each block (``bits``, int64).  Parameters are float16.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvbaton.codecs.kernels import parameters
from kvbaton.codecs.kernels.compiling import carray, inlined, kernel, pointer, sources
from kvbaton.codecs.kernels.encode import (
    REPEATS,
    _keep,
    _ranges_of_channels,
    _transform,
    _zero_pads,
)
from kvbaton.codecs.kernels.job import (
    CODES,
    COUNT_PER_HEAD,
    DIM,
    EXACT,
    HEADS,
    PACKED_PER_HEAD,
    PARAMETERS,
    ROTARY,
    TILE,
    TOKENS,
)
from kvbaton.codecs.kernels.numbers import (
    ONE,
    SMALLEST_NORMAL,
    ZERO,
    U,
    floor_half,
    from_half,
    load,
    rounded,
    to_half,
)
from kvbaton.codecs.kernels.packing import pack_codes


def _entry_points(source_digest: int) -> tuple[Any, Any, Any]:
    """Kernels of float32, bfloat16 and float16; each returns 0 where all went well."""

    @kernel
    def encode_f32(
        source: Any, out: Any, job: Any, table: Any, floats: Any, keys: Any, codes: Any,
        tops: Any, bits: Any,
    ) -> Any:  # fmt: skip
        size = job[HEADS] * job[TOKENS] * job[DIM] + 0 * source_digest
        numbers = carray(pointer(source), size, np.float32)
        return _encode(numbers, out, job, table, floats, keys, codes, tops, bits)

    @kernel
    def encode_bf16(
        source: Any, out: Any, job: Any, table: Any, floats: Any, keys: Any, codes: Any,
        tops: Any, bits: Any,
    ) -> Any:  # fmt: skip
        size = job[HEADS] * job[TOKENS] * job[DIM] + 0 * source_digest
        numbers = carray(pointer(source), size, np.uint16)
        return _encode(numbers, out, job, table, floats, keys, codes, tops, bits)

    @kernel
    def encode_f16(
        source: Any, out: Any, job: Any, table: Any, floats: Any, keys: Any, codes: Any,
        tops: Any, bits: Any,
    ) -> Any:  # fmt: skip
        size = job[HEADS] * job[TOKENS] * job[DIM] + 0 * source_digest
        numbers = carray(pointer(source), size, np.int16)
        return _encode(numbers, out, job, table, floats, keys, codes, tops, bits)

    return encode_f32, encode_bf16, encode_f16


@inlined
def _encode(
    source: Any, out: Any, job: Any, table: Any, floats: Any, keys: Any, codes: Any, tops: Any,
    bits: Any,
) -> Any:  # fmt: skip
    heads, tokens, dim = U(job[HEADS]), U(job[TOKENS]), U(job[DIM])
    exact = U(job[EXACT])
    left = tokens - exact
    _zero_pads(out, U(job[PARAMETERS]))
    _zero_pads(out, U(job[CODES]))
    if not _keep(source, heads, tokens, dim, exact, out.view(source.dtype)):
        return 1
    body = left * dim if job[ROTARY] > 0 else U(0)
    for head in range(heads if left else U(0)):
        start = (head * tokens + exact) * dim
        if job[ROTARY] > 0:
            _transform(source, start, left, dim, job, table, floats)
            good = _quantize(floats, U(0), head, out, job, floats[body:], keys, codes, tops, bits)
        else:
            good = _quantize(source, start, head, out, job, floats, keys, codes, tops, bits)
        if not good:
            return 1
    return 0


@inlined
def _quantize(
    source: Any, start: Any, head: Any, out: Any, job: Any, floats: Any, keys: Any, codes: Any,
    tops: Any, bits: Any,
) -> Any:  # fmt: skip
    """Parameters and codes of a head whose first number lies at ``start``."""
    count = U(job[COUNT_PER_HEAD])
    low, high = floats[:count], floats[count : U(2) * count]
    _ranges_of_channels(source, start, job, low, high, keys)
    if not parameters.are_finite(low, high, count):
        return False
    if not _parameters(low, high, count, head, job, tops, out.view(np.uint16)):
        return False
    spread = floats[U(2) * count :]
    at_byte = U(job[CODES]) + head * U(job[PACKED_PER_HEAD])
    dim, tile, left = U(job[DIM]), U(job[TILE]), U(job[TOKENS] - job[EXACT])
    block = codes[min(tile, left) * dim :]
    for at in range(U(0), left, tile):
        rows = min(tile, left - at)
        _codes(
            source, start + at * dim, rows, dim, low, high, tops, at // tile * dim, spread, codes
        )
        at_byte = _blocks(codes, rows, dim, bits, block, out, at_byte)
    return True


@inlined
def _parameters(low: Any, high: Any, count: Any, head: Any, job: Any, tops: Any, out16: Any) -> Any:
    """Store offsets and scales; they become offsets and inverse scales; whether all are good."""
    dim, at = U(job[DIM]), U(job[PARAMETERS]) // U(2) + head * count
    groups, bad = count * U(job[HEADS]), U(0)
    for first in range(U(0), count, dim):
        for j in range(dim):
            g = first + j
            offset = from_half(floor_half(low[g]))
            scale16 = np.uint16(to_half((high[g] - offset) / tops[j]))
            scale = from_half(scale16)
            out16[at + g] = np.uint16(to_half(offset))
            out16[at + groups + g] = scale16
            bad += U(not parameters.is_finite(scale))
            bad += U(not parameters.is_finite(offset + scale * tops[j]))
            low[g] = offset
            high[g] = ONE / scale if scale >= SMALLEST_NORMAL else ZERO
    return bad == U(0)


@inlined
def _codes(
    source: Any, first: Any, rows: Any, dim: Any, low: Any, high: Any, tops: Any, group: Any,
    spread: Any, codes: Any,
) -> None:  # fmt: skip
    """Codes of a tile, row by row; several rows share one loop."""
    run, held = REPEATS * dim, rows * dim
    lows, highs, most = spread[:run], spread[run : U(2) * run], spread[U(2) * run : U(3) * run]
    for r in range(REPEATS):
        for j in range(dim):
            lows[r * dim + j], highs[r * dim + j] = low[group + j], high[group + j]
            most[r * dim + j] = tops[j]
    for here in range(U(0), held, run):
        for j in range(min(run, held - here)):
            scaled = (load(source, first + here + j) - lows[j]) * highs[j]
            scaled = scaled if scaled > ZERO else ZERO
            codes[here + j] = np.uint8(rounded(scaled if scaled < most[j] else most[j]))


@inlined
def _blocks(codes: Any, rows: Any, dim: Any, bits: Any, block: Any, out: Any, at_byte: Any) -> Any:
    """Pack the columns of each block; returns where the last one ends."""
    width = dim // U(len(bits))
    for b in range(U(len(bits))):
        gather(codes, rows, dim, b * width, width, block)
        if bits[b] == 8:
            for j in range(rows * width):
                out[at_byte + j] = block[j]
            at_byte += rows * width
        else:
            at_byte = pack_codes(block, rows * width, U(bits[b]), out, at_byte)
    return at_byte


@inlined
def gather(codes: Any, rows: Any, dim: Any, first: Any, width: Any, block: Any) -> None:
    """Columns ``first`` on of ``[rows, dim]`` bytes; by eights where they are so many."""
    if width == U(8) and dim % U(8) == U(0):
        words, target = codes[: rows * dim].view(np.uint64), block[: rows * width].view(np.uint64)
        for r in range(rows):
            target[r] = words[(r * dim + first) // U(8)]
    elif width == U(16) and dim % U(16) == U(0):
        words, target = codes[: rows * dim].view(np.uint64), block[: rows * width].view(np.uint64)
        for r in range(rows):
            at = (r * dim + first) // U(8)
            target[U(2) * r], target[U(2) * r + U(1)] = words[at], words[at + U(1)]
    else:
        for r in range(rows):
            for j in range(width):
                block[r * width + j] = codes[r * dim + first + j]


encode_f32, encode_bf16, encode_f16 = _entry_points(sources())
