"""Where the time of a hand-off or a take went, and how long it may take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from threading import TIMEOUT_MAX, Thread
from typing import TypeVar

T = TypeVar("T")


class Clock:
    """Wall seconds per phase of one hand-off or take; the time of an inner phase is its own."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.seconds: dict[str, float] = {}
        self._inner: list[float] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the block, without that of phases inside it, to a phase."""
        begin = time.perf_counter()
        self._inner.append(0.0)
        try:
            yield
        finally:
            total = time.perf_counter() - begin
            self.seconds[name] = self.seconds.get(name, 0.0) + total - self._inner.pop()
            if self._inner:
                self._inner[-1] += total

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
            with self.phase(name):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item


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
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
            outcome.set_exception(error)

    Thread(target=run, name="kvbaton-within", daemon=True).start()
    return outcome.result(timeout=min(deadline_s, TIMEOUT_MAX))
