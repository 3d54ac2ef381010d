"""Many takes at once: no cross-talk, nothing left behind."""

from __future__ import annotations

import gc
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kvbaton.engines.transformers.cache import KVCache
from kvbaton.errors import CacheBusy, StoreError
from kvbaton.stores import Kind, open_store
from kvbaton.testing import Corrupt, Fail, FaultyStore, StoreFault
from kvbaton.types import Outcome, Route

TAKES, CONTEXTS, THREADS = 1000, 10, 8


def living_caches() -> int:
    """KV caches that something still refers to."""
    gc.collect()
    return sum(type(thing) is KVCache for thing in gc.get_objects())


def open_files() -> int:
    """Open file descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_thousand_interleaved_takes_do_not_mix(agent_of: Any, tmp_path: Path) -> None:
    """Takes of ten contexts in eight threads, a tenth made to fail: each answers as it does
    alone; caches, descriptors and temporary files return to where they began."""
    store = open_store(f"dir://{tmp_path}/store")
    batons = []
    for number in range(CONTEXTS):
        sender = agent_of(f"s{number}", store=store, system="You plan")
        turn = sender.run(f"{chr(97 + number)} {number * 7} you code. " * 5, max_new_tokens=6)
        batons.append(sender.hand_off(turn))
    alone = [
        agent_of("alone", store=store, stream=False).take(b, "Go on", max_new_tokens=8).ids
        for b in batons
    ]
    assert len(set(alone)) == CONTEXTS
    del sender, turn
    error = StoreError("EIO")
    failing = FaultyStore(store, StoreFault("read", Fail(error), kind=Kind.SEGMENT))
    damaged = FaultyStore(store, StoreFault("read", Corrupt(5000), kind=Kind.SEGMENT))

    def take(number: int) -> tuple[int, bool, Any]:
        spoiled = number % 10 == 0
        source = (failing if number % 20 else damaged) if spoiled else store
        agent = agent_of(f"t{number}", store=source, stream=False)
        turn = agent.take(batons[number % CONTEXTS].id, "Go on", max_new_tokens=8)
        return number, spoiled, (turn.ids, turn.receipt.route, turn.receipt.outcome)

    order = list(range(TAKES))
    random.Random(5).shuffle(order)
    before = living_caches(), open_files()
    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(take, order))
    assert len(results) == TAKES
    for number, spoiled, (ids, route, outcome) in results:
        assert ids == alone[number % CONTEXTS]
        expected = (Route.TEXT, Outcome.KV_UNUSABLE) if spoiled else (Route.BATON, Outcome.USED)
        assert (route, outcome) == expected
    error.__traceback__ = None  # the test's own exception object refers to every frame it passed
    assert (living_caches(), open_files()) == before
    assert [p for p in (tmp_path / "store" / "tmp").rglob("*") if p.is_file()] == []


def test_two_takers_of_one_baton_have_caches_of_their_own(agent_of: Any) -> None:
    """Appending to one taker's cache changes nothing for the other, or for the sender."""
    sender = agent_of("a")
    turn = sender.run("Hello there", max_new_tokens=6)
    baton = sender.hand_off(turn)
    first, second = agent_of("b"), agent_of("c")
    one = first.take(baton, "Go on", max_new_tokens=6)
    two = second.take(baton, "Be brief", max_new_tokens=6)
    again = agent_of("d").take(baton, "Go on", max_new_tokens=6)
    assert one.ids == again.ids
    assert one.conversation.cache is not two.conversation.cache
    assert sender.hand_off(turn).manifest.segments == baton.manifest.segments


def test_one_cache_serves_one_request_at_a_time(agent_of: Any) -> None:
    """A second request on the same agent while the first decodes is refused, not mixed."""
    agent = agent_of("a")
    agent.run("Hello there", max_new_tokens=4)

    def intrude(piece: str) -> None:
        with pytest.raises(CacheBusy):
            agent.run("Hi", max_new_tokens=2)

    turn = agent.run("Go on", max_new_tokens=6, on_text=intrude)
    assert len(turn.ids) == 6
