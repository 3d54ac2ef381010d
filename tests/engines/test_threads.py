"""Counting and computing in several threads: each request sees its own work only."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tests.engines.families import FAMILIES, tiny
from tests.engines.own_loops import prompt

from kvbaton.decoding import Decoding, decode
from kvbaton.errors import InputError, OutOfMemory
from kvbaton.testing.engines import continuation, hand_over

STEPS = [33, 101, 57, 12, 90]
CHANGING = ("llama-rope-dynamic", "phi3-rope-longrope")
"""Families whose RoPE table changes inside the model with the length of what is fed."""


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_counts_are_those_of_an_independent_hook(
    tiny_engine: Callable[..., Any], family: str
) -> None:
    """Computed tokens equal what a hook of our own sees at the embedding, in every kind of call."""
    engine, seen = tiny_engine(family), []
    hook = engine.model.get_input_embeddings().register_forward_pre_hook(
        lambda _, inputs: seen.append(int(inputs[0].numel()))
    )
    before = engine.computed_tokens()
    try:
        cache = engine.new_cache(8)
        engine.forward(cache, prompt(23))
        continuation(engine, hand_over(engine, cache), STEPS)
        answer = decode(engine, cache, prompt(4), Decoding(max_new_tokens=6))
    finally:
        hook.remove()
    assert engine.computed_tokens() - before == sum(seen)
    assert answer.computed_tokens == 4
    assert sum(seen) == 23 + 5 + 4 + (len(answer.ids) - 1)


def test_each_thread_has_its_own_count() -> None:
    """Positions that another thread runs are not counted here."""
    engine = tiny("llama")
    before = engine.computed_tokens()
    engine.forward(engine.new_cache(8), prompt(5))

    def elsewhere() -> tuple[int, int]:
        before = engine.computed_tokens()
        engine.forward(engine.new_cache(8), prompt(7))
        return before, engine.computed_tokens()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(elsewhere).result() == (0, 7)
    assert engine.computed_tokens() - before == 5


def test_a_closed_engine_counts_no_more() -> None:
    """Closing an engine takes its hook off the model, which stays the user's."""
    engine = tiny("llama")
    assert len(engine.model.get_input_embeddings()._forward_hooks) == 1
    engine.close()
    assert not engine.model.get_input_embeddings()._forward_hooks


def work(engine: Any, seed: int, tokens: int) -> list[torch.Tensor]:
    """A request: prefill, some steps, a hand-off, some more steps."""
    cache = engine.new_cache(tokens)
    logits = [engine.forward(cache, prompt(tokens, seed)), *continuation(engine, cache, STEPS)]
    return logits + continuation(engine, hand_over(engine, cache, size=7), STEPS)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3", *CHANGING])
def test_caches_of_one_engine_in_threads(tiny_engine: Callable[..., Any], family: str) -> None:
    """Requests that run at once give what each gives alone, short ones and long ones mixed."""
    engine = tiny_engine(family)
    requests = [(seed, 4 + 12 * seed) for seed in range(6)]
    alone = [work(engine, *request) for request in requests]
    barrier = threading.Barrier(len(requests))

    def together(request: tuple[int, int]) -> list[torch.Tensor]:
        barrier.wait(timeout=60)
        return work(engine, *request)

    with ThreadPoolExecutor(len(requests)) as pool:
        results = list(pool.map(together, requests))
    for got, wanted in zip(results, alone, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


class SpyLock:
    """A lock that tells when somebody asks for it."""

    def __init__(self, asked: Callable[[], None]) -> None:
        self.lock, self.asked = threading.Lock(), asked

    def __enter__(self) -> None:
        self.asked()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


@pytest.mark.parametrize("family", CHANGING)
def test_a_changing_table_is_used_by_one_request_at_a_time(
    monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """While one request is inside the model, another waits until it has left."""
    engine, events = tiny(family), []
    both_asked = threading.Barrier(2)
    asked = threading.Semaphore(0)
    monkeypatch.setattr(engine, "_rope_lock", SpyLock(asked.release))

    def entering(*_: Any) -> None:
        events.append("in")
        if len(events) == 1:  # the first one stays inside until the second has asked for the lock
            for _ in range(2):
                assert asked.acquire(timeout=60)

    engine.model.get_input_embeddings().register_forward_pre_hook(entering)
    engine.model.register_forward_hook(lambda *_: events.append("out"))

    def request(length: int) -> torch.Tensor:
        both_asked.wait(timeout=60)
        logits: torch.Tensor = engine.forward(engine.new_cache(64), prompt(length))
        return logits

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(request, (5, 50)))
    assert events == ["in", "out"] * 2


def test_a_fixed_table_needs_no_turns(tiny_engine: Callable[..., Any]) -> None:
    """Models whose table never changes compute for several requests at once."""
    for family in FAMILIES:
        is_free = isinstance(tiny_engine(family)._rope_lock, nullcontext)
        assert is_free == (family not in CHANGING)
    engine, both_inside = tiny("llama"), threading.Barrier(2)

    def meet(*_: Any) -> None:
        both_inside.wait(timeout=60)

    engine.model.get_input_embeddings().register_forward_pre_hook(meet)
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(engine.forward, engine.new_cache(8), [3, 4]) for _ in range(2)]
    assert torch.equal(futures[0].result(), futures[1].result())


def test_threads_that_ask_for_the_function_hash_once(hashed: list[int]) -> None:
    """After an edit in memory all askers get the new id, and the weights are hashed once."""
    engine = tiny("llama")
    before = engine.function
    hashed.clear()
    with torch.no_grad():
        engine.model.model.norm.weight.mul_(2)
    barrier = threading.Barrier(6)

    def ask(_: int) -> Any:
        barrier.wait(timeout=60)
        return engine.function

    with ThreadPoolExecutor(6) as pool:
        answers = set(pool.map(ask, range(6)))
    assert len(answers) == len(hashed) == 1
    assert before not in answers


@pytest.mark.parametrize("ids", [[320], [-1], [3, 4, 10**9]])
def test_unknown_ids_are_refused(tiny_engine: Callable[..., Any], ids: list[int]) -> None:
    """An id without an embedding raises InputError before anything is computed."""
    engine = tiny_engine("llama")
    before = engine.computed_tokens()
    with pytest.raises(InputError, match=f"id {ids[-1]} is none of the model's 320"):
        engine.forward(engine.new_cache(4), ids)
    assert engine.computed_tokens() == before


def test_a_slot_that_cannot_be_had(tiny_engine: Callable[..., Any]) -> None:
    """More memory than there is raises OutOfMemory."""
    engine = tiny_engine("llama")
    with pytest.raises(OutOfMemory, match="1000000000000000 tokens"):
        engine.slot(10**15, room=0)
    assert engine.free_memory_bytes() > 1 << 20


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory")])
def test_what_allocators_say_is_mapped(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Both ways in which allocators fail become OutOfMemory; other errors stay what they are."""
    engine = tiny("llama")

    def fail(_: int) -> None:
        raise error

    monkeypatch.setattr(engine, "new_cache", fail)
    with pytest.raises(OutOfMemory) as caught:
        engine.slot(4, room=4)
    assert caught.value.__cause__ is error

    def other(_: int) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr(engine, "new_cache", other)
    with pytest.raises(RuntimeError, match="something else"):
        engine.slot(4, room=4)


def test_speed_is_measured_over_long_prefills(tiny_engine: Callable[..., Any]) -> None:
    """Tokens per second are known after a prefill of 256 tokens or more, and not before."""
    engine = tiny("llama")
    engine.forward(engine.new_cache(300), prompt(255))
    assert engine.prefill_tokens_per_s == 0
    engine.forward(engine.new_cache(300), prompt(256))
    assert engine.prefill_tokens_per_s > 0
