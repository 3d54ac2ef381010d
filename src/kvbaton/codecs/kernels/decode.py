"""The decoding kernel: planes, numbers, inverse transforms of K or V of a layer in one call."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvbaton.codecs.kernels import parameters
from kvbaton.codecs.kernels.compiling import carray, inlined, kernel, pointer, sources
from kvbaton.codecs.kernels.job import (
    AXIS,
    BITS,
    BLOCK,
    CODES,
    COUNT_PER_HEAD,
    DIM,
    EXACT,
    GROUP,
    HEADS,
    KIND,
    NORM,
    PACKED_PER_HEAD,
    PAIRING,
    PARAMETERS,
    ROTARY,
    SYMMETRIC,
    TABLE,
    TILE,
    TOKEN_AXIS,
    TOKENS,
)  # fmt: skip
from kvbaton.codecs.kernels.numbers import F32, ONE, U, load, save
from kvbaton.codecs.kernels.packing import unpack_codes
from kvbaton.codecs.kernels.rows import hadamard, hadamard_into, turn_into

LIMIT_F32, LIMIT_BF16, LIMIT_F16 = F32(1e37), F32(1e37), F32(2000.0)
"""Ranges whose numbers certainly fit the dtype, whatever the transforms add up."""


def _entry_points(source_digest: int) -> tuple[Any, Any, Any]:
    """Kernels of float32, bfloat16 and float16; each returns 0 where all went well."""

    @kernel
    def decode_f32(data: Any, target: Any, job: Any, table: Any, floats: Any, codes: Any) -> Any:
        size = job[HEADS] * job[TOKENS] * job[DIM] + 0 * source_digest
        numbers = carray(pointer(target), size, np.float32)
        return _decode(data, numbers, job, table, floats, codes, LIMIT_F32)

    @kernel
    def decode_bf16(data: Any, target: Any, job: Any, table: Any, floats: Any, codes: Any) -> Any:
        size = job[HEADS] * job[TOKENS] * job[DIM] + 0 * source_digest
        numbers = carray(pointer(target), size, np.uint16)
        return _decode(data, numbers, job, table, floats, codes, LIMIT_BF16)

    @kernel
    def decode_f16(data: Any, target: Any, job: Any, table: Any, floats: Any, codes: Any) -> Any:
        size = job[HEADS] * job[TOKENS] * job[DIM] + 0 * source_digest
        numbers = carray(pointer(target), size, np.int16)
        return _decode(data, numbers, job, table, floats, codes, LIMIT_F16)

    return decode_f32, decode_bf16, decode_f16


@inlined
def _decode(data: Any, out: Any, job: Any, table: Any, floats: Any, codes: Any, limit: Any) -> Any:
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
            words.view(np.float32), job[KIND], job[SYMMETRIC] != 0, job[AXIS] == TOKEN_AXIS,
            (U(1) << U(job[BITS])) - U(1), table,
        )  # fmt: skip
        if not good or not _small(low, high, count, job, limit):
            return 1
        _head(data, head, out, (head * tokens + exact) * dim, job, table, low, high, rest, codes)
    return 0


@inlined
def _restore(raw: Any, heads: Any, tokens: Any, dim: Any, exact: Any, out: Any) -> Any:
    """The first tokens; whether all of them are finite."""
    bad, count = U(0), exact * dim
    for head in range(heads):
        for j in range(count):
            out[head * tokens * dim + j] = raw[head * count + j]
            bad += U(not parameters.is_finite(load(raw, head * count + j)))
    return bad == U(0)


@inlined
def _small(low: Any, high: Any, count: Any, job: Any, limit: Any) -> Any:
    """Whether no number can be beyond the dtype."""
    steps, bad = F32((U(1) << U(job[BITS])) - U(1)), U(0)
    for g in range(count):
        bad += U(abs(low[g]) > limit) + U(abs(low[g] + high[g] * steps) > limit)
    return bad == U(0)


@inlined
def _head(
    data: Any, head: Any, out: Any, start: Any, job: Any, table: Any, low: Any, high: Any,
    floats: Any, codes: Any,
) -> None:  # fmt: skip
    dim, tile, left = U(job[DIM]), U(job[TILE]), U(job[TOKENS] - job[EXACT])
    bits = U(job[BITS])
    at_byte: Any = U(job[CODES]) + head * U(job[PACKED_PER_HEAD])
    rotary, block = U(job[ROTARY]), U(job[BLOCK])
    transformed = rotary > U(0) or block > U(1)
    spread, rows = floats[: U(16) * dim], floats[U(16) * dim :]
    for at in range(U(0), left, tile):
        held = min(tile, left - at) * dim
        if bits == U(8):
            source, base = data, at_byte
            at_byte += held
        else:
            source, base = codes, U(0)
            at_byte = unpack_codes(data, at_byte, held, bits, codes)
        if transformed:
            _numbers(source, base, at, held, job, low, high, spread, rows, U(0))
            target = start + at * dim
            if rotary:
                if block > U(1):
                    hadamard(rows, held, block, table[NORM])
                _turn(rows, out, target, held, dim, at, left, rotary, job, table)
            else:
                hadamard_into(rows, out, target, held, block, table[NORM])
        else:
            _numbers(source, base, at, held, job, low, high, spread, out, start + at * dim)


@inlined
def _turn(
    rows: Any, out: Any, target: Any, held: Any, dim: Any, at: Any, left: Any, rotary: Any,
    job: Any, table: Any,
) -> None:  # fmt: skip
    half = rotary // U(2)
    cosines = U(job[TABLE]) + at * half
    sines = cosines + left * half
    turn_into(
        rows, U(0), out, target, held // dim, dim, table[cosines:], table[sines:], rotary,
        job[PAIRING], ONE,
    )  # fmt: skip


@inlined
def _numbers(
    codes: Any, base: Any, at: Any, held: Any, job: Any, low: Any, high: Any, spread: Any,
    out: Any, start: Any,
) -> None:  # fmt: skip
    """``offset + code * scale`` of one tile, whose first token is ``at``."""
    dim = U(job[DIM])
    if job[AXIS] == TOKEN_AXIS:
        group = U(job[GROUP])
        parameter = at * dim // group
        for g in range(held // group):
            offset, scale, here = low[parameter + g], high[parameter + g], g * group
            for j in range(group):
                save(out, start + here + j, F32(codes[base + here + j]) * scale + offset)
        return
    run, group = U(8) * dim, at // U(job[TILE]) * dim
    lows, highs = spread[:run], spread[run:]
    for r in range(U(8)):
        for j in range(dim):
            lows[r * dim + j], highs[r * dim + j] = low[group + j], high[group + j]
    for row in range(U(0), held, run):
        for j in range(min(run, held - row)):
            save(out, start + row + j, F32(codes[base + row + j]) * highs[j] + lows[j])


decode_f32, decode_bf16, decode_f16 = _entry_points(sources())
