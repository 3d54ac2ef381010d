"""The built-in codecs pass the public suite."""

from __future__ import annotations

import pytest
from tests.codecs.bounds import HALF_TINY, int_bound, reach

from kvbaton.codecs import Fp8, Hadamard, Int, Nf4, Raw, Unrotate, Zstd
from kvbaton.testing import CodecTests

INTEGERS = [
    Int(bits=8, axis="channel", group=64, first=4),
    Int(bits=8, axis="token", group=0, scales="u8"),
    Int(bits=5, axis="channel", group=128, first=2),
    Int(bits=4, axis="token", group=8, scales="f32"),
    Int(bits=4, axis="token", group=0, symmetric=True, scales="u8", first=4),
    Int(bits=3, axis="channel", group=32, scales="u8"),
    Int(bits=6, axis="tensor", scales="f32"),
    Int(bits=7, axis="tensor", symmetric=True, scales="f16"),
    Int(bits=2, axis="channel", group=0, symmetric=True),
]


class TestRaw(CodecTests):
    """The cache's own bytes."""

    dtypes = ("BF16", "F16", "F32")
    refuses_not_finite = False
    checks_bytes = False

    def make_codec(self):
        """There is one."""
        return Raw()


class TestInt(CodecTests):
    """Integers of several widths, granularities and kinds of scales."""

    shapes = ((2, 150, 16), (1, 1, 8), (1, 5, 64))
    max_examples = 8
    codec = INTEGERS[0]

    @pytest.fixture(autouse=True, params=INTEGERS, ids=str)
    def chosen(self, request):
        """One after the other."""
        self.codec = request.param

    def make_codec(self):
        """The one of this test."""
        return self.codec

    def bound(self, tensor):
        """Half a step and the rounding of parameters."""
        return int_bound(tensor, self.codec)


class TestClipped(CodecTests):
    """A clipped range: outliers may lose 40% of their distance from the middle."""

    shapes = ((2, 100, 16), (1, 1, 8))

    def make_codec(self):
        """As a range of outliers would be."""
        return Int(bits=4, axis="token", group=0, clip=True, scales="f32")

    def bound(self, tensor):
        """A fifth of the range, and half a step."""
        low, high = reach(tensor, self.make_codec())
        return (high - low) * (0.2 + 0.5 / 15)


class TestFp8(CodecTests):
    """8-bit floats."""

    def make_codec(self):
        """Per token."""
        return Fp8(axis="token", group=8, first=1)

    def bound(self, tensor):
        """1/16 of a number, or half the least step of a group."""
        low, high = reach(tensor, self.make_codec())
        largest = high.maximum(-low)
        return tensor.abs() / 16 * (1 + 2**-9) + largest * 2**-10 + 448 * HALF_TINY


class TestNf4(CodecTests):
    """Normal floats."""

    def make_codec(self):
        """Per token, with scales in one byte."""
        return Nf4(axis="token", group=0, scales="u8")

    def bound(self, tensor):
        """Half the widest gap between levels; a scale is up to 1/16 octave larger."""
        low, high = reach(tensor, self.make_codec())
        return high.maximum(-low) * 2 ** (1 / 16) * 0.1521


class TestHadamard(CodecTests):
    """A rotation: it and its inverse round."""

    refuses_not_finite = False
    checks_bytes = False

    def make_codec(self):
        """The largest block."""
        return Hadamard(first=2)

    def bound(self, tensor):
        """Both roundings, of numbers as large as a token's norm."""
        return tensor.norm(dim=-1, keepdim=True) * 2.0**-7


class TestUnrotate(CodecTests):
    """Another rotation."""

    refuses_not_finite = False
    checks_bytes = False

    def make_codec(self):
        """With exact first tokens."""
        return Unrotate(first=2)

    def bound(self, tensor):
        """Both roundings, of numbers as large as a token's norm."""
        return tensor.norm(dim=-1, keepdim=True) * 2.0**-7


class TestZstd(CodecTests):
    """Compression."""

    dtypes = ("BF16", "F32")
    refuses_not_finite = False
    checks_bytes = False

    def make_codec(self):
        """With shuffled halves."""
        return Zstd(level=1, shuffle=2)
