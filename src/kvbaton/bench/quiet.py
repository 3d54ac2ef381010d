"""Timings on a machine that others use, too: waited for a quiet moment, and taken again.

What is measured while other processes work says more of them than of what is measured.  How long
they have worked is read off the system's own counters, so that nothing is guessed; and what had to
be kept although it was disturbed is counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import psutil

T = TypeVar("T")

SHARE = 0.25
"""Processors that others may use meanwhile."""
TRIES = 4
_TICKS_S = 0.03
"""What the system's counters may be off by."""
_LOOK_S = 0.2
_OF_IT = 1 / 20


class Quiet:
    """Runs what is timed when the machine is quiet, as long as its patience lasts.

    Parameters
    ----------
    patience_s
        Seconds that may be spent on waiting and on timings that are thrown away, in all.  No run
        may spend more than a twentieth of what is left, so that a busy minute does not use it up.
    """

    def __init__(self, patience_s: float) -> None:
        self.left_s = patience_s
        self._calm = False
        """Whether the last run was quiet: then nobody is waited for before the next."""
        self.runs = 0
        self.disturbed = 0
        """Runs that were kept although others worked meanwhile."""

    def run(self, work: Callable[[], T]) -> T:
        """The result of ``work``, from its first quiet run, or else from the quietest."""
        found: list[tuple[float, T]] = []
        least_left_s = self.left_s * (1 - _OF_IT)
        while True:
            if not self._calm:
                self._wait(least_left_s)
            others, started = _Others(), time.perf_counter()
            result = work()
            took_s = time.perf_counter() - started
            found.append((others.beyond_s(took_s), result))
            self._calm = found[-1][0] <= 0
            if self._calm or self.left_s <= least_left_s or len(found) == TRIES:
                break
            self.left_s -= took_s
        least, result = min(found, key=lambda one: one[0])
        self.runs += 1
        self.disturbed += least > 0
        return result

    def _wait(self, least_left_s: float) -> None:
        """Wait until the machine is quiet, or no more than that is left of the patience."""
        while self.left_s > least_left_s:
            others = _Others()
            time.sleep(_LOOK_S)
            if others.beyond_s(_LOOK_S) <= 0:
                return
            self.left_s -= _LOOK_S


class _Others:
    """Processor time of all other processes since now."""

    def __init__(self) -> None:
        self._busy_s, self._own_s = _busy_s(), time.process_time()

    def beyond_s(self, wall_s: float) -> float:
        """Seconds by which it is more than it may be in so many seconds; 0 or less if not."""
        busy_s, own_s = _busy_s() - self._busy_s, time.process_time() - self._own_s
        return busy_s - own_s - max(SHARE * wall_s, _TICKS_S)


def _busy_s() -> float:
    """Seconds that all processors together have worked."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - _guests(times))


def _guests(times: object) -> float:
    """What the system counts twice."""
    return float(getattr(times, "guest", 0.0)) + float(getattr(times, "guest_nice", 0.0))
