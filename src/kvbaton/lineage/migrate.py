"""Versions of the ledger's tables: which one a database has, and bringing it to the newest."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect

from kvbaton.errors import LedgerError, LedgerVersion
from kvbaton.lineage.connection import Database
from kvbaton.lineage.tables import VERSION

COMMAND = "kvbaton ledger migrate"
_FOLDER = Path(__file__).with_name("migrations")


def require_newest(database: Database) -> None:
    """Make the tables where there are none; refuse those of another version.

    Raises
    ------
    LedgerVersion
        They are older, and can be migrated, or newer than this program.
    LedgerError
        There are tables, and they are not the ledger's.
    """
    found = version_of(database)  # a reader waits for no writer
    if found is None:
        found = _made(database)
    if found != VERSION:
        raise _other(found, database)


def _made(database: Database) -> str:
    """Make the tables, unless somebody else was faster; their version."""
    with database.writing() as connection:
        found = _version(connection)
        if found is not None:
            return found
        if inspect(connection).get_table_names():
            raise LedgerError("this is a database of something else", at=database.shown)
        _upgrade(connection)
        return VERSION


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
    """
    with database.writing() as connection:
        found = _version(connection)
        if found is not None and found not in _known():
            raise _other(found, database)
        _upgrade(connection)
    return found, VERSION


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
    command.upgrade(config, "head")
