"""Opening a ledger: what makes one, what must not, which one it is, and what is left as it was."""

from __future__ import annotations

import shutil
import sqlite3
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.lineage.nodes import entry

from kvbaton.errors import LedgerError, LedgerUnavailable
from kvbaton.lineage.connection import Database
from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.migrate import migrate

Tree = dict[str, tuple[int, bytes]]


def tree(folder: Path) -> Tree:
    """All that is in a folder: names, modes, content."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(folder.rglob("*"))
    }


def nothing(path: Path) -> None:
    """Not even a folder."""


def folder(path: Path) -> None:
    """An empty one, as of something that is not mounted."""
    path.parent.mkdir(mode=0o755)


def empty(path: Path) -> None:
    """A file without anything in it."""
    folder(path)
    path.write_bytes(b"")


def text(path: Path) -> None:
    """A file of the user's."""
    folder(path)
    path.write_text("notes of mine\n" * 500, encoding="utf-8")
    path.chmod(0o644)


def other_tables(path: Path) -> None:
    """A database of another program, open to others."""
    folder(path)
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE things (x)")
    other.commit()
    other.close()
    path.chmod(0o644)


def no_tables(path: Path) -> None:
    """A database whose tables were dropped."""
    other_tables(path)
    other = sqlite3.connect(path)
    other.execute("DROP TABLE things")
    other.commit()
    other.close()


NO_LEDGERS = [nothing, folder, empty, text, other_tables, no_tables]


@pytest.fixture
def path(url: str) -> Path:
    """The ledger's file."""
    return Path(url.removeprefix("sqlite:///"))


# --- a ledger that must be there -----------------------------------------------------------------


@pytest.mark.parametrize("what", NO_LEDGERS)
def test_where_one_must_be_none_is_made(
    url: str, path: Path, tmp_path: Path, what: Callable[[Path], None]
) -> None:
    """Whatever is there instead, nothing of it is touched, and nothing is added."""
    what(path)
    before = tree(tmp_path)
    with pytest.raises(LedgerError) as caught:
        Ledger(url, "local", must_exist=True)
    assert isinstance(caught.value, LedgerUnavailable) == (what not in (text, other_tables))
    with pytest.raises(LedgerError):
        migrate(Database(url, must_exist=True))
    assert tree(tmp_path) == before


def test_where_one_must_be_it_is_used(url: str, ledger: Ledger) -> None:
    """As any other."""
    with Ledger(url, "local", must_exist=True) as again:
        again.record([entry("file")])
        assert ledger.node("file") == again.node("file")


def test_one_that_was_moved_away_is_not_made_again(
    url: str, path: Path, tmp_path: Path, ledger: Ledger
) -> None:
    """Its folder, as when it is unmounted; once it is back, all of it is there."""
    ledger.record([entry("file")])
    path.parent.rename(tmp_path / "aside")
    before = tree(tmp_path)
    with pytest.raises(LedgerUnavailable, match="not there"):
        Ledger(url, "local", must_exist=True)
    with pytest.raises(LedgerUnavailable):
        ledger.record([entry("more")])
    assert tree(tmp_path) == before
    (tmp_path / "aside").rename(path.parent)
    with Ledger(url, "local", must_exist=True) as again:
        assert [node.id for node in again.nodes()] == ["file"]


def test_one_that_vanishes_while_it_is_opened_is_not_made_again(
    url: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the file and SQLite's."""
    Ledger(url, "local").close()
    database = Database(url)
    monkeypatch.setattr(database, "_require_same_file", path.unlink)
    with pytest.raises(LedgerUnavailable), database.reading() as connection:
        connection.exec_driver_sql("SELECT 1")
    assert list(path.parent.iterdir()) == []
    database.close()


# --- what is somebody else's ---------------------------------------------------------------------


@pytest.mark.parametrize("what", [text, other_tables])
@pytest.mark.parametrize("use", ["open", "migrate"])
def test_what_is_somebody_elses_is_refused_and_stays_as_it_is(
    url: str, path: Path, tmp_path: Path, what: Callable[[Path], None], use: str
) -> None:
    """Its mode and its way to keep a journal, too."""
    what(path)
    before = tree(tmp_path)
    database = Database(url)
    with pytest.raises(LedgerError):
        Ledger(url, "local") if use == "open" else migrate(database)
    database.close()
    assert tree(tmp_path) == before


def test_a_ledger_that_was_open_to_others_is_made_private(url: str, path: Path) -> None:
    """And a copy that came without a write-ahead log gets it back."""
    Ledger(url, "local").close()
    other = sqlite3.connect(path)
    other.execute("PRAGMA journal_mode=DELETE")
    other.close()
    path.chmod(0o666)
    with Ledger(url, "local", must_exist=True) as ledger:
        ledger.record([entry("file")])
        assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}
        assert path.with_name("ledger.db-wal").exists()


# --- which one it is -----------------------------------------------------------------------------


def test_a_ledger_has_an_identity_for_good(url: str, path: Path, tmp_path: Path) -> None:
    """Every handle, domain and copy says the same; one that was made in its place does not."""
    with Ledger(url, "local") as first, Ledger(url, "other") as second:
        known = first.identity
        assert second.identity == known
        assert len(bytes.fromhex(known)) == 16
    shutil.copy(path, tmp_path / "copy.db")
    with Ledger(f"sqlite:///{tmp_path}/copy.db", "local") as copy:
        assert copy.identity == known
    path.unlink()
    with Ledger(url, "local") as anew:
        assert anew.identity != known


def test_whoever_makes_it_together_agrees_on_its_identity(url: str) -> None:
    """One of them made it."""
    gate, found = threading.Barrier(6), []

    def make() -> None:
        gate.wait()
        with Ledger(url, "local", wait_s=30) as ledger:
            found.append(ledger.identity)

    threads = [threading.Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 6
    assert len(set(found)) == 1


def test_a_ledger_whose_identity_was_removed_has_none(url: str, path: Path) -> None:
    """It is an error, not an empty name that all such ledgers share."""
    with Ledger(url, "local") as ledger:
        other = sqlite3.connect(path)
        other.execute("DELETE FROM ledger")
        other.commit()
        other.close()
        with pytest.raises(LedgerError, match="no identity"):
            _ = ledger.identity


def test_several_ledgers_are_made_at_once_in_one_process(tmp_path: Path) -> None:
    """Each gets its tables, and none of them another one's."""
    urls = [f"sqlite:///{tmp_path}/{number}/ledger.db" for number in range(8)]
    at_once = threading.Barrier(len(urls))

    def make(url: str) -> str:
        at_once.wait(60.0)
        with Ledger(url, "local") as made:
            made.record([entry("a")])
            return made.identity

    with ThreadPoolExecutor(len(urls)) as pool:
        assert len(set(pool.map(make, urls))) == len(urls)
