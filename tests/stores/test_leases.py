"""Leases: when they end, by whose clock, and what is left of them; any history against a model."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.stores.child import child, kill, wait_until_stopped
from tests.stores.disk import files_below, segment, verify_clean
from tests.stores.syscalls import nth_call_fails, open_descriptors

from kvbaton.errors import InputError, StoreError, StoreFull
from kvbaton.stores import DirectoryStore, Kind, LeaseState, MemoryStore, Removal
from kvbaton.stores import leases as lease_module
from kvbaton.stores.lease_clock import SteadyClock, boot_clock, waking_clock
from kvbaton.stores.lease_heart import HEART
from kvbaton.stores.leases import DEFAULT_TTL_S, MAX_TTL_S

KEYS = [segment(number) for number in range(4)]
TTL_S = 10.0
HOUR_S = 3600.0


class Clock:
    """A steady clock that a test moves on."""

    def __init__(self, name="test-clock"):
        self.now_s = 5000.0
        self.steady = SteadyClock(name, lambda: self.now_s)


@pytest.fixture
def clock():
    """The clock of a store's observers."""
    return Clock()


@pytest.fixture(params=["directory", "memory"])
def leasing(request, tmp_path, clock):
    """A store by the test's clock, with four segments."""
    if request.param == "memory":
        store = MemoryStore(clock=clock.steady)
    else:
        store = DirectoryStore(tmp_path / "store", clock=clock.steady)
    for key in KEYS:
        store.put(key, [b"segment"])
    return store


def removals(store, *keys):
    """What becomes of objects that nobody is to need."""
    listed = {entry.key: entry for entry in store.list(Kind.SEGMENT)}
    return store.remove_unused([listed[key] for key in keys])


# --- FAULTS C10: whose clock ----------------------------------------------------------------------


@pytest.mark.parametrize("off_s", [-HOUR_S, HOUR_S])
def test_clocks_that_are_set_change_nothing(leasing, clock, monkeypatch, off_s):
    """A wall clock that jumps by an hour frees no lease early and keeps none for good."""
    lease = leasing.lease(KEYS, owner="a", ttl_s=TTL_S, beats=False)
    real_s, real_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real_s() + off_s)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + int(off_s * 1e9))
    assert removals(leasing, *KEYS) == [Removal.LEASED] * 4
    clock.now_s += TTL_S
    assert removals(leasing, *KEYS) == [Removal.LEASED] * 4
    assert lease.heartbeat()
    clock.now_s += TTL_S + 0.001
    assert removals(leasing, *KEYS) == [Removal.DELETED] * 4
    assert not lease.heartbeat()


def test_slow_beats_keep_a_lease(leasing, clock):
    """Beats that come just in time keep it a hundred times over; one that comes late loses it."""
    lease = leasing.lease(KEYS, owner="a", ttl_s=TTL_S, beats=False)
    for _ in range(100):
        clock.now_s += TTL_S
        assert removals(leasing, KEYS[0]) == [Removal.LEASED]
        assert lease.heartbeat()
    clock.now_s += TTL_S + 0.001
    assert removals(leasing, KEYS[0]) == [Removal.DELETED]
    with pytest.raises(StoreError, match="lost"):
        lease.confirm()


def test_a_late_beat_that_nobody_noticed_counts(leasing, clock):
    """A lease that nobody has ended yet is renewed: nothing of it was removed."""
    lease = leasing.lease(KEYS, owner="a", ttl_s=TTL_S, beats=False)
    clock.now_s += 100 * TTL_S
    lease.confirm()
    assert removals(leasing, *KEYS) == [Removal.LEASED] * 4


def test_an_observer_of_another_clock_judges_by_its_own(root):
    """Where the time of a beat cannot be compared, its count is watched: a lease is neither freed
    before its time to live has passed here, nor kept when it stands still."""
    here, there = Clock("here"), Clock("there")
    there.now_s = 9e6
    owner, observer = (DirectoryStore(root, clock=c.steady) for c in (there, here))
    owner.put(KEYS[0], [b"segment"])
    lease = owner.lease(KEYS[:1], owner="a", ttl_s=TTL_S, beats=False)
    assert removals(observer, KEYS[0]) == [Removal.LEASED]
    here.now_s += TTL_S
    assert lease.heartbeat()
    assert removals(observer, KEYS[0]) == [Removal.LEASED]
    here.now_s += TTL_S
    assert removals(observer, KEYS[0]) == [Removal.LEASED]
    assert observer.leases()[0].state is LeaseState.HELD
    here.now_s += 0.001
    assert observer.leases()[0].state is LeaseState.DEAD
    again = DirectoryStore(root, clock=here.steady)  # what was seen is remembered for others
    assert removals(again, KEYS[0]) == [Removal.DELETED]
    assert files_below(root / "leases") == []
    assert not lease.heartbeat()


def test_a_beat_from_the_future_does_not_live_for_ever(root, clock):
    """A time of beat that this clock has not reached is not believed: the count is watched."""
    store = DirectoryStore(root, clock=clock.steady)
    store.put(KEYS[0], [b"segment"])
    clock.now_s += HOUR_S
    store.lease(KEYS[:1], owner="a", ttl_s=TTL_S, beats=False)
    kept = store.lease(KEYS[:1], owner="b", ttl_s=TTL_S, beats=False)
    clock.now_s -= HOUR_S
    assert removals(store, KEYS[0]) == [Removal.LEASED]
    clock.now_s += TTL_S + 0.001
    assert removals(store, KEYS[0]) == [Removal.DELETED]
    assert not kept.heartbeat()


def test_real_clocks_have_names_and_go_on():
    """The clocks that are used are those of this start of the machine, and never go back."""
    for real in (waking_clock(), boot_clock()):
        assert 0 < len(real.name) <= 80
        assert set(real.name) <= set("0123456789abcdefghijklmnopqrstuvwxyz-")
        assert real.now_s() <= real.now_s()
    assert waking_clock().name != boot_clock().name or waking_clock() == boot_clock()


# --- eviction -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["directory", "memory"])
def test_a_full_store_does_not_evict_what_is_leased(root, kind):
    """The oldest segments stay while they are leased, younger ones give way, and where nothing may
    go there is no room."""
    store = MemoryStore(max_bytes=30) if kind == "memory" else DirectoryStore(root, max_bytes=30)
    for number in range(3):
        store.put(segment(number), [b"x" * 10])
    with store.lease([segment(0), segment(9)], owner="a") as lease:
        store.put(segment(3), [b"x" * 10])
        assert [store.exists(segment(n)) for n in range(4)] == [True, False, True, True]
        lease.extend([segment(2), segment(3)])
        with pytest.raises(StoreFull):
            store.put(segment(4), [b"x" * 10])
        assert [store.exists(segment(n)) for n in range(4)] == [True, False, True, True]
    store.put(segment(4), [b"x" * 10])
    assert [store.exists(segment(n)) for n in (0, 2, 3, 4)] == [False, True, True, True]


# --- processes ------------------------------------------------------------------------------------


def test_a_forked_child_has_no_part_in_it(leasing):
    """In a fork the lease is the parent's: it cannot be used there, nor does it end there."""
    lease = leasing.lease(KEYS, owner="a", ttl_s=TTL_S)
    pid = os.fork()
    if pid == 0:  # nothing may be raised here: pytest would go on twice
        code = 1
        with contextlib.suppress(BaseException):
            silent = lease.heartbeat() is False
            lease.release()
            refused = False
            try:
                lease.extend(KEYS)
            except InputError:
                refused = True
            code = 0 if silent and refused and not HEART.running else 2
            del lease
        os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert removals(leasing, *KEYS) == [Removal.LEASED] * 4
    lease.confirm()
    lease.release()


def test_a_fork_that_outlives_its_parent_does_not_keep_the_lease(root):
    """A child shares the file and so its lock, but does not beat: the lease ends in time."""
    script = (
        "store = DirectoryStore(sys.argv[1])\n"
        "lease = store.lease([segment(0)], owner='a', ttl_s=0.3)\n"
        "if os.fork():\n"
        "    stop()\n"
        "else:\n"
        "    os.read(int(sys.argv[2]), 1)\n"
    )
    store = DirectoryStore(root)
    store.put(KEYS[0], [b"segment"])
    end, begin = os.pipe()
    os.set_inheritable(end, True)
    try:
        with _inheriting(script, root, end) as running:
            wait_until_stopped(running)
            assert removals(store, KEYS[0]) == [Removal.LEASED]
            kill(running)
            while removals(store, KEYS[0]) == [Removal.LEASED]:
                time.sleep(0.01)
            assert not store.exists(KEYS[0])
    finally:
        os.close(begin)
        os.close(end)


@contextlib.contextmanager
def _inheriting(script, root, descriptor):
    from tests.stores.child import _PRELUDE

    command = [sys.executable, "-c", _PRELUDE + script, str(root), str(descriptor)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, pass_fds=[descriptor], **pipes) as running:
        try:
            yield running
        finally:
            running.kill()


_LEASED = "store = DirectoryStore(sys.argv[1])\nlease = store.lease([segment(0)], owner='a')\n"


def test_a_stopped_process_loses_its_lease_and_is_told(root):
    """An owner that the system has stopped (SIGSTOP) loses it after its time to live, and finds out
    when it goes on."""
    script = (
        "from kvbaton.errors import StoreError\n"
        "store = DirectoryStore(sys.argv[1])\n"
        "lease = store.lease([segment(0)], owner='a', ttl_s=0.2)\n"
        "print('stopped', flush=True)\n"
        "sys.stdin.readline()\n"
        "try:\n"
        "    lease.confirm()\n"
        "except StoreError as error:\n"
        "    print(error.sentence, flush=True)\n"
    )
    store = DirectoryStore(root)
    store.put(KEYS[0], [b"segment"])
    with child(script, root) as running:
        wait_until_stopped(running)
        assert removals(store, KEYS[0]) == [Removal.LEASED]
        running.send_signal(signal.SIGSTOP)
        while removals(store, KEYS[0]) == [Removal.LEASED]:
            time.sleep(0.01)
        running.send_signal(signal.SIGCONT)
        said, _ = running.communicate(b"go\n")
    assert said.startswith(b"the lease was lost")


@pytest.mark.parametrize("how", ["exit", "SIGTERM"])
def test_a_process_that_ends_leaves_no_lease(root, how):
    """An ordinary end removes the file, SIGTERM leaves one that protects nothing (FAULTS C11)."""
    script = _LEASED + ("sys.exit(0)" if how == "exit" else "stop()")
    store = DirectoryStore(root)
    store.put(KEYS[0], [b"segment"])
    with child(script, root) as running:
        if how == "SIGTERM":
            wait_until_stopped(running)
            running.terminate()
        running.wait()
    assert all(info.state is LeaseState.DEAD for info in store.leases())
    assert (files_below(root / "leases") == []) is (how == "exit")
    assert removals(store, KEYS[0]) == [Removal.DELETED]
    verify_clean(root)


def test_a_process_killed_while_it_leases_leaves_nothing(root):
    """Killed in the middle of making a lease it leaves at most a file that the next one removes,
    and the store is not locked."""
    script = (
        "from kvbaton.stores import lease_files\n"
        "store = DirectoryStore(sys.argv[1])\n"
        "class Os:\n"
        "    def __getattr__(self, name):\n"
        "        return getattr(os, name)\n"
        "    def fchmod(self, *given):\n"
        "        stop()\n"
        "lease_files.os = Os()\n"
        "store.lease([segment(0)], owner='a')\n"
    )
    store = DirectoryStore(root)
    store.put(KEYS[0], [b"segment"])
    with child(script, root) as running:
        wait_until_stopped(running)
        kill(running)
    assert removals(store, KEYS[0]) == [Removal.DELETED]
    verify_clean(root)


# --- bad files, bad disks -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [b"", b"\n\n\n", b"kvbaton-lease 2 held what ever\n", b"\x00" * 4096, b"[" * 100_000],
)
def test_foreign_files_among_leases_protect_nothing(root, content):
    """What nobody holds locked is removed, whatever it says; names that are none are left alone."""
    store = DirectoryStore(root)
    store.put(KEYS[0], [b"segment"])
    (root / "leases" / ("ab" * 12)).write_bytes(content)
    (root / "leases" / "README").write_bytes(content)
    assert removals(store, KEYS[0]) == [Removal.DELETED]
    assert files_below(root / "leases") == ["README"]


def test_links_among_leases_are_not_followed(root, tmp_path):
    """A symbolic link in a lease's place is passed over, and its target stays."""
    store = DirectoryStore(root)
    store.put(KEYS[0], [b"segment"])
    target = tmp_path / "target"
    target.write_bytes(b"mine")
    (root / "leases" / ("ab" * 12)).symlink_to(target)
    assert removals(store, KEYS[0]) == [Removal.DELETED]
    assert target.read_bytes() == b"mine"


def test_a_lease_of_a_later_format_counts_while_its_owner_lives(root):
    """A first line that this version cannot read is believed for as long as it is locked."""
    store = DirectoryStore(root)
    store.put(KEYS[0], [b"segment"])
    lease = store.lease(KEYS[:1], owner="a")
    (path,) = (root / "leases").iterdir()
    path.write_bytes(path.read_bytes().replace(b"kvbaton-lease 1", b"kvbaton-lease 2"))
    assert removals(store, KEYS[0]) == [Removal.LEASED]
    assert store.leases()[0].ttl_s == MAX_TTL_S
    lease.release()
    assert removals(store, KEYS[0]) == [Removal.DELETED]


def test_leasing_fails_at_every_call(root, monkeypatch):
    """Making, extending and renewing a lease with a failing n-th call raises a typed error, and
    leaves neither a file nor a descriptor."""
    store = DirectoryStore(root)
    store.put(KEYS[0], [b"segment"])
    before, failed = open_descriptors(), set()
    for nth in itertools.count(1):
        with nth_call_fails(monkeypatch, nth) as state, contextlib.suppress(StoreError):
            lease = store.lease(KEYS[:1], owner="a", beats=False)
            try:
                lease.extend(KEYS[1:2])
                lease.confirm()
            finally:
                lease.release()
        failed.add(state.fired)
        assert open_descriptors() == before
        store.sweep()
        assert store.leases() == []
        if not state.fired:
            break
    assert {"open", "flock", "fchmod", "writev", "pwrite", "unlink"} <= failed
    assert removals(store, KEYS[0]) == [Removal.DELETED]


def test_collecting_fails_at_every_call(root, monkeypatch):
    """Removing what is unused with a failing n-th call raises a typed error, and the account still
    adds up."""
    for nth in itertools.count(1):
        folder = root / str(nth)
        store = DirectoryStore(folder)
        store.put(KEYS[0], [b"segment"])
        store.put(KEYS[1], [b"other"])
        with store.lease(KEYS[1:2], owner="a", beats=False):
            entries = list(store.list(Kind.SEGMENT))
            with nth_call_fails(monkeypatch, nth) as state, contextlib.suppress(StoreError):
                store.remove_unused(entries)
            assert store.exists(KEYS[1])
        assert store.used_bytes() == sum(e.size_bytes for e in store.list(Kind.SEGMENT))
        if not state.fired:
            break
    assert nth > 8


# --- the thread that beats ------------------------------------------------------------------------


def test_one_thread_beats_for_all(root, monkeypatch):
    """However many leases there are, one thread beats for them, and goes when it was idle."""
    store = DirectoryStore(root)
    several = [store.lease(KEYS, owner=str(n), ttl_s=0.3) for n in range(20)]
    while any(info.beats < 3 for info in store.leases()):
        time.sleep(0.01)
    assert len({info.name for info in store.leases()}) == 20
    assert HEART.running
    for lease in several:
        lease.release()
    assert store.leases() == []


def test_a_beat_that_fails_is_told_to_who_asks(root, monkeypatch):
    """When beats cannot be written the lease is lost, and the reason is chained."""
    clock = Clock()
    store = DirectoryStore(root, clock=clock.steady)
    store.put(KEYS[0], [b"segment"])
    lease = store.lease(KEYS[:1], owner="a", beats=False)
    with nth_call_fails(monkeypatch, 2):
        assert lease.pulse()  # a later one may succeed in time
    clock.now_s += DEFAULT_TTL_S + 1
    assert removals(store, KEYS[0]) == [Removal.DELETED]
    with pytest.raises(StoreError, match="lost") as caught:
        lease.confirm()
    assert isinstance(caught.value.__cause__, StoreError)


def test_too_many_objects_are_refused(leasing, monkeypatch):
    """A lease has room for so many names, at once or one after another."""
    monkeypatch.setattr(lease_module, "MAX_KEYS", 2)
    with pytest.raises(InputError):
        leasing.lease(KEYS, owner="a")
    with leasing.lease(KEYS[:2], owner="a") as lease:
        lease.extend(KEYS[:2])
        with pytest.raises(InputError):
            lease.extend(KEYS[2:])
        lease.confirm()


# --- any history ----------------------------------------------------------------------------------


class Histories(RuleBasedStateMachine):
    """Puts, uses, leases, beats, releases, time and removals, against a model of sets."""

    def __init__(self):
        super().__init__()
        self.clock = Clock()
        self.store = self.make_store()
        self.entries = {}
        self.leases = []

    def make_store(self):
        """A store by the machine's clock."""
        return MemoryStore(clock=self.clock.steady)

    def living(self):
        """Leases of the model that have not ended by now."""
        return [one for one in self.leases if one["until"] >= self.clock.now_s and not one["over"]]

    @rule(key=st.sampled_from(KEYS))
    def put(self, key):
        """A put renews the age."""
        self.store.put(key, [b"segment"])

    @rule(key=st.sampled_from(KEYS))
    def use(self, key):
        """So does a use."""
        if self.store.exists(key):
            self.store.open(key).close()

    @rule()
    def listing(self):
        """What a collection would go by from now on."""
        self.entries = {entry.key: entry for entry in self.store.list(Kind.SEGMENT)}

    @rule(keys=st.sets(st.sampled_from(KEYS)), ttl_s=st.sampled_from([1.0, 4.0, 16.0]))
    def lease(self, keys, ttl_s):
        """A new lease."""
        made = self.store.lease(keys, owner="a", ttl_s=ttl_s, beats=False)
        until = self.clock.now_s + ttl_s
        self.leases.append({"lease": made, "keys": keys, "ttl": ttl_s, "until": until, "over": 0})

    @rule(which=st.integers(0, 9), keys=st.sets(st.sampled_from(KEYS), min_size=1))
    def extend(self, which, keys):
        """More objects; a lease that somebody has ended refuses."""
        for one in self.leases[which : which + 1]:
            if one["over"]:
                with pytest.raises((StoreError, InputError)):
                    one["lease"].extend(keys)
            elif not one["keys"] >= keys:
                one["lease"].extend(keys)
                one["keys"] = one["keys"] | keys

    @rule(which=st.integers(0, 9))
    def beat(self, which):
        """A beat renews a lease, unless somebody has ended it."""
        for one in self.leases[which : which + 1]:
            assert one["lease"].heartbeat() is not bool(one["over"])
            if not one["over"]:
                one["until"] = self.clock.now_s + one["ttl"]

    @rule(which=st.integers(0, 9), after_s=st.sampled_from([0.0, 2.0]))
    def release(self, which, after_s):
        """A release, at once or delayed; the lease leaves the model's list of usable ones."""
        for one in self.leases[which : which + 1]:
            if one["lease"].released:
                continue
            one["lease"].release(after_s=after_s)
            if not one["over"] and after_s:
                lingering = {**one, "until": self.clock.now_s + after_s, "lease": None}
                self.lingering = [*getattr(self, "lingering", []), lingering]
            one["over"] = 1

    @rule(by_s=st.sampled_from([0.5, 1.0, 3.0, 20.0]))
    def time_passes(self, by_s):
        """The clock goes on."""
        self.clock.now_s += by_s

    @rule(keys=st.sets(st.sampled_from(KEYS), min_size=1))
    def remove(self, keys):
        """Removal leaves exactly what the model says, and ends what stood still."""
        wanted = [self.entries[key] for key in sorted(keys) if key in self.entries]
        if not wanted:
            return
        now = {entry.key: entry for entry in self.store.list(Kind.SEGMENT)}
        lingering = [
            one for one in getattr(self, "lingering", []) if one["until"] >= self.clock.now_s
        ]
        leased = {key for one in [*self.living(), *lingering] for key in one["keys"]}
        expected = [_fate(entry, leased, now) for entry in wanted]
        assert self.store.remove_unused(wanted) == expected
        for one in self.leases:
            one["over"] = one["over"] or int(one["until"] < self.clock.now_s)

    @invariant()
    def leased_objects_that_were_there_are_there(self):
        """Listed leases are those of the model, no more and no less."""
        states = [info for info in self.store.leases() if info.state is LeaseState.HELD]
        assert len(states) == len(self.living())

    def teardown(self):
        """Let go of everything."""
        for one in self.leases:
            one["lease"].release()


def _fate(entry, leased, now):
    if entry.key in leased:
        return Removal.LEASED
    if entry.key not in now:
        return Removal.ABSENT
    return Removal.DELETED if now[entry.key] == entry else Removal.USED


TestMemoryHistories = Histories.TestCase
TestMemoryHistories.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@pytest.fixture(autouse=True, scope="module")
def _folder(tmp_path_factory):
    DirectoryHistories.folder = tmp_path_factory.mktemp("histories")


class DirectoryHistories(Histories):
    """The same as files."""

    folder = None
    numbers = itertools.count()

    def make_store(self):
        """A directory of its own for each history."""
        return DirectoryStore(self.folder / str(next(self.numbers)), clock=self.clock.steady)


TestDirectoryHistories = DirectoryHistories.TestCase
TestDirectoryHistories.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
