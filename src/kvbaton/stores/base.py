"""The store interface: immutable objects under typed keys; bytes out = bytes in, or an error."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Self

from kvbaton.errors import Fault, FormatError, InputError, NotFound, StoreError, UnknownScheme
from kvbaton.stores.urls import StoreURL

_NAME = re.compile(r"[0-9a-f]{64}")


class Kind(StrEnum):
    """What an object is; each kind has its own folder."""

    SEGMENT = "segments"
    BATON = "batons"
    TRANSCRIPT = "transcripts"
    PREFIX = "prefixes"


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Name of an object: its kind and 64 lower-case hex digits.

    Raises
    ------
    InputError
        The name is anything else, so no name can leave the store (path traversal is inert).
    """

    kind: Kind
    name: str

    def __post_init__(self) -> None:
        if not self.is_name(self.name):
            raise InputError(
                f"not an object name: {self.name[:80]!r}", hint="names are 64 hexadecimal digits"
            )

    @staticmethod
    def is_name(text: str) -> bool:
        """Whether a text is 64 lower-case hexadecimal digits."""
        return _NAME.fullmatch(text) is not None

    def __str__(self) -> str:
        return f"{self.kind.value}/{self.name}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One object in a listing.  ``modified_s`` is seconds since the epoch of the last use."""

    key: Key
    size_bytes: int
    modified_s: float


class Reader(ABC):
    """An open object: reads ranges into the caller's memory.  A context manager."""

    size_bytes: int

    @abstractmethod
    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the object's bytes from ``offset`` on.

        Raises
        ------
        NotFound
            The object vanished.
        StoreError
            The bytes could not be read, or the object is shorter than that.
        """

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Return ``size_bytes`` bytes from ``offset`` on."""
        buffer = bytearray(size_bytes)
        self.read_into(offset, memoryview(buffer))
        return bytes(buffer)

    def close(self) -> None:  # noqa: B027 - an open object need not hold anything
        """Let go of whatever the reader holds; may be called twice."""

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Store(ABC):
    """Where segments, batons, transcripts and prefix records live.

    A key names its content: it is put once, and a second put of the same key changes nothing.
    All methods may be called from several threads and processes at once.
    """

    url: str

    @classmethod
    def from_url(cls, url: StoreURL) -> Store:
        """Open the store that a parsed URL names.

        Raises
        ------
        UnknownScheme
            This store cannot be opened by a URL.
        InputError
            The URL has an option or a location that the store does not understand.
        """
        raise UnknownScheme(f"{cls.__name__} cannot be opened by a URL", at=url.scheme)

    @abstractmethod
    def put(self, key: Key, parts: Sequence[memoryview | bytes]) -> int:
        """Store the concatenation of ``parts`` atomically under ``key``; return the bytes written.

        Returns 0, writing nothing, when the key already exists (its age is renewed).

        Raises
        ------
        StoreFull
            No room for it; nothing is left behind.
        StoreError
            It could not be written; nothing is left behind.
        """

    @abstractmethod
    def open(self, key: Key) -> Reader:
        """Open an object for range reads.

        Raises
        ------
        NotFound
            There is no such object.
        """

    @abstractmethod
    def delete(self, key: Key) -> bool:
        """Remove an object; False where there was none."""

    @abstractmethod
    def list(self, kind: Kind) -> Iterator[Entry]:
        """Entries of one kind, oldest first."""

    def exists(self, key: Key) -> bool:
        """Whether the store holds the object."""
        try:
            self.open(key).close()
        except NotFound:
            return False
        return True

    def get(self, key: Key, *, limit_bytes: int) -> bytes:
        """Read a whole small object.

        Raises
        ------
        NotFound
            There is no such object.
        FormatError
            It is larger than ``limit_bytes``; nothing was allocated for it.
        """
        with self.open(key) as reader:
            if reader.size_bytes > limit_bytes:
                raise FormatError(
                    f"{key} has {reader.size_bytes} bytes, more than the {limit_bytes} allowed",
                    fault=Fault.TOO_LARGE,
                )
            return reader.read(0, reader.size_bytes)

    def free_bytes(self) -> int | None:
        """Bytes that can be put before anything is evicted or refused; None where unknown."""
        return None

    def close(self) -> None:  # noqa: B027 - most stores hold nothing open
        """Let go of connections; the store may not be used afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def byte_views(parts: Sequence[memoryview | bytes]) -> list[memoryview]:
    """Views of the parts as flat bytes, empty ones left out; nothing is copied.

    Raises
    ------
    InputError
        A part is not contiguous in memory.
    """
    views = [memoryview(part) for part in parts]
    if not all(view.c_contiguous for view in views):
        raise InputError("a part of an object is not contiguous in memory")
    return [view.cast("B") for view in views if view.nbytes]


def check_range(what: object, offset: int, buffer: memoryview, size_bytes: int) -> memoryview:
    """The buffer as flat bytes, once it is known to be writable and inside the object.

    Raises
    ------
    InputError
        The buffer is read-only or not contiguous.
    StoreError
        The object does not have these bytes.
    """
    if buffer.readonly or not buffer.c_contiguous:
        raise InputError("a buffer to read into must be writable and contiguous")
    stop = offset + buffer.nbytes
    if offset < 0 or stop > size_bytes:
        raise StoreError(f"{what} has {size_bytes} bytes, not bytes {offset} to {stop}")
    return buffer.cast("B") if buffer.nbytes else memoryview(bytearray())
