"""Collecting: what goes, what stays and why, and that nothing goes too early."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.relay.child import LONG
from tests.relay.test_purging import addresses, domain_of, hand_off, names

from kvbaton import collecting
from kvbaton.collecting import DEFAULT_GRACE_S, Collection, collect
from kvbaton.errors import InputError, StoreError, Unsupported
from kvbaton.seals import TrustDomain
from kvbaton.stores import DirectoryStore, FsspecStore, Key, Kind, LeaseState, MemoryStore
from kvbaton.stores.lease_clock import SteadyClock
from kvbaton.stores.leases import MAX_TTL_S
from kvbaton.testing import Do, FaultyStore, StoreFault
from kvbaton.types import Route
from kvbaton.vaults import sealed

HOUR_S = 3600.0


class Clock:
    """A steady clock that a test moves on."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.steady = SteadyClock("test-boot", lambda: self.now_s)


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def domain(request: Any) -> TrustDomain:
    """A domain that asks for encryption, and one that does not."""
    return domain_of(encryption=request.param)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder of the store."""
    return tmp_path / "store"


@pytest.fixture
def agents(agent_of: Callable[..., Any], domain: TrustDomain, root: Path) -> Callable[..., Any]:
    """Makes agents that share a directory, and store nothing while they decode: a thread would
    still be at it while a test collects."""

    def make(name: str, **options: Any) -> Any:
        store = sealed(options.pop("store", None) or DirectoryStore(root), domain)
        options = {"stream": False} | options
        return agent_of(name, store=store, domain=options.pop("domain", domain), **options)

    return make


@pytest.fixture
def clock() -> Clock:
    """The collector's clock."""
    return Clock()


@pytest.fixture
def gc(root: Path, domain: TrustDomain, clock: Clock) -> Callable[..., Collection]:
    """Collects with a grace period of an hour of the test's clock."""

    def run(**options: Any) -> Collection:
        options = {"grace_s": HOUR_S, "clock": clock.steady} | options
        return collect(options.pop("store", None) or DirectoryStore(root), domain, **options)

    return run


def test_what_a_baton_needs_stays(agents: Any, gc: Any, root: Path) -> None:
    """Without any grace nothing of a baton goes, and it is taken whole."""
    baton = hand_off(agents("a"))
    before = names(DirectoryStore(root))
    found = gc(grace_s=0)
    assert found.removed_objects == found.waiting.objects == found.leased.objects == 0
    assert found.needed.objects == sum(map(len, before.values()))
    assert (found.unreadable, found.dangling, found.due_s) == (0, (), None)
    assert names(DirectoryStore(root)) == before
    taken = agents("b").take(baton.id, "Go on", max_new_tokens=3)
    assert taken.receipt.route is Route.BATON


def test_what_nobody_needs_goes_after_the_grace(
    agents: Any, gc: Any, clock: Clock, root: Path
) -> None:
    """It is marked, waits for the whole period, and goes with all that leads to it."""
    baton, kept = hand_off(agents("a")), hand_off(agents("b"), "Something else to be kept")
    store = DirectoryStore(root)
    store.delete(Key(Kind.BATON, baton.id))
    first = gc()
    assert first.removed_objects == 0
    assert first.due_s == HOUR_S
    waiting = first.waiting.objects
    assert waiting >= len(addresses(baton)) + 2
    clock.now_s += HOUR_S - 1
    assert gc().removed_objects == 0
    clock.now_s += 1
    last = gc()
    assert last.removed_objects == waiting
    assert last.removed_bytes == first.waiting.size_bytes
    left = names(store)
    assert left[Kind.BATON] == {kept.id}
    assert left[Kind.SEGMENT] == addresses(kept)
    assert left[Kind.TRANSCRIPT] == {kept.manifest.transcript}
    assert gc(grace_s=0).removed_objects == 0


def test_use_begins_the_period_anew(agents: Any, gc: Any, clock: Clock, root: Path) -> None:
    """What was opened since it was marked waits again from then on; the rest goes."""
    baton = hand_off(agents("a"))
    store = DirectoryStore(root)
    store.delete(Key(Kind.BATON, baton.id))
    gc()
    clock.now_s += HOUR_S
    used = Key(Kind.SEGMENT, min(addresses(baton)))
    store.open(used).close()
    gc()
    assert names(store)[Kind.SEGMENT] == {used.name}
    clock.now_s += HOUR_S
    assert gc().removed_objects == 1
    assert names(store)[Kind.SEGMENT] == set()


def test_what_was_needed_in_between_waits_anew(agents: Any, gc: Any, clock: Clock) -> None:
    """Two marks count only if every run between them has found the object unneeded."""
    sender = agents("a")
    turn = sender.run(LONG, max_new_tokens=9)
    first = sender.hand_off(turn)
    sender.relay.store.delete(Key(Kind.BATON, first.id))
    gc()
    clock.now_s += HOUR_S
    second = sender.hand_off(turn)
    assert gc().removed_objects == 0
    sender.relay.store.delete(Key(Kind.BATON, second.id))
    assert gc().removed_objects == 0
    clock.now_s += HOUR_S
    assert gc().removed_objects > 0


def test_what_is_leased_stays_whatever_its_age(
    agents: Any, gc: Any, clock: Clock, root: Path
) -> None:
    """A lease is a root: it keeps its objects, and their time begins when it ends."""
    baton = hand_off(agents("a"))
    store = DirectoryStore(root)
    store.delete(Key(Kind.BATON, baton.id))
    with store.lease([Key(Kind.SEGMENT, a) for a in addresses(baton)], owner="reader"):
        gc()
        clock.now_s += HOUR_S
        found = gc()
        assert found.leased.objects == len(addresses(baton))
        assert names(store)[Kind.SEGMENT] == addresses(baton)
    assert gc().removed_objects == 0
    clock.now_s += HOUR_S
    assert gc().removed[Kind.SEGMENT].objects == len(addresses(baton))


def test_the_period_is_longer_than_any_lease() -> None:
    """By default an object waits for longer than a lease can outlive its owner."""
    assert DEFAULT_GRACE_S > MAX_TTL_S


def test_expired_batons_go_with_what_is_theirs_alone(
    agents: Any, gc: Any, clock: Clock, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour after a baton has expired it goes; what another lists of it stays."""
    a = agents("a")
    short = a.hand_off(a.run(LONG + "and then go left", max_new_tokens=9), expires_s=60)
    other = hand_off(agents("b"), LONG + "and then turn to the right side")
    assert addresses(short) & addresses(other)
    assert gc(grace_s=0).removed_objects == 0
    monkeypatch.setattr(collecting, "now_ms", lambda: short.manifest.expires_ms)
    assert gc().removed_objects == 0
    clock.now_s += HOUR_S
    assert gc().removed[Kind.BATON].objects == 1
    left = names(DirectoryStore(root))
    assert left[Kind.BATON] == {other.id}
    assert left[Kind.SEGMENT] == addresses(other)


def test_manifests_of_ancestors_stay_for_their_descendants(
    agents: Any, gc: Any, root: Path
) -> None:
    """Of a withdrawn parent only the manifest stays, by which hops are known."""
    a, b = agents("a"), agents("b")
    first = hand_off(a)
    second = b.hand_off(b.take(first.id, "Go on", max_new_tokens=9))
    alone = addresses(first) - addresses(second)
    assert alone
    gc(grace_s=0, withdrawn=[first.id])
    left = names(DirectoryStore(root))
    assert left[Kind.BATON] == {first.id, second.id}
    assert left[Kind.SEGMENT] == addresses(second)
    taken = agents("c").take(second.id, "Go on", max_new_tokens=3)
    assert taken.receipt.route is Route.BATON
    gc(grace_s=0, withdrawn=[first.id, second.id])
    assert not any(names(DirectoryStore(root)).values())


def test_a_dry_run_changes_nothing(agents: Any, gc: Any, clock: Clock, root: Path) -> None:
    """It tells what a run would do, and neither marks nor removes."""
    baton = hand_off(agents("a"))
    store = DirectoryStore(root)
    store.delete(Key(Kind.BATON, baton.id))
    before = {p: p.stat().st_mtime_ns for p in root.rglob("*") if p.is_file() and p.name != "usage"}
    said = gc(dry_run=True, grace_s=0)
    assert said.dry_run
    after = {p: p.stat().st_mtime_ns for p in root.rglob("*") if p.is_file() and p.name != "usage"}
    assert after == before
    done = gc(grace_s=0)
    assert done.removed == said.removed
    assert done.removed_objects > 3


def test_the_same_holds_in_memory(agent_of: Any, domain: TrustDomain, clock: Clock) -> None:
    """A memory store is collected like a directory."""
    store = MemoryStore()
    kept = hand_off(agent_of("a", store=store, domain=domain))
    gone = hand_off(agent_of("b", store=store, domain=domain), "Something that is not kept at all")
    store.delete(Key(Kind.BATON, gone.id))
    for _ in range(2):
        collect(store, domain, grace_s=HOUR_S, clock=clock.steady)
        clock.now_s += HOUR_S
    assert names(store)[Kind.SEGMENT] == addresses(kept)


# --- what cannot be read, and whose it is ---------------------------------------------------------


def test_batons_of_others_keep_what_they_list(agents: Any, agent_of: Any, root: Path) -> None:
    """What another trust domain, whose manifests can be read, lists stays; what we know to be ours
    goes."""
    ours, theirs = domain_of(), domain_of(7)
    store = DirectoryStore(root)
    other = hand_off(agent_of("b", store=store, domain=theirs), "Of another domain altogether")
    mine = hand_off(agent_of("a", store=store, domain=ours))
    store.delete(Key(Kind.BATON, mine.id))
    found = collect(store, ours, grace_s=0)
    assert (found.unreadable, found.removed[Kind.SEGMENT].objects) == (0, len(addresses(mine)))
    assert names(store)[Kind.SEGMENT] == addresses(other)


def test_beside_what_cannot_be_read_only_ones_own_goes(agent_of: Any, root: Path) -> None:
    """Encrypted batons of another key may list anything: what is not known to be ours stays."""
    ours, theirs = domain_of(encryption=True), domain_of(7, encryption=True)
    store = DirectoryStore(root)
    other = hand_off(
        agent_of("b", store=sealed(store, theirs), domain=theirs), "Of another domain altogether"
    )
    mine = hand_off(agent_of("a", store=sealed(store, ours), domain=ours))
    before = names(store)
    store.delete(Key(Kind.BATON, mine.id))
    found = collect(store, ours, grace_s=0)
    assert found.unreadable == 1
    assert found.removed[Kind.SEGMENT].objects == len(addresses(mine))
    assert found.removed[Kind.TRANSCRIPT].objects == 1
    assert found.removed[Kind.PREFIX].objects > 0
    left = names(store)
    assert left[Kind.SEGMENT] == addresses(other)
    assert left[Kind.TRANSCRIPT] == {other.manifest.transcript}
    assert left[Kind.BATON] == before[Kind.BATON] - {mine.id}
    reader = agent_of("c", store=sealed(store, theirs), domain=theirs)
    assert reader.take(other.id, "Go on", max_new_tokens=3).receipt.route is Route.BATON


def test_what_is_missing_is_told(agents: Any, gc: Any, root: Path) -> None:
    """A baton whose segment is gone is named, and stays: its text can still be read."""
    baton = hand_off(agents("a"))
    DirectoryStore(root).delete(Key(Kind.SEGMENT, min(addresses(baton))))
    found = gc(grace_s=0)
    assert found.dangling == (baton.id,)
    assert names(DirectoryStore(root))[Kind.BATON] == {baton.id}


# --- bad input --------------------------------------------------------------------------------


def test_a_store_that_cannot_lease_is_not_collected(tmp_path: Path) -> None:
    """Where looking and removing are two steps, nothing is removed."""
    with FsspecStore(f"fsspec+file://{tmp_path}/store") as store, pytest.raises(Unsupported):
        collect(store, domain_of())


@pytest.mark.parametrize("grace_s", [-1.0, float("nan"), float("inf"), 1e12])
def test_a_period_that_is_no_time_is_refused(gc: Any, grace_s: float) -> None:
    """A grace period has a length."""
    with pytest.raises(InputError):
        gc(grace_s=grace_s)


@pytest.mark.parametrize(
    "harm",
    [
        lambda data: data[:-1],
        lambda data: data.replace(b"test-boot", b"other-boot"),
        lambda data: data.partition(b"\n")[2],
        lambda data: b"\xff" + data,
        lambda data: b"",
    ],
)
def test_marks_that_cannot_be_believed_are_forgotten(
    agents: Any, gc: Any, clock: Clock, root: Path, harm: Any
) -> None:
    """Cut, of another start of the machine, or foreign: everything waits anew."""
    baton = hand_off(agents("a"))
    store = DirectoryStore(root)
    store.delete(Key(Kind.BATON, baton.id))
    gc()
    store.write_marks(harm(store.read_marks()))
    clock.now_s += HOUR_S
    assert gc().removed_objects == 0
    clock.now_s += HOUR_S
    assert gc().removed_objects > 0


def test_marks_from_the_future_count_from_now(
    agents: Any, gc: Any, clock: Clock, root: Path
) -> None:
    """A mark that is younger than now, as no clock of that name can have made it, is made anew."""
    baton = hand_off(agents("a"))
    DirectoryStore(root).delete(Key(Kind.BATON, baton.id))
    clock.now_s += 10 * HOUR_S
    gc()
    clock.now_s -= 10 * HOUR_S
    assert gc().due_s == HOUR_S


# --- crashes and races ----------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for the end of a process."""


def test_a_run_that_ends_anywhere_leaves_nothing_dangling(
    agents: Any, gc: Any, clock: Clock, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before any of its removals, the store has no baton without what it lists, and the
    next run finishes."""
    real = DirectoryStore._remove_unused
    for nth in itertools.count(1):
        a = agents("a")
        turn = a.run(LONG, max_new_tokens=9)
        short = a.hand_off(turn, expires_s=60)
        left = itertools.count(1)

        def stop(self: Any, *given: Any, left: Any = left, nth: int = nth) -> Any:
            if next(left) == nth:
                raise Killed
            return real(self, *given)

        with monkeypatch.context() as patch:
            patch.setattr(collecting, "now_ms", lambda at=short.manifest.expires_ms: at)
            gc()
            clock.now_s += HOUR_S
            patch.setattr(DirectoryStore, "_remove_unused", stop)
            try:
                gc()
            except Killed:
                finished = False
            else:
                finished = True
            patch.setattr(DirectoryStore, "_remove_unused", real)
            store = DirectoryStore(root)
            if names(store)[Kind.BATON]:
                assert names(store)[Kind.SEGMENT] >= addresses(short)
            assert gc().dangling == ()
        assert not any(names(DirectoryStore(root)).values())
        assert DirectoryStore(root).used_bytes() == 0
        if finished:
            break
    assert nth > 5


@pytest.mark.parametrize("kind", [Kind.BATON, Kind.PREFIX, Kind.SEGMENT, Kind.TRANSCRIPT])
def test_a_hand_off_at_any_moment_of_a_run_is_whole(
    agents: Any, gc: Any, root: Path, domain: TrustDomain, kind: Kind
) -> None:
    """Old segments that nobody needs are handed off again while a run lists, reads and removes:
    the baton that is seen afterwards has all that it lists."""
    sender, receiver = agents("a"), agents("b")
    turn = sender.run(LONG, max_new_tokens=9)
    for operation in ("list", "open"):
        for nth in (1, 2, 3):
            first = sender.hand_off(turn)
            sender.relay.store.delete(Key(Kind.BATON, first.id))
            again = []

            def hand_off_now(_: Any, again: Any = again) -> None:
                again.append(sender.hand_off(turn))

            store = FaultyStore(DirectoryStore(root))
            store.inject(StoreFault(operation, Do(hand_off_now), kind=kind, nth=nth))
            gc(grace_s=0, store=store)
            for baton in again:
                held = names(DirectoryStore(root))
                assert held[Kind.SEGMENT] >= addresses(baton)
                assert baton.manifest.transcript in held[Kind.TRANSCRIPT]
                taken = receiver.take(baton.id, "Go on", max_new_tokens=3)
                assert taken.receipt.route is Route.BATON
                sender.relay.store.delete(Key(Kind.BATON, baton.id))


@pytest.mark.parametrize("kind", [Kind.BATON, Kind.PREFIX, Kind.SEGMENT, Kind.TRANSCRIPT])
@pytest.mark.parametrize("operation", ["put", "open"])
def test_a_run_at_any_moment_of_a_hand_off_is_harmless(
    agents: Any, gc: Any, root: Path, kind: Kind, operation: Any
) -> None:
    """The other way round: old segments are skipped or written, and whenever a whole run without
    any grace comes in between, the baton has all that it lists."""
    for nth in (1, 2, 3):
        store = FaultyStore(DirectoryStore(root))
        sender = agents("a", store=store)
        turn = sender.run(LONG, max_new_tokens=9)
        runs: list[Collection] = []
        for _ in range(2):  # the first writes, the second skips
            store.heal()
            collect_now = Do(lambda key: runs.append(gc(grace_s=0)))  # noqa: B023
            store.inject(StoreFault(operation, collect_now, kind=kind, nth=nth))
            baton = sender.hand_off(turn)
            held = names(DirectoryStore(root))
            assert held[Kind.SEGMENT] >= addresses(baton)
            assert baton.manifest.transcript in held[Kind.TRANSCRIPT]
            DirectoryStore(root).delete(Key(Kind.BATON, baton.id))
        assert runs or operation == "open" or nth > 1
        gc(grace_s=0)


def test_a_sender_who_lost_its_lease_makes_no_baton(
    agents: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that stood still while it handed off finds out: no baton can be seen."""
    sender = agents("a")
    turn = sender.run(LONG, max_new_tokens=9)
    real = DirectoryStore.put
    store = DirectoryStore(root)

    def lose_it(self: Any, key: Key, parts: Any) -> int:
        if key.kind is Kind.TRANSCRIPT:
            for path in (root / "leases").iterdir():
                path.unlink()  # as who finds it dead does
        return real(self, key, parts)

    monkeypatch.setattr(DirectoryStore, "put", lose_it)
    with pytest.raises(StoreError, match="lost"):
        sender.hand_off(turn)
    assert names(store)[Kind.BATON] == set()
    monkeypatch.setattr(DirectoryStore, "put", real)
    assert sender.hand_off(turn).id in names(store)[Kind.BATON]
    assert [one for one in store.leases() if one.state is not LeaseState.DEAD] == []


def test_one_that_is_lost_behind_the_manifest_takes_it_back(
    agents: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the process stood still between the last look and the manifest, it is removed again."""
    sender = agents("a")
    turn = sender.run(LONG, max_new_tokens=9)
    real = DirectoryStore.put

    def lose_it(self: Any, key: Key, parts: Any) -> int:
        written = real(self, key, parts)
        if key.kind is Kind.BATON:
            for path in (root / "leases").iterdir():
                path.unlink()
        return written

    monkeypatch.setattr(DirectoryStore, "put", lose_it)
    with pytest.raises(StoreError, match="lost"):
        sender.hand_off(turn)
    assert names(DirectoryStore(root))[Kind.BATON] == set()
