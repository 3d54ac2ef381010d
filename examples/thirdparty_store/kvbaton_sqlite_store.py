"""A kvbaton store in one SQLite file: ``sqlite:///absolute/path.db``."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kvbaton.errors import InputError, NotFound, StoreError, StoreFull, StoreTimeout
from kvbaton.stores import (
    Entry,
    Key,
    Kind,
    Reader,
    Store,
    StoreURL,
    byte_views,
    check_range,
    claim_by_put,
)

TABLE = """
CREATE TABLE IF NOT EXISTS objects (
    kind TEXT, name TEXT, used_ns INTEGER, data BLOB, PRIMARY KEY (kind, name)
)
"""


class SqliteStore(Store):
    """Objects as rows.  Readers see the database as it was when they were opened (WAL)."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = str(Path(path).absolute())
        self._lock = threading.Lock()
        self.url = str(StoreURL("sqlite", self._path))
        with _translated("the database cannot be opened"):
            # Made by us first: SQLite would make it readable to others.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
            self._db = _connect(self._path)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute(TABLE)

    @classmethod
    def from_url(cls, url: StoreURL) -> SqliteStore:
        """``sqlite:///absolute/path.db``, without options."""
        url.allow_options()
        if not url.location.startswith("/"):
            raise InputError("sqlite:// needs an absolute path")
        return cls(url.location)

    def put(self, key: Key, parts: Sequence[memoryview | bytes]) -> int:
        """Insert a row, or renew the age of the one that is there."""
        data = b"".join(byte_views(parts))
        where = (time.time_ns(), key.kind.value, key.name)
        with self._transaction(f"{key} could not be stored") as db:
            renew = "UPDATE objects SET used_ns = ? WHERE kind = ? AND name = ?"
            if db.execute(renew, where).rowcount:
                return 0
            insert = "INSERT INTO objects (used_ns, kind, name, data) VALUES (?, ?, ?, ?)"
            db.execute(insert, (*where, data))
        return len(data)

    def claim(self, key: Key, data: bytes) -> bool:
        """Insert a row that nobody else can: a put is one transaction, and synced."""
        return claim_by_put(self, key, data)

    def open(self, key: Key) -> Reader:
        """Open the row's blob on a connection of its own."""
        with _translated(f"{key} cannot be opened"):
            return _SqliteReader(self._path, key)

    def delete(self, key: Key) -> bool:
        """Delete the row."""
        with self._transaction(f"{key} cannot be deleted") as db:
            gone = db.execute(
                "DELETE FROM objects WHERE kind = ? AND name = ?", (key.kind.value, key.name)
            )
            return gone.rowcount > 0

    def list(self, kind: Kind) -> Iterator[Entry]:
        """Rows of one kind, oldest first."""
        query = "SELECT name, length(data), used_ns FROM objects WHERE kind = ? ORDER BY used_ns"
        with self._transaction(f"{kind.value} cannot be listed") as db:
            rows = db.execute(query, (kind.value,)).fetchall()
        return (Entry(Key(kind, name), size, used_ns / 1e9) for name, size, used_ns in rows)

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    @contextmanager
    def _transaction(self, what: str) -> Iterator[sqlite3.Connection]:
        with self._lock, _translated(what):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")


class _SqliteReader(Reader):
    def __init__(self, path: str, key: Key) -> None:
        self._key = key
        self._lock = threading.Lock()
        self._db = _connect(path)
        try:
            query = "SELECT rowid FROM objects WHERE kind = ? AND name = ?"
            row = self._db.execute(query, (key.kind.value, key.name)).fetchone()
            if row is None:
                raise NotFound(f"{key} is not in the store")
            self._blob = self._db.blobopen("objects", "data", row[0], readonly=True)
        except BaseException:
            self._db.close()
            raise
        self.size_bytes = len(self._blob)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        view = check_range(self._key, offset, buffer, self.size_bytes)
        with self._lock, _translated(f"{self._key} cannot be read"):
            self._blob.seek(offset)
            view[:] = self._blob.read(view.nbytes)

    def close(self) -> None:
        with self._lock:
            self._db.close()  # and with it the blob


def _connect(path: str) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Callers catch kvbaton's errors only, so no other may leave a store."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{what}: {error.strerror}") from error
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        kinds = {"SQLITE_FULL": StoreFull, "SQLITE_BUSY": StoreTimeout}
        raise kinds.get(name, StoreError)(f"{what} ({name})") from error
