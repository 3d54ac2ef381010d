"""What a codec chain stores, as the reader of segments asks it: without torch."""

from __future__ import annotations

from collections.abc import Mapping

from kvbaton.codecs.base import BytesToBytes, chain_from_json
from kvbaton.codecs.registered import CODECS
from kvbaton.errors import Fault, FormatError, InputError
from kvbaton.types import JSON, Place

__all__ = ["CODECS", "storage"]


def storage(
    codec: tuple[JSON, ...], *, place: Place, shape: tuple[int, int, int], dtype: str, at: str
) -> Mapping[str, tuple[str, tuple[int, ...] | None]]:
    """Stored tensors of K or V at ``place``: ``{name: (safetensors dtype, shape)}``.

    A bytes-to-bytes codec makes one axis of any length of everything.

    Raises
    ------
    FormatError
        ``UNKNOWN_CODEC`` with the hint what would bring it; ``OUT_OF_RANGE`` for a field that the
        codec refuses; ``SHAPE_MISMATCH`` for groups that do not fit this layout.
    """
    try:
        chain = chain_from_json(codec, CODECS)
        wanted = chain.storage(dtype, shape, place)
    except FormatError as error:
        error.at = at + error.at.removeprefix("$.codecs")
        raise
    except InputError as error:
        raise FormatError(
            error.sentence, fault=Fault.SHAPE_MISMATCH, at=at, hint=error.hint
        ) from error
    squeezed = any(isinstance(step, BytesToBytes) for step in chain.codecs)
    return {
        f"{place.name}.{suffix}" if suffix else place.name: (
            ("U8", None) if squeezed else (stored.dtype, stored.shape)
        )
        for suffix, stored in wanted.items()
    }
