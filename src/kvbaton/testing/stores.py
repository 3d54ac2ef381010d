"""What every store must do, as a test class to inherit.

::

    class TestMyStore(StoreTests):
        def make_store(self, tmp_path):
            return MyStore(tmp_path / "objects")
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbaton.errors import Fault, FormatError, InputError, NotFound, StoreError, Unsupported
from kvbaton.stores import Key, Kind, Store, open_store
from kvbaton.testing.leases import LeaseLaws

LARGE_BYTES = 5_000_011
"""Larger than pipes and buffers, and no multiple of anything."""


def name_of(number: int) -> str:
    """The object name whose value is ``number``: 64 hexadecimal digits."""
    return f"{number:064x}"


def pattern(size_bytes: int) -> bytes:
    """Bytes that differ at every place that a wrong offset could lead to: period 251, a prime."""
    return (bytes(range(251)) * (size_bytes // 251 + 1))[:size_bytes]


def contents(store: Store, key: Key) -> bytes:
    """A whole object."""
    return store.get(key, limit_bytes=1 << 30)


class StoreTests(LeaseLaws):
    """Conformance suite of :class:`kvbaton.stores.Store`.

    Attributes
    ----------
    opens_by_url
        ``open_store(store.url)`` finds the same objects.
    one_writer_wins
        Of several puts of one key at the same moment exactly one reports that it wrote.
    renews_age
        A put of a key that exists moves it to the end of the listing.
    fine_ages
        Objects that are put one right after another have different ages.
    claims
        The store can claim a name for exactly one caller; ``Unsupported`` where it cannot.
    leases
        The store can keep objects from being removed; ``Unsupported`` where it cannot.
    plain_sizes
        A listing has the sizes of what was put; False where more than that is stored.
    spans_processes
        Another process that opens the URL sees the same objects.
    max_examples
        Examples for each property test.
    """

    opens_by_url = True
    one_writer_wins = True
    renews_age = True
    fine_ages = True
    claims = True
    leases = True
    plain_sizes = True
    spans_processes = True
    max_examples = 25

    @abstractmethod
    def make_store(self, tmp_path: Path) -> Store:
        """Return an empty store; it may keep its objects below ``tmp_path``."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        """A new, empty store, closed after the test."""
        with self.make_store(tmp_path) as store:
            yield store

    def for_all(self, check: Callable[..., None], **strategies: st.SearchStrategy[object]) -> None:
        """Run a property: ``check`` on many values."""
        bounded = settings(max_examples=self.max_examples, deadline=None, database=None)
        bounded(given(**strategies)(check))()

    @pytest.mark.parametrize("kind", Kind)
    @pytest.mark.parametrize("size_bytes", [0, 1, 4096, LARGE_BYTES])
    def test_bytes_out_are_bytes_in(self, store: Store, kind: Kind, size_bytes: int) -> None:
        """What is put under a key is what is got, whatever its size and kind."""
        key, data = Key(kind, name_of(7)), pattern(size_bytes)
        assert store.put(key, [data]) == size_bytes
        assert contents(store, key) == data

    def test_parts_are_concatenated_in_order(self, store: Store) -> None:
        """Many parts of any size, of several element types, are stored one after another."""
        words = memoryview(bytearray(pattern(4000))).cast("I")
        parts: list[memoryview | bytes] = [b"head", words, b"", memoryview(b"")]
        parts += [bytes([n % 256]) for n in range(3000)]
        key = Key(Kind.SEGMENT, name_of(1))
        expected = b"".join(bytes(part) for part in parts)
        assert store.put(key, parts) == len(expected)
        assert contents(store, key) == expected

    def test_no_parts_make_an_empty_object(self, store: Store) -> None:
        """An object of no parts exists and has no bytes."""
        key = Key(Kind.BATON, name_of(1))
        assert store.put(key, []) == 0
        assert store.exists(key)
        assert contents(store, key) == b""

    def test_later_changes_of_a_buffer_do_not_show(self, store: Store) -> None:
        """A store keeps what a buffer held when it was put."""
        buffer, key = bytearray(b"before"), Key(Kind.SEGMENT, name_of(1))
        store.put(key, [memoryview(buffer)])
        buffer[:] = b"after!"
        assert contents(store, key) == b"before"

    def test_ranges(self, store: Store) -> None:
        """Any range inside an object is read exactly, into a part of the caller's memory."""
        data, key = pattern(10_007), Key(Kind.SEGMENT, name_of(1))
        store.put(key, [data])

        def check(start: int, size: int) -> None:
            stop = min(start + size, len(data))
            memory = bytearray(b"\xee" * (stop - start + 2))
            with store.open(key) as reader:
                assert reader.size_bytes == len(data)
                reader.read_into(start, memoryview(memory)[1:-1])
            assert bytes(memory) == b"\xee" + data[start:stop] + b"\xee"

        self.for_all(check, start=st.integers(0, len(data)), size=st.integers(0, len(data)))

    @pytest.mark.parametrize(
        ("offset", "size"), [(0, 101), (100, 1), (99, 2), (10**15, 1), (-1, 1)]
    )
    def test_reading_past_the_end_is_typed(self, store: Store, offset: int, size: int) -> None:
        """A range that the object does not have raises StoreError."""
        key = Key(Kind.SEGMENT, name_of(1))
        store.put(key, [pattern(100)])
        with store.open(key) as reader, pytest.raises(StoreError):
            reader.read_into(offset, memoryview(bytearray(size)))

    def test_read_only_memory_is_refused(self, store: Store) -> None:
        """Reading into memory that cannot be written raises InputError."""
        key = Key(Kind.SEGMENT, name_of(1))
        store.put(key, [b"abc"])
        with store.open(key) as reader, pytest.raises(InputError):
            reader.read_into(0, memoryview(b"xyz"))

    def test_a_reader_may_be_closed_twice(self, store: Store) -> None:
        """The second close of a reader does nothing."""
        key = Key(Kind.SEGMENT, name_of(1))
        store.put(key, [b"abc"])
        reader = store.open(key)
        assert reader.read(0, 3) == b"abc"
        reader.close()
        reader.close()

    def test_readers_are_independent(self, store: Store) -> None:
        """Closing one reader of an object leaves another usable."""
        key = Key(Kind.SEGMENT, name_of(1))
        store.put(key, [b"abc"])
        first, second = store.open(key), store.open(key)
        first.close()
        assert second.read(1, 2) == b"bc"
        second.close()

    def test_a_key_is_put_once(self, store: Store) -> None:
        """A second put of a key returns 0 and changes nothing."""
        key = Key(Kind.SEGMENT, name_of(1))
        assert store.put(key, [b"first"]) == 5
        assert store.put(key, [b"again"]) == 0
        assert contents(store, key) == b"first"

    def test_what_is_absent_is_not_found(self, store: Store) -> None:
        """Opening or getting what is not there raises NotFound; exists and delete say False."""
        key = Key(Kind.TRANSCRIPT, name_of(1))
        with pytest.raises(NotFound):
            store.open(key)
        with pytest.raises(NotFound):
            store.get(key, limit_bytes=10)
        assert not store.exists(key)
        assert store.delete(key) is False

    def test_delete(self, store: Store) -> None:
        """A deleted object is gone, others stay, and its key can be put again."""
        gone, kept = Key(Kind.SEGMENT, name_of(1)), Key(Kind.SEGMENT, name_of(2))
        store.put(gone, [b"old"])
        store.put(kept, [b"kept"])
        assert store.delete(gone) is True
        assert store.delete(gone) is False
        assert not store.exists(gone)
        assert [entry.key for entry in store.list(Kind.SEGMENT)] == [kept]
        assert store.put(gone, [b"new!"]) == 4
        assert contents(store, gone) == b"new!"

    def test_a_read_of_what_is_deleted_completes_or_fails_typed(self, store: Store) -> None:
        """A reader of a deleted object gives the old bytes or StoreError, never other bytes."""
        key = Key(Kind.SEGMENT, name_of(1))
        store.put(key, [b"old"])
        with store.open(key) as reader:
            store.delete(key)
            store.put(key, [b"new"])
            with contextlib.suppress(StoreError):
                assert reader.read(0, 3) in (b"old", b"new")

    def test_kinds_do_not_clash(self, store: Store) -> None:
        """Objects of one name and several kinds are several objects."""
        for kind in Kind:
            store.put(Key(kind, name_of(1)), [kind.value.encode()])
        for kind in Kind:
            assert contents(store, Key(kind, name_of(1))) == kind.value.encode()
            assert [entry.key.kind for entry in store.list(kind)] == [kind]

    def test_list_is_oldest_first_with_sizes(self, store: Store) -> None:
        """A listing has every object of the kind once, oldest first, with its size."""
        for number in (3, 1, 2):
            store.put(Key(Kind.SEGMENT, name_of(number)), [pattern(number)])
        entries = list(store.list(Kind.SEGMENT))
        assert all(entry.size_bytes >= int(entry.key.name, 16) for entry in entries)
        shown = [(e.key.name, e.size_bytes if self.plain_sizes else 0) for e in entries]
        sizes = {number: number if self.plain_sizes else 0 for number in (3, 1, 2)}
        expected = [(name_of(number), size) for number, size in sizes.items()]
        assert sorted(shown) == sorted(expected)
        if self.fine_ages:
            assert shown == expected
        ages = [entry.modified_s for entry in entries]
        assert ages == sorted(ages)

    def test_a_second_put_renews_the_age(self, store: Store) -> None:
        """Putting what exists makes it the youngest, where the store can do that."""
        for number in (1, 2, 1):
            store.put(Key(Kind.SEGMENT, name_of(number)), [b"same"])
        order = [entry.key.name for entry in store.list(Kind.SEGMENT)]
        assert sorted(order) == [name_of(1), name_of(2)]
        if self.fine_ages and self.renews_age:
            assert order == [name_of(2), name_of(1)]

    def test_an_empty_store_lists_nothing(self, store: Store) -> None:
        """Listing any kind of an empty store gives no entries."""
        assert [list(store.list(kind)) for kind in Kind] == [[]] * len(Kind)

    def test_get_allocates_nothing_for_what_is_too_large(self, store: Store) -> None:
        """An object above the caller's limit is refused by its size; at the limit it is read."""
        key = Key(Kind.BATON, name_of(1))
        store.put(key, [pattern(1000)])
        with pytest.raises(FormatError) as caught:
            store.get(key, limit_bytes=999)
        assert caught.value.fault is Fault.TOO_LARGE
        assert store.get(key, limit_bytes=1000) == pattern(1000)

    @pytest.mark.parametrize(
        "name", ["", "../" + "a" * 61, "A" * 64, "a" * 63, "a" * 65, "a" * 63 + "\n", "٣" * 64]
    )
    def test_foreign_names_are_refused(self, name: str) -> None:
        """A name that is not 64 lower-case hexadecimal digits is no key at all."""
        with pytest.raises(InputError):
            Key(Kind.SEGMENT, name)

    def test_memory_that_is_not_contiguous_is_refused(self, store: Store) -> None:
        """A part with gaps raises InputError and leaves nothing behind."""
        key = Key(Kind.SEGMENT, name_of(1))
        with pytest.raises(InputError):
            store.put(key, [b"head", memoryview(b"abcdef")[::2]])
        assert not store.exists(key)

    def test_threads_that_put_one_key(self, store: Store) -> None:
        """Writers of one key at the same moment leave one whole object."""
        key, data, writers = Key(Kind.SEGMENT, name_of(1)), pattern(300_007), 8
        barrier = threading.Barrier(writers)

        def write(_: int) -> int:
            barrier.wait()
            return store.put(key, [data[:100_000], data[100_000:]])

        with ThreadPoolExecutor(writers) as pool:
            written = sorted(pool.map(write, range(writers)), reverse=True)
        assert set(written) <= {0, len(data)}
        assert written[0] == len(data)
        if self.one_writer_wins:
            assert written[1:] == [0] * (writers - 1)
        assert contents(store, key) == data
        (entry,) = store.list(Kind.SEGMENT)
        assert entry.size_bytes == len(data) or not self.plain_sizes

    def test_threads_that_put_and_read_many_keys(self, store: Store) -> None:
        """Threads on different keys do not disturb one another."""

        def cycle(number: int) -> bool:
            key, data = Key(Kind.SEGMENT, name_of(number)), pattern(1000 + number)
            store.put(key, [data])
            return contents(store, key) == data and store.delete(key)

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(cycle, range(64)))
        assert list(store.list(Kind.SEGMENT)) == []

    def test_the_url_finds_the_same_objects(self, store: Store) -> None:
        """A store opened by the URL sees what was put, and the other way round."""
        if not self.opens_by_url:
            with pytest.raises(StoreError):
                open_store(store.url)
            return
        here, there = Key(Kind.BATON, name_of(1)), Key(Kind.BATON, name_of(2))
        store.put(here, [b"here"])
        with open_store(store.url) as other:
            assert other.url == store.url
            assert contents(other, here) == b"here"
            other.put(there, [b"there"])
        assert contents(store, there) == b"there"

    def test_free_bytes_is_unknown_or_a_size(self, store: Store) -> None:
        """free_bytes is None or not negative."""
        free = store.free_bytes()
        assert free is None or free >= 0

    def test_a_name_is_claimed_once(self, store: Store) -> None:
        """The first claim is True, every later one False, and the record is the first one's."""
        key = Key(Kind.SPENT, name_of(1))
        if not self.claims:
            with pytest.raises(Unsupported):
                store.claim(key, b"first")
            assert not store.exists(key)
            return
        assert store.claim(key, b"first") is True
        assert store.claim(key, b"again") is False
        assert contents(store, key) == b"first"
        assert [entry.key for entry in store.list(Kind.SPENT)] == [key]
        assert store.claim(Key(Kind.SPENT, name_of(2)), b"other") is True

    def test_claims_that_could_be_lost_are_refused(self, store: Store) -> None:
        """Only names of kind ``spent`` can be claimed, with at least one byte."""
        for kind in set(Kind) - {Kind.SPENT}:
            with pytest.raises(InputError):
                store.claim(Key(kind, name_of(1)), b"first")
        with pytest.raises(InputError):
            store.claim(Key(Kind.SPENT, name_of(1)), b"")
        assert [list(store.list(kind)) for kind in Kind] == [[]] * len(Kind)

    def test_claims_outlive_the_store(self, store: Store) -> None:
        """A store that is opened again by its URL remembers what was claimed."""
        if not (self.claims and self.opens_by_url):
            return
        keys = [Key(Kind.SPENT, name_of(number)) for number in range(3)]
        assert all(store.claim(key, b"first") for key in keys)
        with open_store(store.url) as again:
            assert not any(again.claim(key, b"again") for key in keys)

    def test_threads_that_claim_one_name(self, store: Store) -> None:
        """Of threads that claim a name at the same moment exactly one gets it."""
        if not self.claims:
            return
        rounds, threads = 20, 8
        barrier = threading.Barrier(threads)

        def claim_all(number: int) -> list[bool]:
            won = []
            for turn in range(rounds):
                barrier.wait()
                won.append(store.claim(Key(Kind.SPENT, name_of(turn)), bytes([number + 1])))
            return won

        with ThreadPoolExecutor(threads) as pool:
            winners = zip(*pool.map(claim_all, range(threads)), strict=True)
        assert [sum(won) for won in winners] == [1] * rounds

    def test_processes_that_claim_one_name(self, store: Store) -> None:
        """Of processes that claim the same names at the same time exactly one gets each."""
        if not (self.claims and self.spans_processes):
            return
        rounds, processes = 40, 3
        command = [sys.executable, "-c", _CLAIM_ALL, json.dumps(sys.path), store.url, str(rounds)]
        with contextlib.ExitStack() as stack:
            running = [
                stack.enter_context(
                    subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                )
                for _ in range(processes)
            ]
            for child in running:
                assert child.stdout is not None
                assert child.stdout.readline().strip() == b"ready"
            for child in running:
                assert child.stdin is not None
                child.stdin.write(b"go\n")
                child.stdin.flush()
            said = [json.loads(child.communicate()[0]) for child in running]
        assert [sum(won) for won in zip(*said, strict=True)] == [1] * rounds

    def test_any_history_agrees_with_a_dict(self, tmp_path: Path) -> None:
        """After any sequence of puts, gets and deletes the store holds what a dict would."""
        operation = st.tuples(st.sampled_from(["put", "get", "delete"]), _KEYS, _THREE)
        turns = iter(range(10**9))

        def check(history: list[tuple[str, Key, bytes]]) -> None:
            folder = tmp_path / str(next(turns))
            folder.mkdir()
            model: dict[Key, bytes] = {}
            with self.make_store(folder) as store:
                for verb, key, blob in history:
                    self._step(store, model, verb, key, blob)
                listed = {e.key: e.size_bytes for kind in Kind for e in store.list(kind)}
            assert set(listed) == set(model)
            if self.plain_sizes:
                assert listed == {key: len(data) for key, data in model.items()}

        self.for_all(check, history=st.lists(operation, max_size=12))

    def _step(
        self, store: Store, model: dict[Key, bytes], verb: str, key: Key, blob: bytes
    ) -> None:
        if verb == "put":
            # A key names its content, so the size follows from the key.
            data = blob * (int(key.name, 16) + 1)
            assert store.put(key, [data[:2], data[2:]]) == (0 if key in model else len(data))
            model.setdefault(key, data)
        elif verb == "delete":
            assert store.delete(key) is (model.pop(key, None) is not None)
        elif key in model:
            assert contents(store, key) == model[key]
        else:
            with pytest.raises(NotFound):
                store.open(key)


_CLAIM_ALL = """
import json, sys
sys.path[:0] = json.loads(sys.argv[1])
from kvbaton.stores import Key, Kind, open_store
store = open_store(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
names = (f"{number:064x}" for number in range(int(sys.argv[3])))
print(json.dumps([store.claim(Key(Kind.SPENT, name), b"spent") for name in names]))
"""
_KEYS = st.builds(Key, st.sampled_from(Kind), st.integers(0, 3).map(name_of))
_THREE = st.binary(min_size=3, max_size=3)
