"""``memory://name``: a store in this process, for tests and for agents that share one process."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from typing import ClassVar
from weakref import WeakValueDictionary

from kvbaton.errors import InputError, NotFound, StoreFull
from kvbaton.stores.base import (
    Entry,
    Key,
    Kind,
    Reader,
    Store,
    byte_views,
    check_range,
    claim_by_put,
)
from kvbaton.stores.eviction import may_be_evicted, rank_of
from kvbaton.stores.urls import StoreURL


class _Shelf:
    """The objects of one name, oldest use first."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[Key, tuple[bytes, float]] = {}

    def used_bytes(self) -> int:
        return sum(len(data) for data, _ in self.objects.values())

    def renew(self, key: Key) -> bytes:
        data, _ = self.objects.pop(key)
        self.objects[key] = (data, time.time())
        return data


class MemoryStore(Store):
    """Objects in this process's memory.

    Stores of the same name share their objects, so a URL is enough to find them, until
    :meth:`forget`.  A store without a name gets one of its own, and its objects go with the last
    store of that name.

    Parameters
    ----------
    name
        The name; a fresh one where none is given.
    max_bytes
        Size limit: the objects that were not used for longest give way.
    """

    _named: ClassVar[dict[str, _Shelf]] = {}
    _anonymous: ClassVar[WeakValueDictionary[str, _Shelf]] = WeakValueDictionary()
    _numbers: ClassVar[Iterator[int]] = itertools.count(1)
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, name: str | None = None, *, max_bytes: int | None = None) -> None:
        with self._lock:
            self.name = f"anonymous-{next(self._numbers)}" if name is None else name
            self._shelf = self._find(self.name, keep=name is not None)
        self._max_bytes = max_bytes
        options = () if max_bytes is None else (("max_bytes", str(max_bytes)),)
        self.url = str(StoreURL("memory", self.name, options))

    @classmethod
    def _find(cls, name: str, *, keep: bool) -> _Shelf:
        shelf = cls._named.get(name) or cls._anonymous.get(name)
        if shelf is None:
            shelf = _Shelf()
            (cls._named if keep else cls._anonymous)[name] = shelf
        return shelf

    @classmethod
    def from_url(cls, url: StoreURL) -> MemoryStore:
        """``memory://name?max_bytes=...``; the name may not be empty."""
        url.allow_options("max_bytes")
        if not url.location:
            raise InputError("memory:// needs a name", hint="write memory://name")
        return cls(url.location, max_bytes=url.size_option("max_bytes"))

    @classmethod
    def forget(cls, name: str) -> None:
        """Drop the objects of a name; open stores of that name keep theirs."""
        with cls._lock:
            cls._named.pop(name, None)
            cls._anonymous.pop(name, None)

    def put(self, key: Key, parts: Sequence[memoryview | bytes]) -> int:
        """See :meth:`Store.put`; the bytes are copied."""
        data = b"".join(byte_views(parts))
        with self._shelf.lock:
            if key in self._shelf.objects:
                self._shelf.renew(key)
                return 0
            self._make_room(len(data))
            self._shelf.objects[key] = (data, time.time())
        return len(data)

    def _make_room(self, size_bytes: int) -> None:
        if self._max_bytes is None:
            return
        if size_bytes > self._max_bytes:
            raise StoreFull(f"{size_bytes} bytes are needed, the store may hold {self._max_bytes}")
        excess = self._shelf.used_bytes() + size_bytes - self._max_bytes
        going = sorted(filter(may_be_evicted, self._shelf.objects), key=rank_of)
        if excess > sum(len(self._shelf.objects[key][0]) for key in going):
            raise StoreFull(f"{size_bytes} bytes are needed, what may not be evicted leaves less")
        for key in going:
            if excess <= 0:
                break
            excess -= len(self._shelf.objects.pop(key)[0])

    def open(self, key: Key) -> Reader:
        """See :meth:`Store.open`; counts as a use."""
        with self._shelf.lock:
            if key not in self._shelf.objects:
                raise NotFound(f"{key} is not in the store")
            return _MemoryReader(key, self._shelf.renew(key))

    def delete(self, key: Key) -> bool:
        """See :meth:`Store.delete`; open readers keep their bytes."""
        with self._shelf.lock:
            return self._shelf.objects.pop(key, None) is not None

    def claim(self, key: Key, data: bytes) -> bool:
        """See :meth:`Store.claim`; lasts as long as the process, like everything here."""
        return claim_by_put(self, key, data)

    def exists(self, key: Key) -> bool:
        """See :meth:`Store.exists`; does not count as a use."""
        return key in self._shelf.objects

    def list(self, kind: Kind) -> Iterator[Entry]:
        """See :meth:`Store.list`; a snapshot."""
        with self._shelf.lock:
            held = [(k, len(d), at) for k, (d, at) in self._shelf.objects.items() if k.kind is kind]
        return (Entry(key, size_bytes, at) for key, size_bytes, at in held)

    def free_bytes(self) -> int | None:
        """See :meth:`Store.free_bytes`; None without a limit."""
        if self._max_bytes is None:
            return None
        with self._shelf.lock:
            return max(0, self._max_bytes - self._shelf.used_bytes())


class _MemoryReader(Reader):
    def __init__(self, key: Key, data: bytes) -> None:
        self.size_bytes = len(data)
        self._key = key
        self._data = data

    def read_into(self, offset: int, buffer: memoryview) -> None:
        view = check_range(self._key, offset, buffer, self.size_bytes)
        view[:] = memoryview(self._data)[offset : offset + view.nbytes]
