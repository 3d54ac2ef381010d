"""The store that fails on demand does just what it was told."""

import gc
import threading

import pytest
from tests.stores.disk import segment

from kvbaton import testing
from kvbaton.errors import InputError, NotFound, StoreError, StoreFull, StoreTimeout
from kvbaton.stores import Key, Kind, MemoryStore, open_store
from kvbaton.testing import (
    Corrupt,
    Do,
    Fail,
    FaultyStore,
    Shorten,
    Stall,
    StoreCall,
    StoreFault,
)

BATON = Key(Kind.BATON, f"{1:064x}")


@pytest.fixture
def store():
    """A store with one segment and no faults yet."""
    inner = MemoryStore()
    inner.put(segment(1), [b"0123456789"])
    return FaultyStore(inner)


def test_calls_are_recorded_in_order(store):
    """Every call is remembered with its key and range."""
    store.put(BATON, [b"ab", b"c"])
    with store.open(BATON) as reader:
        reader.read(1, 2)
    store.exists(BATON)
    list(store.list(Kind.BATON))
    store.delete(BATON)
    assert store.calls == (
        StoreCall("put", Kind.BATON, BATON, 0, 3),
        StoreCall("open", Kind.BATON, BATON),
        StoreCall("read", Kind.BATON, BATON, 1, 2),
        StoreCall("exists", Kind.BATON, BATON),
        StoreCall("list", Kind.BATON, None),
        StoreCall("delete", Kind.BATON, BATON),
    )
    assert store.count("read") == store.count("read", Kind.BATON) == 1
    assert store.count("read", Kind.SEGMENT) == 0


def test_the_nth_matching_call_fails(store):
    """A fault strikes once, at its number among the calls that match it."""
    store.inject(StoreFault("put", Fail(StoreFull("no room")), kind=Kind.SEGMENT, nth=2))
    assert store.put(segment(2), [b"x"]) == 1
    assert store.put(BATON, [b"x"]) == 1
    with pytest.raises(StoreFull):
        store.put(segment(3), [b"x"])
    assert not store.inner.exists(segment(3))
    assert store.put(segment(3), [b"x"]) == 1


def test_without_a_number_every_matching_call_fails(store):
    """A fault without a number strikes until the store is healed."""
    store.inject(StoreFault("open", Fail(NotFound("gone")), key=segment(1)))
    for _ in range(2):
        with pytest.raises(NotFound):
            store.open(segment(1))
    store.heal()
    assert store.get(segment(1), limit_bytes=10) == b"0123456789"


@pytest.mark.parametrize("operation", ["put", "open", "read", "delete", "list", "exists"])
def test_every_operation_can_fail(store, operation):
    """Each operation of a store raises what it was told to."""
    store.inject(StoreFault(operation, Fail(StoreError("broken"))))
    calls = {
        "put": lambda: store.put(segment(2), [b"x"]),
        "open": lambda: store.open(segment(1)),
        "read": lambda: store.get(segment(1), limit_bytes=10),
        "delete": lambda: store.delete(segment(1)),
        "list": lambda: store.list(Kind.SEGMENT),
        "exists": lambda: store.exists(segment(1)),
    }
    with pytest.raises(StoreError, match="broken"):
        calls[operation]()


def test_a_fault_at_an_offset_strikes_the_read_that_covers_it(store):
    """Of many range reads only the one with the byte fails."""
    store.inject(StoreFault("read", Fail(StoreError("bad sector")), offset=5))
    with store.open(segment(1)) as reader:
        assert reader.read(0, 5) == b"01234"
        assert reader.read(6, 4) == b"6789"
        with pytest.raises(StoreError, match="bad sector"):
            reader.read(5, 1)


def test_a_stall_waits_for_the_event(store):
    """A stalled read goes on when the test says so, and says when it began to wait."""
    stall = Stall(threading.Event())
    store.inject(StoreFault("read", stall))
    got = []
    reading = threading.Thread(target=lambda: got.append(store.get(segment(1), limit_bytes=10)))
    reading.start()
    assert stall.began.wait(60)
    assert got == []
    stall.until.set()
    reading.join()
    assert got == [b"0123456789"]


def test_a_forgotten_stall_ends_typed(store):
    """A stall whose event is never set raises StoreTimeout at its limit."""
    store.inject(StoreFault("open", Stall(threading.Event(), limit_s=0.0)))
    with pytest.raises(StoreTimeout):
        store.open(segment(1))


def test_corrupt_flips_the_bits_of_one_byte(store):
    """On a read the byte is changed on the way, in the store it stays; on a put it is stored."""
    store.inject(
        StoreFault("read", Corrupt(at=3, mask=0x80), key=segment(1)),
        StoreFault("put", Corrupt(at=0, mask=0x01), key=segment(2)),
    )
    with store.open(segment(1)) as reader:
        assert reader.read(0, 5) == b"012\xb34"
        assert reader.read(4, 2) == b"45"
    assert store.inner.get(segment(1), limit_bytes=10) == b"0123456789"
    assert store.put(segment(2), [b"a", b"b"]) == 2
    assert store.inner.get(segment(2), limit_bytes=10) == b"`b"


def test_shorten(store):
    """An object can look short, arrive short, or be stored short behind a success."""
    store.inject(
        StoreFault("open", Shorten(4), nth=1),
        StoreFault("read", Shorten(2), nth=2),
        StoreFault("put", Shorten(1)),
    )
    with store.open(segment(1)) as reader:
        assert reader.size_bytes == 4
        with pytest.raises(StoreError):
            reader.read(0, 5)
    memory = bytearray(5)
    with store.open(segment(1)) as reader, pytest.raises(StoreError, match="2 of 5 bytes arrived"):
        reader.read_into(0, memoryview(memory))
    assert memory == b"01\0\0\0"
    assert store.put(segment(2), [b"abc"]) == 3
    assert store.inner.get(segment(2), limit_bytes=10) == b"a"


def test_do_runs_before_the_call(store):
    """An action can change the store between two calls: here the object is swapped."""

    def swap(key):
        store.inner.delete(key)
        store.inner.put(key, [b"swapped"])

    store.inject(StoreFault("open", Do(swap), nth=1))
    assert store.get(segment(1), limit_bytes=10) == b"swapped"


def test_impossible_faults_are_refused():
    """Effects on bytes need an operation that has bytes."""
    for operation in ("delete", "list", "exists"):
        with pytest.raises(InputError):
            StoreFault(operation, Shorten(1))
    with pytest.raises(InputError):
        StoreFault("open", Corrupt(0))


def test_the_url_finds_the_store_while_it_lives(store):
    """A faulty store can be opened by its URL, faults and all, until it is dropped."""
    url = store.url
    assert open_store(url) is store
    del store
    gc.collect()


def test_a_dropped_store_is_not_found():
    """The URL of a store that is gone raises NotFound."""
    url = FaultyStore(MemoryStore()).url
    gc.collect()
    with pytest.raises(NotFound):
        open_store(url)


def test_public_names_exist():
    """Every name of the testing package can be had, and the list is sorted."""
    assert testing.__all__ == sorted(testing.__all__)
    assert all(hasattr(testing, name) for name in testing.__all__)
