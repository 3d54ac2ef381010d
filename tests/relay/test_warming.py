"""Kernels are compiled in the background, once for each kind of chain."""

from __future__ import annotations

from typing import Any

import pytest

from kvbaton import warming
from kvbaton.codecs import CodecChain, Int, Raw, uniform
from kvbaton.warming import chains_of, warm_soon


@pytest.fixture
def warmed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would be compiled."""
    asked: list[Any] = []
    monkeypatch.setattr(warming, "_begun", set())
    monkeypatch.setattr(warming, "_warm", lambda chains, dtype: asked.append((chains, dtype)))
    return asked


def test_chains_of_one_kind_are_compiled_once(warmed: list[Any]) -> None:
    """Other numbers of bits use the same kernels; another dtype has its own."""
    eight, four = CodecChain((Int(bits=8),)), CodecChain((Int(bits=4),))
    for chains, dtype in (([eight, four], "F32"), ([four], "F32"), ([four], "BF16")):
        thread = warm_soon(chains, dtype)
        if thread is not None:
            thread.join()
    assert warmed == [([eight], "F32"), ([four], "BF16")]


def test_raw_bytes_need_no_kernel(warmed: list[Any]) -> None:
    """The exact profile starts nothing."""
    plan = uniform("exact", CodecChain((Raw(),)), CodecChain((Raw(),)), 3)
    assert warm_soon(chains_of(plan), "F32") is None
    assert warmed == []
