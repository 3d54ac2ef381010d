"""The store interface: immutable objects under typed keys; bytes out = bytes in, or an error."""

from __future__ import annotations

import builtins
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Self

from kvbaton.errors import (
    Fault,
    FormatError,
    InputError,
    NotFound,
    StoreError,
    UnknownScheme,
    Unsupported,
)
from kvbaton.stores.leases import (
    DEFAULT_TTL_S,
    Debris,
    Lease,
    LeaseInfo,
    Removal,
    cannot_lease,
)
from kvbaton.stores.urls import StoreURL

_NAME = re.compile(r"[0-9a-f]{64}")


class Kind(StrEnum):
    """What an object is; each kind has its own folder."""

    SEGMENT = "segments"
    BATON = "batons"
    TRANSCRIPT = "transcripts"
    PREFIX = "prefixes"
    SPENT = "spent"
    """What was claimed, once and for all; never evicted."""


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
    """One object in a listing.

    ``size_bytes`` is what it takes in the store, which is more than was put where a store encrypts.
    ``modified_s`` is seconds since the epoch of the last use.
    """

    key: Key
    size_bytes: int
    modified_s: float


class Reader(ABC):
    """An open object: reads ranges into the caller's memory.  A context manager.

    ``size_bytes`` are its bytes, ``head_bytes`` those at its beginning that are as good as free
    once the first is read.
    """

    size_bytes: int
    head_bytes: int = 16 << 10

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
    """Where segments, batons, transcripts, prefix records and spent claims live.

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

    def look(self, key: Key) -> Reader:
        """Open an object as :meth:`open` does, without this counting as a use where the store can
        tell: who goes through everything must not make everything young.
        """
        return self.open(key)

    def get(self, key: Key, *, limit_bytes: int) -> bytes:
        """Read a whole small object.

        Raises
        ------
        NotFound
            There is no such object.
        FormatError
            It is larger than ``limit_bytes``; nothing was allocated for it.
        """
        return read_whole(self.open(key), key, limit_bytes=limit_bytes)

    def claim(self, key: Key, data: bytes) -> bool:
        """Put a record under a name of kind ``spent``, unless one is there.

        True for exactly one caller among all threads and processes, also after a crash or a
        restart: the record lies where it lasts before this returns, it is never evicted, and
        whoever comes later gets False.  A call that raises may have claimed the name.

        The base class cannot know whether a store's ``put`` decides between two writers, so it
        refuses; a store whose ``put`` does, and lasts, may use :func:`claim_by_put`.

        Raises
        ------
        Unsupported
            The store cannot decide between two callers.
        InputError
            The key is of another kind, or there are no bytes.
        StoreError
            The record could not be written.
        """
        check_claim(key, data)
        raise cannot_claim(self.url)

    def lease(
        self,
        keys: Iterable[Key] = (),
        *,
        owner: str,
        ttl_s: float = DEFAULT_TTL_S,
        beats: bool = True,
    ) -> Lease:
        """Keep objects from being evicted or collected: see :class:`Lease`.

        An object that is there when this returns stays there; one that is put later stays from
        then on.  :meth:`delete` removes it all the same.

        Parameters
        ----------
        keys
            The objects, there or not; :meth:`Lease.extend` adds others.
        owner
            Who leases, for those who look: 1 to 200 printable characters.
        ttl_s
            The lease ends when its owner has not beaten for so many seconds.
        beats
            Whether a thread of this process beats for it.

        Raises
        ------
        Unsupported
            Looking and removing are two steps in this store.
        InputError
            The owner, the time or the number of objects is out of bounds.
        StoreError
            It could not be written down.
        """
        del keys, owner, ttl_s, beats
        raise cannot_lease(self.url)

    def leases(self) -> builtins.list[LeaseInfo]:
        """All leases, those of dead owners among them.

        Raises
        ------
        Unsupported
            The store has none.
        """
        raise cannot_lease(self.url)

    def remove_unused(self, entries: Sequence[Entry]) -> builtins.list[Removal]:
        """Remove objects that nobody leases, and that have not been used since they were listed.

        Looking and removing are one step, which no lease, put or open can come between.

        Returns
        -------
        list of Removal
            What became of each.

        Raises
        ------
        Unsupported
            They are two steps in this store.
        StoreError
            Some could not be removed; others may have been.
        """
        del entries
        raise cannot_lease(self.url)

    def read_marks(self) -> bytes:
        """What the last collection has remembered for the next; empty where there was none.

        Raises
        ------
        Unsupported
            The store cannot be collected.
        """
        raise cannot_lease(self.url)

    def write_marks(self, data: bytes) -> None:
        """Remember something for the next collection; who dies meanwhile leaves it cut short.

        Raises
        ------
        Unsupported
            The store cannot be collected.
        """
        del data
        raise cannot_lease(self.url)

    def sweep(self) -> Debris:
        """Remove what owners and writers that died have left behind; says what there was.

        Raises
        ------
        StoreError
            It cannot be removed.
        """
        return Debris()

    def debris(self) -> Debris:
        """What :meth:`sweep` would remove."""
        return Debris()

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


def read_whole(reader: Reader, key: Key, *, limit_bytes: int) -> bytes:
    """All bytes of an open object, which is closed.

    Raises
    ------
    FormatError
        It is larger than ``limit_bytes``; nothing was allocated for it.
    """
    with reader:
        if reader.size_bytes > limit_bytes:
            raise FormatError(
                f"{key} has {reader.size_bytes} bytes, more than the {limit_bytes} allowed",
                fault=Fault.TOO_LARGE,
            )
        return reader.read(0, reader.size_bytes)


def check_claim(key: Key, data: bytes) -> None:
    """Refuse claims that would not last or could not be told from a lost one.

    Raises
    ------
    InputError
        The key is not of kind ``spent``, or there are no bytes.
    """
    if key.kind is not Kind.SPENT:
        raise InputError(f"{key} cannot be claimed", hint="names of kind spent can")
    if not data:
        raise InputError("a claim needs at least one byte")


def cannot_claim(url: str) -> Unsupported:
    """The refusal of a store that cannot decide between two callers."""
    return Unsupported(
        "the store cannot claim a name for exactly one caller, so nothing can be used once in it",
        at=url,
        hint="a dir:// store can",
    )


def claim_by_put(store: Store, key: Key, data: bytes) -> bool:
    """:meth:`Store.claim` for a store whose ``put`` writes for exactly one of several callers at
    once, and has what it wrote on lasting memory when it returns.

    Raises
    ------
    InputError, StoreError
        See :meth:`Store.claim`.
    """
    check_claim(key, data)
    return store.put(key, [data]) > 0


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
