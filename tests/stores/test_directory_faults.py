"""FAULTS C5: every system call of a directory store fails in turn, as SQLite tests it."""

import errno
import itertools

import pytest
from tests.stores.disk import files_below, segment, verify_clean
from tests.stores.syscalls import nth_call_fails, open_descriptors

from kvbaton.errors import StoreError, StoreFull
from kvbaton.stores import DirectoryStore, Key, Kind

OLD = [b"old ", b"bytes"]
NEW = [b"new", b" ", b"bytes of another size"]
WHOLE = b"".join(NEW)


def attempt(expected, call, *args, **options):
    """The result of a call, or None when it raised just the expected error, without a path."""
    try:
        return call(*args, **options)
    except StoreError as error:
        failed = error
    assert type(failed) is expected
    assert "secret" not in str(failed)
    return None


def check_put(root, key, written):
    """Whether it failed or not, the object is whole or absent and can be put at once."""
    store = DirectoryStore(root)
    assert store.exists(key) is (written is not None)
    assert store.put(key, NEW) == (0 if written else len(WHOLE))
    assert store.get(key, limit_bytes=100) == WHOLE
    assert store.get(segment(1), limit_bytes=100) == b"".join(OLD)
    verify_clean(root)


@pytest.mark.parametrize("kind", [Kind.SEGMENT, Kind.BATON])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_put_fails_at_every_call(tmp_path, monkeypatch, kind, code):
    """A put whose n-th call fails raises a typed error without a path and leaves nothing."""
    expected = StoreError if code == errno.EIO else StoreFull
    failed = []
    for nth in itertools.count(1):
        root, key = tmp_path / str(nth), Key(kind, f"{2:064x}")
        store = DirectoryStore(root, max_bytes=1000)
        store.put(segment(1), OLD)
        before = open_descriptors()
        with nth_call_fails(monkeypatch, nth, code) as state:
            written = attempt(expected, store.put, key, NEW)
        assert open_descriptors() == before
        assert not files_below(root / "tmp")
        check_put(root, key, written)
        if not state.fired:
            break
        assert written is None, state.fired
        failed.append(state.fired)
    calls = {"open", "flock", "pwrite", "writev", "rename", "mkdir", "utime", "close", "statvfs"}
    assert calls | ({"fsync"} if kind is Kind.BATON else set()) <= set(failed)


def test_put_takes_up_every_short_write(tmp_path, monkeypatch):
    """A put whose n-th write is short writes the rest and succeeds."""
    for nth in itertools.count(1):
        store, key = DirectoryStore(tmp_path / str(nth)), segment(2)
        with nth_call_fails(monkeypatch, nth, short=True) as state:
            assert store.put(key, NEW) == len(WHOLE)
        assert store.get(key, limit_bytes=100) == WHOLE
        if not state.fired:
            break
    assert nth > 1


def test_put_with_eviction_fails_at_every_call(tmp_path, monkeypatch):
    """A put that must evict, and whose n-th call fails, never counts fewer bytes than there are."""
    for nth in itertools.count(1):
        root = tmp_path / str(nth)
        store = DirectoryStore(root, max_bytes=40)
        store.put(segment(1), [b"a" * 20])
        store.put(segment(2), [b"b" * 20])
        before = open_descriptors()
        with nth_call_fails(monkeypatch, nth) as state:
            written = attempt(StoreError, store.put, segment(3), [b"c" * 20])
        assert open_descriptors() == before
        assert not files_below(root / "tmp")
        held = sum(entry.size_bytes for entry in store.list(Kind.SEGMENT))
        assert held <= store.used_bytes() <= 40
        assert store.exists(segment(3)) is (written is not None)
        assert store.put(segment(4), [b"d" * 40]) == 40
        assert files_below(root) == [f"segments/00/{4:064x}"]
        if not state.fired:
            break
        assert written is None, state.fired
    assert nth > 10


def test_replacing_a_torn_segment_fails_at_every_call(tmp_path, monkeypatch):
    """A segment cut short by a power failure is replaced whole, or the failure is typed."""
    for nth in itertools.count(1):
        root = tmp_path / str(nth)
        store = DirectoryStore(root)
        store.put(segment(1), OLD)
        store.put(segment(2), [WHOLE[:5]])
        with nth_call_fails(monkeypatch, nth) as state:
            written = attempt(StoreError, store.put, segment(2), NEW)
        if written is None:
            store.put(segment(2), NEW)
        assert store.get(segment(2), limit_bytes=100) == WHOLE
        verify_clean(root)
        if not state.fired:
            break
    assert nth > 10


def test_delete_fails_at_every_call(tmp_path, monkeypatch):
    """A delete whose n-th call fails raises a typed error, and the account still adds up."""
    for nth in itertools.count(1):
        root = tmp_path / str(nth)
        store = DirectoryStore(root)
        store.put(segment(1), OLD)
        store.put(segment(2), NEW)
        before = open_descriptors()
        with nth_call_fails(monkeypatch, nth) as state:
            deleted = attempt(StoreError, store.delete, segment(2))
        assert open_descriptors() == before
        assert store.get(segment(1), limit_bytes=100) == b"".join(OLD)
        verify_clean(root)
        if not state.fired:
            break
        assert deleted is None, state.fired
    assert nth > 5


def test_reading_fails_at_every_call(tmp_path, monkeypatch):
    """Opening and reading with a failing n-th call raises a typed error and leaks nothing."""
    store = DirectoryStore(tmp_path)
    store.put(segment(1), NEW)
    before = open_descriptors()
    for nth in itertools.count(1):
        with nth_call_fails(monkeypatch, nth) as state:
            data = attempt(StoreError, store.get, segment(1), limit_bytes=100)
        assert open_descriptors() == before
        if not state.fired:
            break
        assert data is None, state.fired
    assert data == WHOLE
    assert nth > 4


def test_reading_takes_up_every_short_read(tmp_path, monkeypatch):
    """A read whose n-th call is short reads the rest."""
    store = DirectoryStore(tmp_path)
    store.put(segment(1), NEW)
    for nth in itertools.count(1):
        with nth_call_fails(monkeypatch, nth, short=True) as state:
            assert store.get(segment(1), limit_bytes=100) == WHOLE
        if not state.fired:
            break
    assert nth > 1


def test_opening_a_store_fails_at_every_call(tmp_path, monkeypatch):
    """Making or opening a store with a failing n-th call raises StoreError and can be repeated."""
    for nth in itertools.count(1):
        root, before = tmp_path / str(nth), open_descriptors()
        with nth_call_fails(monkeypatch, nth) as state:
            opened = attempt(StoreError, DirectoryStore, root)
        assert open_descriptors() == before
        assert DirectoryStore(root).put(segment(1), NEW) == len(WHOLE)
        verify_clean(root)
        if not state.fired:
            break
        assert opened is None, state.fired
    assert nth > 20
