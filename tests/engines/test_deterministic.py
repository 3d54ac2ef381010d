"""A deterministic engine exports the same bytes for the same ids, whoever runs it."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engines.exported_bytes import IDS, all_exported, digest
from tests.engines.families import tiny

from kvbaton.engines.transformers import engine as engine_module
from kvbaton.engines.transformers.engine import CHUNK_TOKENS
from kvbaton.errors import WindowExceeded
from kvbaton.testing.engines import hand_over

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def engine() -> Any:
    """A deterministic tiny Llama."""
    return tiny("llama", deterministic=True)


def test_two_processes_export_identical_bytes() -> None:
    """A process with two threads and another hash seed exports the bytes of this one with one."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.engines.exported_bytes", "2"],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "5"},
        capture_output=True,
        text=True,
        check=True,
    )
    mine = all_exported(threads=1)
    assert json.loads(done.stdout) == mine
    assert len(set(mine)) == 4


def test_reusing_a_prefix_gives_the_bytes_of_a_fresh_run(engine: Any) -> None:
    """Full segments that are attached and continued export what one run from nothing exports."""
    fresh = engine.new_cache(500)
    engine.forward(fresh, IDS)
    reusing = hand_over(engine, fresh, tokens=CHUNK_TOKENS, size=CHUNK_TOKENS)
    engine.forward(reusing, IDS[CHUNK_TOKENS:])
    assert digest(engine, reusing, 500) == digest(engine, fresh, 500)


@pytest.mark.parametrize("cut", [1, 255, 256, 257])
def test_chunks_are_cut_at_absolute_multiples(engine: Any, cut: int) -> None:
    """However ids are dealt out, chunks end at multiples of 256 of the position."""
    lengths: list[int] = []
    hook = engine.model.get_input_embeddings().register_forward_pre_hook(
        lambda _, inputs: lengths.append(int(inputs[0].shape[1]))
    )
    try:
        cache = engine.new_cache(500)
        engine.forward(cache, IDS[:cut])
        engine.forward(cache, IDS[cut:])
    finally:
        hook.remove()
    by_hand = {
        1: [1, 255, 244],
        255: [255, 1, 244],
        256: [256, 244],
        257: [256, 1, 243],
    }
    assert lengths == by_hand[cut]


def test_room_does_not_show_in_the_bytes(engine: Any) -> None:
    """A cache that grew and one that had room from the start export the same bytes."""
    digests = set()
    for room in (1, 300, 5_000):
        cache = engine.new_cache(room)
        engine.forward(cache, IDS)
        digests.add(digest(engine, cache, 500))
    assert len(digests) == 1


def test_the_number_of_threads_is_fixed_inside_and_restored_outside(engine: Any) -> None:
    """Whatever the process has set, the engine computes on its own number of threads."""
    inside: list[int] = []
    hook = engine.model.get_input_embeddings().register_forward_pre_hook(
        lambda *_: inside.append(torch.get_num_threads())
    )
    torch.set_num_threads(2)
    try:
        engine.forward(engine.new_cache(4), [3, 4])
        assert torch.get_num_threads() == 2
        with pytest.raises(WindowExceeded):
            engine.forward(engine.new_cache(4), [3] * 600)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
        hook.remove()
    assert inside == [1]


def test_an_error_inside_restores_the_number_of_threads(engine: Any) -> None:
    """A forward pass that fails leaves the process with the threads it had."""

    class Boom(Exception):
        pass

    def explode(*_: Any) -> None:
        raise Boom

    hook = engine.model.get_input_embeddings().register_forward_pre_hook(explode)
    torch.set_num_threads(2)
    try:
        with pytest.raises(Boom):
            engine.forward(engine.new_cache(4), [3, 4])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
        hook.remove()


class SpyLock:
    """A lock that tells when somebody asks for it."""

    def __init__(self) -> None:
        self.lock, self.asked = threading.RLock(), threading.Semaphore(0)

    def __enter__(self) -> None:
        self.asked.release()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def test_deterministic_engines_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of threads belongs to the process, so two engines never compute at once."""
    engines = {
        "one": tiny("llama", deterministic=True),
        "two": tiny("qwen2", deterministic=True, threads=2),
    }
    lock, events = SpyLock(), []
    monkeypatch.setattr(engine_module, "_THREADS_LOCK", lock)

    def entering(name: str) -> None:
        events.append((name, "in", torch.get_num_threads()))
        if len(events) == 1:  # the first stays inside until the other has asked for the lock
            for _ in range(2):
                assert lock.asked.acquire(timeout=60)

    for name, engine in engines.items():
        engine.model.get_input_embeddings().register_forward_pre_hook(
            lambda *_, name=name: entering(name)
        )
        engine.model.register_forward_hook(
            lambda *_, name=name: events.append((name, "out", torch.get_num_threads()))
        )
    workers = [
        threading.Thread(target=engine.forward, args=(engine.new_cache(4), [3, 4]))
        for engine in engines.values()
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    one = [("one", "in", 1), ("one", "out", 1)]
    two = [("two", "in", 2), ("two", "out", 2)]
    assert events in (one + two, two + one)
