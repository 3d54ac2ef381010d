"""What the memory store promises beyond the suite."""

import gc

import pytest
from tests.stores.disk import segment

from kvbaton.errors import NotFound, StoreFull
from kvbaton.stores import Key, Kind, MemoryStore, open_store


@pytest.fixture
def name():
    """The name of a store that is forgotten afterwards."""
    yield "test-memory"
    MemoryStore.forget("test-memory")


def test_a_name_is_enough_to_find_the_objects(name):
    """Objects of a named store outlive every store object, until the name is forgotten."""
    MemoryStore(name).put(segment(1), [b"first"])
    gc.collect()
    assert open_store(f"memory://{name}").get(segment(1), limit_bytes=5) == b"first"
    MemoryStore.forget(name)
    assert not MemoryStore(name).exists(segment(1))


def test_stores_without_a_name_are_apart():
    """Two anonymous stores share nothing, and each can be found by its URL while it lives."""
    one, two = MemoryStore(), MemoryStore()
    one.put(segment(1), [b"first"])
    assert not two.exists(segment(1))
    assert open_store(one.url).exists(segment(1))
    url = one.url
    del one
    gc.collect()
    assert not open_store(url).exists(segment(1))
    MemoryStore.forget(url.removeprefix("memory://"))


def test_eviction_is_oldest_first():
    """A put that passes the limit removes what was not used for longest, manifests last."""
    store = MemoryStore(max_bytes=40)
    store.put(Key(Kind.BATON, f"{0:064x}"), [bytes(10)])
    for number in (1, 2, 3):
        store.put(segment(number), [bytes(10)])
    store.open(segment(1)).close()
    store.put(segment(4), [bytes(15)])
    assert [int(e.key.name, 16) for e in store.list(Kind.SEGMENT)] == [1, 4]
    assert store.exists(Key(Kind.BATON, f"{0:064x}"))
    assert store.free_bytes() == 5
    store.put(segment(5), [bytes(40)])
    assert [int(e.key.name, 16) for e in store.list(Kind.SEGMENT)] == [5]
    assert list(store.list(Kind.BATON)) == []


def test_what_exceeds_the_limit_evicts_nothing():
    """An object larger than the whole store is refused before anything gives way."""
    store = MemoryStore(max_bytes=10)
    store.put(segment(1), [bytes(10)])
    with pytest.raises(StoreFull, match="11 bytes are needed, the store may hold 10"):
        store.put(segment(2), [bytes(11)])
    assert store.exists(segment(1))


def test_a_reader_survives_eviction():
    """What is open stays readable when its object gives way."""
    store = MemoryStore(max_bytes=10)
    store.put(segment(1), [b"0123456789"])
    with store.open(segment(1)) as reader:
        store.put(segment(2), [bytes(10)])
        with pytest.raises(NotFound):
            store.open(segment(1))
        assert reader.read(2, 3) == b"234"
