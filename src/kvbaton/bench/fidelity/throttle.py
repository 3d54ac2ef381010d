"""A store behind a slow line."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from threading import Lock

from kvbaton.stores import Key, Kind, Store
from kvbaton.stores.base import Entry, Reader


class ThrottledStore(Store):
    """Another store, at a limited number of bytes per second in either direction.

    Parameters
    ----------
    inner
        Where the objects are.
    bytes_per_s
        Speed of the line; all readers and writers of one store share it, one after the other.
    wait
        Waits for so many seconds.
    """

    def __init__(
        self, inner: Store, bytes_per_s: float, *, wait: Callable[[float], None] = time.sleep
    ) -> None:
        self.inner, self.url = inner, inner.url
        self.bytes_per_s, self._wait = bytes_per_s, wait
        self._owed_s, self._line = 0.0, Lock()

    def moved(self, size_bytes: int) -> None:
        """Wait as long as so many bytes take; short waits are gathered, for clocks are coarse."""
        with self._line:
            self._owed_s += size_bytes / self.bytes_per_s
            if self._owed_s > 1e-3:
                started = time.perf_counter()
                self._wait(self._owed_s)
                self._owed_s -= max(self._owed_s, time.perf_counter() - started)

    def put(self, key: Key, parts: Sequence[memoryview | bytes]) -> int:
        """See :meth:`Store.put`."""
        written = self.inner.put(key, parts)
        self.moved(written)
        return written

    def open(self, key: Key) -> Reader:
        """See :meth:`Store.open`."""
        return _ThrottledReader(self.inner.open(key), self)

    def delete(self, key: Key) -> bool:
        """See :meth:`Store.delete`."""
        return self.inner.delete(key)

    def list(self, kind: Kind) -> Iterator[Entry]:
        """See :meth:`Store.list`."""
        return self.inner.list(kind)

    def exists(self, key: Key) -> bool:
        """See :meth:`Store.exists`."""
        return self.inner.exists(key)


class _ThrottledReader(Reader):
    def __init__(self, inner: Reader, store: ThrottledStore) -> None:
        self._inner, self._store = inner, store
        self.size_bytes = inner.size_bytes

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self._inner.read_into(offset, buffer)
        self._store.moved(buffer.nbytes)

    def close(self) -> None:
        self._inner.close()
