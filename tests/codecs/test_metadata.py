"""Codecs in headers: found by name, checked field by field, without torch and numba."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from kvbaton.codecs import (
    CODECS,
    CodecChain,
    Fp8,
    Hadamard,
    Int,
    Nf4,
    Raw,
    Unrotate,
    Zstd,
    chain_from_json,
    codec_names,
    register_codec,
    storage,
)
from kvbaton.errors import Fault, FormatError, InputError
from kvbaton.types import Place, RopeSpec

PLACE = Place("k", 5, 0)
INT = {
    "name": "int", "version": 1, "axis": "channel", "group": 64, "first": 0, "scales": "f16",
    "bits": 8, "symmetric": False, "clip": False,
}  # fmt: skip


def asked(entry, *, shape=(2, 10, 8), dtype="BF16", place=PLACE):
    """What a segment's reader asks."""
    return storage((entry,), place=place, shape=shape, dtype=dtype, at="$.codecs[2]")


def test_an_integer_codec_is_spelled_so():
    """The header's entry has the name, the version and every field."""
    assert Int().to_json() == INT
    assert CodecChain((Raw(),)).to_json() == ({"name": "raw"},)


def test_sizes_can_be_worked_out_by_hand():
    """Sinks in the cache's dtype, float16 offsets and scales per group, then planes of bits."""
    codec = Int(bits=5, axis="channel", group=4, first=2)
    # 2 heads, 2 tokens, 8 channels of 2 bytes; two groups of 4 tokens and 16 channels;
    # tiles of 32 codes: 16 bytes of low halves and 4 bytes of fifth bits.
    parameters, codes = 2 * (2 * 8) * 2 * 2, 2 * 2 * (16 + 4)
    assert asked(codec.to_json()) == {"k": ("U8", (64 + parameters + codes,))}
    # A later segment has no sinks; its 10 tokens make groups of 4, 4 and 2.
    later = Place("k", 5, 256)
    parameters, codes = 2 * (3 * 8) * 2 * 2, 2 * (20 + 20 + 10)
    assert asked(codec.to_json(), place=later) == {"k": ("U8", (parameters + codes,))}


def test_one_byte_per_parameter():
    """Coded scales are a float per head and a byte per group; coded offsets another byte."""
    codec = Int(bits=8, axis="token", group=0, scales="u8", symmetric=True)
    assert asked(codec.to_json()) == {"k": ("U8", (32 + 160,))}  # 8 + 20, to a multiple of 8
    codec = Int(bits=8, axis="token", group=0, scales="u8")
    assert asked(codec.to_json()) == {"k": ("U8", (48 + 160,))}


@pytest.mark.parametrize(
    ("change", "fault", "at"),
    [
        ({"name": "no-such-codec"}, Fault.UNKNOWN_CODEC, "$.codecs[2][0]"),
        ({"name": 7}, Fault.UNKNOWN_CODEC, "$.codecs[2][0]"),
        ({"version": 2}, Fault.UNKNOWN_CODEC, "$.codecs[2][0].version"),
        ({"extra": 1}, Fault.UNKNOWN_CODEC, "$.codecs[2][0]"),
        ({"bits": 9}, Fault.OUT_OF_RANGE, "$.codecs[2][0].bits"),
        ({"bits": True}, Fault.OUT_OF_RANGE, "$.codecs[2][0].bits"),
        ({"bits": "8"}, Fault.OUT_OF_RANGE, "$.codecs[2][0].bits"),
        ({"axis": "head"}, Fault.OUT_OF_RANGE, "$.codecs[2][0].axis"),
        ({"scales": None}, Fault.OUT_OF_RANGE, "$.codecs[2][0].scales"),
        ({"symmetric": 0}, Fault.OUT_OF_RANGE, "$.codecs[2][0].symmetric"),
        ({"group": -1}, Fault.OUT_OF_RANGE, "$.codecs[2][0].group"),
        ({"first": 1 << 40}, Fault.OUT_OF_RANGE, "$.codecs[2][0].first"),
        ({"axis": "token", "group": 3}, Fault.SHAPE_MISMATCH, "$.codecs[2]"),
    ],
)
def test_bad_metadata_is_refused_with_its_place(change, fault, at):
    """Each way in which an entry can be wrong has its fault and its path."""
    with pytest.raises(FormatError) as caught:
        asked(INT | change)
    assert caught.value.fault is fault
    assert caught.value.at == at


def test_metadata_with_a_field_left_out_is_refused():
    """There is one spelling: defaults are written too."""
    with pytest.raises(FormatError) as caught:
        asked({key: value for key, value in INT.items() if key != "clip"})
    assert caught.value.fault is Fault.NOT_CANONICAL


def test_an_unknown_codec_says_what_would_bring_it():
    """The error names what is known, and hints at newer releases and plug-ins."""
    with pytest.raises(FormatError) as caught:
        chain_from_json([{"name": "wavelet", "version": 1}], CODECS)
    assert "wavelet" in str(caught.value)
    assert "plug-in" in caught.value.hint
    with pytest.raises(FormatError) as caught:
        chain_from_json([INT | {"version": 3}], CODECS)
    assert "kvbaton" in caught.value.hint


def test_chains_that_do_not_fit_are_refused_from_headers_too():
    """Two packers, or none, are no chain."""
    for described in ([INT, INT], [{"name": "unrotate", "version": 1, "first": 0}]):
        with pytest.raises(FormatError) as caught:
            chain_from_json(described, CODECS)
        assert caught.value.fault is Fault.UNKNOWN_CODEC


def test_first_tokens_are_the_same_in_all_codecs_of_a_chain():
    """Else exact tokens would be rotated, and exact no more."""
    with pytest.raises(InputError):
        CodecChain((Hadamard(first=0), Int(first=4)))
    CodecChain((Hadamard(first=4), Int(first=4)))


@pytest.mark.parametrize(
    ("codecs", "shape"),
    [
        ((Int(axis="token", group=48),), (1, 4, 64)),
        ((Nf4(axis="token", group=5),), (1, 4, 64)),
        ((Hadamard(block=32), Int()), (1, 4, 80)),
    ],
)
def test_groups_that_do_not_divide(codecs, shape):
    """They are refused when a plan asks, and when a tensor comes."""
    chain = CodecChain(codecs)
    with pytest.raises(InputError):
        chain.storage("F32", shape, PLACE)
    with pytest.raises(InputError):
        chain.encode(torch.zeros(shape), PLACE)


def test_keys_that_are_rotated_farther_than_they_reach():
    """A RoPE of more channels than keys have contradicts the layout."""
    place = Place("k", 0, 0, RopeSpec("default", "half", 16, 1e4, 1.0, "a" * 64))
    with pytest.raises(InputError):
        CodecChain((Unrotate(), Int())).storage("F32", (1, 4, 8), place)


def test_quantizers_refuse_float64():
    """Float32 cannot hold it: a typed error, not a silent loss."""
    for codecs in ((Int(),), (Fp8(),), (Unrotate(), Raw())):
        with pytest.raises(InputError):
            CodecChain(codecs).encode(torch.zeros(1, 2, 8, dtype=torch.float64), PLACE)


def test_headers_are_checked_without_torch_and_numba():
    """Reading what every built-in codec stores imports neither."""
    chains = [
        CodecChain((Unrotate(first=4), Hadamard(first=4), Int(first=4))),
        CodecChain((Fp8(),)),
        CodecChain((Nf4(), Zstd())),
        CodecChain((Raw(),)),
    ]
    script = (
        "import sys\n"
        "from kvbaton.codecs import storage\n"
        "from kvbaton.types import Place\n"
        f"for chain in {[chain.to_json() for chain in chains]!r}:\n"
        "    storage(chain, place=Place('k', 0, 0), shape=(1, 8, 64), dtype='BF16', at='$')\n"
        "print(sorted({'torch', 'numba', 'zstandard'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_registry_is_a_mapping_of_classes():
    """Names are sorted, and each stands for a class of that name."""
    assert list(CODECS) == list(codec_names()) == sorted(codec_names())
    assert {name: kind.name for name, kind in CODECS.items()} == {n: n for n in codec_names()}
    assert "no-such-codec" not in CODECS


def test_a_registered_codec_that_cannot_be_imported_says_how_to_get_it():
    """The hint of the registration stands in the error of the header."""
    register_codec("test-absent", "no_such_module_anywhere:Codec", hint="pip install absent")
    with pytest.raises(FormatError) as caught:
        chain_from_json([{"name": "test-absent", "version": 1}], CODECS)
    assert caught.value.fault is Fault.UNKNOWN_CODEC
    assert caught.value.hint == "pip install absent"
