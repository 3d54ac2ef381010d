"""A store that fails on demand, and remembers what it was asked.

::

    gate = threading.Event()
    store = FaultyStore(
        MemoryStore(),
        StoreFault("read", Stall(gate), kind=Kind.SEGMENT, nth=3),
        StoreFault("put", Fail(StoreFull("no room")), kind=Kind.BATON),
    )

The store can be found by its URL within the process, like a ``memory://`` store.
"""

from __future__ import annotations

import builtins
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal
from weakref import WeakValueDictionary

from kvbaton.errors import InputError, NotFound, StoreError, StoreTimeout
from kvbaton.stores import (
    Entry,
    Key,
    Kind,
    Reader,
    Store,
    StoreURL,
    byte_views,
    check_range,
    register_store,
)
from kvbaton.stores.leases import DEFAULT_TTL_S, Debris, Lease, LeaseInfo, Removal

Operation = Literal["put", "open", "read", "delete", "list", "exists", "claim", "lease"]


@dataclass(frozen=True, slots=True)
class StoreCall:
    """One call: for ``read`` the range, for ``put`` and ``claim`` the size; ``key`` is None for
    ``list`` and ``lease``, of which all are of kind ``segments``."""

    operation: Operation
    kind: Kind
    key: Key | None
    offset: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Fail:
    """The call raises ``error``; the store under it is not asked."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Stall:
    """The call waits for ``until``, which the test owns, and then goes on as usual.

    ``began`` is set when a call starts to wait.  After ``limit_s`` seconds it raises
    ``StoreTimeout``, so that a test that forgets to set its event ends.
    """

    until: threading.Event
    began: threading.Event = field(default_factory=threading.Event)
    limit_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Shorten:
    """Only the first ``size_bytes`` bytes get through.

    ``open``: the object looks that short.  ``read``: that much of the range arrives, then
    ``StoreError``.  ``put``: that much is stored, and the put reports success.
    """

    size_bytes: int


@dataclass(frozen=True, slots=True)
class Corrupt:
    """The byte at offset ``at`` of the object is XORed with ``mask``, on a ``read`` that covers
    it or on a ``put``."""

    at: int
    mask: int = 0x01


@dataclass(frozen=True, slots=True)
class Do:
    """``action`` runs before the call, with the key (None for ``list``); then it goes on."""

    action: Callable[[Key | None], None]


Effect = Fail | Stall | Shorten | Corrupt | Do
_EFFECTS: dict[type, set[str]] = {
    Shorten: {"open", "read", "put"},
    Corrupt: {"read", "put"},
}


@dataclass(frozen=True, slots=True)
class StoreFault:
    """When an effect takes place.

    Parameters
    ----------
    on
        The operation that it befalls.
    effect
        What happens.
    kind, key
        Only for objects of this kind, only for this object.
    nth
        Only the n-th call that matches, counted from 1; every one where None.
    offset
        Only a read whose range covers this byte.

    Raises
    ------
    InputError
        The effect is not possible on the operation.
    """

    on: Operation
    effect: Effect
    kind: Kind | None = None
    key: Key | None = None
    nth: int | None = None
    offset: int | None = None

    def __post_init__(self) -> None:
        allowed = _EFFECTS.get(type(self.effect))
        if allowed is not None and self.on not in allowed:
            raise InputError(f"{type(self.effect).__name__} is not possible on {self.on}")

    def matches(self, call: StoreCall) -> bool:
        """Whether a call is one that the fault is about, its number aside."""
        covered = self.offset is None or (
            call.offset <= self.offset < call.offset + call.size_bytes
        )
        return (
            self.on == call.operation
            and self.kind in (None, call.kind)
            and self.key in (None, call.key)
            and covered
        )


class FaultyStore(Store):
    """Passes calls to another store, with faults.

    Parameters
    ----------
    inner
        The store that does the work.
    faults
        What goes wrong; more can be added by :meth:`inject`.
    """

    _numbers: ClassVar[Iterator[int]] = itertools.count(1)
    _open: ClassVar[WeakValueDictionary[str, FaultyStore]] = WeakValueDictionary()

    def __init__(self, inner: Store, *faults: StoreFault) -> None:
        self.inner = inner
        self._lock = threading.Lock()
        self._calls: list[StoreCall] = []
        self._faults: list[tuple[StoreFault, Iterator[int]]] = []
        self.inject(*faults)
        name = str(next(self._numbers))
        self._open[name] = self
        self.url = str(StoreURL("faulty", name))
        register_store("faulty", "kvbaton.testing.faults:FaultyStore")

    @classmethod
    def from_url(cls, url: StoreURL) -> FaultyStore:
        """The store of that URL in this process."""
        url.allow_options()
        try:
            return cls._open[url.location]
        except KeyError as error:
            raise NotFound(f"no faulty store {url.location!r} is open") from error

    def inject(self, *faults: StoreFault) -> None:
        """Add faults; their calls are counted from now on."""
        with self._lock:
            self._faults += [(fault, itertools.count(1)) for fault in faults]

    def heal(self) -> None:
        """Remove every fault."""
        with self._lock:
            self._faults.clear()

    @property
    def calls(self) -> tuple[StoreCall, ...]:
        """Every call so far, in order."""
        with self._lock:
            return tuple(self._calls)

    def count(self, operation: Operation, kind: Kind | None = None) -> int:
        """Calls of an operation so far."""
        return sum(c.operation == operation and kind in (None, c.kind) for c in self.calls)

    def put(self, key: Key, parts: Sequence[memoryview | bytes]) -> int:
        """See :meth:`Store.put`."""
        views = byte_views(parts)
        size_bytes = sum(view.nbytes for view in views)
        effects = self.befall(StoreCall("put", key.kind, key, 0, size_bytes))
        if not effects:
            return self.inner.put(key, parts)
        data = bytearray(b"".join(views))
        _corrupt(memoryview(data), 0, effects)
        stored = self.inner.put(key, [bytes(data[: _limit(effects, size_bytes)])])
        return size_bytes if stored else 0

    def open(self, key: Key) -> Reader:
        """See :meth:`Store.open`."""
        effects = self.befall(StoreCall("open", key.kind, key))
        reader = self.inner.open(key)
        return _FaultyReader(self, key, reader, _limit(effects, reader.size_bytes))

    def look(self, key: Key) -> Reader:
        """See :meth:`Store.look`; an ``open`` like any other."""
        effects = self.befall(StoreCall("open", key.kind, key))
        reader = self.inner.look(key)
        return _FaultyReader(self, key, reader, _limit(effects, reader.size_bytes))

    def delete(self, key: Key) -> bool:
        """See :meth:`Store.delete`."""
        self.befall(StoreCall("delete", key.kind, key))
        return self.inner.delete(key)

    def list(self, kind: Kind) -> Iterator[Entry]:
        """See :meth:`Store.list`."""
        self.befall(StoreCall("list", kind, None))
        return self.inner.list(kind)

    def claim(self, key: Key, data: bytes) -> bool:
        """See :meth:`Store.claim`."""
        self.befall(StoreCall("claim", key.kind, key, 0, len(data)))
        return self.inner.claim(key, data)

    def exists(self, key: Key) -> bool:
        """See :meth:`Store.exists`."""
        self.befall(StoreCall("exists", key.kind, key))
        return self.inner.exists(key)

    def lease(
        self,
        keys: Iterable[Key] = (),
        *,
        owner: str,
        ttl_s: float = DEFAULT_TTL_S,
        beats: bool = True,
    ) -> Lease:
        """See :meth:`Store.lease`."""
        self.befall(StoreCall("lease", Kind.SEGMENT, None))
        return self.inner.lease(keys, owner=owner, ttl_s=ttl_s, beats=beats)

    def leases(self) -> builtins.list[LeaseInfo]:
        """See :meth:`Store.leases`."""
        return self.inner.leases()

    def remove_unused(self, entries: Sequence[Entry]) -> builtins.list[Removal]:
        """See :meth:`Store.remove_unused`."""
        return self.inner.remove_unused(entries)

    def read_marks(self) -> bytes:
        """See :meth:`Store.read_marks`."""
        return self.inner.read_marks()

    def write_marks(self, data: bytes) -> None:
        """See :meth:`Store.write_marks`."""
        self.inner.write_marks(data)

    def sweep(self) -> Debris:
        """See :meth:`Store.sweep`."""
        return self.inner.sweep()

    def debris(self) -> Debris:
        """See :meth:`Store.debris`."""
        return self.inner.debris()

    def free_bytes(self) -> int | None:
        """See :meth:`Store.free_bytes`."""
        return self.inner.free_bytes()

    def close(self) -> None:
        """See :meth:`Store.close`."""
        self.inner.close()

    def befall(self, call: StoreCall) -> Sequence[Shorten | Corrupt]:
        """Record a call, let it fail or wait, and return what is to happen to its bytes."""
        with self._lock:
            self._calls.append(call)
            due = [
                fault.effect
                for fault, numbers in self._faults
                if fault.matches(call) and fault.nth in (None, next(numbers))
            ]
        on_bytes: list[Shorten | Corrupt] = []
        for effect in due:
            if isinstance(effect, Shorten | Corrupt):
                on_bytes.append(effect)
            else:
                _take_place(effect, call)
        return on_bytes


def _take_place(effect: Fail | Stall | Do, call: StoreCall) -> None:
    if isinstance(effect, Fail):
        raise effect.error
    if isinstance(effect, Do):
        effect.action(call.key)
        return
    effect.began.set()
    if not effect.until.wait(effect.limit_s):
        raise StoreTimeout(f"{call.operation} of {call.key} was stalled for {effect.limit_s} s")


def _limit(effects: Sequence[Shorten | Corrupt], size_bytes: int) -> int:
    return min([size_bytes, *(e.size_bytes for e in effects if isinstance(e, Shorten))])


def _corrupt(view: memoryview, offset: int, effects: Sequence[Shorten | Corrupt]) -> None:
    for effect in effects:
        if isinstance(effect, Corrupt) and offset <= effect.at < offset + view.nbytes:
            view[effect.at - offset] ^= effect.mask


class _FaultyReader(Reader):
    def __init__(self, store: FaultyStore, key: Key, inner: Reader, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.head_bytes = inner.head_bytes
        self._store = store
        self._key = key
        self._inner = inner

    def read_into(self, offset: int, buffer: memoryview) -> None:
        call = StoreCall("read", self._key.kind, self._key, offset, buffer.nbytes)
        effects = self._store.befall(call)
        view = check_range(self._key, offset, buffer, self.size_bytes)
        arrived = _limit(effects, view.nbytes)
        self._inner.read_into(offset, view[:arrived])
        _corrupt(view[:arrived], offset, effects)
        if arrived < view.nbytes:
            raise StoreError(f"{self._key}: {arrived} of {view.nbytes} bytes arrived")

    def close(self) -> None:
        self._inner.close()
