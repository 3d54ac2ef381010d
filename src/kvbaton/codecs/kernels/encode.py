"""The encoding kernel: transforms, ranges, codes and planes of K or V of one layer in one call.

It goes head by head, and within a head tile by tile, so that what a tile needs stays in the
nearest caches.
"""

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
from kvbaton.codecs.kernels.numbers import F32, I32, ONE, ZERO, U, key, load, number_of, rounded
from kvbaton.codecs.kernels.packing import pack_codes
from kvbaton.codecs.kernels.rows import hadamard, turn_into, widen

_MOST, _LEAST = I32(2**31 - 1), I32(-(2**31))
REPEATS = U(8)
"""Rows that share one loop in channel groups: parameters are repeated as often."""


def _entry_points(source_digest: int) -> tuple[Any, Any, Any]:
    """Kernels of float32, bfloat16 and float16; each returns 0 where all went well."""

    @kernel
    def encode_f32(
        source: Any, out: Any, job: Any, table: Any, floats: Any, keys: Any, codes: Any
    ) -> Any:
        size = job[HEADS] * job[TOKENS] * job[DIM] + 0 * source_digest
        numbers = carray(pointer(source), size, np.float32)
        return _encode(numbers, out, job, table, floats, keys, codes)

    @kernel
    def encode_bf16(
        source: Any, out: Any, job: Any, table: Any, floats: Any, keys: Any, codes: Any
    ) -> Any:
        size = job[HEADS] * job[TOKENS] * job[DIM] + 0 * source_digest
        numbers = carray(pointer(source), size, np.uint16)
        return _encode(numbers, out, job, table, floats, keys, codes)

    @kernel
    def encode_f16(
        source: Any, out: Any, job: Any, table: Any, floats: Any, keys: Any, codes: Any
    ) -> Any:
        size = job[HEADS] * job[TOKENS] * job[DIM] + 0 * source_digest
        numbers = carray(pointer(source), size, np.int16)
        return _encode(numbers, out, job, table, floats, keys, codes)

    return encode_f32, encode_bf16, encode_f16


@inlined
def _encode(source: Any, out: Any, job: Any, table: Any, floats: Any, keys: Any, codes: Any) -> Any:
    heads, tokens, dim = U(job[HEADS]), U(job[TOKENS]), U(job[DIM])
    exact, block = U(job[EXACT]), U(job[BLOCK])
    left = tokens - exact
    _zero_pads(out, U(job[PARAMETERS]))
    _zero_pads(out, U(job[CODES]))
    if not _keep(source, heads, tokens, dim, exact, out.view(source.dtype)):
        return 1
    transformed = block > U(1) or job[ROTARY] > 0
    body = left * dim if transformed else U(0)
    for head in range(heads if left else U(0)):
        start = (head * tokens + exact) * dim
        if transformed:
            _transform(source, start, left, dim, job, table, floats)
            good = _quantize(floats, U(0), head, out, job, table, floats[body:], keys, codes)
        else:
            good = _quantize(source, start, head, out, job, table, floats, keys, codes)
        if not good:
            return 1
    return 0


@inlined
def _zero_pads(out: Any, stop: Any) -> None:
    """What may lie between two parts; it is written first, so parts may reach into it."""
    for j in range(stop - min(stop, U(8)), stop):
        out[j] = np.uint8(0)


@inlined
def _keep(source: Any, heads: Any, tokens: Any, dim: Any, exact: Any, out: Any) -> Any:
    """The first tokens as they are; whether all of them are finite."""
    bad, count = U(0), exact * dim
    for head in range(heads):
        start = head * tokens * dim
        for j in range(count):
            out[head * count + j] = source[start + j]
            bad += U(not parameters.is_finite(load(source, start + j)))
    return bad == U(0)


@inlined
def _transform(
    source: Any, start: Any, left: Any, dim: Any, job: Any, table: Any, rows: Any
) -> None:
    rotary, block = U(job[ROTARY]), U(job[BLOCK])
    if rotary:
        cosines = U(job[TABLE])
        sines = cosines + left * (rotary // U(2))
        turn_into(
            source, start, rows, U(0), left, dim, table[cosines:], table[sines:], rotary,
            job[PAIRING], -ONE,
        )  # fmt: skip
    else:
        widen(source, start, rows, left * dim)
    if block > U(1):
        hadamard(rows, left * dim, block, table[NORM])


@inlined
def _quantize(
    source: Any, start: Any, head: Any, out: Any, job: Any, table: Any, floats: Any, keys: Any,
    codes: Any,
) -> Any:  # fmt: skip
    """Parameters and codes of a head whose first number lies at ``start``."""
    count, levels = U(job[COUNT_PER_HEAD]), (U(1) << U(job[BITS])) - U(1)
    low, high = floats[:count], floats[count : U(2) * count]
    by_token = job[AXIS] == TOKEN_AXIS
    if by_token:
        _ranges_of_tokens(source, start, count, U(job[GROUP]), low, high)
    else:
        _ranges_of_channels(source, start, job, low, high, keys)
    if not parameters.are_finite(low, high, count):
        return False
    kind, symmetric = job[KIND], job[SYMMETRIC] != 0
    parameters.split(low, high, count, kind, symmetric, by_token & (kind == 2), levels)
    parameters.store(
        low, high, count, head, U(job[HEADS]), U(job[PARAMETERS]), out, out.view(np.uint16),
        out.view(np.float32), kind, symmetric, by_token, levels, table,
    )  # fmt: skip
    if not parameters.invert(low, high, count, levels):
        return False
    if by_token:
        _codes_of_tokens(source, start, head, job, low, high, out, codes)
    else:
        spread = floats[U(2) * count :]
        _codes_of_channels(source, start, head, job, low, high, spread, out, codes)
    return True


# --- ranges ------------------------------------------------------------------------------------


@inlined
def _ranges_of_tokens(source: Any, start: Any, count: Any, group: Any, low: Any, high: Any) -> None:
    for g in range(count):
        first = start + g * group
        least, most = _MOST, _LEAST
        for j in range(group):
            value = key(load(source, first + j))
            least, most = min(least, value), max(most, value)
        low[g], high[g] = number_of(least), number_of(most)


@inlined
def _ranges_of_channels(source: Any, start: Any, job: Any, low: Any, high: Any, keys: Any) -> None:
    dim, tile, left = U(job[DIM]), U(job[TILE]), U(job[TOKENS] - job[EXACT])
    least, most = keys[:dim], keys[dim : U(2) * dim]
    for at in range(U(0), left, tile):
        rows, first = min(tile, left - at), start + at * dim
        for j in range(dim):
            least[j], most[j] = _MOST, _LEAST
        for r in range(rows // U(8)):
            _eight_rows(source, first + r * U(8) * dim, dim, least, most)
        for r in range(rows - rows % U(8), rows):
            for j in range(dim):
                value = key(load(source, first + r * dim + j))
                least[j], most[j] = min(least[j], value), max(most[j], value)
        group = at // tile * dim
        for j in range(dim):
            low[group + j], high[group + j] = number_of(least[j]), number_of(most[j])


@inlined
def _eight_rows(source: Any, first: Any, dim: Any, least: Any, most: Any) -> None:
    for j in range(dim):
        a, b = least[j], most[j]
        for r in range(U(8)):
            value = key(load(source, first + r * dim + j))
            a, b = min(a, value), max(b, value)
        least[j], most[j] = a, b


# --- codes -------------------------------------------------------------------------------------


@inlined
def _code(number: Any, offset: Any, inverse: Any, top: Any) -> Any:
    scaled = (number - offset) * inverse
    scaled = scaled if scaled > ZERO else ZERO
    return np.uint8(rounded(scaled if scaled < top else top))


@inlined
def _codes_of_tokens(
    source: Any, start: Any, head: Any, job: Any, low: Any, high: Any, out: Any, codes: Any
) -> None:
    dim, tile, left = U(job[DIM]), U(job[TILE]), U(job[TOKENS] - job[EXACT])
    bits, group = U(job[BITS]), U(job[GROUP])
    top, at_byte = F32((U(1) << bits) - U(1)), U(job[CODES]) + head * U(job[PACKED_PER_HEAD])
    for at in range(U(0), left, tile):
        held = min(tile, left - at) * dim
        target, base = (out, at_byte) if bits == U(8) else (codes, U(0))
        first, parameter = start + at * dim, at * dim // group
        for g in range(held // group):
            offset, inverse, here = low[parameter + g], high[parameter + g], g * group
            for j in range(group):
                target[base + here + j] = _code(
                    load(source, first + here + j), offset, inverse, top
                )
        if bits == U(8):
            at_byte += held
        else:
            at_byte = pack_codes(codes, held, bits, out, at_byte)


@inlined
def _codes_of_channels(
    source: Any, start: Any, head: Any, job: Any, low: Any, high: Any, spread: Any, out: Any,
    codes: Any,
) -> None:  # fmt: skip
    dim, tile, left = U(job[DIM]), U(job[TILE]), U(job[TOKENS] - job[EXACT])
    bits, run = U(job[BITS]), REPEATS * dim
    top, at_byte = F32((U(1) << bits) - U(1)), U(job[CODES]) + head * U(job[PACKED_PER_HEAD])
    lows, highs = spread[:run], spread[run : U(2) * run]
    for at in range(U(0), left, tile):
        held, group = min(tile, left - at) * dim, at // tile * dim
        for r in range(REPEATS):
            for j in range(dim):
                lows[r * dim + j], highs[r * dim + j] = low[group + j], high[group + j]
        target, base = (out, at_byte) if bits == U(8) else (codes, U(0))
        first = start + at * dim
        for here in range(U(0), held, run):
            for j in range(min(run, held - here)):
                target[base + here + j] = _code(
                    load(source, first + here + j), lows[j], highs[j], top
                )
        if bits == U(8):
            at_byte += held
        else:
            at_byte = pack_codes(codes, held, bits, out, at_byte)


encode_f32, encode_bf16, encode_f16 = _entry_points(sources())
