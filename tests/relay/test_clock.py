"""Phases of a take: inner phases are not counted twice, deadlines are kept."""

from __future__ import annotations

import threading
from concurrent.futures import TimeoutError as FutureTimeout

import pytest

from kvbaton import clock
from kvbaton.clock import Clock, within


def test_the_time_of_an_inner_phase_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that advances by hand: outer 1 + 4, inner 2, whatever raises inside."""
    now = [0.0]
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])
    watch = Clock()

    def fail() -> None:
        with watch.phase("outer"):
            now[0] += 1
            with watch.phase("inner"):
                now[0] += 2
            now[0] += 4
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()
    assert watch.seconds == {"outer": 5.0, "inner": 2.0}
    watch.add({"inner": 1.0, "other": 3.0})
    assert watch.seconds == {"outer": 5.0, "inner": 3.0, "other": 3.0}
    assert watch.elapsed() == 7.0


def test_items_are_timed_while_they_are_produced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nested generators: each pays for its own work, and what the consumer does is not counted."""
    now = [0.0]
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])
    watch = Clock()

    def produce() -> object:
        for number in range(3):
            now[0] += 1
            yield number

    def double(numbers: object) -> object:
        for number in numbers:  # type: ignore[attr-defined]
            now[0] += 10
            yield 2 * number

    for _ in watch.timed("double", double(watch.timed("produce", produce()))):
        now[0] += 100
    assert watch.seconds == {"produce": 3.0, "double": 30.0}


def test_work_past_the_deadline_is_left_alone() -> None:
    """The caller goes on while the work still waits; errors of punctual work are raised."""
    gate = threading.Event()
    with pytest.raises(FutureTimeout):
        within(0.01, gate.wait)
    gate.set()
    with pytest.raises(FutureTimeout):
        within(0.0, lambda: 1)
    assert within(60.0, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        within(float("inf"), lambda: 1 // 0)
