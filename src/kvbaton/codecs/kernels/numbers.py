"""Numbers inside kernels: three dtypes as float32 and back, order-preserving keys, rounding.

Arrays of ``uint16`` are bfloat16, arrays of ``int16`` are float16.  All indices are unsigned:
signed ones make numba ask whether they count from the end, and loops are not vectorized then.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from kvbaton.codecs.kernels.compiling import OPTIONS, bits_of, float_of, inlined

U = np.uint64
U32 = np.uint32
I32 = np.int32
F32 = np.float32

ZERO, ONE = F32(0.0), F32(1.0)
INFINITE_KEY = I32(0x7F800000)
SMALLEST_NORMAL = F32(2.0**-126)
_ROUNDER = F32(1.5 * 2.0**23)
"""Adding it leaves a float's integer part in its low bits, rounded to nearest, ties to even."""
_HALF_SHIFT = F32(2.0**112)


@inlined
def rounded(number: Any) -> Any:
    """A number from 0 to 2**22 as an integer, ties to even."""
    return bits_of(number + _ROUNDER) & U32(0xFFFF)


@inlined
def from_bfloat(bits: Any) -> Any:
    """float32 of a bfloat16."""
    return float_of(U32(bits) << U32(16))


@inlined
def to_bfloat(number: Any) -> Any:
    """bfloat16 bits of a finite float32, rounded to nearest, ties to even."""
    bits = bits_of(number)
    return np.uint16((bits + U32(0x7FFF) + ((bits >> U32(16)) & U32(1))) >> U32(16))


@inlined
def from_half(bits: Any) -> Any:
    """float32 of a float16; exact, subnormal numbers and infinities too."""
    wide = U32(bits) & U32(0xFFFF)
    size = float_of((wide & U32(0x7FFF)) << U32(13)) * _HALF_SHIFT
    special = (wide & U32(0x7C00)) == U32(0x7C00)
    of_size = bits_of(size) | (U32(0x7F800000) if special else U32(0))
    return float_of(of_size | ((wide & U32(0x8000)) << U32(16)))


@inlined
def to_half(number: Any) -> Any:
    """float16 bits of a float32, rounded to nearest, ties to even; infinity beyond 65519."""
    bits = bits_of(number)
    sign = (bits >> U32(16)) & U32(0x8000)
    size = bits & U32(0x7FFFFFFF)
    # From 2**-14 on the exponent is moved and the mantissa rounded; an overflow carries into it.
    normal = (size - U32(0x38000000) + U32(0xFFF) + ((size >> U32(13)) & U32(1))) >> U32(13)
    # Below, adding 0.5 puts the 24ths binary place at the end of the mantissa, rounded.
    tiny = bits_of(float_of(size) + F32(0.5)) - U32(0x3F000000)
    half = normal if size >= U32(0x38800000) else tiny
    half = U32(0x7C00) if size >= U32(0x477FF000) else half
    half = U32(0x7E00) if size > U32(0x7F800000) else half
    return np.int16(np.uint16(half | sign))


@inlined
def floor_half(number: Any) -> Any:
    """Bits of the largest float16 that is not above a float32.

    Without branches: which way they go is as good as random, and guessing wrong costs more.
    """
    half = U32(np.uint16(to_half(number)))
    above = U32(from_half(half) > number)
    negative, zero = half >> U32(15), U32(half == U32(0))
    step = U32(0xFFFF) + negative * U32(2) + zero * U32(0x8002)  # -1, 1, or to -2**-24
    return np.uint16((half + above * step) & U32(0xFFFF))


@inlined
def key(number: Any) -> Any:
    """An integer that is ordered as the float is; NaN lies beyond the infinities.

    Integers can be compared in any order, so that the least of many is found with whole vectors.
    """
    bits = I32(bits_of(number))
    return I32(bits ^ ((bits >> I32(31)) & I32(0x7FFFFFFF)))


@inlined
def number_of(value: Any) -> Any:
    """The float of a key; zero is positive."""
    bits = I32(value ^ ((value >> I32(31)) & I32(0x7FFFFFFF)))
    return float_of(U32(bits)) + ZERO


def load(array: Any, index: Any) -> Any:
    """float32 of an element, by the array's dtype."""
    raise TypeError("compiled code only")


def save(array: Any, index: Any, number: Any) -> Any:
    """Store a float32 into an element, by the array's dtype."""
    raise TypeError("compiled code only")


@overload(load, jit_options=OPTIONS)
def _load(array: Any, index: Any) -> Any:
    def load_bfloat(array: Any, index: Any) -> Any:
        return from_bfloat(array[index])

    def load_half(array: Any, index: Any) -> Any:
        return from_half(array[index])

    def load_float(array: Any, index: Any) -> Any:
        return array[index]

    if array.dtype == types.uint16:
        return load_bfloat
    return load_half if array.dtype == types.int16 else load_float


@overload(save, jit_options=OPTIONS)
def _save(array: Any, index: Any, number: Any) -> Any:
    def save_bfloat(array: Any, index: Any, number: Any) -> Any:
        array[index] = to_bfloat(number)

    def save_half(array: Any, index: Any, number: Any) -> Any:
        array[index] = to_half(number)

    def save_float(array: Any, index: Any, number: Any) -> Any:
        array[index] = number

    if array.dtype == types.uint16:
        return save_bfloat
    return save_half if array.dtype == types.int16 else save_float
