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
from kvbaton.codecs.raw import Raw

CODECS: dict[str, type[Codec]] = {Raw.name: Raw}
"""Registered codecs by name."""

EXACT = CodecChain((Raw(),))
"""The chain of the ``exact`` profile."""

__all__ = [
    "CODECS",
    "EXACT",
    "BytesToBytes",
    "Codec",
    "CodecChain",
    "Raw",
    "StoredShape",
    "TensorToBytes",
    "TensorToTensor",
    "chain_from_json",
]
