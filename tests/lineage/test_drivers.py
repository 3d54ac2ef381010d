"""Databases whose drivers are not installed, fail, or are called with what they do not know."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy.dialects import registry

from kvbaton.errors import InputError, LedgerUnavailable
from kvbaton.lineage.connection import is_there
from kvbaton.lineage.keeper import LedgerKeeper
from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.records import Node, NodeKind, Standing

SECRET = "hunter2"


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No driver is installed."""
    for name in ("psycopg2", "psycopg", "MySQLdb", "oracledb"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> str:
    """A dialect of a third party that cannot be loaded."""

    class Broken(ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            raise RuntimeError("this was built for another machine")

    monkeypatch.setitem(sys.modules, "broken_dialect", Broken("broken_dialect"))
    monkeypatch.setattr(registry, "impls", {**registry.impls})
    registry.register("broken", "broken_dialect", "Dialect")
    return "broken://host/db"


@pytest.mark.usefixtures("missing")
@pytest.mark.parametrize(
    ("scheme", "package"),
    [
        ("postgresql", "psycopg"),
        ("postgresql+psycopg2", "psycopg2-binary"),
        ("postgresql+psycopg", "psycopg"),
        ("mysql", "mysqlclient"),
        ("oracle+oracledb", "oracledb"),
    ],
)
def test_a_driver_that_is_not_installed_is_an_outage(scheme: str, package: str) -> None:
    """With what to install, and without the password."""
    with pytest.raises(LedgerUnavailable, match="driver") as caught:
        Ledger(f"{scheme}://me:{SECRET}@localhost/kv", "local")
    assert caught.value.hint == f"pip install {package}"
    assert SECRET not in str(caught.value)


def test_a_driver_that_fails_is_an_outage(failing: str) -> None:
    """Whatever it raises; also for those who only ask whether the ledger is there."""
    for use in (lambda: Ledger(failing, "local"), lambda: is_there(failing)):
        with pytest.raises(LedgerUnavailable, match="another machine"):
            use()


@pytest.mark.usefixtures("missing")
def test_no_driver_stops_an_answer(tmp_path: Path) -> None:
    """What is read on the way to a token is unknown, and records wait."""
    with LedgerKeeper("postgresql://localhost/kv", "local", tmp_path / "spool") as keeper:
        keeper.put(Node("a1", NodeKind.ANSWER))
        assert keeper.freshness("b1", "plan", 1).standing is Standing.UNKNOWN
        assert isinstance(keeper.failure, LedgerUnavailable)
        assert keeper.flush(0.1) is False
    assert any(path.stat().st_size for path in (tmp_path / "spool").iterdir())


def test_options_that_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are an error of whoever wrote the URL, whether the dialect or the driver finds them."""
    with pytest.raises(InputError, match="does not take"):
        Ledger(f"sqlite:///{tmp_path}/ledger.db?timeout=never", "local")

    def strict(*given: object, **named: object) -> None:
        raise TypeError(f"connect() takes no {len(given) + len(named)} arguments")

    monkeypatch.setattr("sqlite3.dbapi2.connect", strict)
    with pytest.raises(InputError, match="takes no"):
        Ledger(f"sqlite:///{tmp_path}/ledger.db", "local")


@pytest.mark.parametrize("url", ["postgresql://host:port/db", "postgresql://[::1/db", "://", "x"])
def test_what_is_no_url(url: str) -> None:
    """It is refused before any driver is looked for."""
    with pytest.raises(InputError, match="no URL"):
        Ledger(url, "local")
