"""A process's way to the ledger: it claims no more than the ledger has said, and stops nobody."""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.lineage.nodes import answer, baton, entry

from kvbaton.errors import (
    KvbatonError,
    LedgerError,
    LedgerRolledBack,
    LedgerUnavailable,
    LineageCycle,
)
from kvbaton.lineage import ledger as ledgers
from kvbaton.lineage.keeper import LedgerKeeper
from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.records import Standing
from kvbaton.lineage.seen import Seen
from kvbaton.lineage.spool import REFUSED, Spool

PATIENCE_S = 60.0
Open = Callable[..., LedgerKeeper]


@pytest.fixture
def open_keeper(url: str, tmp_path: Path) -> Iterator[Open]:
    """Opens keepers of the test's ledger, and closes them in the end."""
    opened: list[LedgerKeeper] = []

    def open_it(**options: Any) -> LedgerKeeper:
        given = {"read_s": PATIENCE_S, "retry_s": 0.0} | options
        opened.append(
            LedgerKeeper(url, "local", tmp_path / "spool", seen=tmp_path / "seen", **given)
        )
        return opened[-1]

    yield open_it
    for keeper in opened:
        keeper.close(1.0)


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


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until it does."""
    until_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def recorded(url: str) -> list[str]:
    """Ids of all nodes in the ledger, in the order of its log."""
    with Ledger(url, "local", must_exist=True) as ledger:
        return [event.node for event in ledger.log(limit=10**6) if event.kind.value == "recorded"]


def folder_of(url: str) -> Path:
    """Where the ledger lies."""
    return Path(url.removeprefix("sqlite:///")).parent


def away(url: str) -> None:
    """The ledger's folder is gone, and nobody can make it anew."""
    folder = folder_of(url)
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


# -- another ledger in the place of the one that was known ----------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
def test_a_ledger_that_vanishes_is_not_made_anew(
    restarted: bool, open_keeper: Open, url: str, tmp_path: Path
) -> None:
    """Its folder may be mounted again: until then records wait, also in a process that begins
    meanwhile, and then they are there once."""
    keeper = open_keeper()
    keeper.put(answer("a1"))
    assert keeper.flush(PATIENCE_S)
    folder = folder_of(url)
    folder.rename(tmp_path / "unmounted")
    if restarted:
        assert keeper.close(PATIENCE_S)
        keeper = open_keeper()
    keeper.put(answer("a2"))
    assert not keeper.flush(PATIENCE_S)
    assert keeper.freshness("a1").standing is Standing.UNKNOWN
    for use in (lambda: keeper.head("plan"), lambda: keeper.ask(lambda ledger: ledger.heads()),
                lambda: keeper.move("plan", baton("b"), expected=0)):  # fmt: skip
        with pytest.raises(LedgerUnavailable, match=r"not there|vanished"):
            use()
    assert not folder.exists()
    if restarted:
        assert keeper.failure is not None
        assert "removed on purpose" in keeper.failure.hint
    (tmp_path / "unmounted").rename(folder)
    assert keeper.flush(PATIENCE_S)
    assert recorded(url) == ["a1", "a2"]


def test_another_ledger_in_its_place_gets_no_records(
    open_keeper: Open, url: str, tmp_path: Path
) -> None:
    """Somebody has made a new one, and it has even more to say."""
    heard: list[KvbatonError] = []
    keeper = open_keeper(complain=heard.append)
    keeper.put(answer("a1"))
    assert keeper.flush(PATIENCE_S)
    folder = folder_of(url)
    folder.rename(tmp_path / "unmounted")
    with Ledger(url, "local") as other:
        other.record([entry(f"x{n}") for n in range(5)])
    keeper.put(answer("a2"))
    for _ in range(3):
        assert not keeper.flush(PATIENCE_S)
    assert isinstance(keeper.failure, LedgerRolledBack)
    assert keeper.freshness("x1").standing is Standing.UNKNOWN
    assert recorded(url) == [f"x{n}" for n in range(5)]
    assert len(heard) == 1
    shutil.rmtree(folder)
    (tmp_path / "unmounted").rename(folder)
    assert keeper.flush(PATIENCE_S)
    assert recorded(url) == ["a1", "a2"]


def test_an_old_copy_gets_no_records(open_keeper: Open, url: str, tmp_path: Path) -> None:
    """They would be lost when the right one is back; a ref is not moved there either."""
    folder = folder_of(url)
    keeper = open_keeper()
    keeper.put(answer("a1"))
    assert keeper.close(PATIENCE_S)
    shutil.copytree(folder, tmp_path / "yesterday")
    keeper = open_keeper()
    keeper.put(answer("a2"))
    assert keeper.freshness("a1").standing is Standing.CURRENT
    assert keeper.close(PATIENCE_S)
    folder.rename(tmp_path / "today")
    (tmp_path / "yesterday").rename(folder)
    keeper = open_keeper()
    keeper.put(answer("a3"))
    assert not keeper.flush(PATIENCE_S)
    assert isinstance(keeper.failure, LedgerRolledBack)
    with pytest.raises(LedgerRolledBack):
        keeper.move("plan", baton("b"), expected=0)
    assert recorded(url) == ["a1"]
    shutil.rmtree(folder)
    (tmp_path / "today").rename(folder)
    assert keeper.flush(PATIENCE_S)
    assert recorded(url) == ["a1", "a2", "a3"]


# -- moving ---------------------------------------------------------------------------------------


def test_a_move_that_cannot_be_remembered_is_made_known_and_no_error(
    open_keeper: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the disk is full before, nothing is moved; where it is so behind the commit, the ref
    has moved, and the caller hears so."""
    heard: list[KvbatonError] = []
    keeper = open_keeper(complain=heard.append)
    keeper.move("plan", baton("b1"), expected=0)

    def full(self: Seen) -> None:
        raise LedgerError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Seen, "keep", full)
        with Ledger(keeper.url, "local") as other:
            other.move("other", baton("o1"), expected=0)
            with pytest.raises(LedgerError, match="no space"):
                keeper.move("other", baton("o2"), expected=1)
            assert other.head("other").sequence == 1
        head = keeper.move("plan", baton("b2"), expected=1)
    assert (head.baton, head.sequence) == ("b2", 2)
    assert keeper.head("plan")[0].baton == "b2"
    assert [one.sentence for one in heard] == ["no space left on device"]
    assert keeper.failure is heard[0]


def test_a_move_comes_behind_what_dead_processes_have_left(
    open_keeper: Open, url: str, tmp_path: Path
) -> None:
    """Also in a process that has recorded nothing itself: what builds on the old head is marked."""
    keeper = open_keeper()
    keeper.move("plan", baton("b1"), expected=0)
    spool = Spool(tmp_path / "spool")
    spool.append(entry("left", "b1", once="r1"))
    spool.close()
    keeper.move("plan", baton("b2"), expected=1)
    assert [node.id for node in keeper.ask(lambda ledger: ledger.stale_among(["left"]))] == ["left"]
    with Ledger(url, "local") as ledger:
        assert next(e for e in ledger.log(node="left")).sequence < ledger.head("plan").as_of - 1


# -- it keeps nobody waiting, and raises nothing --------------------------------------------------


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Opening a ledger waits for this."""
    release, opening = threading.Event(), ledgers.require_newest

    def hang(database: Any) -> None:
        release.wait(PATIENCE_S)
        opening(database)

    monkeypatch.setattr(ledgers, "require_newest", hang)
    yield release
    release.set()


def test_a_ledger_that_hangs_while_it_is_opened_costs_what_the_caller_can_wait(
    open_keeper: Open, hung: threading.Event
) -> None:
    """The first one, too; and one thread waits for it, however many ask and warm it."""
    keeper = open_keeper(read_s=0.05)
    before = threading.active_count()
    for _ in range(5):
        keeper.warm()
        began_s = time.monotonic()
        assert keeper.freshness("a", limit_s=0.05).standing is Standing.UNKNOWN
        assert keeper.moves("plan", since_ms=0) is None
        assert time.monotonic() - began_s < 4.0  # and not 5 s for the opening
    assert isinstance(keeper.failure, LedgerUnavailable)
    assert threading.active_count() <= before + 1
    hung.set()
    keeper.put(baton("a"))
    eventually(lambda: keeper.flush(PATIENCE_S))
    eventually(lambda: keeper.freshness("a").standing is Standing.CURRENT)
    assert keeper.failure is None


def test_who_names_no_limit_waits_for_the_first_opening_once(
    open_keeper: Open, hung: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one waits no longer than for an answer."""
    monkeypatch.setattr("kvbaton.lineage.keeper.OPEN_S", 0.4)
    keeper = open_keeper(read_s=0.01)
    began_s = time.monotonic()
    keeper.freshness("a")
    first_s = time.monotonic() - began_s
    assert first_s >= 0.4
    assert "within 0.4 s" in str(keeper.failure)
    keeper.freshness("a")
    assert "within 0.01 s" in str(keeper.failure)
    hung.set()


def test_questions_that_hang_do_not_pile_up(
    open_keeper: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread waits for the answer; the others are told that it is owed."""
    keeper = open_keeper(read_s=0.02)
    keeper.put(baton("a"))
    assert keeper.flush(PATIENCE_S), keeper.failure
    keeper.ask(lambda ledger: ledger.sequence())
    before, release = threading.active_count(), threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "freshness", lambda *_: release.wait(PATIENCE_S))
        for _ in range(5):
            assert keeper.freshness("a").standing is Standing.UNKNOWN
        assert threading.active_count() <= before + 1
        assert "owes" in str(keeper.failure)
        release.set()
    eventually(lambda: keeper.freshness("a").standing is Standing.CURRENT)


def test_recording_never_waits_for_the_database(open_keeper: Open, hung: threading.Event) -> None:
    """Not even while somebody begins to watch it."""
    keeper = open_keeper()
    watching = threading.Thread(target=keeper.watch, daemon=True)
    watching.start()
    began_s = time.monotonic()
    keeper.put(answer("a1"))
    assert time.monotonic() - began_s < 4.0
    assert watching.is_alive()
    hung.set()
    watching.join(PATIENCE_S)
    assert not watching.is_alive()
    assert keeper.flush(PATIENCE_S)


@pytest.mark.parametrize(
    "error", [RuntimeError("can't start new thread"), MemoryError(), OSError(5, "I/O"), KeyError(1)]
)
def test_freshness_raises_nothing(
    error: Exception, open_keeper: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong below, the answer is not lost, and the reason is kept."""
    keeper = open_keeper()

    def fails(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "freshness", fails)
        patch.setattr(Ledger, "moves", fails)
        assert keeper.freshness("a", "plan", 1).standing is Standing.UNKNOWN
        assert keeper.moves("plan", since_ms=0) is None
        assert type(error).__name__ in str(keeper.failure)
    keeper.freshness("a")
    assert keeper.failure is None


def test_a_refused_record_is_told_on_the_way(open_keeper: Open, tmp_path: Path) -> None:
    """Nobody listens to complaints: receipts warn by ``failure``."""
    keeper = open_keeper()
    keeper.put(answer("x", "x"))
    assert keeper.flush(PATIENCE_S)
    keeper.freshness("x")
    assert isinstance(keeper.failure, LineageCycle)
    assert keeper.failure.at == "x"
    assert str(tmp_path / "spool" / REFUSED) in keeper.failure.hint
