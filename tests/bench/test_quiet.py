"""Timings on a shared machine, by counters that are moved by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kvbaton.bench import quiet
from kvbaton.bench.quiet import TRIES, Quiet


class Machine:
    """A clock, the time that all processors have worked, and our own share of that."""

    def __init__(self) -> None:
        self.now = self.busy = self.own = 0.0
        self.others = 0.0
        """Processors that others use, while time goes by."""

    def go(self, seconds: float, *, own: float = 0.0) -> None:
        """Let time go by."""
        self.now += seconds
        self.own += own * seconds
        self.busy += (own + self.others) * seconds


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The machine that is looked at."""
    made = Machine()
    clock = SimpleNamespace(
        perf_counter=lambda: made.now, process_time=lambda: made.own, sleep=made.go
    )
    monkeypatch.setattr(quiet, "time", clock)
    monkeypatch.setattr(quiet, "_busy_s", lambda: made.busy)
    return made


def test_a_quiet_machine_is_asked_once(machine: Machine) -> None:
    """However much we ourselves work."""
    runs = Quiet(10.0)
    calls: list[float] = []

    def work() -> str:
        calls.append(machine.now)
        machine.go(1.0, own=2.0)
        return "done"

    assert runs.run(work) == "done"
    assert (len(calls), runs.runs, runs.disturbed, runs.left_s) == (1, 1, 0, 10.0)


def test_work_waits_until_others_are_done(machine: Machine) -> None:
    """Three looks find them busy, the fourth does not."""
    machine.others = 1.0
    runs, looks = Quiet(100.0), 0

    def sleep(seconds: float) -> None:
        nonlocal looks
        looks += 1
        machine.others = 1.0 if looks <= 3 else 0.0
        machine.go(seconds)

    quiet.time.sleep = sleep  # the namespace of this test
    assert runs.run(lambda: machine.now) == pytest.approx(0.8)
    assert runs.left_s == pytest.approx(100.0 - 0.6)
    assert runs.disturbed == 0


def test_after_a_quiet_run_nobody_is_waited_for(machine: Machine) -> None:
    """The look before the first run costs a fifth of a second, the next one none."""
    runs = Quiet(10.0)
    assert runs.run(lambda: machine.now) == pytest.approx(0.2)
    assert runs.run(lambda: machine.now) == pytest.approx(0.2)


def test_a_disturbed_run_is_made_again(machine: Machine) -> None:
    """The first two are disturbed, and their time is paid from the patience."""
    runs, tries = Quiet(100.0), 0

    def work() -> int:
        nonlocal tries
        tries += 1
        machine.others = 1.0 if tries <= 2 else 0.0
        machine.go(1.0)
        machine.others = 0.0
        return tries

    assert runs.run(work) == 3
    assert runs.left_s == pytest.approx(98.0)
    assert runs.disturbed == 0


def test_the_quietest_run_is_kept_where_none_is_quiet(machine: Machine) -> None:
    """And counted as disturbed."""
    runs, shares = Quiet(100.0), [2.0, 1.0, 1.5, 1.8]

    def work() -> float:
        machine.others = share = shares.pop(0)
        machine.go(1.0)
        machine.others = 0.0
        return share

    assert runs.run(work) == 1.0
    assert not shares
    assert TRIES == 4
    assert (runs.runs, runs.disturbed) == (1, 1)


def test_without_patience_nothing_is_waited_for(machine: Machine) -> None:
    """Work is done at once, and once."""
    machine.others = 2.0
    runs, calls = Quiet(0.0), []

    def work() -> None:
        calls.append(machine.now)
        machine.go(1.0)

    runs.run(work)
    assert calls == [0.0]
    assert runs.disturbed == 1


def test_a_busy_minute_does_not_use_all_patience_up(machine: Machine) -> None:
    """Each run spends a twentieth of what is left, and a look or a run more."""
    machine.others = 2.0
    runs = Quiet(100.0)
    for number in range(1, 6):
        began, left = machine.now, runs.left_s
        runs.run(lambda: machine.go(0.5))
        assert machine.now - began <= left / 20 + 0.2 + 2 * 0.5
        assert runs.disturbed == number
    assert runs.left_s > 100 * 0.95**5 - 5
