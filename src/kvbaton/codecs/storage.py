"""What a codec chain stores, as the reader of segments asks it: without torch."""

from __future__ import annotations

from collections.abc import Mapping

from kvbaton.codecs.base import BytesToBytes, Codec, chain_from_json
from kvbaton.codecs.raw import Raw
from kvbaton.errors import FormatError
from kvbaton.types import JSON, Place

CODECS: dict[str, type[Codec]] = {Raw.name: Raw}
"""Registered codecs by name."""


def storage(
    codec: tuple[JSON, ...], *, place: Place, shape: tuple[int, int, int], dtype: str, at: str
) -> Mapping[str, tuple[str, tuple[int, ...] | None]]:
    """Stored tensors of K or V at ``place``: ``{name: (safetensors dtype, shape)}``.

    A bytes-to-bytes codec makes one axis of any length of everything.

    Raises
    ------
    FormatError
        ``UNKNOWN_CODEC`` with the hint what would bring it.
    """
    try:
        chain = chain_from_json(codec, CODECS)
    except FormatError as error:
        error.at = at + error.at.removeprefix("$.codecs")
        raise
    squeezed = any(isinstance(step, BytesToBytes) for step in chain.codecs)
    return {
        f"{place.name}.{suffix}" if suffix else place.name: (
            ("U8", None) if squeezed else (stored.dtype, stored.shape)
        )
        for suffix, stored in chain.packer.storage(dtype, shape, place).items()
    }
