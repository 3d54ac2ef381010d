"""Offsets and scales of groups inside kernels: see :mod:`kvbaton.codecs.scales`."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvbaton.codecs.kernels.compiling import bits_of, inlined
from kvbaton.codecs.kernels.numbers import (
    F32,
    I32,
    INFINITE_KEY,
    ONE,
    SMALLEST_NORMAL,
    U32,
    ZERO,
    U,
    floor_half,
    from_half,
    key,
    rounded,
    to_half,
)

F32_KIND, F16_KIND, U8_KIND = 0, 1, 2
_ALL = F32(255.0)


@inlined
def is_finite(number: Any) -> Any:
    """Neither NaN nor infinite."""
    return (bits_of(number) & U32(0x7F800000)) != U32(0x7F800000)


@inlined
def are_finite(low: Any, high: Any, count: Any) -> Any:
    """Whether keys of the least and the largest numbers show only finite ones."""
    bad = U(0)
    for g in range(count):
        bad += U(key(high[g]) >= INFINITE_KEY) + U(key(low[g]) <= ~INFINITE_KEY)
    return bad == U(0)


@inlined
def split(
    low: Any, high: Any, count: Any, kind: Any, symmetric: Any, coded: Any, levels: Any
) -> None:
    """Ranges to offsets (in ``low``) and scales as wished for (in ``high``)."""
    steps = F32(levels)
    for g in range(count):
        a, b = low[g], high[g]
        if symmetric:
            b = max(b, -a) + ZERO
            low[g], high[g] = -b, F32(2.0) * b / steps
        elif kind == F32_KIND:
            high[g] = (b - a) / steps
        elif coded:
            low[g] = min(a, ZERO)
            high[g] = (max(b, ZERO) - low[g]) / steps
        else:
            low[g] = from_half(floor_half(a))
            high[g] = (b - low[g]) / steps


@inlined
def store(
    low: Any, high: Any, count: Any, head: Any, heads: Any, start: Any, out: Any, out16: Any,
    out32: Any, kind: Any, symmetric: Any, coded: Any, levels: Any, table: Any,
) -> None:  # fmt: skip
    """Store the parameters of a head; ``low`` and ``high`` become what is read again."""
    all_groups = count * heads
    if kind == F32_KIND:
        at = start // U(4) + head * count
        for g in range(count):
            if not symmetric:
                out32[at + g] = low[g]
                out32[at + all_groups + g] = high[g]
            else:
                out32[at + g] = high[g]
    elif kind == F16_KIND:
        at = start // U(2) + head * count
        for g in range(count):
            scale = np.uint16(to_half(high[g]))
            high[g] = from_half(scale)
            if not symmetric:
                out16[at + g] = np.uint16(to_half(low[g]))
                out16[at + all_groups + g] = scale
            else:
                out16[at + g] = scale
    else:
        _store_coded(
            low, high, count, head, heads, start, out, out16, out32, symmetric, coded, levels,
            table,
        )  # fmt: skip
    if symmetric:
        half = F32(levels) / F32(2.0)
        for g in range(count):
            low[g] = -(high[g] * half)


@inlined
def _store_coded(
    low: Any, high: Any, count: Any, head: Any, heads: Any, start: Any, out: Any, out16: Any,
    out32: Any, symmetric: Any, coded: Any, levels: Any, table: Any,
) -> None:  # fmt: skip
    """The largest scale of a head as it is, the others as a part of it, in one byte."""
    largest = ZERO
    for g in range(count):
        largest = max(largest, high[g])
    out32[start // U(4) + head] = largest
    offsets, groups = start + U(4) * heads, count * heads
    behind = offsets + (U(0) if symmetric else groups if coded else U(2) * groups)
    per_code = F32(levels) / _ALL
    for g in range(count):
        code = _scale_code(high[g] / largest if high[g] > ZERO else ZERO, table)
        out[behind + head * count + g] = np.uint8(code)
        high[g] = largest * table[code]
        if symmetric:
            continue
        if coded:
            step = high[g] * per_code
            below = -low[g] / step if step > ZERO else ZERO
            below_code = rounded(min(max(below, ZERO), _ALL))
            out[offsets + head * count + g] = np.uint8(below_code)
            low[g] = -(F32(below_code) * step)
        else:
            out16[offsets // U(2) + head * count + g] = np.uint16(to_half(low[g]))


@inlined
def _scale_code(ratio: Any, table: Any) -> Any:
    """The largest code whose scale reaches ``ratio``; thresholds lie behind the scales.

    A float's bits are nearly its logarithm: at most 1.4 steps less.  So a guess from them, less
    two, is at most three steps too low; without branches, because those would be random.
    """
    part = ratio if ratio > table[U(254)] else table[U(254)]
    guess = (I32(127 << 23) - I32(bits_of(part))) >> I32(19)
    more = U(table[U(512 - guess)] >= part) + U(table[U(511 - guess)] >= part)
    more += U(table[U(510 - guess)] >= part)
    return U(guess - I32(2)) + more + U(ratio == ZERO)


@inlined
def invert(low: Any, high: Any, count: Any, levels: Any) -> Any:
    """Scales (in ``high``) to their inverses; whether all parameters are good."""
    bad, steps = U(0), F32(levels)
    for g in range(count):
        scale = high[g]
        bad += U(not is_finite(scale)) + U(not is_finite(low[g] + scale * steps))
        high[g] = ONE / scale if scale >= SMALLEST_NORMAL else ZERO
    return bad == U(0)


@inlined
def read(
    low: Any, high: Any, count: Any, head: Any, heads: Any, start: Any, data: Any, data16: Any,
    data32: Any, kind: Any, symmetric: Any, coded: Any, levels: Any, table: Any,
) -> Any:  # fmt: skip
    """Offsets (``low``) and scales (``high``) of a head; whether all of them are good."""
    groups, steps = count * heads, F32(levels)
    if kind == F32_KIND:
        at = start // U(4) + head * count
        for g in range(count):
            low[g] = data32[at + g]
            high[g] = data32[at + (U(0) if symmetric else groups) + g]
    elif kind == F16_KIND:
        at = start // U(2) + head * count
        behind = at + (U(0) if symmetric else groups)
        for g in range(count):
            low[g] = from_half(data16[at + g])
            high[g] = from_half(data16[behind + g])
    else:
        largest = data32[start // U(4) + head]
        offsets = start + U(4) * heads
        behind = offsets + (U(0) if symmetric else groups if coded else U(2) * groups)
        per_code = F32(levels) / _ALL
        for g in range(count):
            scale = largest * table[data[behind + head * count + g]]
            high[g] = scale
            if coded and not symmetric:
                low[g] = -(F32(data[offsets + head * count + g]) * (scale * per_code))
            elif not symmetric:
                low[g] = from_half(data16[offsets // U(2) + head * count + g])
    half, bad = F32(levels) / F32(2.0), U(0)
    for g in range(count):
        if symmetric:
            low[g] = -(high[g] * half)
        bad += U(not is_finite(low[g])) + U(not is_finite(low[g] + high[g] * steps))
        bad += U(high[g] < ZERO)
    return bad == U(0)
