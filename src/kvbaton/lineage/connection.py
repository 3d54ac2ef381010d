"""Connections to the ledger's database, and what differs between dialects.

SQLite: one file of mode 0600 in a folder of mode 0700, write-ahead log, so readers never wait for
a writer.  A transaction that writes takes the write lock at its beginning; elsewhere the row of
the domain's counter does the same, so that sequences are given in the order of the commits.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, NoSuchModuleError, SQLAlchemyError

from kvbaton.errors import InputError, LedgerError, LedgerUnavailable
from kvbaton.lineage.forking import GATE

SQLITE = "sqlite"
_READING = "kvbaton_reading"
_BESIDE = ("-wal", "-shm")
_MISFIT = "the URL of the ledger has what its driver does not take"
_PACKAGES = {"psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}
"""Drivers' modules whose packages have another name."""
WAIT_S = 5.0
"""How long a writer waits for others."""


class Database:
    """A database that the ledger lies in.

    Parameters
    ----------
    url
        ``sqlite:////absolute/path.db``, or that of another dialect that is installed.
    wait_s
        How long a transaction waits for those of others.
    must_exist
        Make nothing: no folder, no file, and later no tables.

    Raises
    ------
    InputError
        The URL names no database that could be used.
    LedgerUnavailable
        It cannot be opened, is not there although it must be, or its driver is not installed.
    """

    def __init__(self, url: str, *, wait_s: float = WAIT_S, must_exist: bool = False) -> None:
        self.url = _parsed(url)
        self.shown = self.url.render_as_string(hide_password=True)
        self.must_exist = must_exist
        self._wait_s = wait_s
        self._path = _file_of(self.url)
        if self._path is not None:
            with mapped(self.shown):
                _prepare(self._path, self.shown, must_exist=must_exist)
        self._engine = self._new_engine()
        if self._path is not None:
            GATE.add(self)
        self._inode: tuple[int, int] | None = None

    @property
    def is_new(self) -> bool:
        """Whether an SQLite file has nothing in it yet.

        Raises
        ------
        LedgerUnavailable
            It is not there.
        """
        with mapped(self.shown):
            return self._path is not None and self._path.stat().st_size == 0

    def settle(self) -> None:
        """Give an SQLite file its write-ahead log, and its files their mode.

        Only for what is a ledger, or empty: a file of somebody else's stays as it is.

        Raises
        ------
        LedgerUnavailable
            The database cannot be used now.
        """
        if self._path is None:
            return
        with self.reading() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
            for suffix in ("", *_BESIDE):
                with contextlib.suppress(FileNotFoundError):
                    _make_private(self._path.with_name(self._path.name + suffix))

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that nobody else's can overlap.

        Raises
        ------
        LedgerUnavailable
            The database is locked for too long, has vanished, or cannot be reached.
        LedgerError
            It is no database, or refused the work.
        """
        with self._unforked(), mapped(self.shown):
            self._require_same_file()
            with self._engine.begin() as connection:
                yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection on which each statement sees what was committed before it."""
        with self._unforked(), mapped(self.shown):
            self._require_same_file()
            with self._engine.connect() as connection:
                yield connection.execution_options(**{_READING: True})

    def close(self) -> None:
        """Let go of all connections."""
        self._engine.dispose()

    def _unforked(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext() if self._path is None else GATE.passed()

    def _new_engine(self) -> Engine:
        if self._path is None:
            with mapped(self.shown), _driver(self.url):
                engine = create_engine(self.url)
            event.listen(engine, "do_connect", _connected)
            return engine
        with _driver(self.url):
            engine = create_engine(
                self.url, connect_args={"timeout": self._wait_s, "check_same_thread": False}
            )
        event.listen(engine, "do_connect", self._open_only)
        event.listen(engine, "do_connect", _connected)
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", _begin_writing)
        return engine

    def _open_only(
        self, dialect: object, record: object, given: list[Any], named: dict[str, Any]
    ) -> None:
        """SQLite makes no file by itself: one that vanishes just now stays vanished."""
        del dialect, record
        given[0] = f"file:{quote(str(self._path))}?mode=rw"
        named["uri"] = True

    def _require_same_file(self) -> None:
        """SQLite goes on writing to a file that was deleted or replaced; nobody would see it."""
        if self._path is None:
            return
        try:
            found = self._path.stat()
        except FileNotFoundError:
            raise LedgerUnavailable(
                "the ledger has vanished", at=self.shown, hint="restore it, or open it anew"
            ) from None
        inode = found.st_dev, found.st_ino
        if self._inode is None:
            self._inode = inode
        elif self._inode != inode:
            raise LedgerUnavailable(
                "another file has taken the ledger's place", at=self.shown, hint="open it anew"
            )


def is_there(url: str) -> bool:
    """Whether the file of a ledger is there; True for a database that is no file.

    Raises
    ------
    InputError
        The URL names no database that could be used.
    """
    path = _file_of(_parsed(url))
    return path is None or path.exists()


@contextmanager
def mapped(shown: str) -> Iterator[None]:
    """Errors of databases and files as the ledger's."""
    try:
        yield
    except (SQLAlchemyError, OSError) as error:
        raise _as_ledger_error(error, shown) from error


def _as_ledger_error(error: SQLAlchemyError | OSError, shown: str) -> LedgerError:
    if isinstance(error, OSError):
        return LedgerUnavailable(f"the ledger cannot be used: {error.strerror or error}", at=shown)
    cause = getattr(error, "orig", None)
    if isinstance(cause, sqlite3.DatabaseError) and not isinstance(
        cause, sqlite3.OperationalError | sqlite3.IntegrityError
    ):
        return LedgerError(f"this is no ledger: {cause}", at=shown)
    if isinstance(error, DatabaseError):
        return LedgerUnavailable(f"the ledger cannot be used now: {cause or error}", at=shown)
    return LedgerError(f"the ledger refused: {error}", at=shown)


def _parsed(url: str) -> URL:
    hint = "sqlite:////absolute/path/ledger.db"
    try:
        found = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise InputError("this is no URL of a ledger", hint=hint) from error
    try:
        with _driver(found):
            found.get_dialect()
    except (ArgumentError, NoSuchModuleError) as error:
        raise InputError("this is no URL of a ledger", hint=hint) from error
    if found.get_backend_name() == SQLITE:
        path = found.database or ""
        if not path.startswith("/"):
            raise InputError(
                "a ledger's file needs an absolute path", hint="sqlite:////var/lib/ledger.db"
            )
    return found


@contextmanager
def _driver(url: URL) -> Iterator[None]:
    """A database's own module that is not installed, or fails, is no error of the ledger's user
    in the middle of an answer."""
    try:
        yield
    except SQLAlchemyError:
        raise
    except ImportError as error:
        package = _PACKAGES.get(error.name or "", error.name or "its driver")
        raise LedgerUnavailable(
            f"the driver of {url.drivername} cannot be loaded: {error}",
            at=url.render_as_string(hide_password=True),
            hint=f"pip install {package}",
        ) from error
    except (TypeError, ValueError) as error:
        raise InputError(f"{_MISFIT}: {error}") from error
    except Exception as error:  # what third parties' modules raise while they are loaded
        raise LedgerUnavailable(
            f"the driver of {url.drivername} fails: {type(error).__name__}: {error}",
            at=url.render_as_string(hide_password=True),
        ) from error


def _file_of(url: URL) -> Path | None:
    return Path(url.database) if url.get_backend_name() == SQLITE and url.database else None


def _prepare(path: Path, shown: str, *, must_exist: bool) -> None:
    """A private file in a private folder: SQLite gives its side files the same mode.

    A file that is there is never opened here: as soon as a process closes any descriptor of a
    file, it loses all locks that it holds on that file, those of SQLite's connections included.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        if must_exist:
            raise LedgerUnavailable(
                "the ledger is not there", at=shown, hint="restore it, or mount its folder again"
            ) from None
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_empty(path)
        found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise LedgerError("a foreign file is in the ledger's place", at=shown)


def _make_private(path: Path) -> None:
    if stat.S_IMODE(path.lstat().st_mode) & 0o077:
        path.chmod(0o600)


def _make_empty(path: Path) -> None:
    """Made and closed under a name that nobody opens, and only then given its own."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with contextlib.suppress(FileExistsError):  # somebody else was faster
            path.hardlink_to(aside)
    finally:
        aside.unlink(missing_ok=True)


def _connected(dialect: Any, record: object, given: list[Any], named: dict[str, Any]) -> Any:
    """A connection; options of the URL that the driver does not know are its writer's error."""
    del record
    try:
        return dialect.connect(*given, **named)
    except (TypeError, ValueError) as error:
        raise InputError(f"{_MISFIT}: {error}") from error


def _set_up_sqlite(connection: Any, record: object) -> None:
    del record
    connection.isolation_level = None  # transactions are begun below
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _begin_writing(connection: Connection) -> None:
    if not connection.get_execution_options().get(_READING):  # a read alone needs no transaction
        connection.exec_driver_sql("BEGIN IMMEDIATE")
