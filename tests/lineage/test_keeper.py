"""A process's way to the ledger: it claims no more than the ledger has said, and stops nobody."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.lineage.nodes import answer, baton

from kvbaton.lineage.keeper import LedgerKeeper
from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.records import Standing

PATIENCE_S = 60.0
Open = Callable[..., LedgerKeeper]


@pytest.fixture
def open_keeper(url: str, tmp_path: Path) -> Iterator[Open]:
    """Opens keepers of the test's ledger, and closes them in the end."""
    opened: list[LedgerKeeper] = []

    def open_it(**options: Any) -> LedgerKeeper:
        given = {"read_s": PATIENCE_S, "wait_s": 0.01, "retry_s": 0.0} | options
        opened.append(
            LedgerKeeper(url, "local", tmp_path / "spool", seen=tmp_path / "seen", **given)
        )
        return opened[-1]

    yield open_it
    for keeper in opened:
        keeper.close(0.1)


@contextmanager
def locked(url: str) -> Iterator[None]:
    """Nobody can write meanwhile; reading goes on."""
    Ledger(url, "local").close()
    other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")
    finally:
        other.close()


def away(url: str) -> None:
    """The ledger's folder is gone, and nobody can make it anew."""
    folder = Path(url.removeprefix("sqlite:///")).parent
    folder.rename(folder.with_name("away"))
    folder.write_text("in its place")


# -- nobody is current whom the ledger was not asked about ----------------------------------------


def test_an_own_record_that_waits_is_as_stale_as_what_it_was_made_from(
    open_keeper: Open, url: str
) -> None:
    """Also over several records that wait: the mark of a recorded ancestor counts at once."""
    keeper = open_keeper()
    for name in ("old", "other"):
        keeper.put(baton(name))
    assert keeper.flush(PATIENCE_S)
    keeper.ask(lambda ledger: ledger.withdraw("old", why="wrong customer"))
    with locked(url):
        keeper.put(answer("said", "other", "old"))
        keeper.put(baton("next", "said"))
        keeper.put(baton("free", "other"))
        found = keeper.freshness("next")
        assert (found.standing, found.why) == (
            Standing.STALE,
            "old was withdrawn: wrong customer",
        )
        assert found.as_of == keeper.ask(lambda ledger: ledger.sequence())
        assert keeper.freshness("free").standing is Standing.CURRENT
    assert keeper.flush(PATIENCE_S)
    assert keeper.freshness("next").standing is Standing.STALE
    assert keeper.freshness("free").standing is Standing.CURRENT


def test_the_first_record_of_an_empty_ledger_is_current(open_keeper: Open, url: str) -> None:
    """The ledger has answered, although it stands at nothing."""
    keeper = open_keeper()
    with locked(url):
        keeper.put(baton("first"))
        found = keeper.freshness("first")
        assert (found.standing, found.as_of) == (Standing.CURRENT, 0)
        assert keeper.freshness("foreign").standing is Standing.UNKNOWN


def test_nothing_is_current_while_the_ledger_is_away(open_keeper: Open, url: str) -> None:
    """Not even what this process has made: somebody may have withdrawn it."""
    keeper = open_keeper(retry_s=0.01)
    keeper.put(baton("made"))
    assert keeper.flush(PATIENCE_S)
    assert keeper.freshness("made").standing is Standing.CURRENT
    away(url)
    for _ in range(2):
        assert keeper.freshness("made").standing is Standing.UNKNOWN
    assert keeper.failure is not None
    quiet = open_keeper(retry_s=1e6)
    quiet.put(baton("mine"))
    for _ in range(2):  # the second is not even asked about
        assert quiet.freshness("mine").standing is Standing.UNKNOWN
