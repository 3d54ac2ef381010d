"""Watching a ledger: what is new is told once, in every process, and an outage is survived."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.lineage.nodes import answer, baton, entry

from kvbaton.errors import InputError, KvbatonError, LedgerRolledBack, LedgerUnavailable
from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.records import Entry, Event, EventKind, Node
from kvbaton.lineage.watching import Watch

PATIENCE_S = 60.0
NEVER_S = 3600.0
"""So seldom that whatever is heard was not found by polling."""


class Ears:
    """Hears what a watch tells, and waits for it."""

    def __init__(self) -> None:
        self.events: queue.Queue[Event] = queue.Queue()
        self.errors: queue.Queue[KvbatonError] = queue.Queue()
        self.stale: queue.Queue[Node] = queue.Queue()

    def told(self, events: Sequence[Event]) -> None:
        """For events."""
        assert events
        for event in events:
            self.events.put(event)

    def next(self, count: int = 1) -> list[tuple[int, str, str]]:
        """The next events: sequence, kind, node."""
        found = [self.events.get(timeout=PATIENCE_S) for _ in range(count)]
        return [(event.sequence, event.kind.value, event.node) for event in found]


@pytest.fixture
def ears() -> Ears:
    """Somebody who listens."""
    return Ears()


def opener(url: str) -> Callable[[], Ledger]:
    """Opens a ledger of its own for a watch."""
    return lambda: Ledger(url, "local")


def test_changes_of_this_process_are_told_at_once(ledger: Ledger, url: str, ears: Ears) -> None:
    """Without any polling; what was there before is not new, and nothing is told twice."""
    ledger.record([entry("old")])
    with Watch(opener(url), ears.told, every_s=NEVER_S) as watch:
        ledger.on_change(watch.nudge)
        ledger.record([entry("file")])
        ledger.move("plan", baton("b1"), expected=0)
        assert ears.next(3) == [
            (2, "recorded", "file"), (3, "moved", "b1"), (4, "recorded", "b1"),
        ]  # fmt: skip
        watch.nudge()
    assert watch.since == ledger.sequence()
    assert ears.events.empty()


def test_each_event_is_told_once_and_in_order(ledger: Ledger, url: str, ears: Ears) -> None:
    """From the beginning where that is asked for, in more than one piece."""
    ledger.record([entry(f"file-{n}") for n in range(2500)])
    with Watch(opener(url), ears.told, since=0):
        found = ears.next(2500)
    assert [sequence for sequence, _, _ in found] == list(range(1, 2501))
    assert ears.events.empty()


_MOVER = """
import sys
from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.records import Node, NodeKind
with Ledger(sys.argv[1], "local") as ledger:
    sys.stdin.readline()
    ledger.move("plan", Node("b2", NodeKind.BATON), expected=1)
"""


def mover(url: str) -> subprocess.Popen[str]:
    """A process that moves the ref when it gets a line."""
    return subprocess.Popen([sys.executable, "-c", _MOVER, url], stdin=subprocess.PIPE, text=True)


def test_a_move_by_another_process_reaches_holders_here(
    ledger: Ledger, url: str, ears: Ears
) -> None:
    """All that builds on the old head is told to whoever holds it, once; the rest is not."""
    ledger.move("plan", baton("b1"), expected=0)
    ledger.record([Entry(answer("a1", "b1")), entry("other")])
    other: list[Node] = []
    with Watch(opener(url), ears.told) as watch:
        watch.hold("a1", ears.stale.put)
        watch.hold("other", other.append)
        release = watch.hold("b1", other.append)
        release()
        process = mover(url)
        process.communicate("go\n", timeout=PATIENCE_S)
        assert process.returncode == 0
        node = ears.stale.get(timeout=PATIENCE_S)
        assert (node.id, node.stale and node.stale.ref) == ("a1", "plan")
        kinds = [EventKind(kind) for _, kind, _ in ears.next(3)]
        assert {EventKind.MOVED, EventKind.STALE} <= set(kinds)
        ledger.withdraw("b1", why="again")
        assert ears.next()[0][1] == "withdrawn"
    assert ears.stale.empty()
    assert other == []


_HOLDER = """
import sys, threading
from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.watching import Watch
heard = threading.Event()
with Watch(lambda: Ledger(sys.argv[1], "local")) as watch:
    watch.hold("a1", lambda node: (print(node.stale.why, flush=True), heard.set()))
    print("holds", flush=True)
    sys.exit(0 if heard.wait(60) else 1)
"""


def test_a_holder_in_another_process_is_told(ledger: Ledger, url: str) -> None:
    """It holds an answer; this process withdraws what that was built on."""
    ledger.record([Entry(baton("b1")), Entry(answer("a1", "b1"))])
    pipes: Any = {"stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", _HOLDER, url], **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holds\n"
        ledger.withdraw("b1", why="wrong file")
        assert "wrong file" in process.stdout.readline()
        assert process.wait(PATIENCE_S) == 0


def test_who_holds_what_is_stale_already_is_told(ledger: Ledger, url: str, ears: Ears) -> None:
    """The mark came first; so does one that is not recorded yet."""
    ledger.record([Entry(baton("b1"))])
    ledger.withdraw("b1", why="wrong")
    with Watch(opener(url), every_s=NEVER_S) as watch:
        ledger.on_change(watch.nudge)
        watch.hold("b1", ears.stale.put)
        assert ears.stale.get(timeout=PATIENCE_S).id == "b1"
        watch.hold("a1", ears.stale.put)
        ledger.record([Entry(answer("a1", "b1"))])
        assert ears.stale.get(timeout=PATIENCE_S).id == "a1"


def test_an_outage_is_told_once_and_survived(url: str, tmp_path: Path, ears: Ears) -> None:
    """A ledger that vanishes and comes back: one complaint, and no event is lost."""
    folder, aside = tmp_path / "ledger", tmp_path / "aside"
    with Ledger(url, "local") as ledger:
        ledger.record([entry("first")])
    looks = threading.Semaphore(0)

    def open_counted() -> Ledger:
        looks.release()
        if not folder.exists():
            raise LedgerUnavailable("it is not there")
        return Ledger(url, "local")

    with Watch(open_counted, ears.told, every_s=0.01, complain=ears.errors.put) as watch:
        folder.rename(aside)
        error = ears.errors.get(timeout=PATIENCE_S)
        assert isinstance(error, LedgerUnavailable)
        for _ in range(4):
            assert looks.acquire(timeout=PATIENCE_S)
        assert watch.failure is not None
        aside.rename(folder)
        with Ledger(url, "local") as ledger:
            ledger.record([entry("second")])
        assert ears.next() == [(2, "recorded", "second")]
        watch.nudge()
    assert watch.failure is None
    assert ears.errors.empty()


def test_a_ledger_that_cannot_be_opened_at_first_is_waited_for(url: str, ears: Ears) -> None:
    """New is what comes after the first time that it was reached."""
    closed = True

    def open_late() -> Ledger:
        if closed:
            raise LedgerUnavailable("not yet")
        return Ledger(url, "local")

    with Ledger(url, "local") as ledger, Watch(open_late, ears.told, every_s=0.01) as watch:
        ledger.record([entry("before")])
        assert watch.since is None
        closed = False
        watch.hold("before", ears.stale.put)
        ledger.withdraw("before", why="wrong")
        assert ears.stale.get(timeout=PATIENCE_S).id == "before"
    assert watch.since == 2


def test_an_old_copy_is_told_and_followed_from_there(url: str, tmp_path: Path, ears: Ears) -> None:
    """A ledger that says less than before: an error of its own, then its new events."""
    with Ledger(url, "local") as ledger:
        ledger.record([entry(f"file-{n}") for n in range(5)])
    with Watch(opener(url), ears.told, every_s=0.01, complain=ears.errors.put):
        (tmp_path / "ledger").rename(tmp_path / "aside")
        with Ledger(url, "local") as ledger:
            errors = [ears.errors.get(timeout=PATIENCE_S)]
            while not isinstance(errors[-1], LedgerRolledBack):
                errors.append(ears.errors.get(timeout=PATIENCE_S))
            ledger.record([entry("new")])
            assert ears.next() == [(1, "recorded", "new")]


def test_a_callback_may_end_the_watch(ledger: Ledger, url: str) -> None:
    """Closing inside of a callback does not wait for itself, and nothing more is told."""
    ended = threading.Event()
    told: list[int] = []

    def end(events: Sequence[Event]) -> None:
        told.append(len(events))
        watch.close()
        ended.set()

    watch = Watch(opener(url), end, every_s=0.01)
    ledger.record([entry("file")])
    assert ended.wait(PATIENCE_S)
    watch.close()
    ledger.record([entry("more")])
    watch.close()
    assert told == [1]


def test_looking_all_the_time_is_refused(url: str) -> None:
    """An interval that would keep a processor busy is no interval."""
    for every_s in (0.0, -1.0, float("nan")):
        with pytest.raises(InputError):
            Watch(opener(url), every_s=every_s)
