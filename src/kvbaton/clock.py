"""Where the time of a hand-off or a take went."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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
