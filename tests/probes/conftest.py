"""Tiny models on one thread: thread pools cost more than they compute."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.engines.families import tiny

from kvbaton.probes.first_tokens import WatchRange
from kvbaton.probes.measuring import Effort, handed_over, measure_range

EFFORT = Effort(spread_runs=12, limit_runs=19, check_runs=6, shortest=8, longest=24)
TEXTS = (
    "Hello there, you plan and code. The quick brown fox jumps over the lazy dog. " * 6,
    "def add(a, b):\n    return a + b\n\nprint(add(1, 2))\n" * 6,
)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Compute on one thread, and leave the number of threads as it was."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def engine() -> Any:
    """A tiny Llama in float32."""
    return tiny("llama")


@pytest.fixture(scope="session")
def limits(engine: Any) -> WatchRange:
    """Its range, measured on a few runs of four tokens."""
    caches = {"exact": handed_over(engine)}
    return measure_range(
        engine, TEXTS, tokens=4, alarm_rate=0.05, effort=EFFORT, caches=caches, seed=5
    )
