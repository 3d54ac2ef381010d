"""Random commits, refs, leases, withdrawals and collections, with processes killed amid them.

Every operation runs in a process of its own, which SIGKILL ends before one of its system calls or
statements.  A model says what must be there; what a killed operation has or has not done is read
from store and ledger, and must be one or the other.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)
from tests.lineage.test_model import LedgerAgainstSets

from kvbaton.lineage.ledger import Ledger
from kvbaton.stores import DirectoryStore, Key, Kind, LeaseState, read_whole
from kvbaton.stores.lease_clock import SteadyClock
from kvbaton.types import Manifest
from kvbaton.wire.manifest import parse_manifest, unwrap

ROOT = Path(__file__).parents[2]
REFS = ("plan", "facts")
TTL_S = 10.0
GRACE_S = 100.0
KILLS = st.one_of(st.just(0), st.just(0), st.integers(1, 16), st.integers(1, 230))
"""At which step a process is killed; 0 for not at all, and more than it takes is the same.  A
withdrawal takes 14 steps, a collection 100 and more, a hand-off 200."""


class Server:
    """The process that forks for each operation; one for all histories."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.lineage.crash_server"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, **request: Any) -> Any:
        """The answer; None where the operation was killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert not (isinstance(answer, dict) and "error" in answer), answer["error"]
        return answer

    def close(self) -> None:
        """End it, and with it whatever it has left."""
        self._process.communicate()


@pytest.fixture(autouse=True, scope="module")
def _server() -> Iterator[None]:
    Crashes.server = Server()
    yield
    Crashes.server.close()


class Crashes(RuleBasedStateMachine):
    """Store, ledger, leases and collections against a model of sets."""

    server: ClassVar[Server]
    batons = Bundle("batons")
    below, add = LedgerAgainstSets.below, LedgerAgainstSets.add

    @initialize(target=batons)
    def begin(self) -> object:
        """A store and a ledger with three batons: two heads, and one that builds on the first."""
        self.folder = tempfile.TemporaryDirectory(
            dir="/dev/shm" if Path("/dev/shm").is_dir() else None
        )
        self.root = Path(self.folder.name) / "store"
        self.url = f"sqlite:///{Path(self.folder.name) / 'ledger.db'}"
        self.now_s = 1000.0
        clock = SteadyClock("model", lambda: self.now_s)
        self.store = DirectoryStore(self.root, clock=clock)
        with Ledger(self.url, "local"):
            pass
        self.parents: dict[str, set[str]] = {}
        self.stale: set[str] = set()
        self.heads: dict[str, list[str]] = {ref: [] for ref in REFS}
        self.withdrawn: set[str] = set()
        self.holders: dict[int, dict[str, Any]] = {}
        self.lingering: list[dict[str, Any]] = []
        self.stripped: set[str] = set()
        self.count = 0
        first = self.hand_off([], (0, 5), "plan")
        return multiple(
            *first, *self.hand_off(first, (0, 6), ""), *self.hand_off([], (1, 7), "facts")
        )

    def teardown(self) -> None:
        """Whatever has happened, nothing leaks once leases and the grace period are over."""
        if not hasattr(self, "folder"):
            return
        try:
            self.require_nothing_leaks()
        finally:
            for which in list(self.holders):
                self.server(op="kill", which=which)
            self.folder.cleanup()

    # -- looking ----------------------------------------------------------------------------------

    def ask(self, op: str, **more: Any) -> Any:
        """Let a process do something."""
        where = {"root": str(self.root), "url": self.url, "now_s": self.now_s}
        return self.server(op=op, **where, **more)

    def manifests(self) -> dict[str, Manifest]:
        """Every baton that can be seen."""
        found = {}
        for entry in self.store.list(Kind.BATON):
            raw = read_whole(self.store.look(entry.key), entry.key, limit_bytes=1 << 20)
            found[entry.key.name] = parse_manifest(unwrap(raw, baton_id=entry.key.name))
        return found

    def held(self) -> set[Key]:
        """Everything in the store."""
        return {entry.key for kind in Kind for entry in self.store.list(kind)}

    # -- operations -------------------------------------------------------------------------------

    @rule(
        target=batons,
        parents=st.lists(batons, max_size=2, unique=True),
        segments=st.tuples(st.integers(0, 4), st.integers(5, 7)),
        ref=st.sampled_from(["", *REFS]),
        kill=KILLS,
    )
    def commit(self, parents: list[str], segments: tuple[int, int], ref: str, kill: int) -> object:
        """Hand off and record, or move a ref to it; segments may be there already."""
        return multiple(*self.hand_off(parents, segments, ref, kill))

    def hand_off(
        self, parents: list[str], segments: tuple[int, int], ref: str, kill: int = 0
    ) -> list[str]:
        """The baton that can be seen afterwards, if there is one."""
        self.count += 1
        name, before = f"b{self.count}", set(self.manifests())
        expected = len(self.heads[ref]) if ref else 0
        done = self.ask(
            "commit", name=name, parents=parents, segments=segments, ref=ref, expected=expected,
            kill=kill,
        )  # fmt: skip
        new = [n for n, m in self.manifests().items() if n not in before and m.terms.goal == name]
        assert done is None or new == [done]
        if not new:
            return []
        with Ledger(self.url, "local") as ledger:
            recorded = new[0] in {node.id for node in ledger.nodes(limit=None)}
        assert recorded or done is None
        if recorded:
            self.add(new[0], set(parents))
            if ref:
                self.move(ref, new[0])
        return new

    def move(self, ref: str, baton: str) -> None:
        """In the model."""
        if self.heads[ref]:
            before = self.heads[ref][-1]
            going = ({before} | self.below(before)) - ({baton} | self.below(baton))
            self.stale |= going & set(self.parents)
        self.heads[ref].append(baton)

    @rule(baton=batons, kill=KILLS)
    def withdraw(self, baton: str, kill: int) -> None:
        """Withdraw a baton, as a whole or not at all."""
        if baton not in self.parents:
            return
        affected = ({baton} | self.below(baton)) & set(self.parents)
        done = self.ask("withdraw", baton=baton, kill=kill)
        assert done is None or set(done) == affected
        with Ledger(self.url, "local") as ledger:
            events = [e for e in ledger.log(limit=10**6, node=baton) if e.kind.value == "withdrawn"]
        if events:
            self.stale |= affected
            self.withdrawn.add(baton)

    @rule(baton=batons, ttl_s=st.sampled_from([TTL_S, 3 * TTL_S]))
    def hold(self, baton: str, ttl_s: float) -> None:
        """A process leases what a baton lists, there or not, and stays."""
        self.count += 1
        listed = self.manifests().get(baton)
        keys = [["batons", baton]]
        if listed is not None:
            keys += [["segments", ref.address] for ref in listed.segments]
            keys += [["transcripts", listed.transcript]]
        assert self.ask("hold", which=self.count, keys=keys, ttl_s=ttl_s)
        wanted = {Key(Kind(kind), name) for kind, name in keys}
        self.holders[self.count] = {
            "keys": wanted & self.held(), "ttl_s": ttl_s, "until_s": self.now_s + ttl_s,
        }  # fmt: skip

    @precondition(lambda self: self.holders)
    @rule(nth=st.integers(0, 9), do=st.sampled_from(["beat", "release", "kill"]), data=st.data())
    def holder(self, nth: int, do: str, data: st.DataObject) -> None:
        """A holder says that it lives, and is told when that comes too late; or it gives up, at
        once or with a delay; or it is killed, and protects nothing from then on."""
        which = list(self.holders)[nth % len(self.holders)]
        one = self.holders[which]
        if do == "beat":
            alive = self.ask("tell", which=which, do=do)
            assert alive or self.now_s > one["until_s"]
            one["until_s"] = self.now_s + one["ttl_s"] if alive else -1.0
            return
        if do == "kill":
            self.ask("kill", which=which)
        else:
            after_s = data.draw(st.sampled_from([0.0, TTL_S]))
            self.ask("tell", which=which, do=do, after_s=after_s)
            if one["until_s"] >= self.now_s:
                self.lingering.append({**one, "until_s": self.now_s + after_s})
        del self.holders[which]

    @rule(by_s=st.sampled_from([1.0, TTL_S, GRACE_S]))
    def time_passes(self, by_s: float) -> None:
        """The clocks go on."""
        self.now_s += by_s

    @rule(kill=st.integers(40, 130), grace_s=st.sampled_from([0.0, GRACE_S]))
    def gc_killed(self, kill: int, grace_s: float) -> None:
        """Collect, and be killed amid the marks or the removals, which are the last steps."""
        self.gc(kill, grace_s)

    @rule(kill=KILLS, grace_s=st.sampled_from([0.0, GRACE_S]))
    def gc(self, kill: int, grace_s: float) -> None:
        """Collect; what a living lease keeps stays."""
        kept = self.leased()
        self.ask("gc", grace_s=grace_s, kill=kill)
        assert kept <= self.held()

    def leased(self) -> set[Key]:
        """What holders keep that are in time, or have given up with a delay."""
        return {
            key
            for one in (*self.holders.values(), *self.lingering)
            if one["until_s"] >= self.now_s
            for key in one["keys"]
        }

    # -- laws -------------------------------------------------------------------------------------

    @invariant()
    def no_baton_dangles(self) -> None:
        """Every baton that can be seen has what it lists.  Of one that was withdrawn the manifest
        alone may stay, while there are descendants; otherwise it goes before what it lists."""
        if not hasattr(self, "folder"):
            return
        held, manifests = self.held(), self.manifests()
        for name, listed in manifests.items():
            wanted = {Key(Kind.SEGMENT, ref.address) for ref in listed.segments}
            wanted.add(Key(Kind.TRANSCRIPT, listed.transcript))
            needed = any(name in m.parents for m in manifests.values())
            if not wanted <= held and name in self.withdrawn and needed:
                self.stripped.add(name)
            assert wanted <= held or name in self.stripped

    @invariant()
    def what_is_leased_is_there(self) -> None:
        """Nothing of a living holder's is gone."""
        if hasattr(self, "folder"):
            assert self.leased() <= self.held()

    @invariant()
    def the_ledger_agrees(self) -> None:
        """The same nodes, marks and heads as the model; every event counted once."""
        if not hasattr(self, "folder"):
            return
        with Ledger(self.url, "local") as ledger:
            known = ledger.nodes(limit=None)
            heads = {head.ref: (head.sequence, head.baton) for head in ledger.heads()}
            log = [event.sequence for event in ledger.log(limit=10**6)]
            assert log == list(range(1, ledger.sequence() + 1))
        assert {node.id: set(node.parents) for node in known} == self.parents
        assert {node.id for node in known if node.stale} == self.stale
        assert heads == {r: (len(all_), all_[-1]) for r, all_ in self.heads.items() if all_}

    def require_nothing_leaks(self) -> None:
        """With all holders dead, collections a grace period apart leave what living batons
        need, and nothing else."""
        for which in list(self.holders):
            self.ask("kill", which=which)
            del self.holders[which]
        for _ in range(3):  # to mark what lingers until the first of them, too
            self.now_s += TTL_S + GRACE_S + 1
            found = self.ask("gc", grace_s=GRACE_S)
        assert found["dangling"] == []
        manifests = self.manifests()
        living = {name: m for name, m in manifests.items() if name not in self.withdrawn}
        needed = {Key(Kind.SEGMENT, ref.address) for m in living.values() for ref in m.segments}
        needed |= {Key(Kind.TRANSCRIPT, m.transcript) for m in living.values()}
        assert {key for key in self.held() if key.kind is not Kind.BATON} == needed
        for name in manifests.keys() - living.keys():
            assert any(name in m.parents for m in manifests.values())
        assert self.store.used_bytes() == sum(
            entry.size_bytes for kind in Kind for entry in self.store.list(kind)
        )
        assert [one for one in self.store.leases() if one.state is not LeaseState.DEAD] == []
        for left in ("tmp", "leases"):
            assert list((self.root / left).iterdir()) == []


class TestCrashes(Crashes.TestCase):
    """Some histories, each of some operations."""

    settings = settings(
        max_examples=15,
        stateful_step_count=30,
        deadline=None,
        # Each step is a process: to shrink a failure takes minutes, and the long test does it.
        phases=[phase for phase in Phase if phase is not Phase.shrink],
    )


@pytest.mark.long
@pytest.mark.timeout(3600)
class TestManyCrashes(Crashes.TestCase):
    """Many, and longer ones."""

    settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
