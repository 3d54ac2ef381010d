"""Where the time of a take goes, operator by operator: one profiled trial per treatment."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kvbaton.types import JSON

_GROUPS = (
    ("attention", ("scaled_dot_product", "flash_attn", "_efficient_attention")),
    ("matrix products", ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "gemm")),
    ("allocation", ("aten::empty", "aten::resize", "aten::zeros", "cudaMalloc")),
    ("copies", ("aten::copy_", "aten::_to_copy", "aten::cat", "Memcpy", "aten::clone")),
)
_TOP = 12
OUTSIDE = "outside the model"


def profiled(work: Callable[[], Any], *, cuda: bool = False) -> JSON:
    """Run ``work`` under torch's profiler.

    Returns
    -------
    dict
        ``{"wall_s", "groups": {name: seconds}, "top": [{"name", "seconds", "share", "calls"}]}``:
        seconds of an operator without those of operators inside it.  What is outside of all
        operators (files, digests, Python) is the group ``outside the model``.
    """
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    found = profile(activities=activities)
    with _silent():
        found.start()
    try:
        start = time.perf_counter()
        work()
        wall_s = time.perf_counter() - start
    finally:
        with _silent():
            found.stop()
    # on an accelerator what the host does is to launch: its own time is what counts
    clock = "self_device_time_total" if cuda else "self_cpu_time_total"
    rows = [
        (str(event.key), float(getattr(event, clock)) / 1e6, int(event.count))
        for event in found.key_averages()
    ]
    rows.sort(key=lambda row: -row[1])
    groups: dict[str, float] = {}
    for name, seconds, _ in rows:
        group = _group(name)
        groups[group] = groups.get(group, 0.0) + seconds
    inside = sum(groups.values())
    groups[OUTSIDE] = max(0.0, wall_s - inside)
    return {
        "wall_s": wall_s,
        "groups": groups,
        "top": [
            {"name": name, "seconds": seconds, "share": seconds / wall_s, "calls": calls}
            for name, seconds, calls in rows[:_TOP]
        ],
    }


@contextmanager
def _silent() -> Iterator[None]:
    """The profiler's native code announces itself on standard error, past Python."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _group(operator: str) -> str:
    for name, parts in _GROUPS:
        if any(part in operator for part in parts):
            return name
    return "other operators"
