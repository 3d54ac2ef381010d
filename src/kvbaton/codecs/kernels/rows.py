"""Transforms of rows inside kernels: RoPE off and on, Walsh-Hadamard, in float32.

The order of additions is that of the readable codecs, so results are equal bit for bit.
"""

from __future__ import annotations

from typing import Any

from kvbaton.codecs.kernels.compiling import inlined
from kvbaton.codecs.kernels.numbers import U, load, save

HALF, INTERLEAVED = 1, 2


@inlined
def widen(source: Any, start: Any, target: Any, count: Any) -> None:
    """Elements of any dtype as float32, from the beginning of ``target`` on."""
    for j in range(count):
        target[j] = load(source, start + j)


@inlined
def narrow(source: Any, target: Any, start: Any, count: Any) -> None:
    """The inverse."""
    for j in range(count):
        save(target, start + j, source[j])


@inlined
def turn_rows(
    rows: Any, count: Any, dim: Any, cosines: Any, sines: Any, rotary: Any, pairing: Any, sign: Any
) -> None:
    """Turn ``[count, dim]`` by angles ``[count, rotary / 2]`` whose sines are times ``sign``."""
    half = rotary // U(2)
    for t in range(count):
        row, table = t * dim, t * half
        if pairing == HALF:
            for j in range(half):
                c, s = cosines[table + j], sines[table + j] * sign
                a, b = rows[row + j], rows[row + half + j]
                rows[row + j] = a * c - b * s
                rows[row + half + j] = b * c + a * s
        else:
            for j in range(half):
                c, s = cosines[table + j], sines[table + j] * sign
                a, b = rows[row + U(2) * j], rows[row + U(2) * j + U(1)]
                rows[row + U(2) * j] = a * c - b * s
                rows[row + U(2) * j + U(1)] = b * c + a * s


@inlined
def hadamard(numbers: Any, count: Any, block: Any, norm: Any) -> None:
    """Walsh-Hadamard transform of every block of ``count`` numbers, in place."""
    stride = block // U(2)
    while stride > U(2):
        # Strides that are known when this is compiled make whole vectors.
        if stride == U(64):
            _butterflies(numbers, count, U(64))
        elif stride == U(32):
            _butterflies(numbers, count, U(32))
        elif stride == U(16):
            _butterflies(numbers, count, U(16))
        elif stride == U(8):
            _butterflies(numbers, count, U(8))
        elif stride == U(4):
            _butterflies(numbers, count, U(4))
        else:
            _butterflies(numbers, count, stride)
        stride //= U(2)
    if block >= U(4):
        _last_two(numbers, count, norm)
    elif block == U(2):
        _last_one(numbers, count, norm)


@inlined
def _butterflies(numbers: Any, count: Any, stride: Any) -> None:
    for start in range(U(0), count, U(2) * stride):
        for j in range(stride):
            a, b = numbers[start + j], numbers[start + stride + j]
            numbers[start + j] = a + b
            numbers[start + stride + j] = a - b


@inlined
def _last_two(numbers: Any, count: Any, norm: Any) -> None:
    """Strides 2 and 1 at once, and the norm."""
    for k in range(count // U(4)):
        i = U(4) * k
        a, b = numbers[i], numbers[i + U(1)]
        c, d = numbers[i + U(2)], numbers[i + U(3)]
        a, c = a + c, a - c
        b, d = b + d, b - d
        numbers[i] = (a + b) * norm
        numbers[i + U(1)] = (a - b) * norm
        numbers[i + U(2)] = (c + d) * norm
        numbers[i + U(3)] = (c - d) * norm


@inlined
def _last_one(numbers: Any, count: Any, norm: Any) -> None:
    for k in range(count // U(2)):
        a, b = numbers[U(2) * k], numbers[U(2) * k + U(1)]
        numbers[U(2) * k] = (a + b) * norm
        numbers[U(2) * k + U(1)] = (a - b) * norm
