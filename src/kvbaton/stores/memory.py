"""``memory://name``: a store in this process, for tests and for agents that share one process."""

from __future__ import annotations

import builtins
import itertools
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
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
from kvbaton.stores.lease_clock import SteadyClock, waking_clock
from kvbaton.stores.lease_memory import MemoryHolding
from kvbaton.stores.leases import (
    DEFAULT_TTL_S,
    Debris,
    Lease,
    LeaseInfo,
    LeaseState,
    LeaseTerms,
    Removal,
    checked_keys,
)
from kvbaton.stores.urls import StoreURL


class _Shelf:
    """The objects of one name, oldest use first."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[Key, tuple[bytes, float]] = {}
        self.holdings: list[MemoryHolding] = []
        self.marks = b""

    def protected(self) -> set[Key]:
        """What living leases protect; dead ones are removed first, so that their owners find out
        before they rely on them."""
        for holding in self.holdings:
            holding.ended |= holding.state() is LeaseState.DEAD
        self.holdings = [holding for holding in self.holdings if not holding.ended]
        return {key for holding in self.holdings for key in holding.keys}

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
    clock
        By which leases age, for tests; by default the time for which the machine has been awake.
    """

    _named: ClassVar[dict[str, _Shelf]] = {}
    _anonymous: ClassVar[WeakValueDictionary[str, _Shelf]] = WeakValueDictionary()
    _numbers: ClassVar[Iterator[int]] = itertools.count(1)
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(
        self,
        name: str | None = None,
        *,
        max_bytes: int | None = None,
        clock: SteadyClock | None = None,
    ) -> None:
        with self._lock:
            self.name = f"anonymous-{next(self._numbers)}" if name is None else name
            self._shelf = self._find(self.name, keep=name is not None)
        self._max_bytes, self._clock = max_bytes, clock or waking_clock()
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
        if excess <= 0:
            return
        leased = self._shelf.protected()
        may_go = [k for k in self._shelf.objects if may_be_evicted(k) and k not in leased]
        going = sorted(may_go, key=rank_of)
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

    def look(self, key: Key) -> Reader:
        """See :meth:`Store.look`."""
        with self._shelf.lock:
            if key not in self._shelf.objects:
                raise NotFound(f"{key} is not in the store")
            return _MemoryReader(key, self._shelf.objects[key][0])

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

    def lease(
        self,
        keys: Iterable[Key] = (),
        *,
        owner: str,
        ttl_s: float = DEFAULT_TTL_S,
        beats: bool = True,
    ) -> Lease:
        """See :meth:`Store.lease`; it ends with the process, like everything here."""
        terms, wanted = LeaseTerms(owner, ttl_s), checked_keys(keys)
        holding = MemoryHolding(terms, wanted, lock=self._shelf.lock, clock=self._clock)
        with self._shelf.lock:
            living = [one for one in self._shelf.holdings if not one.ended]
            self._shelf.holdings = [*living, holding]
        return Lease(terms, holding, wanted, beats=beats)

    def leases(self) -> builtins.list[LeaseInfo]:
        """See :meth:`Store.leases`."""
        with self._shelf.lock:
            return [holding.info() for holding in self._shelf.holdings if not holding.ended]

    def remove_unused(self, entries: Sequence[Entry]) -> builtins.list[Removal]:
        """See :meth:`Store.remove_unused`."""
        with self._shelf.lock:
            leased = self._shelf.protected()
            return [self._remove_unused(entry, leased) for entry in entries]

    def _remove_unused(self, entry: Entry, leased: set[Key]) -> Removal:
        if entry.key in leased:
            return Removal.LEASED
        held = self._shelf.objects.get(entry.key)
        if held is None:
            return Removal.ABSENT
        if held[1] != entry.modified_s:
            return Removal.USED
        del self._shelf.objects[entry.key]
        return Removal.DELETED

    def read_marks(self) -> bytes:
        """See :meth:`Store.read_marks`."""
        return self._shelf.marks

    def write_marks(self, data: bytes) -> None:
        """See :meth:`Store.write_marks`."""
        self._shelf.marks = data

    def sweep(self) -> Debris:
        """See :meth:`Store.sweep`."""
        with self._shelf.lock:
            before = len([holding for holding in self._shelf.holdings if not holding.ended])
            self._shelf.protected()
            return Debris(leases=before - len(self._shelf.holdings))

    def debris(self) -> Debris:
        """See :meth:`Store.debris`."""
        return Debris(leases=sum(info.state is LeaseState.DEAD for info in self.leases()))

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
