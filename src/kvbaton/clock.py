"""Where the time of a hand-off or a take went, and how long it may take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from threading import TIMEOUT_MAX, Thread
from typing import TypeVar

T = TypeVar("T")


class Clock:
    """Wall seconds per phase of one hand-off or take; the time of an inner phase is its own.

    It is asked hundreds of times in a take, so it does without generators of its own.
    """

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.seconds: dict[str, float] = {}
        self._open: list[tuple[str, float, float]] = []

    def phase(self, name: str) -> _Phase:
        """Add the time of the block, without that of phases inside it, to a phase."""
        return _Phase(self, name)

    def enter(self, name: str) -> None:
        """Begin a phase."""
        self._open.append((name, time.perf_counter(), 0.0))

    def leave(self) -> None:
        """End the phase that began last."""
        name, begin, inside = self._open.pop()
        total = time.perf_counter() - begin
        self.seconds[name] = self.seconds.get(name, 0.0) + total - inside
        if self._open:
            outer, outer_begin, outer_inside = self._open[-1]
            self._open[-1] = (outer, outer_begin, outer_inside + total)

    def add(self, phases: Mapping[str, float]) -> None:
        """Add seconds that another clock measured."""
        for name, seconds in phases.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def elapsed(self) -> float:
        """Seconds since the clock was made."""
        return time.perf_counter() - self.started

    def timed(self, name: str, items: Iterable[T]) -> Iterator[T]:
        """The items; the time to produce them is added to a phase."""
        iterator = iter(items)
        while True:
            self.enter(name)
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self.leave()
            yield item


class _Phase:
    __slots__ = ("_clock", "_name")

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock, self._name = clock, name

    def __enter__(self) -> None:
        self._clock.enter(self._name)

    def __exit__(self, *_: object) -> None:
        self._clock.leave()


def within(deadline_s: float, work: Callable[[], T]) -> T:
    """The result of ``work``, which runs in a thread of its own.

    Past the deadline it is left alone, whatever it is waiting for, and may end when it likes.

    Raises
    ------
    concurrent.futures.TimeoutError
        The deadline passed.
    """
    if deadline_s <= 0:
        raise FutureTimeout
    return begun(work).result(timeout=min(deadline_s, TIMEOUT_MAX))


def begun(work: Callable[[], T]) -> Future[T]:
    """What comes of ``work``, which has begun in a thread of its own."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
            outcome.set_exception(error)

    Thread(target=run, name="kvbaton-within", daemon=True).start()
    return outcome
