"""What ``import kvbaton`` costs over a bare interpreter."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time


def import_seconds(repeats: int) -> float:
    """Median seconds that ``import kvbaton`` adds to the start of Python; runs are interleaved."""
    added = []
    for _ in range(max(repeats, 1)):
        bare_s = _seconds("pass")
        added.append(_seconds("import kvbaton") - bare_s)
    return statistics.median(added)


def _seconds(code: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - started
