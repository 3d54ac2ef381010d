"""Codecs: encode and decode; equal, or within the codec's elementwise bound."""

from kvbaton.codecs.base import (
    BytesToBytes,
    Codec,
    CodecChain,
    StoredShape,
    TensorToBytes,
    TensorToTensor,
    chain_from_json,
)
from kvbaton.codecs.plan import CodecPlan, exact_plan, uniform
from kvbaton.codecs.raw import Raw
from kvbaton.codecs.storage import CODECS, storage

EXACT = CodecChain((Raw(),))
"""The chain of the ``exact`` profile."""

__all__ = [
    "CODECS",
    "EXACT",
    "BytesToBytes",
    "Codec",
    "CodecChain",
    "CodecPlan",
    "Raw",
    "StoredShape",
    "TensorToBytes",
    "TensorToTensor",
    "chain_from_json",
    "exact_plan",
    "storage",
    "uniform",
]
