"""A record that no ledger takes is set aside with the reason, and keeps back no other one."""

from __future__ import annotations

import json
import sqlite3
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import DataError, IntegrityError, OperationalError, StatementError
from tests.lineage.nodes import answer, entry

from kvbaton.errors import InputError, KvbatonError, LedgerError, LedgerUnavailable, LineageCycle
from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.recorder import Recorder
from kvbaton.lineage.records import Entry, Node, NodeKind
from kvbaton.lineage.spool import FORMAT, REFUSED, Spool, adopted, line_of, read_entries

PATIENCE_S = 60.0
OWN_FAULTS = [
    UnicodeEncodeError("utf-8", "\udce9", 0, 1, "surrogates not allowed"),
    OverflowError("Python int too large to convert to SQLite INTEGER"),
    TypeError("not supported"),
    RecursionError("too deep"),
    InputError("too long"),
    LineageCycle("this would descend from itself"),
]
DATABASE_FAULTS = [
    DataError("INSERT", {}, sqlite3.DataError("value too long")),
    IntegrityError("INSERT", {}, sqlite3.IntegrityError("NOT NULL")),
    StatementError("cannot be bound", "INSERT", {}, ValueError("nul")),
]


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


def refused(folder: Path) -> list[dict[str, Any]]:
    """What was set aside."""
    path = folder / REFUSED
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def poisoned(monkeypatch: pytest.MonkeyPatch, error: Exception, *names: str) -> None:
    """Recording any of these nodes raises, as a database or its driver would."""
    record = Ledger.record

    def odd(self: Ledger, entries: Iterable[Entry]) -> int:
        several = list(entries)
        if any(one.node.id in names for one in several):
            raise error
        return record(self, several)

    monkeypatch.setattr(Ledger, "record", odd)


def as_the_ledgers(cause: Exception) -> LedgerError:
    """A database's error as it leaves the ledger."""
    error = LedgerUnavailable(f"the ledger cannot be used now: {cause}")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error", [*OWN_FAULTS, *map(as_the_ledgers, DATABASE_FAULTS)], ids=lambda e: repr(e)[:40]
)
def test_a_poisonous_record_is_set_aside(
    error: Exception,
    recording: Recorder,
    url: str,
    folder: Path,
    heard: list[KvbatonError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever is wrong with it: the others are written, it is in the file with the reason, and is
    told of by its id; alone it blocks nobody either."""
    poisoned(monkeypatch, error, "bad", "alone")
    for name in ("a1", "a2", "bad", "a3"):
        recording.put(answer(name))
    assert recording.flush(PATIENCE_S)
    recording.put(answer("alone"))
    assert recording.flush(PATIENCE_S)
    recording.put(answer("a4"))
    assert recording.flush(PATIENCE_S)
    assert recorded(url) == ["a1", "a2", "a3", "a4"]
    assert [one["node"]["id"] for one in refused(folder)] == ["bad", "alone"]
    assert all(one["why"] for one in refused(folder))
    assert [one.at for one in heard] == ["bad", "alone"]
    assert recording.refusal is heard[-1]
    assert recording.failure is None
    assert stat.S_IMODE((folder / REFUSED).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("can't start new thread"),
        MemoryError(),
        LedgerError("this is no ledger"),
        as_the_ledgers(OperationalError("INSERT", {}, sqlite3.OperationalError("disk is full"))),
    ],
    ids=lambda e: repr(e)[:40],
)
def test_a_fault_of_the_ledger_sets_nothing_aside(
    error: Exception,
    recording: Recorder,
    url: str,
    folder: Path,
    heard: list[KvbatonError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where nothing at all can be written, all records wait, and the thread goes on."""
    with monkeypatch.context() as patch:
        poisoned(patch, error, "a1", "a2", "a3")
        for name in ("a1", "a2", "a3"):
            recording.put(answer(name))
        assert not recording.flush(PATIENCE_S)
        assert not recording.flush(PATIENCE_S)
    assert len(heard) == 1
    assert recording.flush(PATIENCE_S)
    assert recorded(url) == ["a1", "a2", "a3"]
    assert refused(folder) == []


def test_a_poisonous_record_kills_nobody_who_adopts_it(
    url: str, folder: Path, heard: list[KvbatonError]
) -> None:
    """A spool of an older program may hold what no node can be: each such line is set aside once,
    and the next process finds nothing of it."""
    spool = Spool(folder)
    spool.append(entry("good", once="r1"))
    spool.close()
    (path,) = folder.iterdir()
    line = json.loads(line_of(entry("x", once="r2")))
    line["node"]["label"] = "caf\udce9.txt"
    path.write_bytes(path.read_bytes() + json.dumps(line).encode() + b"\nno json\n" + b'{"torn')
    for _ in range(2):
        with Recorder(lambda: Ledger(url, "local"), folder, complain=heard.append) as made:
            assert made.flush(PATIENCE_S)
    assert recorded(url) == ["good"]
    assert len(refused(folder)) == len(heard) == 2
    assert [one.name for one in folder.iterdir()] == [REFUSED]


def test_what_is_no_json_is_refused_at_once(recording: Recorder, url: str) -> None:
    """The caller hears of it, and the spool holds nothing that cannot be read."""
    odd = Node("x", NodeKind.ANSWER, facts={"at": object()})  # type: ignore[dict-item]
    for node, once in ((odd, ""), (answer("y"), "r" * 65), (answer("y"), "é")):
        with pytest.raises(InputError):
            recording.put(node, once=once)
    recording.put(answer("good"))
    assert recording.flush(PATIENCE_S)
    assert recorded(url) == ["good"]


def test_somebody_who_raises_when_told_stops_nothing(url: str, folder: Path) -> None:
    """A complaint is a courtesy."""

    def raises(error: KvbatonError) -> None:
        raise RuntimeError("nobody is here")

    with Recorder(lambda: Ledger(url, "local"), folder, complain=raises) as made:
        for node in (answer("x", "x"), answer("a1")):
            made.put(node)
            assert made.flush(PATIENCE_S)
    assert recorded(url) == ["a1"]


# -- a newer program's spool ----------------------------------------------------------------------


def newer_lines() -> list[bytes]:
    """A later format, one more field, in the record or beside it, and a kind of its own."""
    several = [json.loads(line_of(entry(f"new{n}", once=f"n{n}"))) for n in range(4)]
    several[0]["format"] = FORMAT + 1
    several[1]["node"]["tenant"] = "x"
    several[2]["signed"] = "x"
    several[3]["node"]["kind"] = "dream"
    return [json.dumps(one).encode() + b"\n" for one in several]


@pytest.mark.parametrize("number", range(4))
def test_a_newer_programs_records_are_left_for_it(
    number: int, url: str, folder: Path, heard: list[KvbatonError]
) -> None:
    """What is understood is written once and removed; the rest stays, and is told of once."""
    new = newer_lines()[number]
    folder.mkdir(mode=0o700)
    path = folder / "1-abc.jsonl"
    path.write_bytes(line_of(entry("old1", once="o1")) + new + line_of(entry("old2", once="o2")))
    with Recorder(lambda: Ledger(url, "local"), folder, complain=heard.append) as made:
        for _ in range(3):
            assert made.flush(PATIENCE_S)
        assert made.failure is None
    assert recorded(url) == ["old1", "old2"]
    assert path.read_bytes() == new
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(heard) == 1
    assert "newer program" in heard[0].sentence
    path.write_bytes(line_of(entry("more", once="o3")) + new)
    with Recorder(lambda: Ledger(url, "local"), folder) as made:
        assert made.flush(PATIENCE_S)
    assert recorded(url)[-1] == "more"
    assert [one.name for one in folder.iterdir()] == [path.name]


def test_lines_of_before_there_were_formats_are_read(folder: Path) -> None:
    """An upgrade loses nothing that waits."""
    line = json.loads(line_of(entry("x", once="r1")))
    assert line.pop("format") == FORMAT
    assert [e.once for e in read_entries(json.dumps(line).encode() + b"\n").entries] == ["r1"]
    folder.mkdir()
    with adopted(folder) as (left, paths):
        assert (left.entries, left.newer, list(paths)) == ([], (), [])
