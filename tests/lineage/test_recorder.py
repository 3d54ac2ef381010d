"""Records go to the ledger in the background, each exactly once, whatever dies meanwhile."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.lineage.nodes import answer, entry

from kvbaton.errors import KvbatonError, LedgerUnavailable, LineageCycle
from kvbaton.lineage import recorder
from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.recorder import Recorder
from kvbaton.lineage.spool import Spool, adopted, line_of, read_entries

PATIENCE_S = 60.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where records wait."""
    return tmp_path / "spool"


@pytest.fixture
def heard() -> list[KvbatonError]:
    """What the recorder complains of."""
    return []


@pytest.fixture
def recording(url: str, folder: Path, heard: list[KvbatonError]) -> Iterator[Recorder]:
    """A recorder that tries again only when it is asked to."""
    with Recorder(
        lambda: Ledger(url, "local", wait_s=0.01), folder, complain=heard.append, retry_s=1e6
    ) as made:
        yield made


def recorded(url: str) -> list[str]:
    """Ids of all nodes in the ledger, in the order of its log."""
    with Ledger(url, "local") as ledger:
        return [event.node for event in ledger.log(limit=10**6)]


def test_records_arrive_in_their_order(recording: Recorder, url: str, folder: Path) -> None:
    """Behind a flush the ledger has them, and the spool is empty."""
    for number in range(2500):
        recording.put(answer(f"a{number}", f"a{number - 1}" if number else "b"))
    assert recording.flush(PATIENCE_S)
    assert recorded(url) == [f"a{number}" for number in range(2500)]
    (spool,) = folder.iterdir()
    assert (spool.stat().st_size, stat.S_IMODE(spool.stat().st_mode)) == (0, 0o600)


def test_a_locked_ledger_keeps_nobody_waiting_and_loses_nothing(
    recording: Recorder, url: str, heard: list[KvbatonError]
) -> None:
    """Records wait in the spool, one complaint is made, and afterwards each is written once."""
    recording.put(answer("a0"))
    assert recording.flush(PATIENCE_S)
    other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for number in range(1, 5):
        recording.put(answer(f"a{number}"))
        assert not recording.flush(PATIENCE_S)
    assert [type(error) for error in heard] == [LedgerUnavailable]
    other.execute("ROLLBACK")
    other.close()
    assert recording.flush(PATIENCE_S)
    assert recording.failure is None
    assert recorded(url) == [f"a{number}" for number in range(5)]


def test_a_vanished_ledger_is_used_again_when_it_is_back(
    recording: Recorder, url: str, heard: list[KvbatonError]
) -> None:
    """Nothing goes into a file that was moved away."""
    path = Path(url.removeprefix("sqlite:///"))
    recording.put(answer("a0"))
    assert recording.flush(PATIENCE_S)
    away = path.parent.with_name("away")
    path.parent.rename(away)
    path.parent.write_text("in its place")  # so that it cannot be made anew
    recording.put(answer("a1"))
    assert not recording.flush(PATIENCE_S)
    assert len(heard) == 1
    path.parent.unlink()
    away.rename(path.parent)
    assert recording.flush(PATIENCE_S)
    assert recorded(url) == ["a0", "a1"]


def test_what_could_not_be_written_is_left_for_the_next_process(url: str, folder: Path) -> None:
    """Closing says so, and whoever comes next writes it once."""

    def refuse() -> Ledger:
        raise LedgerUnavailable("not now")

    first = Recorder(refuse, folder, retry_s=1e6)
    first.put(answer("a1"), once="r1")
    assert not first.close()
    with pytest.raises(LedgerUnavailable, match="closed"):
        first.put(answer("a2"))
    for _ in range(2):
        with Recorder(lambda: Ledger(url, "local"), folder) as second:
            assert second.flush(PATIENCE_S)
    assert recorded(url) == ["a1"]
    assert list(folder.iterdir()) == []


def test_a_cycle_does_not_keep_back_the_others(
    recording: Recorder, url: str, heard: list[KvbatonError]
) -> None:
    """The record that is refused is told; the rest is written."""
    for node in (answer("a1"), answer("x", "x"), answer("a2", "a1"), answer("a3")):
        recording.put(node)
    assert recording.flush(PATIENCE_S)
    assert recorded(url) == ["a1", "a2", "a3"]
    assert [type(error) for error in heard] == [LineageCycle]


def test_memory_is_bounded_and_the_spool_is_not(
    url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not fit into memory is read from the file."""
    monkeypatch.setattr(recorder, "_MOST_IN_MEMORY", 3)
    path = Path(url.removeprefix("sqlite:///"))
    Ledger(url, "local").close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with Recorder(lambda: Ledger(url, "local", wait_s=0.01), folder, retry_s=1e6) as made:
        for number in range(20):
            made.put(answer(f"a{number}"))
        assert not made.flush(PATIENCE_S)
        other.execute("ROLLBACK")
        other.close()
        assert made.flush(PATIENCE_S)
    assert recorded(url) == [f"a{number}" for number in range(20)]


_WRITER = """
import sys
from pathlib import Path
from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.recorder import Recorder
from kvbaton.lineage.records import Node, NodeKind
url, folder, name = sys.argv[1:]
made = Recorder(lambda: Ledger(url, "local"), Path(folder))
for number in range(100_000):
    made.put(Node(f"{name}-{number}", NodeKind.ANSWER))
    print(number, flush=True)
"""


def test_a_killed_process_loses_no_record_and_writes_none_twice(url: str, folder: Path) -> None:
    """Whatever SIGKILL cuts off: what was put is in the ledger once, after somebody else comes."""
    told: dict[str, int] = {}
    for round_, lines in enumerate((1, 40, 700)):
        name = f"p{round_}"
        command = [sys.executable, "-c", _WRITER, url, str(folder), name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            out: Any = process.stdout
            seen = [out.readline() for _ in range(lines)]
            process.send_signal(signal.SIGKILL)
            seen += out.read().splitlines(keepends=True)
            told[name] = int([line for line in seen if line.endswith("\n")][-1])
    with Recorder(lambda: Ledger(url, "local"), folder) as made:
        assert made.flush(PATIENCE_S)
    names = recorded(url)
    assert len(names) == len(set(names))
    for writer, last in told.items():
        mine = [name for name in names if name.startswith(f"{writer}-")]
        assert mine[: last + 1] == [f"{writer}-{number}" for number in range(last + 1)]
        assert len(mine) <= last + 2  # one may have been put and not yet told
    assert list(folder.iterdir()) == []


def test_a_living_process_keeps_its_spool(folder: Path) -> None:
    """Only what nobody holds is adopted, and by one only."""
    mine, theirs = Spool(folder), Spool(folder)
    mine.append(entry("mine"))
    theirs.append(entry("theirs"))
    path = theirs.path
    theirs.close()
    with adopted(folder) as (left, paths):
        assert ([e.node.id for e in left.entries], list(paths)) == (["theirs"], [path])
        with adopted(folder) as (second, _):
            assert second.entries == []
    assert [file.name for file in folder.iterdir()] == [mine.path.name]
    mine.clear()
    mine.close()
    assert list(folder.iterdir()) == []


def test_a_living_process_adopts_what_others_leave_later(
    recording: Recorder, url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a flush is over, and now and then when nobody asks."""
    assert recording.flush(PATIENCE_S)
    for round_, asked in enumerate((True, False)):
        spool = Spool(folder)
        spool.append(entry(f"late{round_}", once=f"r{round_}"))
        spool.close()
        if asked:
            assert recording.flush(PATIENCE_S)
            assert recorded(url) == ["late0"]
            monkeypatch.setattr(recorder, "ADOPT_S", 0.05)
            assert recording.flush(PATIENCE_S)  # it waits by the new time from here on
    until_s = time.monotonic() + PATIENCE_S
    while recorded(url) != ["late0", "late1"] or len(list(folder.iterdir())) > 1:
        assert time.monotonic() < until_s
        time.sleep(0.02)


def test_an_idle_look_does_not_open_the_ledger(
    url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody has left anything, nothing is opened."""
    monkeypatch.setattr(recorder, "ADOPT_S", 0.01)
    opened: list[str] = []

    def open_it() -> Ledger:
        opened.append(url)
        return Ledger(url, "local")

    with Recorder(open_it, folder) as made:
        for _ in range(3):
            assert made.flush(PATIENCE_S)
    assert opened == []


def test_what_was_adopted_in_vain_stays(folder: Path) -> None:
    """Where the ledger refuses, the file is there for the next attempt."""
    spool = Spool(folder)
    spool.append(entry("x"))
    spool.close()
    with pytest.raises(LedgerUnavailable), adopted(folder):
        raise LedgerUnavailable("not now")
    with adopted(folder) as (left, _):
        assert [e.node.id for e in left.entries] == ["x"]


def test_torn_lines_are_counted_and_whole_ones_read() -> None:
    """Cut anywhere, a spool gives all records before the cut."""
    whole = b"".join(line_of(entry(f"n{n}", "p", once=f"r{n}")) for n in range(3))
    assert [e.node.id for e in read_entries(whole).entries] == ["n0", "n1", "n2"]
    ends = [i + 1 for i, byte in enumerate(whole) if byte == 10]
    for cut in range(len(whole) + 1):
        found = read_entries(whole[:cut])
        complete = sum(end <= cut for end in ends)
        lacks_its_end = cut + 1 in ends  # and nothing else
        assert [e.once for e in found.entries] == [f"r{n}" for n in range(complete + lacks_its_end)]
        assert found.torn == (0 if cut in (0, *ends) or lacks_its_end else 1)
    lines = [b'{"node": {"id": "", "kind": "answer"}, "once": ""}\n', b"[]\n", b"\xff\n"]
    odd = read_entries(b"".join(lines))
    assert (odd.entries, odd.torn, odd.odd) == ([], 0, tuple(lines))


def test_a_full_disk_is_told_and_leaves_no_torn_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short write is taken back, so that the next record is whole."""
    spool, write = Spool(folder), os.write
    spool.append(entry("a"))
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:5]))
    with pytest.raises(LedgerUnavailable, match="no room"):
        spool.append(entry("b"))
    monkeypatch.setattr(os, "write", write)
    spool.append(entry("c"))
    assert [e.node.id for e in spool.read()] == ["a", "c"]
    spool.clear()
    spool.close()
