"""What leases of a store must do; part of :class:`kvbaton.testing.StoreTests`."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

import pytest

from kvbaton.errors import InputError, NotFound, StoreError, Unsupported
from kvbaton.stores import Key, Kind, LeaseState, Removal, Store, open_store
from kvbaton.stores.leases import MAX_TTL_S, MIN_TTL_S

KEYS = tuple(Key(Kind.SEGMENT, f"{number:064x}") for number in range(3))
PATIENCE_S = 60.0
_POLL_S = 0.002
_NO_TIMES = (0.0, MIN_TTL_S / 2, MAX_TTL_S + 1, float("nan"), float("inf"))


def until(true: Callable[[], object]) -> None:
    """Return when something has become true.

    Raises
    ------
    AssertionError
        It has not within a minute.
    """
    end_s = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > end_s:
            raise AssertionError("what was waited for did not happen")
        time.sleep(_POLL_S)


def fill(store: Store) -> None:
    """Put three segments."""
    for key in KEYS:
        store.put(key, [b"segment"])


def remove(store: Store, *keys: Key) -> list[Removal]:
    """What becomes of objects that are listed now and that nobody is to need."""
    listed = {entry.key: entry for entry in store.list(Kind.SEGMENT)}
    return store.remove_unused([listed[key] for key in keys])


class LeaseLaws:
    """Laws of leases; ``leases`` says whether the store has any."""

    leases = True
    spans_processes = True
    opens_by_url = True

    def test_who_cannot_lease_says_so(self, store: Store) -> None:
        """A store without leases refuses everything that stands on them, and removes nothing."""
        if self.leases:
            return
        fill(store)
        for refused in (
            lambda: store.lease(KEYS, owner="a"),
            store.leases,
            lambda: remove(store, *KEYS),
            store.read_marks,
            lambda: store.write_marks(b"marks"),
        ):
            with pytest.raises(Unsupported):
                refused()
        assert len(list(store.list(Kind.SEGMENT))) == len(KEYS)

    def test_what_is_leased_stays(self, store: Store) -> None:
        """Leased objects are not removed as unused, others are; after the release they are."""
        if not self.leases:
            return
        fill(store)
        with store.lease(KEYS[:2], owner="a"):
            assert remove(store, *KEYS) == [Removal.LEASED, Removal.LEASED, Removal.DELETED]
            assert [store.exists(key) for key in KEYS] == [True, True, False]
        assert remove(store, *KEYS[:2]) == [Removal.DELETED] * 2

    def test_what_is_put_later_stays_too(self, store: Store) -> None:
        """A lease may name objects before they are there."""
        if not self.leases:
            return
        with store.lease(owner="a") as lease:
            lease.extend(KEYS)
            assert lease.keys == set(KEYS)
            fill(store)
            assert remove(store, *KEYS) == [Removal.LEASED] * 3
            lease.confirm()

    def test_every_lease_counts(self, store: Store) -> None:
        """An object stays until the last of its leases ends, whatever the order."""
        if not self.leases:
            return
        fill(store)
        first, second = (store.lease(KEYS[:1], owner=name) for name in "ab")
        first.release()
        assert remove(store, KEYS[0]) == [Removal.LEASED]
        second.release()
        assert remove(store, KEYS[0]) == [Removal.DELETED]

    def test_a_lease_is_released_once(self, store: Store) -> None:
        """A second release does nothing; what was released cannot be used any more."""
        if not self.leases:
            return
        fill(store)
        lease = store.lease(KEYS, owner="a")
        lease.release()
        lease.release(after_s=10)
        assert lease.released
        assert lease.heartbeat() is False
        for use in (lease.confirm, lambda: lease.extend(KEYS)):
            with pytest.raises(InputError):
                use()
        assert remove(store, *KEYS) == [Removal.DELETED] * 3

    def test_an_error_releases(self, store: Store) -> None:
        """Leaving the block by an error ends the lease."""
        if not self.leases:
            return
        fill(store)
        with pytest.raises(KeyError), store.lease(KEYS, owner="a"):
            raise KeyError
        assert remove(store, *KEYS) == [Removal.DELETED] * 3

    def test_a_forgotten_lease_ends(self, store: Store) -> None:
        """A lease that nobody holds any more ends, although a thread beats for it."""
        if not self.leases:
            return
        fill(store)
        lease = store.lease(KEYS, owner="a")
        assert remove(store, KEYS[0]) == [Removal.LEASED]
        del lease
        gc.collect()
        assert remove(store, *KEYS) == [Removal.DELETED] * 3

    def test_objects_linger_behind_the_last_reader(self, store: Store) -> None:
        """A delayed release keeps objects for its time after it, and the last one decides."""
        if not self.leases:
            return
        fill(store)
        first, second = (store.lease(KEYS[:1], owner=name) for name in "ab")
        first.release(after_s=MIN_TTL_S)
        second.release(after_s=MAX_TTL_S)
        states = {info.owner: info.state for info in store.leases()}
        assert states["b"] is LeaseState.LINGERING
        until(lambda: store.sweep().leases or len(store.leases()) == 1)
        assert remove(store, KEYS[0]) == [Removal.LEASED]
        third = store.lease(KEYS[1:2], owner="c")
        third.release(after_s=MIN_TTL_S)
        until(lambda: remove(store, KEYS[1]) == [Removal.DELETED])

    def test_an_owner_who_stands_still_loses_it(self, store: Store) -> None:
        """Without beats a lease ends after its time to live, and its owner is told."""
        if not self.leases:
            return
        fill(store)
        lease = store.lease(KEYS, owner="a", ttl_s=MIN_TTL_S, beats=False)
        until(lambda: remove(store, KEYS[0]) == [Removal.DELETED])
        assert lease.heartbeat() is False
        for use in (lease.confirm, lambda: lease.extend(KEYS)):
            with pytest.raises(StoreError, match="lost"):
                use()
        lease.release()
        assert store.leases() == []

    def test_beats_keep_it(self, store: Store) -> None:
        """A lease is there after six beats, which is twice its time to live."""
        if not self.leases:
            return
        fill(store)
        with store.lease(KEYS, owner="a", ttl_s=0.3) as lease:
            until(lambda: store.leases()[0].beats >= 6)
            assert remove(store, *KEYS) == [Removal.LEASED] * 3
            lease.confirm()

    def test_leases_are_listed(self, store: Store) -> None:
        """Others see the owner, the time to live and the objects of each lease."""
        if not self.leases:
            return
        with store.lease(KEYS[:2], owner="the coder", ttl_s=7.0):
            (info,) = store.leases()
            assert (info.owner, info.ttl_s, info.state) == ("the coder", 7.0, LeaseState.HELD)
            assert info.keys == set(KEYS[:2])
        assert store.leases() == []

    @pytest.mark.parametrize(
        ("owner", "ttl_s"),
        [("", 1.0), ("a" * 201, 1.0), ("a\n", 1.0), *(("a", bad) for bad in _NO_TIMES)],
    )
    def test_terms_out_of_bounds_are_refused(self, store: Store, owner: str, ttl_s: float) -> None:
        """An owner without a name, or a time that is none, raises InputError."""
        if not self.leases:
            return
        with pytest.raises(InputError):
            store.lease(KEYS, owner=owner, ttl_s=ttl_s)
        assert store.leases() == []

    def test_what_was_used_since_stays(self, store: Store) -> None:
        """Objects that were opened or put again since they were listed are not removed."""
        if not self.leases:
            return
        fill(store)
        entries = sorted(store.list(Kind.SEGMENT), key=lambda entry: entry.key)
        store.open(KEYS[0]).close()
        store.put(KEYS[1], [b"segment"])
        store.delete(KEYS[2])
        assert store.remove_unused(entries) == [Removal.USED, Removal.USED, Removal.ABSENT]
        assert [store.exists(key) for key in KEYS] == [True, True, False]

    def test_who_only_looks_does_not_use(self, store: Store) -> None:
        """Looking at an object gives its bytes, and leaves its age as it is."""
        fill(store)
        before = [entry.modified_s for entry in store.list(Kind.SEGMENT)]
        with store.look(KEYS[0]) as reader:
            assert reader.read(0, reader.size_bytes) == b"segment"
        if self.leases:
            assert [entry.modified_s for entry in store.list(Kind.SEGMENT)] == before
            assert remove(store, *KEYS) == [Removal.DELETED] * 3
            with pytest.raises(NotFound):
                store.look(KEYS[0])

    def test_who_deletes_does_not_ask(self, store: Store) -> None:
        """An explicit deletion goes through, and the lease goes on."""
        if not self.leases:
            return
        fill(store)
        with store.lease(KEYS, owner="a") as lease:
            assert store.delete(KEYS[0])
            store.put(KEYS[0], [b"segment"])
            assert remove(store, KEYS[0]) == [Removal.LEASED]
            lease.confirm()

    def test_marks_are_remembered(self, store: Store) -> None:
        """What a collection writes down is what the next one reads; nothing at first."""
        if not self.leases:
            return
        assert store.read_marks() == b""
        for marks in (b"some", b"", b"others of another length"):
            store.write_marks(marks)
            assert store.read_marks() == marks
        assert [list(store.list(kind)) for kind in Kind] == [[]] * len(Kind)

    def test_other_handles_see_leases(self, store: Store) -> None:
        """A store opened by the URL keeps what was leased through another handle."""
        if not (self.leases and self.opens_by_url):
            return
        fill(store)
        with open_store(store.url) as other:
            with store.lease(KEYS, owner="a"):
                assert remove(other, *KEYS) == [Removal.LEASED] * 3
            assert remove(other, *KEYS) == [Removal.DELETED] * 3

    def test_a_lease_dies_with_its_process(self, store: Store) -> None:
        """A killed process's lease holds to the end, protects nothing then, and is swept up."""
        if not (self.leases and self.spans_processes):
            return
        fill(store)
        with _leasing(store.url) as child:
            assert remove(store, *KEYS) == [Removal.LEASED] * 3
            assert store.debris().leases == 0
            child.kill()
            child.wait()
            assert store.debris().leases == 1
            assert store.sweep().leases == 1
        assert store.leases() == []
        assert remove(store, *KEYS) == [Removal.DELETED] * 3


@contextmanager
def _leasing(url: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that leases the three segments for an hour, and waits."""
    names = json.dumps([key.name for key in KEYS])
    command = [sys.executable, "-c", _LEASE, json.dumps(sys.path), url, names]
    pipe: int = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as child:
        try:
            said: IO[bytes] | None = child.stdout
            assert said is not None
            assert said.readline() == b"leased\n"
            yield child
        finally:
            child.kill()


_LEASE = """
import json, sys
sys.path[:0] = json.loads(sys.argv[1])
from kvbaton.stores import Key, Kind, open_store
store = open_store(sys.argv[2])
keys = [Key(Kind.SEGMENT, name) for name in json.loads(sys.argv[3])]
lease = store.lease(keys, owner="child", ttl_s=3600)
print("leased", flush=True)
sys.stdin.read()
"""
