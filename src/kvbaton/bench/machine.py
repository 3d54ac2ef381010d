"""On what a benchmark ran: printed beside every figure, because ratios are all that travels."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import tempfile
from pathlib import Path

import psutil

import kvbaton
from kvbaton.types import JSON

SHARED_MEMORY = Path("/dev/shm")
_CPU_INFO = Path("/proc/cpuinfo")
_LIBRARIES = ("torch", "transformers", "numpy", "blake3", "fsspec")


def environment() -> JSON:
    """Processor, cores, memory, load and versions."""
    return {
        "kvbaton": kvbaton.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "cpu": _processor(),
        "cores": os.cpu_count() or 0,
        "memory_bytes": int(psutil.virtual_memory().total),
        "load": load(),
    }


def load() -> float:
    """Load average of the last minute; 0 where the system has none."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else 0.0


def library_versions() -> JSON:
    """Versions of the libraries that do the work."""
    return {name: importlib.metadata.version(name) for name in _LIBRARIES}


def _processor() -> str:
    try:
        text = _CPU_INFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()


def fast_folder(needed_bytes: int) -> Path:
    """Shared memory where there is some with enough room, else the folder for temporary files."""
    shared = SHARED_MEMORY
    usable = shared.is_dir() and os.access(shared, os.W_OK | os.X_OK)
    if usable and psutil.disk_usage(str(shared)).free >= needed_bytes:
        return shared
    return Path(tempfile.gettempdir())
