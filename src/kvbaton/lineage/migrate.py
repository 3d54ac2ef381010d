"""Versions of the ledger's tables: which one a database has, and bringing it to the newest."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, select

from kvbaton.errors import LedgerError, LedgerUnavailable, LedgerVersion
from kvbaton.lineage.connection import Database
from kvbaton.lineage.tables import VERSION, ledger

COMMAND = "kvbaton ledger migrate"
_FOLDER = Path(__file__).with_name("migrations")


def require_newest(database: Database) -> None:
    """Make the tables where there are none and may be; refuse those of another version.

    Raises
    ------
    LedgerVersion
        They are older, and can be migrated, or newer than this program.
    LedgerUnavailable
        There are none, although there must be: they were lost, or nobody has made them yet.
    LedgerError
        There are tables, and they are not the ledger's.
    """
    found = version_of(database)  # a reader waits for no writer
    if found is None:
        found = _made(database)
    if found != VERSION:
        raise _other(found, database)
    database.settle()


def _made(database: Database) -> str:
    """Make the tables, unless somebody else was faster; their version."""
    if database.must_exist:
        with database.reading() as connection:
            _require_free(connection, database)
    if database.is_new:
        database.settle()
    with database.writing() as connection:
        found = _version(connection)
        if found is not None:
            return found
        _require_free(connection, database)
        _upgrade(connection)
        return VERSION


def _require_free(connection: Connection, database: Database) -> None:
    """Refuse to make tables beside others, and where they were to be there."""
    if inspect(connection).get_table_names():
        raise LedgerError("this is a database of something else", at=database.shown)
    if database.must_exist:
        raise LedgerUnavailable(
            "there is no ledger in this database", at=database.shown, hint="restore it"
        )


def version_of(database: Database) -> str | None:
    """The version of the tables in a database; None where there are none of the ledger's."""
    with database.reading() as connection:
        return _version(connection)


def migrate(database: Database) -> tuple[str | None, str]:
    """Bring the tables to the newest version, in one transaction; from and to which.

    Raises
    ------
    LedgerVersion
        They are newer than this program.
    LedgerUnavailable
        There are none, although there must be.
    LedgerError
        There are tables, and they are not the ledger's.
    """
    with database.writing() as connection:
        found = _version(connection)
        if found is None:
            _require_free(connection, database)
        elif found not in _known():
            raise _other(found, database)
        _upgrade(connection)
    database.settle()
    return found, VERSION


def identity_of(database: Database) -> str:
    """The random name that a ledger was given when it was made; a copy of it has the same.

    Raises
    ------
    LedgerError
        It has none.
    """
    with database.reading() as connection:
        found = connection.scalar(select(ledger.c.identity))
    if found is None:
        raise LedgerError("this ledger has no identity", at=database.shown)
    return str(found)


def _version(connection: Connection) -> str | None:
    found = MigrationContext.configure(connection).get_current_revision()
    return found if found is None else str(found)


def _other(found: str, database: Database) -> LedgerVersion:
    if found in _known():
        return LedgerVersion(
            f"the ledger's tables are of version {found}, and this program's of {VERSION}",
            at=database.shown,
            hint=COMMAND,
        )
    return LedgerVersion(
        f"the ledger's tables are of version {found[:40]}, which this program does not know",
        at=database.shown,
        hint="a newer kvbaton has made them: upgrade this one",
    )


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_FOLDER))
    return config


def _known() -> frozenset[str]:
    scripts = ScriptDirectory.from_config(_config())
    return frozenset(str(script.revision) for script in scripts.walk_revisions())


def _upgrade(connection: Connection) -> None:
    config = _config()
    config.attributes["connection"] = connection
    with _ALEMBIC.alone:
        command.upgrade(config, "head")


class _Alembic:
    """Alembic keeps the connection of the migration that runs in variables of its module: of two
    at once in one process, one would make its tables in the other's database."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """In a forked child: a thread that held the lock is not there."""
        self.alone = threading.Lock()


_ALEMBIC = _Alembic()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ALEMBIC.forget)
