"""The mu-law codec against kvbaton's public suite."""

from __future__ import annotations

import math

from kvbaton_mulaw_codec import MuLaw

from kvbaton.codecs import CODECS, CodecChain, storage
from kvbaton.testing import CodecTests
from kvbaton.types import Place


class TestMuLaw(CodecTests):
    """Everything that a codec must do."""

    def make_codec(self):
        """The telephone's own curve."""
        return MuLaw(mu=255)

    def bound(self, tensor):
        """Half a step of the curve, at the number and at the largest of its head."""
        largest = tensor.abs().amax((1, 2), keepdim=True)
        return (tensor.abs() + largest / 255) * math.log1p(255) / 127 * 0.55


def test_it_is_found_by_its_entry_point():
    """Installed, the codec is known by name, and headers that name it can be checked."""
    assert CODECS["mulaw"] is MuLaw
    described = CodecChain((MuLaw(),)).to_json()
    place = Place("v", 0, 0)
    assert storage(described, place=place, shape=(2, 8, 64), dtype="BF16", at="$") == {
        "v": ("I8", (2, 8, 64)),
        "v.scale": ("F32", (2,)),
    }
