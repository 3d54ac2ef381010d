"""Integers with other bits for each block of channels."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codecs.bounds import int_bound

from kvbaton.codecs.base import CodecChain
from kvbaton.codecs.blocks import IntBlocks
from kvbaton.codecs.integer import Int
from kvbaton.codecs.profiles import bands, bits_plan, key_chain
from kvbaton.errors import InputError
from kvbaton.testing import CodecTests
from kvbaton.types import KVLayout, LayerKind, LayerLayout, Place, RopeSpec


def place(first: int = 0) -> Place:
    """Keys of layer 1."""
    return Place("k", 1, first)


def through(codec: IntBlocks | Int, tensor: torch.Tensor, where: Place) -> torch.Tensor:
    """Encoded and decoded."""
    chain = CodecChain((codec,))
    stored = {"": memoryview(bytearray(chain.encode(tensor, where)[0].data))}
    return chain.decode(stored, "F32", tuple(tensor.shape), where)


class TestConformance(CodecTests):
    """The public suite, with blocks of unlike bits."""

    shapes = ((2, 150, 16), (1, 1, 8), (1, 5, 64))
    max_examples = 8
    codec = IntBlocks(bits="2482", group=64, first=4)

    def make_codec(self):
        """Four blocks."""
        return self.codec

    def bound(self, tensor):
        """That of each block's own codec."""
        blocks = tensor.split(tensor.shape[-1] // 4, dim=-1)
        made = [Int(bits=int(digit), group=64, first=4) for digit in self.codec.bits]
        parts = zip(blocks, made, strict=True)
        return torch.cat([int_bound(block.contiguous(), part) for block, part in parts], dim=-1)


@settings(deadline=None)  # the first call may compile
@given(
    st.text("2345678", min_size=1, max_size=4).filter(lambda digits: len(digits) != 3),
    st.integers(1, 40),
    st.integers(0, 6),
    st.sampled_from([0, 8, 32]),
)
def test_each_block_is_what_int_makes_of_it(digits: str, tokens: int, first: int, group: int):
    """Block by block, the same numbers as the codec of that many bits."""
    tensor = torch.randn((2, tokens, 16), generator=torch.Generator().manual_seed(tokens))
    whole = through(IntBlocks(bits=digits, group=group, first=first), tensor, place(2))
    width = 16 // len(digits)
    for index, digit in enumerate(digits):
        block = slice(index * width, (index + 1) * width)
        alone = Int(bits=int(digit), axis="channel", group=group, first=first)
        assert whole[..., block].equal(through(alone, tensor[..., block].contiguous(), place(2)))


def test_more_bits_are_nearer():
    """The block of 2 bits is off by more than the block of 8."""
    tensor = torch.randn((1, 64, 16), generator=torch.Generator().manual_seed(1))
    off = (through(IntBlocks(bits="28", group=64), tensor, place()) - tensor).abs()
    assert off[..., :8].max() > 20 * off[..., 8:].max()


@pytest.mark.parametrize("bits", ["", "1", "9", "24a6", 24, "2" * 65, "²"])
def test_bits_are_digits_from_2_to_8(bits: object):
    """Anything else is an input error that names the field."""
    with pytest.raises(InputError) as caught:
        IntBlocks(bits=bits)  # type: ignore[arg-type]
    assert caught.value.at == "$.bits"


def test_blocks_divide_the_head():
    """Three blocks of 16 channels are refused."""
    with pytest.raises(InputError, match="3 blocks do not divide a head_dim of 16"):
        CodecChain((IntBlocks(bits="234"),)).storage("F32", (1, 8, 16), place())


@pytest.mark.parametrize(("pairing", "digits"), [("half", "23562356"), ("interleaved", "2356")])
def test_bands_of_frequencies_are_blocks_of_channels(pairing: str, digits: str):
    """In halves a pair's channels lie half a head apart; interleaved they are neighbours."""
    rope = RopeSpec("default", pairing, 64, 10000.0, 1.0, "0" * 64)  # type: ignore[arg-type]
    layout = KVLayout("F32", (LayerLayout(LayerKind.FULL, 1, 64, 64),) * 2, (rope,))
    chain = key_chain(layout, 1, (2, 3, 5, 6))
    assert [codec.name for codec in chain.codecs] == ["unrotate", "int-blocks"]
    assert chain.packer.to_json()["bits"] == digits


@pytest.mark.parametrize(
    "rope",
    [
        RopeSpec("dynamic", "half", 64, 10000.0, 1.0, "0" * 64),
        RopeSpec("default", "half", 16, 10000.0, 1.0, "0" * 64),
    ],
)
def test_without_a_steady_rope_of_all_channels_there_are_no_bands(rope: RopeSpec):
    """Bits of bands stand for their mean, rounded up, and asking for bands outright is an error."""
    layout = KVLayout("F32", (LayerLayout(LayerKind.FULL, 1, 64, 64),) * 2, (rope,))
    assert bands(layout, 1) == 1
    keys, _ = bits_plan("x", layout, lambda layer: ((2, 3, 5, 6), 4)).chains(1)
    assert keys.packer.to_json()["bits"] == 4
    with pytest.raises(InputError, match="has 1 bands of keys, not 4"):
        key_chain(layout, 1, (2, 3, 5, 6))


@pytest.mark.parametrize("field", [{"axis": "token"}, {"axis": "tensor"}, {"scales": "u8"}])
def test_blocks_are_of_channels(field: dict[str, str]):
    """Other axes would put one group into several blocks; scales of one byte gain nothing."""
    with pytest.raises(InputError) as caught:
        IntBlocks(**field)
    assert caught.value.at == f"$.{next(iter(field))}"
