"""What claims promise beyond the suite: eviction, power failures, stores that cannot decide."""

import os
from pathlib import Path

import pytest
from tests.stores.child import child, kill, wait_until_stopped
from tests.stores.disk import segment

from kvbaton.errors import StoreError, StoreFull, Unsupported
from kvbaton.stores import DirectoryStore, FsspecStore, Key, Kind, MemoryStore, Store


def spent(number):
    """The key of a claim."""
    return Key(Kind.SPENT, f"{number:064x}")


@pytest.fixture(params=["memory", "directory"])
def small(request, root):
    """A store of 40 bytes."""
    return (
        MemoryStore(max_bytes=40)
        if request.param == "memory"
        else DirectoryStore(root, max_bytes=40)
    )


def test_claims_are_never_evicted(small):
    """Whatever is put, however full the store is, a claim stays and counts."""
    assert small.claim(spent(1), bytes(10))
    for number in range(20):
        small.put(segment(number), [bytes(15)])
        small.put(Key(Kind.BATON, f"{number:064x}"), [bytes(10)])
    assert not small.claim(spent(1), b"again")
    assert [entry.key for entry in small.list(Kind.SPENT)] == [spent(1)]
    with pytest.raises(StoreFull):
        small.put(segment(99), [bytes(31)])
    assert small.put(segment(98), [bytes(30)]) == 30


def test_a_full_store_refuses_a_claim(small):
    """A claim that has no room raises: it is never taken for granted."""
    assert all(small.claim(spent(number), bytes(10)) for number in range(4))
    with pytest.raises(StoreFull):
        small.claim(spent(9), b"x")
    assert not small.exists(spent(9))


def test_a_claim_survives_a_kill(root):
    """A process that is killed right after its claim has claimed."""
    script = """
store = DirectoryStore(sys.argv[1])
assert store.claim(Key(Kind.SPENT, f"{1:064x}"), b"first")
stop()
"""
    with child(script, root) as running:
        wait_until_stopped(running)
        kill(running)
    assert not DirectoryStore(root).claim(spent(1), b"again")


@pytest.mark.parametrize("make", [DirectoryStore, lambda p: FsspecStore(f"fsspec+file://{p}")])
def test_a_claim_is_synced_before_it_returns(root, monkeypatch, make):
    """The record and its name are on disk when claim says True."""
    store = make(root)
    synced = []
    really = os.fsync

    def fsync(descriptor):
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        really(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert store.claim(spent(1), b"first")
    name, folder = synced[0], spent(1).name[:2]
    assert name == spent(1).name or "-" in name  # the file itself, or the temporary one
    assert folder in synced[1:]


def test_a_failed_sync_is_no_claim(root, monkeypatch):
    """When the disk refuses, claim raises and does not say True."""
    store = DirectoryStore(root)

    def fail(_):
        raise OSError(5, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(StoreError):
            store.claim(spent(1), b"first")


def test_an_object_store_does_not_pretend(monkeypatch):
    """Where exclusive creation is not known to be atomic, claims are refused and nothing is put."""
    store = FsspecStore("fsspec+memory://test-claims")
    monkeypatch.setattr(store, "_protocol", "s3")
    with pytest.raises(Unsupported, match="exactly one caller"):
        store.claim(spent(1), b"first")
    assert not store.exists(spent(1))


def test_a_store_that_says_nothing_cannot_claim(store):
    """The base class refuses: it cannot know whether put decides between two writers."""
    with pytest.raises(Unsupported, match="exactly one caller"):
        Store.claim(store, spent(1), b"first")
