"""A watch, a ledger that fails in the middle of it, and callbacks that misbehave."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from tests.lineage.nodes import baton, entry

from kvbaton.errors import InputError, KvbatonError, LedgerError, LedgerUnavailable
from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.records import Event, Node
from kvbaton.lineage.watching import Watch

PATIENCE_S = 60.0
NEVER_S = 3600.0


class Failures:
    """Which calls of a ledger fail, counted over all handles; each fails behind its work."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.bad: frozenset[int] = frozenset()
        self.error: Exception = LedgerUnavailable("locked")

    def begin(self, bad: Iterable[int], error: Exception | None = None) -> None:
        """Count from here on."""
        self.calls, self.bad = [], frozenset(bad)
        self.error = error or self.error

    def __call__(self, name: str) -> None:
        """One more call."""
        self.calls.append(name)
        if len(self.calls) in self.bad:
            raise self.error


def flaky(url: str, failures: Failures) -> Callable[[], Ledger]:
    """Opens a ledger whose questions fail now and then."""

    class Flaky(Ledger):
        def sequence(self) -> int:
            found = super().sequence()
            failures("sequence")
            return found

        def log(
            self, *, since: int = 0, limit: int = 100, node: str = "", ref: str = ""
        ) -> list[Event]:
            found = super().log(since=since, limit=limit, node=node, ref=ref)
            failures("log")
            return found

        def stale_among(self, names: Iterable[str]) -> list[Node]:
            found = super().stale_among(names)
            failures("stale_among")
            return found

    return lambda: Flaky(url, "local")


def settled(watch: Watch, ledger: Ledger, failures: Failures) -> None:
    """Wait until the watch has looked at all that has happened, more than once."""
    until_s = time.monotonic() + PATIENCE_S
    looks = None
    while looks is None or len(failures.calls) < looks:
        if looks is None and watch.since == ledger.sequence() and watch.failure is None:
            looks = len(failures.calls) + max([0, *failures.bad]) + 5
        assert time.monotonic() < until_s
        watch.nudge()
        time.sleep(0.002)


@pytest.mark.parametrize("error", [LedgerUnavailable("locked"), OSError("of a driver")])
@pytest.mark.parametrize("bad", [{n} for n in range(1, 7)] + [{1, 2, 3, 4}, {2, 4, 6}, {3, 5, 7}])
def test_each_holder_and_each_event_is_told_once_whatever_fails(
    ledger: Ledger, url: str, bad: set[int], error: Exception
) -> None:
    """A look that failed is made up for by the next one: nothing is lost, nothing comes twice."""
    ledger.record([entry("a"), entry("b"), entry("fresh")])
    failures, complaints = Failures(), queue.Queue[KvbatonError]()
    events: list[int] = []
    stale: list[str] = []
    with Watch(
        flaky(url, failures),
        lambda several: events.extend(event.sequence for event in several),
        every_s=0.01,
        complain=complaints.put,
    ) as watch:
        for name in ("a", "b", "fresh"):
            watch.hold(name, lambda node: stale.append(node.id))
        settled(watch, ledger, failures)
        began = ledger.sequence()
        failures.begin(bad, error)
        ledger.withdraw("a", why="wrong")
        settled(watch, ledger, failures)
        ledger.withdraw("b", why="wrong")
        settled(watch, ledger, failures)
        assert events == list(range(began + 1, ledger.sequence() + 1))
    assert stale == ["a", "b"]
    assert not complaints.empty()
    assert "stale_among" in failures.calls


@pytest.mark.parametrize("bad", [{1}, {2}, {1, 2, 3}, {2, 4}])
def test_a_new_holder_is_told_whatever_fails(ledger: Ledger, url: str, bad: set[int]) -> None:
    """What it holds was stale before; nothing else will ever happen."""
    ledger.record([entry("a")])
    ledger.withdraw("a", why="wrong")
    failures, stale = Failures(), queue.Queue[Node]()
    with Watch(flaky(url, failures), every_s=0.01) as watch:
        settled(watch, ledger, failures)
        failures.begin(bad)
        watch.hold("a", stale.put)
        assert stale.get(timeout=PATIENCE_S).id == "a"
        settled(watch, ledger, failures)
    assert stale.empty()


# --- callbacks -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("by zero"), InputError("mine"), SystemExit(1), KeyError("x")]
)
def test_a_callback_that_raises_costs_nobody_anything(
    ledger: Ledger, url: str, error: BaseException
) -> None:
    """It is complained of; others that hold the same, and later events, are told."""
    complaints, stale, events = (queue.Queue[Any]() for _ in range(3))

    def bad(told: object) -> None:
        events.put(told)
        raise error

    ledger.record([entry("a"), entry("b")])
    with Watch(
        lambda: Ledger(url, "local"), bad, every_s=0.01, complain=complaints.put
    ) as watch:  # fmt: skip
        watch.hold("a", bad)
        watch.hold("a", stale.put)
        ledger.withdraw("a", why="wrong")
        assert stale.get(timeout=PATIENCE_S).id == "a"
        watch.hold("b", stale.put)
        ledger.withdraw("b", why="wrong")
        assert stale.get(timeout=PATIENCE_S).id == "b"
        for _ in range(3):  # two batches, and one node
            events.get(timeout=PATIENCE_S)
        assert watch.failure is None
        complaint = complaints.get(timeout=PATIENCE_S)
    assert isinstance(complaint, LedgerError)
    assert type(error).__name__ in complaint.sentence
    assert events.empty()  # none of them came twice


def test_complaints_that_raise_end_nothing(ledger: Ledger, url: str) -> None:
    """Neither those of callbacks nor those of outages."""

    def bad(told: object) -> None:
        raise RuntimeError(str(told))

    failures, stale = Failures(), queue.Queue[Node]()
    ledger.record([entry("a")])
    with Watch(flaky(url, failures), bad, every_s=0.01, complain=bad) as watch:
        settled(watch, ledger, failures)
        failures.begin({1})
        watch.hold("a", stale.put)
        ledger.withdraw("a", why="wrong")
        assert stale.get(timeout=PATIENCE_S).id == "a"


def test_a_callback_that_blocks_does_not_keep_the_end(ledger: Ledger, url: str) -> None:
    """Closing gives up in time and says so; what is left is not told any more."""
    blocked, goes_on, told = threading.Event(), threading.Event(), list[Any]()

    def block(what: object) -> None:
        told.append(what)
        blocked.set()
        assert goes_on.wait(PATIENCE_S)

    ledger.record([entry("a")])
    watch = Watch(lambda: Ledger(url, "local"), every_s=NEVER_S)
    ledger.on_change(watch.nudge)
    watch.hold("a", block)
    watch.hold("a", told.append)
    ledger.withdraw("a", why="wrong")
    assert blocked.wait(PATIENCE_S)
    began_s = time.monotonic()
    assert watch.close(0.05) is False
    assert time.monotonic() - began_s < 5
    goes_on.set()
    assert watch.close(PATIENCE_S) is True
    assert len(told) == 1


_BLOCKED = """
import sys, threading, time
from pathlib import Path
from kvbaton.ledgers import keeper_of
from kvbaton.lineage.records import Node, NodeKind
url, folder = sys.argv[1], Path(sys.argv[2])
keeper = keeper_of(url, "local", folder / "spool", folder / "seen")
keeper.move("plan", Node("b1", NodeKind.BATON), expected=0)
told = threading.Event()
keeper.watch().hold("b1", lambda node: (told.set(), time.sleep(3600)))
keeper.move("plan", Node("b2", NodeKind.BATON), expected=1)
assert told.wait(60)
print("told", flush=True)
"""


def test_a_process_ends_although_a_callback_blocks(url: str, tmp_path: Any) -> None:
    """As soon as its work is done, or little later."""
    command = [sys.executable, "-c", _BLOCKED, url, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.communicate(timeout=PATIENCE_S)[0] == "told\n"
        assert process.returncode == 0


def test_events_behind_the_end_are_not_told(ledger: Ledger, url: str) -> None:
    """A watch that was closed while it read on."""
    told: list[int] = []

    def end(events: Sequence[Event]) -> None:
        told.append(len(events))
        watch.close()

    ledger.move("plan", baton("b1"), expected=0)
    watch = Watch(lambda: Ledger(url, "local"), end, every_s=0.01)
    ledger.record([entry(f"file-{n}") for n in range(1500)])
    assert watch.close(PATIENCE_S) is True
    assert told in ([], [1000])
