"""Every store of ours passes the public suite."""

import itertools

from kvbaton.seals.encryption import DomainCipher
from kvbaton.stores import (
    DirectoryStore,
    EncryptedStore,
    FsspecStore,
    Key,
    Kind,
    MemoryStore,
    open_store,
)
from kvbaton.testing import FaultyStore, StoreTests
from kvbaton.testing.stores import contents, name_of
from kvbaton.wire.digests import DomainKeys

_NUMBERS = itertools.count()
CIPHER = DomainCipher(DomainKeys(bytes(range(32))))


class TestMemoryStore(StoreTests):
    """Objects in this process."""

    spans_processes = False

    def make_store(self, tmp_path):
        """Anonymous, so that no two tests share objects."""
        return MemoryStore()


class TestDirectoryStore(StoreTests):
    """Objects as files."""

    def make_store(self, tmp_path):
        """Without a limit."""
        return DirectoryStore(tmp_path / "store")


class TestDirectoryStoreWithLimit(StoreTests):
    """Objects as files, counted and flushed."""

    def make_store(self, tmp_path):
        """With a limit that no test reaches."""
        return DirectoryStore(tmp_path / "store", max_bytes=10_000_000, sync="all")


class TestFaultyStore(StoreTests):
    """The double without faults is a store like any other."""

    spans_processes = False

    def make_store(self, tmp_path):
        """Around a memory store."""
        return FaultyStore(MemoryStore())


class TestFsspecMemory(StoreTests):
    """A protocol on which a put is atomic."""

    spans_processes = False

    one_writer_wins = False
    renews_age = False
    leases = False

    def make_store(self, tmp_path):
        """A folder of its own: fsspec's memory is one for the process."""
        return FsspecStore(f"fsspec+memory://{tmp_path.name}-{next(_NUMBERS)}")


class TestFsspecLocal(StoreTests):
    """A protocol on which an object is written aside and moved."""

    one_writer_wins = False
    renews_age = False
    fine_ages = False
    leases = False

    def make_store(self, tmp_path):
        """A directory, seen through fsspec."""
        return FsspecStore(f"fsspec+file://{tmp_path}/store")


class EncryptedTests(StoreTests):
    """Laws of stores that encrypt: the URL names what is under them."""

    plain_sizes = False

    def test_the_url_finds_the_same_objects(self, store):
        """The URL is the inner store's: it finds the same names, and nothing that can be read."""
        key = Key(Kind.BATON, name_of(1))
        store.put(key, [b"here"])
        with open_store(store.url) as other:
            assert [entry.key for entry in other.list(Kind.BATON)] == [key]
            assert b"here" not in contents(other, key)


class TestEncryptedMemory(EncryptedTests):
    """Encrypted objects in this process."""

    spans_processes = False

    def make_store(self, tmp_path):
        """Around an anonymous store."""
        return EncryptedStore(MemoryStore(), CIPHER)


class TestEncryptedDirectory(EncryptedTests):
    """Encrypted objects as files, with a limit that no test reaches."""

    def make_store(self, tmp_path):
        """Around a directory."""
        inner = DirectoryStore(tmp_path / "store", max_bytes=10_000_000)
        return EncryptedStore(inner, CIPHER)
