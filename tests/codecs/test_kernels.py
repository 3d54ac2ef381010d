"""Compiled kernels give the very bytes and numbers of the readable codecs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core import caching

from kvbaton.codecs import CodecChain, Fp8, Hadamard, Int, Nf4, Unrotate, warm
from kvbaton.codecs.fused import fused
from kvbaton.codecs.kernels.compiling import kernel
from kvbaton.errors import FormatError, InputError
from kvbaton.types import Place, RopeSpec

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
HALF = RopeSpec("default", "half", 8, 10_000.0, 1.0, "1" * 64)
INTERLEAVED = RopeSpec("default", "interleaved", 6, 500.0, 1.0, "2" * 64)

integers = st.builds(
    Int,
    bits=st.integers(2, 8),
    axis=st.sampled_from(["channel", "token"]),
    group=st.sampled_from([0, 4, 8]),
    first=st.sampled_from([0, 3]),
    symmetric=st.booleans(),
    scales=st.sampled_from(["f32", "f16", "u8"]),
)
befores = st.sampled_from([(), (Unrotate,), (Hadamard,), (Unrotate, Hadamard)])
shapes = st.tuples(st.integers(1, 3), st.integers(1, 140), st.sampled_from([8, 16, 24, 64]))
places = st.builds(
    Place,
    name=st.just("k"),
    layer=st.just(2),
    first=st.sampled_from([0, 2, 1000]),
    rope=st.sampled_from([HALF, INTERLEAVED, None]),
)


def chain_of(packer, before):
    """The packer behind transforms that keep the same first tokens exact."""
    return CodecChain((*(kind(first=packer.first) for kind in before), packer))


def numbers(shape, seed):
    """Normal numbers with outliers, constant groups and zeros of either sign."""
    made = torch.Generator().manual_seed(seed)
    tensor = torch.randn(shape, generator=made) * torch.rand(shape[2], generator=made).mul(9).exp2()
    tensor[..., seed % shape[2]] += 40.0 * (seed % 3)
    tensor[0, :, (seed + 1) % shape[2]] = -3.0
    tensor[0, seed % shape[1]] = 0.0
    tensor[-1, :, (seed + 2) % shape[2]] = -0.0
    return tensor


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=40, deadline=None, database=None)
@given(packer=integers, before=befores, shape=shapes, place=places, seed=st.integers(0, 10**6))
def test_kernels_equal_the_readable_codecs(dtype, packer, before, shape, place, seed):
    """Equal bytes when encoding, equal bits when decoding."""
    chain, tensor = chain_of(packer, before), numbers(shape, seed).to(DTYPES[dtype])
    compiled = fused(chain).pack(tensor, place)
    (readable,) = chain.pack_stepwise(tensor, dtype, place).values()
    assert bytes(compiled) == bytes(readable.data)
    data = memoryview(bytearray(readable.data))
    found = fused(chain).unpack(data, dtype, shape, place, None)
    wanted = chain.unpack_stepwise({"": data}, dtype, shape, place)
    if found is None:  # float16 close to its end: the readable codec has to look at each number
        assert float(wanted.abs().max()) > 1000.0
        assert dtype == "F16"
    else:
        assert found.equal(wanted)


def test_the_whole_of_float16_and_its_borders():
    """Conversions in kernels are those of torch, for every float16 and for borders between them."""
    every = torch.arange(1 << 16).to(torch.int16).view(torch.float16)
    every = every[torch.isfinite(every)].float()
    between = torch.cat([every, (every[1:] + every[:-1]) / 2])
    padded = torch.cat([between, torch.zeros(-len(between) % 8)]).reshape(1, -1, 8)
    chain = CodecChain((Int(bits=8, axis="token", scales="f16", group=1),))
    place = Place("v", 0, 0)
    compiled = fused(chain).pack(padded, place)
    (readable,) = chain.pack_stepwise(padded, "F32", place).values()
    assert bytes(compiled) == bytes(readable.data)
    halves = padded.half()
    assert bytes(fused(chain).pack(halves, place)) == bytes(
        chain.pack_stepwise(halves, "F16", place)[""].data
    )


@pytest.mark.parametrize("scales", ["f32", "f16", "u8"])
@pytest.mark.parametrize("axis", ["channel", "token"])
@pytest.mark.parametrize("size", [1e-45, 1e-41, 1e-38, 1e-30, 1e30])
def test_kernels_equal_the_readable_codecs_at_the_ends_of_float32(scales, axis, size):
    """Subnormal numbers, whose scales have no inverse, and huge ones."""
    tensor = numbers((2, 40, 16), 5) * size
    chain = CodecChain((Int(bits=4, axis=axis, group=0, scales=scales),))
    compiled = fused(chain).pack(tensor, Place("v", 0, 0))
    if compiled is None:
        with pytest.raises(InputError):
            chain.encode(tensor, Place("v", 0, 0))
        return
    (readable,) = chain.pack_stepwise(tensor, "F32", Place("v", 0, 0)).values()
    assert bytes(compiled) == bytes(readable.data)


@pytest.mark.parametrize("value", [float("nan"), -float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("token", [0, 5, 9])
def test_kernels_leave_odd_numbers_to_the_readable_codecs(value, token):
    """NaN and infinity in exact tokens, whole tiles or tails: the readable codec raises."""
    chain = CodecChain((Int(bits=8, axis="channel", group=8, first=1),))
    tensor = torch.randn(2, 10, 8)
    tensor[1, token, 3] = value
    assert fused(chain).pack(tensor, Place("k", 4, 0)) is None
    with pytest.raises(InputError) as caught:
        chain.encode(tensor, Place("k", 4, 0))
    assert caught.value.at == "$.layers[4].k"
    assert f"head 1, token {token}, channel 3" in str(caught.value)


@pytest.mark.parametrize(
    ("scales", "number"), [("f16", float("nan")), ("f16", float("inf")), ("f16", -1.0)]
)
def test_bad_scales_are_refused(scales, number):
    """NaN, infinite and negative scales raise FormatError, by kernel and readable codec alike."""
    chain, place = (
        CodecChain((Int(bits=8, axis="channel", group=8, scales=scales),)),
        Place("k", 4, 0),
    )
    (stored,) = chain.encode(torch.randn(1, 8, 8), place)
    data = bytearray(stored.data)
    data[16:18] = np.float16(number).tobytes()  # eight offsets come first
    assert fused(chain).unpack(memoryview(data), "F32", (1, 8, 8), place, None) is None
    with pytest.raises(FormatError) as caught:
        chain.decode({"": memoryview(data)}, "F32", (1, 8, 8), place)
    assert caught.value.at == "$.layers[4].k"


def test_scales_beyond_the_cache_dtype_are_refused():
    """Scales that make numbers beyond float16 raise FormatError; in bfloat16 they are fine."""
    chain, place = (
        CodecChain((Int(bits=8, axis="channel", group=8, scales="f32"),)),
        Place("v", 1, 0),
    )
    (stored,) = chain.encode(torch.full((1, 8, 8), 1.0e5).bfloat16(), place)
    data = memoryview(bytearray(stored.data))
    assert float(chain.decode({"": data}, "BF16", (1, 8, 8), place).max()) > 9.0e4
    with pytest.raises(FormatError):
        chain.decode({"": data}, "F16", (1, 8, 8), place)


def test_float16_parameters_that_overflow_are_refused():
    """Numbers beyond float16 need float32 scales, and the error says where."""
    tensor, place = torch.full((1, 8, 8), 1.0e6), Place("v", 7, 0)
    tensor[0, 0] = -1.0e6
    with pytest.raises(InputError) as caught:
        CodecChain((Int(bits=8, scales="f16"),)).encode(tensor, place)
    assert caught.value.at == "$.layers[7].v"
    CodecChain((Int(bits=8, scales="f32"),)).encode(tensor, place)


def test_other_chains_have_no_kernel():
    """What a kernel does not compute goes codec by codec."""
    for packer in (Fp8(), Nf4(), Int(axis="tensor"), Int(clip=True)):
        assert fused(CodecChain((packer,))) is None
    assert fused(CodecChain((Hadamard(), Unrotate(), Int()))) is None


def test_a_run_of_kernels_leaves_no_trace():
    """Shapes may alternate: memory that a kernel works in is not seen by the next one."""
    chain, place = CodecChain((Hadamard(), Int(bits=5, axis="token", group=8))), Place("v", 0, 0)
    tensors = [torch.randn(2, tokens, 16) for tokens in (3, 200, 1, 64)]
    alone = [bytes(chain.encode(t, place)[0].data) for t in tensors]
    again = [bytes(chain.encode(t, place)[0].data) for t in reversed(tensors)]
    assert alone == again[::-1]


def test_warm_makes_kernels_ready():
    """Chains without a kernel and dtypes without one are no error."""
    warm([CodecChain((Int(),)), CodecChain((Fp8(),))], "BF16")
    warm([CodecChain((Fp8(),))], "F32")
    warm([CodecChain((Int(),))], "F64")


def test_kernels_are_compiled_where_nothing_can_be_kept(monkeypatch):
    """Without a folder to keep machine code in, a kernel is compiled for this process."""
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    assert kernel(_plus_one)(41) == 42


def _plus_one(number):
    return number + 1


@pytest.mark.cuda
@settings(max_examples=40, deadline=None, database=None)
@given(packer=integers, before=befores, shape=shapes, place=places, seed=st.integers(0, 10**6))
def test_a_gpu_gives_the_same_bytes(packer, before, shape, place, seed):
    """The readable codecs on CUDA tensors: the bytes and the numbers of the host."""
    chain, tensor = chain_of(packer, before), numbers(shape, seed).bfloat16()
    (here,), (there,) = chain.encode(tensor, place), chain.encode(tensor.cuda(), place)
    assert bytes(here.data) == bytes(there.data)
    stored = {"": memoryview(bytearray(here.data))}
    device = torch.device("cuda")
    decoded = chain.decode(stored, "BF16", shape, place, device=device)
    assert decoded.is_cuda
    assert decoded.cpu().equal(chain.decode(stored, "BF16", shape, replace(place)))


@pytest.mark.cuda
@pytest.mark.parametrize("packer", [Fp8(axis="token"), Nf4(axis="channel", scales="u8")])
def test_a_gpu_gives_the_same_floats(packer):
    """So do the codecs that have no kernel."""
    chain, tensor, place = CodecChain((packer,)), numbers((2, 70, 64), 5), Place("v", 0, 0)
    (here,), (there,) = chain.encode(tensor, place), chain.encode(tensor.cuda(), place)
    assert bytes(here.data) == bytes(there.data)
