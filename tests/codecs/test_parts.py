"""The parts that quantizers are made of, by values that can be checked by hand."""

from __future__ import annotations

import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbaton.codecs import CodecChain, Hadamard, Int, Nf4, Raw, Unrotate, Zstd, planes
from kvbaton.codecs.hadamard import transform
from kvbaton.codecs.nf4 import LEVELS
from kvbaton.codecs.scales import floor_half, scale_table
from kvbaton.errors import FormatError
from kvbaton.rope import angles, inverse_frequencies, rotate
from kvbaton.types import Place, RopeSpec

VALUES = Place("v", 0, 0)


def decoded(chain, tensor, place=VALUES, dtype="F32"):
    """There and back."""
    stored = {part.name.partition(".")[2]: part.data for part in chain.encode(tensor, place)}
    return chain.decode(stored, dtype, tuple(tensor.shape), place)


def test_planes_by_hand():
    """Six codes of five bits: the low halves of 1 and 4, 2 and 5, 3 and 6, then the fifth bits."""
    codes = torch.tensor([17, 2, 3, 4, 21, 6], dtype=torch.uint8)
    assert planes.pack(codes, 5).tolist() == [0x41, 0x52, 0x63, 0b010001]
    assert planes.packed_bytes(6, 5) == 4


@pytest.mark.parametrize("bits", range(2, 9))
@settings(max_examples=25, deadline=None, database=None)
@given(count=st.integers(0, 70), seed=st.integers(0, 1000))
def test_planes_come_back(bits, count, seed):
    """Any number of codes of any width, in as many bytes as is said."""
    made = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 1 << bits, (3, count), generator=made, dtype=torch.uint8)
    data = planes.pack(codes, bits)
    assert data.shape == (3, planes.packed_bytes(count, bits))
    assert planes.unpack(data, count, bits).equal(codes)


def test_integers_by_hand():
    """From -1 to 14 in 4 bits: a step is 1, so whole numbers are exact and halves are even."""
    tensor = torch.tensor([-1.0, 0.4, 1.6, 14.0, 2.5, 3.5, -0.5, 7.0]).reshape(1, 8, 1)
    found = decoded(CodecChain((Int(bits=4, axis="channel", scales="f32"),)), tensor)
    assert found.flatten().tolist() == [-1.0, 0.0, 2.0, 14.0, 3.0, 3.0, -1.0, 7.0]


def test_symmetric_integers_use_every_code():
    """Four codes between -3 and 3: they stand for -3, -1, 1 and 3."""
    tensor = torch.tensor([3.0, -2.9, 0.9, -1.1]).reshape(1, 1, 4)
    chain = CodecChain((Int(bits=2, axis="token", group=0, symmetric=True, scales="f32"),))
    assert decoded(chain, tensor).flatten().tolist() == [3.0, -3.0, 1.0, -1.0]


def test_clipping_gives_up_outliers():
    """One number of a hundred in a group of 255: the others come back more closely."""
    torch.manual_seed(1)
    tensor = torch.randn(1, 1, 256)
    tensor[0, 0, 9] = 8.0
    plain, clipped = (
        (decoded(CodecChain((Int(bits=3, axis="token", group=0, clip=clip),)), tensor) - tensor)
        for clip in (False, True)
    )
    assert float(clipped.square().sum()) < 0.8 * float(plain.square().sum())
    assert abs(float(clipped[0, 0, 9])) > 1.0


def test_scale_codes_are_sixteenths_of_octaves():
    """Code 16 is half of the largest scale, code 255 is zero."""
    table = scale_table()
    assert table[[0, 16, 32, 255]].tolist() == [1.0, 0.5, 0.25, 0.0]
    assert bool((table[1:255] / table[:254]).sub(2 ** (-1 / 16)).abs().max() < 1e-6)


@settings(max_examples=200, deadline=None, database=None)
@given(st.floats(width=32, min_value=-65504, max_value=65504))
def test_floor_half_is_the_next_float16_below(number):
    """It is not above the number, and the next larger float16 is."""
    low = floor_half(torch.tensor([number]))
    assert float(low) <= number
    above = torch.tensor([float("inf")]).half() if float(low) == 65504 else _next(low)
    assert float(above) > number


def _next(half):
    bits = int(half.view(torch.int16))
    if bits == 0 or bits == -32768:
        following = 1
    else:
        following = bits + 1 if bits > 0 else bits - 1
    return torch.tensor([following], dtype=torch.int16).view(torch.float16)


def test_nf4_levels_are_their_own():
    """A group of the levels themselves comes back as it was."""
    tensor = 3.0 * torch.tensor(LEVELS).reshape(1, 1, 16)
    found = decoded(CodecChain((Nf4(axis="token", group=0, scales="f32"),)), tensor)
    assert found.equal(tensor)


def test_hadamard_of_four_by_hand():
    """1, 0, 0, 0 spreads evenly; 1, 2, 3, 4 has sums and differences over two."""
    assert transform(torch.tensor([[1.0, 0, 0, 0]]), 4).tolist() == [[0.5, 0.5, 0.5, 0.5]]
    assert transform(torch.tensor([[1.0, 2, 3, 4]]), 4).tolist() == [[5.0, -1.0, -2.0, 0.0]]


def test_hadamard_blocks_are_the_largest_power_of_two():
    """80 channels are five blocks of 16, each with the norm that it had."""
    tensor = torch.randn(2, 3, 80)
    turned = Hadamard().forward(tensor, VALUES)
    norms = [t.unflatten(2, (5, 16)).norm(dim=3) for t in (tensor, turned)]
    assert torch.allclose(*norms, rtol=1e-5)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_unrotated_keys_are_the_keys_before_rope(pairing):
    """An independent rotation at the positions is undone."""
    rope = RopeSpec("default", pairing, 12, 1e4, 1.0, pairing)
    before = torch.randn(2, 9, 16)
    at = angles(inverse_frequencies(rope), torch.arange(40, 49))
    after = rotate(before, at, pairing=pairing, rotary_dim=12)
    found = Unrotate().forward(after, Place("k", 0, 40, rope))
    assert torch.allclose(found, before, atol=1e-5)


def test_first_tokens_pass_transforms_unchanged():
    """Positions 3 and 4 of a segment that begins at 3 are below 5."""
    rope = RopeSpec("default", "half", 16, 1e4, 1.0, "first")
    tensor = torch.randn(1, 6, 16).bfloat16()
    chain = CodecChain((Unrotate(first=5), Hadamard(first=5), Int(bits=2, axis="token", first=5)))
    chain = CodecChain((*chain.before, Int(bits=2, axis="token", group=0, first=5)))
    found = decoded(chain, tensor, Place("k", 0, 3, rope), "BF16")
    assert found[:, :2].equal(tensor[:, :2])
    assert not found[:, 2:].equal(tensor[:, 2:])


def test_zstd_is_small_and_exact():
    """Repeating numbers shrink, and come back bit for bit."""
    tensor = torch.arange(64).repeat(16).reshape(1, 16, 64).float()
    chain = CodecChain((Raw(), Zstd(shuffle=4)))
    (stored,) = chain.encode(tensor, VALUES)
    assert stored.dtype == "U8" and stored.shape == (stored.data.nbytes,)
    assert stored.data.nbytes < tensor.nbytes / 8
    assert decoded(chain, tensor).equal(tensor)


def test_a_decompression_bomb_is_refused_by_its_header():
    """A frame of 16 MB where 64 bytes belong is refused; so is one that does not say."""
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(1 << 24))
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64))
    for data in (bomb, silent, bomb[:9], b"", b"no frame at all"):
        with pytest.raises(FormatError):
            Zstd().expand(memoryview(data), 64)


def test_a_frame_that_lies_about_its_size_is_refused():
    """A header that promises 64 bytes in front of more content ends in an error."""
    whole = bytearray(zstandard.ZstdCompressor(level=1).compress(bytes(range(256)) * 4))
    assert zstandard.frame_content_size(bytes(whole)) == 1024
    position = whole.index((1024 - 256).to_bytes(2, "little"))
    whole[position : position + 2] = (320 - 256).to_bytes(2, "little")
    assert zstandard.frame_content_size(bytes(whole)) == 320
    with pytest.raises(FormatError):
        Zstd().expand(memoryview(bytes(whole)), 320)
