"""Which machine this is: speeds that were measured on one say nothing of another."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from functools import cache
from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")
_MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_MODEL = re.compile(r"^model name\s*:\s*(.+)$", re.MULTILINE)


@cache
def host_id() -> str:
    """64 hexadecimal digits that stay the same as long as the machine does.

    A digest of the processor's name, the processors that this process may use, the architecture
    and the machine's id, where the system has one; none of them can be read off it.  A container
    that is given fewer processors is another host: it is slower.
    """
    facts = (_processor(), str(usable_cores()), platform.machine(), platform.system(), _machine())
    return hashlib.sha256("\0".join(("kvbaton host", *facts)).encode()).hexdigest()


def usable_cores() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    found = _MODEL.search(_text(_CPU_INFO))
    return found.group(1).strip() if found else platform.processor()


def _machine() -> str:
    """The system's own id; the host's name where there is none."""
    return next((found for path in _MACHINE_IDS if (found := _text(path).strip())), platform.node())


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
