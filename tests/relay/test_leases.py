"""What hand-offs and takes lease, in this process and with others that are killed or that race."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.relay.child import DOMAIN, LONG

from kvbaton.agent import Agent
from kvbaton.collecting import collect
from kvbaton.errors import BatonUnavailable, StoreError, StoreFull, Unsupported
from kvbaton.leasing import hold, segments_of
from kvbaton.relay import Relay
from kvbaton.stores import DirectoryStore, Key, Kind, LeaseState, MemoryStore, Removal
from kvbaton.testing import Do, Fail, FaultyStore, Stall, StoreFault
from kvbaton.testing.leases import until
from kvbaton.types import Route

ROOT = Path(__file__).parents[2]
ROUNDS = 100


@contextmanager
def part(name: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A part of ``lease_child.py`` in a process of its own; killed at the end."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-m", "tests.relay.lease_child", name, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=pipe,
        stdout=pipe,
        text=True,
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def said(running: subprocess.Popen[str]) -> str:
    """The next line of a child."""
    assert running.stdout is not None
    return running.stdout.readline().strip()


def go(running: subprocess.Popen[str]) -> None:
    """Let a child go on."""
    assert running.stdin is not None
    running.stdin.write("go\n")
    running.stdin.flush()


# --- in one process -------------------------------------------------------------------------------


def leased_now(store: Any) -> set[Key]:
    """What is leased at this moment."""
    return {key for info in store.leases() for key in info.keys}


def test_a_take_leases_its_segments_before_it_opens_the_first(agent_of: Any) -> None:
    """All of them are leased at every open and every read, and none afterwards."""
    inner, seen = MemoryStore(), []
    baton = (a := agent_of("a", store=inner)).hand_off(a.run(LONG, max_new_tokens=9))
    wanted = set(segments_of(baton.manifest.segments))
    assert len(wanted) > 2
    store = FaultyStore(inner)
    for operation in ("open", "read"):
        look = Do(lambda key: seen.append(leased_now(inner) >= wanted))
        store.inject(StoreFault(operation, look, kind=Kind.SEGMENT))
    turn = agent_of("b", store=store, stream=False).take(baton.id, "Go on", max_new_tokens=1)
    assert turn.receipt.route is Route.BATON
    assert len(seen) > 2 * len(wanted)
    assert all(seen)
    assert leased_now(inner) == set()


@pytest.mark.parametrize("error", [StoreError("gone"), MemoryError()])
def test_a_take_that_fails_releases(agent_of: Any, store: Any, error: Exception) -> None:
    """After a failed take, whatever it failed by, nothing is leased."""
    baton = (a := agent_of("a", store=store)).hand_off(a.run(LONG, max_new_tokens=9))
    faulty = FaultyStore(store, StoreFault("read", Fail(error), kind=Kind.SEGMENT, nth=3))
    turn = agent_of("b", store=faulty, stream=False).take(baton.id, "Go on", max_new_tokens=1)
    assert turn.receipt.route is Route.TEXT
    assert leased_now(store) == set()


@pytest.mark.parametrize("operation", ["read", "lease"])
def test_an_abandoned_take_releases_at_the_deadline(
    agent_of: Any, store: Any, operation: Any
) -> None:
    """A store that stalls keeps the thread, but not the lease: neither one that is held at the
    deadline nor one that is granted after it."""
    baton = (a := agent_of("a", store=store)).hand_off(a.run(LONG, max_new_tokens=9))
    stall = Stall(threading.Event())
    faulty = FaultyStore(store, StoreFault(operation, stall, kind=Kind.SEGMENT, nth=1))
    receiver = agent_of("b", store=faulty, stream=False)
    turn = receiver.take(baton.id, "Go on", max_new_tokens=1, deadline_s=0.5)
    assert turn.receipt.route is Route.TEXT
    assert leased_now(store) == set()
    stall.until.set()
    until(lambda: not any(t.name == "kvbaton-within" for t in threading.enumerate()))
    assert leased_now(store) == set()


@pytest.mark.parametrize("error", [Unsupported("no leases"), StoreFull("no room")])
def test_a_take_goes_on_where_it_cannot_lease(agent_of: Any, store: Any, error: Exception) -> None:
    """A store without leases, or a disk without room for one, is read all the same."""
    baton = (a := agent_of("a", store=store)).hand_off(a.run(LONG, max_new_tokens=9))
    faulty = FaultyStore(store, StoreFault("lease", Fail(error)))
    turn = agent_of("b", store=faulty, stream=False).take(baton.id, "Go on", max_new_tokens=1)
    assert turn.receipt.route is Route.BATON


def test_a_hand_off_goes_on_where_the_store_has_no_leases(agent_of: Any, store: Any) -> None:
    """Stores that cannot lease, such as object stores, hold batons all the same."""
    faulty = FaultyStore(store, StoreFault("lease", Fail(Unsupported("no leases"))))
    sender = agent_of("a", store=faulty, stream=False)
    baton = sender.hand_off(sender.run(LONG, max_new_tokens=9))
    assert store.exists(Key(Kind.BATON, baton.id))


def test_a_hand_off_that_cannot_write_its_lease_makes_no_baton(agent_of: Any, store: Any) -> None:
    """Where a lease could be had and is not, what was skipped might go: the hand-off fails."""
    faulty = FaultyStore(store, StoreFault("lease", Fail(StoreFull("no room"))))
    sender = agent_of("a", store=faulty, stream=False)
    turn = sender.run(LONG, max_new_tokens=9)
    with pytest.raises(StoreFull):
        sender.hand_off(turn)
    assert list(store.list(Kind.BATON)) == []


def test_a_hand_off_leases_what_it_writes_and_what_it_skips(agent_of: Any) -> None:
    """At the put of the manifest all that it lists is leased, written now or there before; the
    second hand-off of a turn writes nothing and leases as much."""
    inner, seen = MemoryStore(), []
    store = FaultyStore(inner)
    look = Do(lambda key: seen.append(leased_now(inner)))
    store.inject(StoreFault("put", look, kind=Kind.BATON))
    sender = agent_of("a", store=store, stream=False)
    turn = sender.run(LONG, max_new_tokens=9)
    for baton in (sender.hand_off(turn), sender.hand_off(turn)):
        listed = {Key(Kind.TRANSCRIPT, baton.manifest.transcript), Key(Kind.BATON, baton.id)}
        assert seen.pop(0) >= listed | set(segments_of(baton.manifest.segments))
        assert leased_now(inner) == set()
    assert baton.bytes_written == 0


def test_a_failed_hand_off_releases(agent_of: Any, store: Any) -> None:
    """Whatever a hand-off fails by, nothing stays leased."""
    faulty = FaultyStore(store, StoreFault("put", Fail(StoreFull("no room")), kind=Kind.TRANSCRIPT))
    sender = agent_of("a", store=faulty, stream=False)
    turn = sender.run(LONG, max_new_tokens=9)
    with pytest.raises(StoreFull):
        sender.hand_off(turn)
    assert leased_now(store) == set()


def test_a_full_store_does_not_evict_what_is_being_read(agent_of: Any, tmp_path: Path) -> None:
    """Others fill a small store while a take reads: it still ends by the baton's cache."""
    inner = DirectoryStore(tmp_path / "store")
    baton = (a := agent_of("a", store=inner, stream=False)).hand_off(a.run(LONG, max_new_tokens=9))
    small = DirectoryStore(tmp_path / "store", max_bytes=inner.used_bytes() + 100)

    def crowd(_: Key | None) -> None:
        with pytest.raises(StoreFull):
            small.put(Key(Kind.SEGMENT, "f" * 64), [bytes(small.used_bytes() - 1000)])

    faulty = FaultyStore(inner, StoreFault("open", Do(crowd), kind=Kind.SEGMENT, nth=1))
    turn = agent_of("b", store=faulty, stream=False).take(baton.id, "Go on", max_new_tokens=1)
    assert turn.receipt.route is Route.BATON


@pytest.mark.parametrize("operation", ["open", "read"])
@pytest.mark.parametrize("nth", [1, 3])
def test_a_collection_during_a_read(agent_of: Any, store: Any, operation: Any, nth: int) -> None:
    """FAULTS C9: a baton that is withdrawn, and collected without any grace, in the middle of a
    take: the take completes, and its segments go afterwards."""
    baton = (a := agent_of("a", store=store)).hand_off(a.run(LONG, max_new_tokens=9))
    found = []

    def collect_now(_: Key | None) -> None:
        found.append(collect(store, DOMAIN, grace_s=0, withdrawn=[baton.id]))

    faulty = FaultyStore(store)
    faulty.inject(StoreFault(operation, Do(collect_now), kind=Kind.SEGMENT, nth=nth))
    turn = agent_of("b", store=faulty, stream=False).take(baton.id, "Go on", max_new_tokens=1)
    assert turn.receipt.route is Route.BATON
    assert found[0].leased.objects == len(baton.manifest.segments)
    assert found[0].removed[Kind.BATON].objects == 1
    last = collect(store, DOMAIN, grace_s=0, withdrawn=[baton.id])
    assert last.removed[Kind.SEGMENT].objects == len(baton.manifest.segments)


def test_holding_what_is_not_there_is_refused(agent_of: Any, store: Any) -> None:
    """A baton that cannot be read cannot be held."""
    with pytest.raises(BatonUnavailable):
        hold(agent_of("a"), "0" * 64)
    assert store.leases() == []


# --- with other processes -------------------------------------------------------------------------


def test_a_receiver_killed_after_7_of_30_layers(smollm2_f32: Any, tmp_path: Path) -> None:
    """FAULTS C1: its lease ends with it, a retry succeeds, and a collection finds no orphan."""
    store = DirectoryStore(tmp_path / "store")
    sender = Agent("sender", smollm2_f32, Relay(smollm2_f32, store, DOMAIN))
    baton = sender.hand_off(sender.run(LONG, max_new_tokens=2))
    assert len(smollm2_f32.layout.layers) == 30
    segments = set(segments_of(baton.manifest.segments))
    with part("read", store.url, baton.id, 7) as reader:
        assert said(reader) == "reached"
        (held,) = store.leases()
        assert (held.state, held.keys) == (LeaseState.HELD, segments)
        reader.send_signal(signal.SIGKILL)
        reader.wait()
    assert [info.state for info in store.leases()] == [LeaseState.DEAD]
    taken = Agent("again", smollm2_f32, Relay(smollm2_f32, store, DOMAIN)).take(
        baton.id, "Go on", max_new_tokens=2
    )
    assert taken.receipt.route is Route.BATON
    assert taken.receipt.reused_tokens == baton.manifest.cached_tokens
    found = collect(store, DOMAIN, grace_s=0)
    assert (found.removed_objects, found.leased.objects, found.dangling) == (0, 0, ())
    assert found.debris.leases == 1
    assert store.leases() == []


def test_a_receiver_that_queues_for_ten_times_its_lease(agent_of: Any, tmp_path: Path) -> None:
    """FAULTS C4: while it waits its beats keep a baton that is withdrawn and collected again and
    again; then it computes nothing that was there."""
    store = DirectoryStore(tmp_path / "store")
    baton = (a := agent_of("a", store=store, stream=False)).hand_off(a.run(LONG, max_new_tokens=9))
    with part("queue", store.url, baton.id) as receiver:
        assert said(receiver) == "holding"
        while (held := store.leases()[0]).beats < 30:  # three for each time to live
            found = collect(store, DOMAIN, grace_s=0, withdrawn=[baton.id])
            assert found.removed_objects == 0
        assert held.ttl_s == 0.3
        go(receiver)
        assert json.loads(said(receiver)) == ["baton", baton.manifest.cached_tokens]
        receiver.wait()
    assert collect(store, DOMAIN, grace_s=0, withdrawn=[baton.id]).removed[Kind.BATON].objects == 1
    assert not any(list(store.list(kind)) for kind in Kind)


def test_collections_race_with_hand_offs_that_skip(tmp_path: Path) -> None:
    """FAULTS C9: two processes hand the same segments off and drop the batons, while this one
    collects without any grace: every baton was whole for as long as it could be seen."""
    store = DirectoryStore(tmp_path / "store")
    with part("race", store.url, "x", ROUNDS) as one, part("race", store.url, "y", ROUNDS) as two:
        assert [said(one), said(two)] == ["ready", "ready"]
        go(one), go(two)
        runs = removed = 0
        while one.poll() is None or two.poll() is None:
            found = collect(store, DOMAIN, grace_s=0)
            runs, removed = runs + 1, removed + found.removed[Kind.SEGMENT].objects
        results = [json.loads(said(one)), json.loads(said(two))]
    assert [result["broken"] for result in results] == [0, 0]
    assert runs > 10
    assert removed > results[0]["segments"]  # there were races: segments went again and again
    collect(store, DOMAIN, grace_s=0)
    assert not any(list(store.list(kind)) for kind in Kind if kind is not Kind.SPENT)
    assert store.used_bytes() == 0


def test_reads_race_with_collections(agent_of: Callable[..., Any], tmp_path: Path) -> None:
    """FAULTS C9: while batons are withdrawn and collected, another process takes them: by the
    cache, or by text with the reason, or not at all because the baton was gone."""
    store = DirectoryStore(tmp_path / "store")
    sender = agent_of("a", store=store, stream=False)
    turn = sender.run(LONG, max_new_tokens=9)
    sender.hand_off(turn)
    with part("follow", store.url, 60) as follower:
        assert said(follower) == "ready"
        go(follower)
        while follower.poll() is None:
            baton = sender.hand_off(turn)
            old = [e.key.name for e in store.list(Kind.BATON) if e.key.name != baton.id]
            collect(store, DOMAIN, grace_s=0, withdrawn=old)
        seen = json.loads(said(follower))
    allowed = {"baton", "text segment-missing", "BatonUnavailable", "text prefix-hit"}
    assert set(seen) <= allowed, seen
    assert seen["baton"] > 0


def test_who_ends_in_order_releases(agent_of: Any, tmp_path: Path) -> None:
    """FAULTS C11: on SIGTERM a process that drains releases its leases and exits with 0."""
    store = DirectoryStore(tmp_path / "store")
    baton = (a := agent_of("a", store=store, stream=False)).hand_off(a.run(LONG, max_new_tokens=9))
    with part("hold", store.url, baton.id) as holder:
        assert said(holder) == "holding"
        entries = list(store.list(Kind.BATON))
        assert store.remove_unused(entries) == [Removal.LEASED]
        holder.send_signal(signal.SIGTERM)
        assert holder.wait() == 0
    assert store.leases() == []
    assert list((tmp_path / "store" / "leases").iterdir()) == []
