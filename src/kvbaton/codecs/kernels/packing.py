"""Bit planes inside kernels: see :mod:`kvbaton.codecs.planes`."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvbaton.codecs.kernels.compiling import inlined
from kvbaton.codecs.kernels.numbers import U

U8 = np.uint8


@inlined
def pack_codes(codes: Any, count: Any, bits: Any, out: Any, start: Any) -> Any:
    """Write ``count`` codes as planes from ``start`` on; returns where they end."""
    shift = U8(0)
    if bits & U(4):
        start = _pack_fours(codes, count, out, start)
        shift = U8(4)
    if bits & U(2):
        start = _pack_twos(codes, count, shift, out, start)
        shift += U8(2)
    if bits & U(1):
        start = _pack_ones(codes, count, shift, out, start)
    return start


@inlined
def _pack_fours(codes: Any, count: Any, out: Any, start: Any) -> Any:
    size = (count + U(1)) // U(2)
    for j in range(count - size):
        out[start + j] = U8((codes[j] & U8(15)) | U8(codes[size + j] << U8(4)))
    for j in range(count - size, size):
        out[start + j] = codes[j] & U8(15)
    return start + size


@inlined
def _pack_twos(codes: Any, count: Any, shift: Any, out: Any, start: Any) -> Any:
    size = (count + U(3)) // U(4)
    whole = count - U(3) * size if count >= U(3) * size else U(0)
    for j in range(whole):
        out[start + j] = U8(
            ((codes[j] >> shift) & U8(3))
            | (((codes[size + j] >> shift) & U8(3)) << U8(2))
            | (((codes[U(2) * size + j] >> shift) & U8(3)) << U8(4))
            | (((codes[U(3) * size + j] >> shift) & U8(3)) << U8(6))
        )
    for j in range(whole, size):
        out[start + j] = _odd_byte(codes, count, shift, size, j, U(2))
    return start + size


@inlined
def _pack_ones(codes: Any, count: Any, shift: Any, out: Any, start: Any) -> Any:
    size = (count + U(7)) // U(8)
    whole = count - U(7) * size if count >= U(7) * size else U(0)
    for j in range(whole):
        out[start + j] = U8(
            ((codes[j] >> shift) & U8(1))
            | (((codes[size + j] >> shift) & U8(1)) << U8(1))
            | (((codes[U(2) * size + j] >> shift) & U8(1)) << U8(2))
            | (((codes[U(3) * size + j] >> shift) & U8(1)) << U8(3))
            | (((codes[U(4) * size + j] >> shift) & U8(1)) << U8(4))
            | (((codes[U(5) * size + j] >> shift) & U8(1)) << U8(5))
            | (((codes[U(6) * size + j] >> shift) & U8(1)) << U8(6))
            | (((codes[U(7) * size + j] >> shift) & U8(1)) << U8(7))
        )
    for j in range(whole, size):
        out[start + j] = _odd_byte(codes, count, shift, size, j, U(1))
    return start + size


@inlined
def _odd_byte(codes: Any, count: Any, shift: Any, size: Any, j: Any, width: Any) -> Any:
    """A byte in which codes are missing."""
    mask = U8((U(1) << width) - U(1))
    byte, i, place = U8(0), j, U(0)
    while i < count:
        byte |= U8(((codes[i] >> shift) & mask) << U8(place))
        i += size
        place += width
    return byte


@inlined
def unpack_codes(data: Any, start: Any, count: Any, bits: Any, codes: Any) -> Any:
    """Inverse of :func:`pack_codes`; returns where the planes end."""
    shift = U8(0)
    for j in range(count if bits < U(4) else U(0)):
        codes[j] = U8(0)
    if bits & U(4):
        size = (count + U(1)) // U(2)
        for j in range(size):
            codes[j] = data[start + j] & U8(15)
        for j in range(count - size):
            codes[size + j] = data[start + j] >> U8(4)
        start, shift = start + size, U8(4)
    if bits & U(2):
        start = _unpack_plane(data, start, count, U(2), shift, codes)
        shift += U8(2)
    if bits & U(1):
        start = _unpack_plane(data, start, count, U(1), shift, codes)
    return start


@inlined
def _unpack_plane(data: Any, start: Any, count: Any, width: Any, shift: Any, codes: Any) -> Any:
    per_byte, mask = U(8) // width, U8((U(1) << width) - U(1))
    size = (count + per_byte - U(1)) // per_byte
    for i in range(per_byte):
        first, place = i * size, U8(i * width)
        held = min(size, count - first) if count > first else U(0)
        for j in range(held):
            codes[first + j] |= U8(((data[start + j] >> place) & mask) << shift)
    return start + size
