"""Random operations on a ledger against a model of plain sets."""

from __future__ import annotations

import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule
from tests.lineage.nodes import answer, baton

from kvbaton.errors import InputError, LineageCycle, RefConflict
from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.records import Entry

REFS = ("plan", "facts")


class LedgerAgainstSets(RuleBasedStateMachine):
    """The model keeps parents, heads and marks, and walks the graph in the plainest way."""

    names = Bundle("names")

    @initialize()
    def begin(self) -> None:
        """An empty ledger, and an empty model."""
        self.folder = tempfile.TemporaryDirectory()
        self.url = f"sqlite:///{Path(self.folder.name) / 'ledger.db'}"
        self.ledger = Ledger(self.url, "local")
        self.parents: dict[str, set[str]] = {}
        self.stale: set[str] = set()
        self.heads: dict[str, list[str]] = {ref: [] for ref in REFS}
        self.count = 0

    def teardown(self) -> None:
        """Leave nothing behind."""
        if hasattr(self, "ledger"):
            self.ledger.close()
            self.folder.cleanup()

    # -- the model --------------------------------------------------------------------------------

    def below(self, name: str) -> set[str]:
        """All that builds on a node, by going through everything until nothing is new."""
        found: set[str] = set()
        while True:
            new = {
                child
                for child, parents in self.parents.items()
                if (parents & (found | {name})) and child not in found
            }
            if not new:
                return found
            found |= new

    def add(self, name: str, parents: set[str]) -> None:
        """Record a node in the model; what builds on something stale is stale."""
        self.parents[name] = parents
        if parents & self.stale:
            self.stale |= {name} | (self.below(name) & set(self.parents))

    def would_cycle(self, name: str, parents: set[str]) -> bool:
        """Whether a node would descend from itself."""
        return name in parents or bool(parents & self.below(name))

    # -- operations -------------------------------------------------------------------------------

    @rule(target=names, parents=st.lists(names, max_size=3), ahead=st.booleans())
    def record(self, parents: list[str], ahead: bool) -> object:
        """Record a node; one of its parents may not be there yet."""
        self.count += 1
        name, later = f"n{self.count}", f"later{self.count}"
        wanted = [*parents, *([later] if ahead else [])]
        assert self.ledger.record([Entry(answer(name, *wanted))]) == 1
        self.add(name, set(wanted))
        return multiple(name, later) if ahead else name

    @rule(name=names, parents=st.lists(names, max_size=3))
    def record_named(self, name: str, parents: list[str]) -> None:
        """Record what others have named, or what is there already."""
        entry = Entry(answer(name, *parents))
        if name in self.parents:
            assert self.ledger.record([entry]) == 0
        elif self.would_cycle(name, set(parents)):
            try:
                self.ledger.record([entry])
            except LineageCycle:
                return
            raise AssertionError("a cycle was recorded")
        else:
            assert self.ledger.record([entry]) == 1
            self.add(name, set(parents))

    @rule(
        target=names,
        ref=st.sampled_from(REFS),
        parents=st.lists(names, max_size=2),
        off=st.integers(-1, 1),
    )
    def move(self, ref: str, parents: list[str], off: int) -> object:
        """Move a ref, now and then from where it does not stand."""
        self.count += 1
        name, stands = f"b{self.count}", len(self.heads[ref])
        new = baton(name, *parents)
        if off:
            try:
                self.ledger.move(ref, new, expected=stands + off)
            except RefConflict:
                return multiple()
            raise AssertionError("a lost compare-and-set has moved the ref")
        assert self.ledger.move(ref, new, expected=stands).sequence == stands + 1
        self.add(name, set(parents))
        if self.heads[ref]:
            before = self.heads[ref][-1]
            going = ({before} | self.below(before)) - ({name} | self.below(name))
            self.stale |= going & set(self.parents)
        self.heads[ref].append(name)
        return name

    @rule(name=names)
    def withdraw(self, name: str) -> None:
        """Withdraw a node: the list of what was built on it is complete."""
        try:
            found = self.ledger.withdraw(name, why="test")
        except InputError:
            assert name not in self.parents
            return
        affected = ({name} | self.below(name)) & set(self.parents)
        assert {node.id for node in found.affected} == affected
        assert set(found.nodes) == affected - self.stale
        self.stale |= affected

    @rule()
    def reopen(self) -> None:
        """Nothing is kept in the process."""
        self.ledger.close()
        self.ledger = Ledger(self.url, "local")

    # -- laws -------------------------------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        """The same nodes, marks and heads; sequences count every event once."""
        if not hasattr(self, "ledger"):
            return
        known = self.ledger.nodes(limit=None)
        assert {node.id: set(node.parents) for node in known} == self.parents
        assert {node.id for node in known if node.stale} == self.stale
        heads = {head.ref: head.baton for head in self.ledger.heads()}
        assert heads == {ref: several[-1] for ref, several in self.heads.items() if several}
        log = [event.sequence for event in self.ledger.log(limit=10**6)]
        assert log == list(range(1, self.ledger.sequence() + 1))


LedgerAgainstSets.TestCase.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None
)
test_a_ledger_agrees_with_plain_sets = LedgerAgainstSets.TestCase
