"""A forked child uses nothing of its parent's: it neither loses nor takes records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kvbaton.lineage.ledger import Ledger

PATIENCE_S = 120.0

_BEGIN = """
import os, signal, sqlite3, sys, threading, time
from pathlib import Path
from kvbaton.ledgers import keeper_of
from kvbaton.lineage.keeper import LedgerKeeper
from kvbaton.lineage.records import Node, NodeKind
url, folder = sys.argv[1], Path(sys.argv[2])

def node(name, *parents):
    return Node(name, NodeKind.BATON, parents=parents)

def spools():
    return sorted(folder.rglob("*.jsonl"))

def begun():
    keeper = keeper_of(url, "local", folder / "spool", folder / "seen")
    keeper.put(node("first"))
    assert keeper.flush(60)
    assert keeper.freshness("first").standing.value == "current"
    keeper.watch()
    return keeper

def in_child(work):
    # As a child ends that was forked by hand: with all that is done at an interpreter's exit.
    child = os.fork()
    if child == 0:
        work()
        sys.exit(0)
    return child

def ended(child):
    until = time.monotonic() + 60
    while time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    raise AssertionError("the child hangs")
"""


def run(script: str, url: str, folder: Path, code: int = 0) -> str:
    """What a process of its own prints."""
    command = [sys.executable, "-W", "error", "-c", _BEGIN + script, url, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout


def recorded(url: str) -> list[str]:
    """Ids of all nodes in the ledger."""
    with Ledger(url, "local", must_exist=True) as ledger:
        return sorted(node.id for node in ledger.nodes(limit=None))


def test_parent_and_child_record_each_what_is_theirs(url: str, tmp_path: Path) -> None:
    """The child's records arrive, also by its exit alone; the parent's spool stays where it is,
    and its thread goes on."""
    run(
        """
keeper = begun()
(mine,) = spools()

def work():
    keeper.put(node("child-1", "first"))
    assert keeper.flush(60)
    assert keeper.freshness("child-1").standing.value == "current"
    assert keeper.move("plan", node("child-head"), expected=0).sequence == 1
    told = threading.Event()
    keeper.watch().hold("first", lambda node: told.set())
    keeper.ask(lambda ledger: ledger.withdraw("first", why="wrong"))
    assert told.wait(60)
    keeper.put(node("child-2"))

assert ended(in_child(work)) == 0
assert spools() == [mine]
keeper.put(node("parent"))
assert keeper.flush(60)
assert keeper.head("plan")[0].baton == "child-head"
""",
        url,
        tmp_path,
    )
    assert recorded(url) == ["child-1", "child-2", "child-head", "first", "parent"]
    assert list(tmp_path.rglob("*.jsonl")) == []


def test_a_child_that_only_ends_takes_no_record_with_it(url: str, tmp_path: Path) -> None:
    """What waits in the parent's spool outlives the parent's SIGKILL, and is written once."""
    run(
        """
keeper = begun()
other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
other.execute("BEGIN IMMEDIATE")
keeper.put(node("waits"))
assert ended(in_child(lambda: None)) == 0
keeper.put(node("waits-too"))
os.kill(os.getpid(), signal.SIGKILL)
""",
        url,
        tmp_path,
        -9,
    )
    assert recorded(url) == ["first"]
    run("keeper = begun()", url, tmp_path)
    assert recorded(url) == ["first", "waits", "waits-too"]


def test_a_child_that_lives_on_holds_nothing_of_its_parents(url: str, tmp_path: Path) -> None:
    """A dead parent's records are adopted by its own child, which has had its spool open."""
    out = run(
        """
keeper = begun()
away = Path(url.removeprefix("sqlite:///")).parent
away.rename(folder / "away")
keeper.put(node("waits"))
assert not keeper.flush(60)
parent = os.getpid()

def work():
    while os.getppid() == parent:
        time.sleep(0.01)
    (folder / "away").rename(away)
    assert keeper.flush(60)
    print(keeper.freshness("waits").standing.value, flush=True)

in_child(work)
os.kill(parent, signal.SIGKILL)
""",
        url,
        tmp_path,
        -9,
    )
    assert out == "current\n"


def test_a_child_that_was_forked_amid_a_use_leaves_sqlite_alone(url: str, tmp_path: Path) -> None:
    """It has a connection whose locks are its parent's: its records are written by others."""
    run(
        """
from kvbaton.lineage import forking
forking.FORK_WAIT_S = 0.1
keeper = begun()
inside, go_on = threading.Event(), threading.Event()

def hold(ledger):
    with ledger.database.reading():
        inside.set()
        go_on.wait(60)

thread = threading.Thread(target=keeper.ask, args=(hold,))
thread.start()
assert inside.wait(60)

def work():
    keeper.put(node("child"))
    assert not keeper.flush(60)
    assert "forked amid" in keeper.failure.sentence
    assert keeper.freshness("first").standing.value == "unknown"

assert ended(in_child(work)) == 0
go_on.set()
thread.join(60)
assert keeper.flush(60)
""",
        url,
        tmp_path,
    )
    assert recorded(url) == ["child", "first"]


def test_a_fork_amid_all_work_leaves_no_lock_behind(url: str, tmp_path: Path) -> None:
    """Whatever threads of the parent were doing: each child can record, ask and end."""
    run(
        """
keeper = begun()
stop = threading.Event()

def busy(number):
    count = 0
    while not stop.is_set():
        keeper.put(node(f"busy-{number}-{count}"))
        keeper.freshness("first")
        count += 1

threads = [threading.Thread(target=busy, args=(n,), daemon=True) for n in range(3)]
for thread in threads:
    thread.start()
for number in range(10):
    def work():
        keeper.put(node(f"child-{number}"))
        assert keeper.flush(60), keeper.failure
        assert keeper.freshness(f"child-{number}").standing.value == "current", keeper.failure
    assert ended(in_child(work)) == 0
stop.set()
for thread in threads:
    thread.join(60)
assert keeper.flush(60)
""",
        url,
        tmp_path,
    )
    assert {f"child-{number}" for number in range(10)} <= set(recorded(url))
