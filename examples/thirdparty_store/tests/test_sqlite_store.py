"""The SQLite store passes kvbaton's suite and is found by its URL."""

from kvbaton_sqlite_store import SqliteStore

from kvbaton.stores import Key, Kind, open_store, store_schemes
from kvbaton.testing import StoreTests


class TestSqliteStore(StoreTests):
    """Everything that a store must do; looking and removing are two steps in this one."""

    leases = False

    def make_store(self, tmp_path):
        """A database of its own for each test."""
        return SqliteStore(tmp_path / "store.db")


def test_the_scheme_is_known_once_it_is_installed(tmp_path):
    """The entry point alone makes sqlite:// URLs work."""
    assert "sqlite" in store_schemes()
    with open_store(f"sqlite://{tmp_path}/store.db") as store:
        assert type(store) is SqliteStore
        assert store.put(Key(Kind.BATON, "0" * 64), [b"baton"]) == 5


def test_the_files_are_private(tmp_path):
    """Others cannot read the database or its journal."""
    with SqliteStore(tmp_path / "store.db") as store:
        store.put(Key(Kind.BATON, "0" * 64), [b"baton"])
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(["store.db", "store.db-shm", "store.db-wal"], 0o600)
