"""The compiled kernel of blocks of bits gives the very bytes and numbers of the readable codec."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codecs.test_kernels import DTYPES, chain_of, numbers, places

from kvbaton.codecs import IntBlocks, Unrotate
from kvbaton.codecs.fused import fused
from kvbaton.errors import InputError
from kvbaton.types import Place

packers = st.builds(
    IntBlocks,
    bits=st.sampled_from(["2", "24", "8236", "24462446", "87654322"]),
    group=st.sampled_from([0, 4, 8, 128]),
    first=st.sampled_from([0, 3]),
)
shapes = st.tuples(st.integers(1, 3), st.integers(1, 140), st.sampled_from([8, 16, 24, 64, 128]))


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=40, deadline=None, database=None)
@given(
    packer=packers,
    before=st.sampled_from([(), (Unrotate,)]),
    shape=shapes,
    place=places,
    seed=st.integers(0, 10**6),
)
def test_kernels_equal_the_readable_codec(dtype, packer, before, shape, place, seed):
    """Equal bytes when encoding, equal bits when decoding."""
    chain, tensor = chain_of(packer, before), numbers(shape, seed).to(DTYPES[dtype])
    compiled = fused(chain).pack(tensor, place)
    (readable,) = chain.pack_stepwise(tensor, dtype, place).values()
    assert bytes(compiled) == bytes(readable.data)
    data = memoryview(bytearray(readable.data))
    found = fused(chain).unpack(data, dtype, shape, place, None)
    wanted = chain.unpack_stepwise({"": data}, dtype, shape, place)
    if found is None:  # ranges that may end beyond the dtype: the readable codec looks closer
        assert dtype == "F16"
    else:
        assert found.equal(wanted)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("token", [0, 5, 9])
def test_odd_numbers_are_left_to_the_readable_codec(value, token):
    """NaN and infinity in exact tokens, whole tiles or tails: the readable codec raises."""
    chain = chain_of(IntBlocks(bits="2468", group=8, first=1), (Unrotate,))
    tensor = torch.randn(2, 10, 8)
    tensor[1, token, 3] = value
    assert fused(chain).pack(tensor, Place("k", 4, 0)) is None
    with pytest.raises(InputError):
        chain.encode(tensor, Place("k", 4, 0))


def test_other_scales_have_no_kernel():
    """float32 parameters are read by the readable codec."""
    assert fused(chain_of(IntBlocks(bits="24", scales="f32"), ())) is None
