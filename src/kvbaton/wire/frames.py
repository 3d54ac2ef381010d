"""Encrypted objects: a table of frames, then the frames (``docs/spec/encryption.md``).

Only the layout is here; a :class:`FrameCipher` has the keys.  Nothing of an object is believed, or
allocated for, before the whole table is known to be one that the keys have made.
"""

from __future__ import annotations

import json
import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from kvbaton.errors import Fault, FormatError
from kvbaton.wire.digests import Buffer
from kvbaton.wire.limits import (
    ALIGNMENT,
    LENGTH_FIELD_BYTES,
    MAX_HEADER_BYTES,
    MAX_LAYERS,
    MAX_SEGMENT_BYTES,
)

MAGIC = b"kvbaton-enc\x01"
TAG_BYTES = 16
DIGEST_BYTES = 32
MAX_FRAMES = 1 + MAX_LAYERS
MAX_FRAME_BYTES = (1 << 31) - 1 - TAG_BYTES
"""What one call of common libraries encrypts at most."""

_COUNT = struct.Struct("<I")
_ROW = struct.Struct(f"<Q{DIGEST_BYTES}s")
_FIXED_BYTES = len(MAGIC) + _COUNT.size + DIGEST_BYTES
_OPENING = '{"__metadata__":{"kvbaton":'
_decoder = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Frame:
    """Frame ``index`` of the ``count`` of an object.

    Parameters
    ----------
    place
        The object: kind and name.
    size_bytes
        Of its plaintext.
    digest
        Keyed digest of place, index, count and plaintext: its synthetic IV.
    """

    place: bytes
    index: int
    count: int
    size_bytes: int
    digest: bytes = b""


class FrameCipher(Protocol):
    """Keys of one domain.  Equal frames give equal bytes in every process."""

    def authenticator(self, place: bytes, table: bytes) -> bytes:
        """32 bytes that only the keys make, of an object's place and its table."""
        ...

    def digest(self, frame: Frame, plain: Buffer) -> bytes:
        """32 bytes that only the keys make, of a frame's place and plaintext."""
        ...

    def encrypt(self, frame: Frame, plain: Buffer, out: memoryview) -> None:
        """Write ciphertext and tag of a frame whose digest is known."""
        ...

    def decrypt(self, frame: Frame, data: Buffer, out: memoryview) -> bool:
        """Inverse of :meth:`encrypt`; False, with nothing of it in ``out``, where a byte of
        ``data`` or anything of ``frame`` is not as it was encrypted."""
        ...


class FrameTable:
    """The frames of an object, and where they lie.

    Attributes
    ----------
    frames
        In their order; their plaintexts one after the other are the object.
    size_bytes
        Of the object.
    stored_bytes
        Of the object as it is stored.
    """

    def __init__(self, frames: Sequence[Frame]) -> None:
        self.frames = tuple(frames)
        self._starts = [0, *accumulate(frame.size_bytes for frame in frames)]
        self.size_bytes = self._starts[-1]
        self.body_start = table_end(len(self.frames))
        self.stored_bytes = stored_bytes(len(self.frames), self.size_bytes)

    def start(self, index: int) -> int:
        """Where the plaintext of a frame begins in the object."""
        return self._starts[index]

    def stored_start(self, index: int) -> int:
        """Where the ciphertext of a frame begins in what is stored."""
        return self.body_start + self._starts[index] + index * TAG_BYTES

    def index_at(self, offset: int) -> int:
        """The frame that holds a byte of the object."""
        return bisect_right(self._starts, offset) - 1

    def encode(self, cipher: FrameCipher, place: bytes) -> bytes:
        """Everything that is stored before the frames."""
        rows = b"".join(_ROW.pack(f.size_bytes, f.digest) for f in self.frames)
        table = MAGIC + _COUNT.pack(len(self.frames)) + rows
        return table[: -len(rows)] + cipher.authenticator(place, table) + rows


def table_end(count: int) -> int:
    """Where the frames begin behind a table of ``count`` rows."""
    return _FIXED_BYTES + count * _ROW.size


def stored_bytes(count: int, size_bytes: int) -> int:
    """Bytes of an object of ``size_bytes`` bytes in ``count`` frames as it is stored."""
    return table_end(count) + size_bytes + count * TAG_BYTES


def undecryptable(sentence: str, at: str = "", hint: str = "") -> FormatError:
    """The refusal of something that cannot be decrypted."""
    return FormatError(sentence, fault=Fault.DECRYPTION, at=at, hint=hint)


def read_table(
    read: Callable[[int, int], bytes],
    *,
    file_size: int,
    cipher: FrameCipher,
    place: bytes,
    first: bytes,
) -> FrameTable:
    """Read and verify the table of an object.

    Parameters
    ----------
    read
        ``read(offset, size_bytes)`` of what is stored.
    file_size
        Bytes that are stored.
    place
        Kind and name under which it is stored.
    first
        The first bytes of what is stored, read already.

    Raises
    ------
    FormatError
        ``DECRYPTION``: it is not encrypted, was encrypted with another key or for another place,
        was changed, or is shorter or longer than its frames.
    """
    if first[: len(MAGIC)] != MAGIC:
        raise undecryptable(
            "it lies there unencrypted, and the trust domain asks for encryption",
            hint="handing it off again replaces it",
        )
    if len(first) < _FIXED_BYTES:
        raise undecryptable("it ends within its table of frames", "$.table")
    (count,) = _COUNT.unpack_from(first, len(MAGIC))
    if not 1 <= count <= MAX_FRAMES or table_end(count) > file_size:
        raise undecryptable(f"a table of {count} frames", "$.table")
    end = table_end(count)
    start = first[:end] if len(first) >= end else read(0, end)
    head, rows = start[: len(MAGIC) + _COUNT.size], start[_FIXED_BYTES:]
    promised = start[len(head) : _FIXED_BYTES]
    # Plain comparison will do: whoever can write to the store gains nothing from its timing that
    # the equality of two objects does not show.
    if cipher.authenticator(place, head + rows) != promised:
        raise undecryptable("its table of frames was made with another key or changed", "$.table")
    frames = [
        Frame(place, index, count, size_bytes, digest)
        for index, (size_bytes, digest) in enumerate(_ROW.iter_unpack(rows))
    ]
    _check_sizes(frames, file_size)
    return FrameTable(frames)


def _check_sizes(frames: Sequence[Frame], file_size: int) -> None:
    total = sum(frame.size_bytes for frame in frames)
    if total > MAX_SEGMENT_BYTES or any(f.size_bytes > MAX_FRAME_BYTES for f in frames):
        raise undecryptable(f"frames of {total} bytes", "$.table")
    wanted = stored_bytes(len(frames), total)
    if wanted != file_size:
        raise undecryptable(f"{file_size} bytes are stored, its frames have {wanted}", "$.table")


def segment_pieces(first: Buffer, size_bytes: int) -> list[int]:
    """Sizes of the pieces of a segment that are encrypted one by one: header, then layer ranges.

    Parameters
    ----------
    first
        The segment's header, or more.
    size_bytes
        Of the whole segment.

    Returns
    -------
    list of int
        One piece, the whole, where the bytes are no segment.
    """
    length = int.from_bytes(bytes(first[:LENGTH_FIELD_BYTES]), "little") + LENGTH_FIELD_BYTES
    if length % ALIGNMENT or length > min(len(first), MAX_HEADER_BYTES):
        return [size_bytes]
    text = bytes(first[LENGTH_FIELD_BYTES:length]).decode("latin-1")
    try:
        inner, _ = (
            _decoder.raw_decode(text, len(_OPENING)) if text.startswith(_OPENING) else ("", 0)
        )
        ranges = [(part["start"], part["stop"]) for part in json.loads(inner)["ranges"]]
    except (ValueError, TypeError, KeyError):
        return [size_bytes]
    stops = [0, *(stop for _, stop in ranges)]
    ascend = all(type(stop) is int for stop in stops) and stops == sorted(stops)
    adjoin = [start for start, _ in ranges] == stops[:-1] and stops[-1] == size_bytes - length
    if not (ascend and adjoin and 1 <= len(ranges) <= MAX_LAYERS):
        return [size_bytes]
    return [length, *(stop - start for start, stop in ranges)]
