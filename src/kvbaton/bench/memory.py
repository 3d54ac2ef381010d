"""Peak memory of a piece of work: the high-water mark of the process, or of the accelerator."""

from __future__ import annotations

import ctypes
import gc
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_HIGH_WATER = "5"


def peak_extra_bytes(work: Callable[[], object], device: Any) -> int | None:
    """Most memory that ``work`` holds at once above what the process held before it.

    Free memory of the allocator is given back first, so that memory which is used again counts.
    None where the system does not tell (not Linux, or a container that forbids it).
    """
    gc.collect()
    if device.type == "cuda":
        return _cuda_extra(work, device)
    _trim()
    if not _reset_high_water():
        return None
    before = _status_bytes("VmRSS")
    work()
    return max(0, _status_bytes("VmHWM") - before)


def _cuda_extra(work: Callable[[], object], device: Any) -> int:
    import torch

    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device)) - int(before)


def _trim() -> None:
    """Let the C library give free memory back, where it can be asked to."""
    if not sys.platform.startswith("linux"):
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _reset_high_water() -> bool:
    try:
        _CLEAR.write_text(_RESET_HIGH_WATER, encoding="ascii")
    except OSError:
        return False
    return True


def _status_bytes(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB$", _STATUS.read_text(encoding="ascii"), re.MULTILINE)
    return 1024 * int(found.group(1)) if found else 0
