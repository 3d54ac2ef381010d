"""Transforms of rows inside kernels: RoPE off and on, Walsh-Hadamard, in float32.

The order of additions is that of the readable codecs, so results are equal bit for bit.
"""

from __future__ import annotations

from typing import Any

from kvbaton.codecs.kernels.compiling import inlined
from kvbaton.codecs.kernels.numbers import U, load, save

HALF, INTERLEAVED = 1, 2
_16, _32, _48, _64 = U(16), U(32), U(48), U(64)


@inlined
def widen(source: Any, start: Any, target: Any, count: Any) -> None:
    """Elements of any dtype as float32, from the beginning of ``target`` on."""
    for j in range(count):
        target[j] = load(source, start + j)


@inlined
def turn_into(
    source: Any, first: Any, out: Any, start: Any, count: Any, dim: Any, cosines: Any, sines: Any,
    rotary: Any, pairing: Any, sign: Any,
) -> None:  # fmt: skip
    """Turn ``[count, dim]`` by angles ``[count, rotary / 2]`` whose sines are times ``sign``.

    From ``first`` on in ``source`` to ``start`` on in ``out``, which is other memory.
    """
    half = rotary // U(2)
    for t in range(count):
        row, target, table = first + t * dim, start + t * dim, t * half
        if pairing == HALF:
            for j in range(half):
                c, s = cosines[table + j], sines[table + j] * sign
                a, b = load(source, row + j), load(source, row + half + j)
                save(out, target + j, a * c - b * s)
                save(out, target + half + j, b * c + a * s)
        else:
            for j in range(half):
                c, s = cosines[table + j], sines[table + j] * sign
                a, b = load(source, row + U(2) * j), load(source, row + U(2) * j + U(1))
                save(out, target + U(2) * j, a * c - b * s)
                save(out, target + U(2) * j + U(1), b * c + a * s)
        for j in range(rotary, dim):
            save(out, target + j, load(source, row + j))


@inlined
def hadamard(numbers: Any, count: Any, block: Any, norm: Any) -> None:
    """Walsh-Hadamard transform of every block of ``count`` numbers, in place."""
    _all_but_two(numbers, count, block)
    if block >= U(4):
        _last_two(numbers, count, norm)
    elif block == U(2):
        _last_one(numbers, count, norm)


@inlined
def hadamard_into(numbers: Any, out: Any, start: Any, count: Any, block: Any, norm: Any) -> None:
    """The same, into ``out`` from ``start`` on, which is other memory; changes ``numbers`` too."""
    _all_but_two(numbers, count, block)
    if block == U(2):
        _last_one(numbers, count, norm)
        for j in range(count):
            save(out, start + j, numbers[j])
        return
    for k in range(count // U(4)):
        i, o = U(4) * k, start + U(4) * k
        a, b = numbers[i], numbers[i + U(1)]
        c, d = numbers[i + U(2)], numbers[i + U(3)]
        p, q = a + c, a - c
        r, s = b + d, b - d
        save(out, o, (p + r) * norm)
        save(out, o + U(1), (p - r) * norm)
        save(out, o + U(2), (q + s) * norm)
        save(out, o + U(3), (q - s) * norm)


@inlined
def _all_but_two(numbers: Any, count: Any, block: Any) -> None:
    """All strides but 2 and 1; those known when this is compiled make whole vectors."""
    stride = block // U(2)
    while stride > U(2):
        if stride == U(64):
            _butterflies(numbers, count, U(64))
        elif stride == U(32):
            _both_of_64(numbers, count)
            stride = U(16)
        elif stride == U(16):
            _butterflies(numbers, count, U(16))
        elif stride == U(8):
            _butterflies(numbers, count, U(8))
        elif stride == U(4):
            _butterflies(numbers, count, U(4))
        else:
            _butterflies(numbers, count, stride)
        stride //= U(2)


@inlined
def _butterflies(numbers: Any, count: Any, stride: Any) -> None:
    for start in range(U(0), count, U(2) * stride):
        for j in range(stride):
            a, b = numbers[start + j], numbers[start + stride + j]
            numbers[start + j] = a + b
            numbers[start + stride + j] = a - b


@inlined
def _both_of_64(numbers: Any, count: Any) -> None:
    """Strides 32 and 16 at once."""
    for start in range(U(0), count, _64):
        for j in range(_16):
            a, b = numbers[start + j], numbers[start + _16 + j]
            c, d = numbers[start + _32 + j], numbers[start + _48 + j]
            p, q = a + c, a - c
            r, s = b + d, b - d
            numbers[start + j] = p + r
            numbers[start + _16 + j] = p - r
            numbers[start + _32 + j] = q + s
            numbers[start + _48 + j] = q - s


@inlined
def _last_two(numbers: Any, count: Any, norm: Any) -> None:
    """Strides 2 and 1 at once, and the norm."""
    for k in range(count // U(4)):
        i = U(4) * k
        a, b = numbers[i], numbers[i + U(1)]
        c, d = numbers[i + U(2)], numbers[i + U(3)]
        p, q = a + c, a - c
        r, s = b + d, b - d
        numbers[i] = (p + r) * norm
        numbers[i + U(1)] = (p - r) * norm
        numbers[i + U(2)] = (q + s) * norm
        numbers[i + U(3)] = (q - s) * norm


@inlined
def _last_one(numbers: Any, count: Any, norm: Any) -> None:
    for k in range(count // U(2)):
        a, b = numbers[U(2) * k], numbers[U(2) * k + U(1)]
        numbers[U(2) * k] = (a + b) * norm
        numbers[U(2) * k + U(1)] = (a - b) * norm
