"""The kernel's locks on a ledger's files: whatever else a process opens and closes, SQLite's stay.

A process that closes any descriptor of a file loses all its locks on it.  Others take its
write-ahead log for abandoned then, and remove it: what was committed is gone.
"""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.lineage.nodes import baton, entry

from kvbaton.lineage.connection import is_there
from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.records import EventKind

PATIENCE_S = 120


def path_of(url: str) -> Path:
    """The database's file."""
    return Path(url.removeprefix("sqlite:///"))


def integrity(url: str) -> str:
    """What SQLite itself says of the file."""
    other = sqlite3.connect(path_of(url))
    found = str(other.execute("PRAGMA integrity_check").fetchone()[0])
    other.close()
    return found


@contextmanager
def python(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Another process, which is talked to by lines."""
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code, *arguments], **pipes) as process:
        yield process


# --- one process keeps its locks ---------------------------------------------------------------

_OUTSIDER = """
import sys
from kvbaton.lineage.ledger import Ledger
for line in sys.stdin:
    with Ledger(sys.argv[1], "local") as ledger:
        print(len(ledger.nodes(limit=None)), flush=True)
"""


def open_again(url: str) -> None:
    """A second ledger of this process, which is let go of at once."""
    Ledger(url, "local").close()


def open_and_use(url: str) -> None:
    """One that reads before it is let go of."""
    with Ledger(url, "local") as second:
        second.sequence()


def look_for_it(url: str) -> None:
    """What commands ask before they open."""
    assert is_there(url)


def open_in_a_thread(url: str) -> None:
    """Locks belong to the process, not to the thread."""
    thread = threading.Thread(target=open_again, args=[url])
    thread.start()
    thread.join()


@pytest.mark.parametrize("act", [open_again, open_and_use, look_for_it, open_in_a_thread])
def test_what_is_committed_survives_others_that_come_and_go(url: str, act: Any) -> None:
    """Each time somebody else has looked and left, the log of this process is still in use."""
    with Ledger(url, "local") as ledger, python(_OUTSIDER, url) as outsider:
        assert outsider.stdin is not None
        assert outsider.stdout is not None
        log = path_of(url).with_name("ledger.db-wal")
        for count in range(1, 21):
            ledger.record([entry(f"file-{count}")])
            act(url)
            outsider.stdin.write("look\n")
            outsider.stdin.flush()
            assert int(outsider.stdout.readline()) == count
            assert log.exists()
        outsider.stdin.close()
    assert integrity(url) == "ok"
    with Ledger(url, "local") as ledger:
        assert len(ledger.nodes(limit=None)) == 20


_AUDITED = """
import os, sys
from pathlib import Path
url, folder = sys.argv[1], Path(sys.argv[2])
os.environ["KVBATON_DATA_DIR"] = str(folder / "data")
from typer.testing import CliRunner
from kvbaton.cli.main import build_app
from kvbaton.lineage.connection import Database, is_there
from kvbaton.lineage.keeper import LedgerKeeper
from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.migrate import migrate, version_of
from kvbaton.lineage.records import Node, NodeKind
path = url.removeprefix("sqlite:///")
opened = []
def hook(event, given):
    if event == "open" and str(given[0]).startswith(path):
        opened.append(given[0])
with Ledger(url, "local") as ledger:
    ledger.move("plan", Node("b" * 64, NodeKind.BATON), expected=0)
    sys.addaudithook(hook)
    Path(path).chmod(0o644)
    with Ledger(url, "local") as second:
        second.heads()
    database = Database(url)
    version_of(database), migrate(database)
    database.close()
    is_there(url)
    with LedgerKeeper(url, "local", folder / "spool", seen=folder / "seen") as keeper:
        keeper.put(Node("a1", NodeKind.ANSWER))
        keeper.flush(30)
        keeper.head("plan")
        keeper.watch()
    for line in ("refs", "log", "accept", "migrate", "show " + "b" * 64, "invalidate a1 --why x"):
        found = CliRunner().invoke(build_app(), ["ledger", *line.split(), "--ledger", url])
        assert found.exit_code == 0, (line, found.output)
print(opened)
"""


def test_nothing_opens_the_files_but_sqlite(url: str, tmp_path: Path) -> None:
    """Whatever this program does with a ledger that is there, and with its side files."""
    with python(_AUDITED, url, str(tmp_path)) as process:
        assert process.communicate(timeout=PATIENCE_S)[0] == "[]\n"
        assert process.returncode == 0


# --- many at once ------------------------------------------------------------------------------

_WORKER = """
import json, random, sys
from kvbaton.errors import LedgerUnavailable, RefConflict
from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.records import Entry, Node, NodeKind
url, name, seed, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
dice, held, won, done = random.Random(seed), [], [], []
sys.stdin.readline()
for turn in range(count):
    while True:
        try:
            held.append(Ledger(url, "local", wait_s=30))
            break
        except LedgerUnavailable:  # it is just being made
            pass
    ledger = dice.choice(held)
    if dice.random() < 0.5:
        stands = next((head.sequence for head in ledger.heads()), 0)
        try:
            head = ledger.move("plan", Node(f"{name}-{turn}", NodeKind.BATON), expected=stands)
            won.append([head.sequence, head.baton])
        except RefConflict:
            pass
    else:
        ledger.record([Entry(Node(f"{name}-{turn}", NodeKind.ANSWER))])
        done.append(f"{name}-{turn}")
    while len(held) > dice.randrange(4):
        held.pop(dice.randrange(len(held))).close()
print(json.dumps([won, done]))
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_every_acknowledged_change_is_there(url: str, seed: int) -> None:
    """Processes that open, change and close as they like: no commit is lost, each number of the
    ref has one winner, the log has no gap, and the file is sound."""
    dice = random.Random(seed)
    running = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, url, f"p{n}", str(dice.randrange(1000)), "40"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for n in range(3)
    ]  # fmt: skip
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    outs = [process.communicate(timeout=PATIENCE_S)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    said = [json.loads(out) for out in outs]
    won = sorted((number, name) for several, _ in said for number, name in several)
    assert [number for number, _ in won] == list(range(1, len(won) + 1))
    assert integrity(url) == "ok"
    with Ledger(url, "local") as ledger:
        assert [(head.sequence, head.baton) for head in ledger.history("plan")] == won
        recorded = Counter(node.id for node in ledger.nodes(limit=None))
        assert recorded == Counter(
            [name for _, name in won] + [name for _, done in said for name in done]
        )
        log = ledger.log(limit=10_000)
        assert [event.sequence for event in log] == list(range(1, ledger.sequence() + 1))
        assert sum(event.kind is EventKind.MOVED for event in log) == len(won)


# --- making the file ---------------------------------------------------------------------------


def test_threads_that_make_it_together_get_one_file(url: str) -> None:
    """Nobody writes to a file that another one has taken the place of."""
    gate, failed = threading.Barrier(8), []

    def make(number: int) -> None:
        gate.wait()
        try:
            with Ledger(url, "local", wait_s=30) as ledger:
                ledger.record([entry(f"file-{number}")])
        except Exception as error:  # noqa: BLE001  # it is looked at below
            failed.append(error)

    threads = [threading.Thread(target=make, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert failed == []
    with Ledger(url, "local") as ledger:
        assert len(ledger.nodes(limit=None)) == 8
        ledger.move("plan", baton("b1"), expected=0)
    assert [path.name for path in path_of(url).parent.iterdir()] == ["ledger.db"]
