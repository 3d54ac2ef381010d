"""How busy the machine is with other work while a trial runs, and what the harness itself takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from kvbaton.bench.machine import load


class Meter:
    """Tells the work that is measured from what measuring it costs."""

    def __init__(self) -> None:
        self._start, self.work_s, self._depth = time.perf_counter(), 0.0, 0

    @contextmanager
    def work(self) -> Iterator[None]:
        """What happens in the block is the work: passes of the model, hand-offs, takes."""
        self._depth += 1
        start = time.perf_counter()
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self.work_s += time.perf_counter() - start

    @property
    def wall_s(self) -> float:
        """Seconds since the meter was made."""
        return time.perf_counter() - self._start

    @property
    def overhead_share(self) -> float:
        """What was not work, as a share of the work."""
        return (self.wall_s - self.work_s) / self.work_s if self.work_s else 0.0


class Load:
    """Measures from when it is made to :meth:`taken`."""

    def __init__(self) -> None:
        self._start, self._busy, self._own = time.perf_counter(), _busy_s(), _own_s()

    def taken(self) -> dict[str, float]:
        """``{"load", "busy"}``: the load average, and the share of all cores, 0 to 1, that other
        processes used."""
        wall = time.perf_counter() - self._start
        others = (_busy_s() - self._busy) - (_own_s() - self._own)
        cores = psutil.cpu_count() or 1
        share = others / (wall * cores) if wall > 0 else 0.0
        return {"load": load(), "busy": round(min(1.0, max(0.0, share)), 3)}


def _busy_s() -> float:
    """Seconds that all cores together have worked since the machine was started."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # counted in user
    return float(sum(times) - idle - guests)


def _own_s() -> float:
    times = psutil.Process().cpu_times()
    return float(times.user + times.system)
