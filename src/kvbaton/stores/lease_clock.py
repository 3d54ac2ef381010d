"""Clocks by which leases and marks age: they count from the start of the machine, nobody sets
them, and each has a name that only those who read the very same clock share."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SteadyClock:
    """A clock that is never set.

    Parameters
    ----------
    name
        Times may be compared where the names are equal, and nowhere else; at most 80 characters
        of ``[0-9a-z-]``.
    now_s
        Seconds since some moment that never changes under that name.
    """

    name: str
    now_s: Callable[[], float]


@functools.cache
def boot_token() -> str:
    """A value that is another one after a restart of the machine."""
    path = Path("/proc/sys/kernel/random/boot_id")
    if path.exists():
        return path.read_text().strip()
    import psutil  # for systems that are not Linux

    return f"{int(psutil.boot_time()):x}"


@functools.cache
def waking_clock() -> SteadyClock:
    """The time for which the machine has been awake: nobody can beat while it sleeps."""
    return SteadyClock(f"{_reading()}-awake", time.monotonic)


@functools.cache
def boot_clock() -> SteadyClock:
    """The time since the machine was started, asleep or awake, where the system can tell."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return waking_clock()
    return SteadyClock(f"{_reading()}-boot", lambda: time.clock_gettime(time.CLOCK_BOOTTIME))


def _reading() -> str:
    """What two processes must have in common to read the same: the boot, and on Linux the time
    namespace, by which a container may see another time."""
    space = ""
    with suppress(OSError):
        space = "".join(filter(str.isdigit, os.readlink("/proc/self/ns/time")))  # noqa: PTH115
    return f"{boot_token()}-{space or 0}"
