"""How fast a store is: by a store whose clock is moved by what is asked of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from kvbaton.bench import store_speed
from kvbaton.bench.fidelity.throttle import ThrottledStore
from kvbaton.bench.store_speed import measure_store
from kvbaton.errors import StoreError
from kvbaton.stores import Key, Kind, MemoryStore, Store
from kvbaton.stores.base import Entry, Reader


class SlowStore(Store):
    """A store in memory that takes a known time for everything, by a clock of its own."""

    def __init__(self, *, open_s: float, read_s: float, bytes_per_s: float) -> None:
        self.inner, self.url, self.now = MemoryStore(), "slow://", 0.0
        self.open_s, self.read_s, self.bytes_per_s = open_s, read_s, bytes_per_s
        self.moved_bytes = 0

    def put(self, key: Key, parts: Sequence[memoryview | bytes]) -> int:
        """Takes as long as its bytes at half of the speed."""
        written = self.inner.put(key, parts)
        self.now += 2 * written / self.bytes_per_s
        return written

    def open(self, key: Key) -> Reader:
        """Takes its time."""
        self.now += self.open_s
        return _SlowReader(self, self.inner.open(key))

    def delete(self, key: Key) -> bool:
        """Takes none."""
        return self.inner.delete(key)

    def list(self, kind: Kind) -> Iterator[Entry]:
        """Takes none."""
        return self.inner.list(kind)


class _SlowReader(Reader):
    def __init__(self, store: SlowStore, inner: Reader) -> None:
        self.size_bytes, self._store, self._inner = inner.size_bytes, store, inner

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self._inner.read_into(offset, buffer)
        self._store.now += self._store.read_s + buffer.nbytes / self._store.bytes_per_s
        self._store.moved_bytes += buffer.nbytes


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowStore:
    """5 ms to open, 2 ms to ask, 20 MB/s."""
    store = SlowStore(open_s=5e-3, read_s=2e-3, bytes_per_s=2e7)
    monkeypatch.setattr(store_speed, "time", SimpleNamespace(perf_counter=lambda: store.now))
    return store


def test_opening_asking_and_moving_are_told_apart(slow: SlowStore) -> None:
    """Each is found as it is."""
    found = measure_store(slow)
    assert found.open_s == pytest.approx(5e-3, rel=0.01)
    assert found.read_s == pytest.approx(2e-3, rel=0.01)
    assert found.get_bytes_per_s == pytest.approx(2e7, rel=0.01)
    assert found.put_bytes_per_s == pytest.approx(1e7, rel=0.01)


def test_nothing_is_left_in_the_store(slow: SlowStore) -> None:
    """Neither after success nor after a failure."""
    measure_store(slow)
    assert not any(list(slow.list(kind)) for kind in Kind)

    def broken(key: Key) -> Reader:
        raise StoreError("no")

    slow.open = broken  # type: ignore[method-assign]
    with pytest.raises(StoreError):
        measure_store(slow)
    assert not any(list(slow.list(kind)) for kind in Kind)


def test_a_slow_store_is_asked_for_little(slow: SlowStore) -> None:
    """At 100 kB/s a quarter of a megabyte is enough; it is read once."""
    slow.bytes_per_s = 1e5
    measure_store(slow)
    assert slow.moved_bytes < 300_000


def test_a_fast_store_is_not_judged_by_its_first_kilobytes(slow: SlowStore) -> None:
    """At 10 GB/s objects of many megabytes are read."""
    slow.open_s, slow.read_s, slow.bytes_per_s = 1e-6, 1e-7, 1e10
    assert measure_store(slow).get_bytes_per_s == pytest.approx(1e10, rel=0.02)
    assert slow.moved_bytes > 30_000_000


def test_all_threads_share_a_throttled_line() -> None:
    """They wait as long together as their bytes take one after the other."""
    waited: list[float] = []
    line = ThrottledStore(MemoryStore(), 1e6, wait=waited.append)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(line.moved, [777] * 1000))
    assert sum(waited) == pytest.approx(0.777, abs=2e-3)
