"""Codecs: encode and decode; equal, or within the codec's elementwise bound.

Keys and values of each layer go through a chain of codecs (:class:`CodecChain`), and a
:class:`CodecPlan` says through which.  Codecs are found by name in segment headers
(:data:`CODECS`); other distributions add theirs by the entry point group ``kvbaton.codecs``.
"""

from kvbaton.codecs.base import (
    BytesToBytes,
    Codec,
    CodecChain,
    Shape,
    StoredShape,
    TensorToBytes,
    TensorToTensor,
    chain_from_json,
    require_bool,
    require_choice,
    require_int,
)
from kvbaton.codecs.blocks import IntBlocks
from kvbaton.codecs.fp8 import Fp8
from kvbaton.codecs.fused import warm
from kvbaton.codecs.hadamard import Hadamard
from kvbaton.codecs.integer import Int
from kvbaton.codecs.nf4 import Nf4
from kvbaton.codecs.plan import CodecPlan, exact_plan, uniform
from kvbaton.codecs.raw import Raw
from kvbaton.codecs.registered import CODECS, codec_names, register_codec
from kvbaton.codecs.storage import storage
from kvbaton.codecs.unrotate import Unrotate
from kvbaton.codecs.zstd import Zstd

EXACT = CodecChain((Raw(),))
"""The chain of the ``exact`` profile."""

__all__ = [
    "CODECS",
    "EXACT",
    "BytesToBytes",
    "Codec",
    "CodecChain",
    "CodecPlan",
    "Fp8",
    "Hadamard",
    "Int",
    "IntBlocks",
    "Nf4",
    "Raw",
    "Shape",
    "StoredShape",
    "TensorToBytes",
    "TensorToTensor",
    "Unrotate",
    "Zstd",
    "chain_from_json",
    "codec_names",
    "exact_plan",
    "register_codec",
    "require_bool",
    "require_choice",
    "require_int",
    "storage",
    "uniform",
    "warm",
]
