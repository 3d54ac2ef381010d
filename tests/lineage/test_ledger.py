"""The ledger: refs, what becomes stale, what is complete, and what is refused."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis.strategies as st
import pytest
from hypothesis import given
from tests.lineage.nodes import answer, baton, entry

from kvbaton.errors import (
    InputError,
    LedgerError,
    LedgerUnavailable,
    LedgerVersion,
    LineageCycle,
    RefConflict,
    UnknownNode,
    UnknownRef,
)
from kvbaton.lineage.connection import Database
from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.migrate import migrate, version_of
from kvbaton.lineage.records import Entry, EventKind, Freshness, Node, NodeKind, Standing
from kvbaton.lineage.tables import VERSION, metadata


def stale_in(ledger: Ledger) -> set[str]:
    """Ids of all stale nodes."""
    return {node.id for node in ledger.nodes(stale=True, limit=None)}


# --- refs --------------------------------------------------------------------------------------


def test_a_ref_is_moved_by_compare_and_set(ledger: Ledger) -> None:
    """Each head has the next number, and whoever expects another one changes nothing."""
    assert ledger.move("plan", baton("b1"), expected=0).sequence == 1
    with pytest.raises(RefConflict, match="stands at 1") as caught:
        ledger.move("plan", baton("b2"), expected=0)
    assert caught.value.at == "plan"
    before = ledger.sequence()
    with pytest.raises(RefConflict):
        ledger.move("plan", baton("b2"), expected=2)
    assert ledger.sequence() == before
    assert ledger.move("plan", baton("b2"), expected=1).sequence == 2
    assert [head.baton for head in ledger.history("plan")] == ["b1", "b2"]
    assert ledger.head("plan").baton == "b2"


def test_refs_that_cannot_be(ledger: Ledger) -> None:
    """Names are checked, unknown refs are typed, and only new batons become heads."""
    with pytest.raises(UnknownRef):
        ledger.head("plan")
    for name in ("", "Plan", "-x", "a" * 129, "a b", "a\n"):
        with pytest.raises(InputError):
            ledger.move(name, baton("b1"), expected=0)
    with pytest.raises(InputError, match="only a baton"):
        ledger.move("plan", answer("a1"), expected=0)
    ledger.move("plan", baton("b1"), expected=0)
    with pytest.raises(InputError, match="already"):
        ledger.move("other", baton("b1"), expected=0)
    assert [head.ref for head in ledger.heads()] == ["plan"]


# --- staleness ---------------------------------------------------------------------------------


def test_a_new_head_makes_stale_what_was_built_on_the_old_one(ledger: Ledger) -> None:
    """Artefacts and answers included; what builds on the new head is fresh, though it continues
    the old one."""
    ledger.move("plan", baton("b1"), expected=0)
    ledger.record([Entry(baton("c1", "b1")), entry("file", "c1"), Entry(answer("a1", "file"))])
    ledger.record([Entry(baton("b2", "b1")), Entry(answer("a2", "b2"))])
    ledger.move("plan", baton("b2", "b1"), expected=1)
    assert stale_in(ledger) == {"b1", "c1", "file", "a1"}
    why = ledger.node("a1").stale
    assert why is not None
    assert (why.ref, why.ref_sequence) == ("plan", 1)
    ledger.record([Entry(answer("late", "c1")), Entry(answer("good", "b2"))])
    assert stale_in(ledger) == {"b1", "c1", "file", "a1", "late"}


def test_what_comes_out_of_order_is_stale_all_the_same(ledger: Ledger) -> None:
    """A child that is recorded before its stale parent is marked when the parent comes."""
    ledger.move("plan", baton("b1"), expected=0)
    ledger.move("plan", baton("b2"), expected=1)
    ledger.record([Entry(answer("a1", "c1")), entry("file", "a1")])
    assert stale_in(ledger) == {"b1"}
    ledger.record([Entry(baton("c1", "b1"))])
    assert stale_in(ledger) == {"b1", "c1", "a1", "file"}


def test_withdrawing_lists_everything_that_was_built_on_it(ledger: Ledger) -> None:
    """The list is complete, also where some of it was stale before; again changes nothing."""
    ledger.record([Entry(baton("b1")), Entry(baton("b2", "b1")), Entry(answer("a1", "b2"))])
    ledger.record([Entry(answer("other"))])
    ledger.withdraw("b2", why="wrong file")
    found = ledger.withdraw("b1", why="wrong project")
    assert [node.id for node in found.affected] == ["b1", "b2", "a1"]
    assert found.nodes == ("b1",)
    again = ledger.withdraw("b1", why="wrong project")
    assert (again.nodes, [node.id for node in again.affected]) == ((), ["b1", "b2", "a1"])
    assert stale_in(ledger) == {"b1", "b2", "a1"}
    why = ledger.node("a1").stale
    assert why is not None
    assert "wrong file" in why.why
    with pytest.raises(UnknownNode):
        ledger.withdraw("nothing", why="")


def test_freshness_is_read_in_one_statement(ledger: Ledger) -> None:
    """Current, stale or unknown, with where the ref stands and as of which sequence."""
    ledger.move("plan", baton("b1"), expected=0)
    current = ledger.freshness("b1", "plan", 1)
    assert current == Freshness(Standing.CURRENT, "plan", 1, 1, ledger.sequence())
    head = ledger.move("plan", baton("b2"), expected=1)
    stale = ledger.freshness("b1", "plan", 1)
    assert (stale.standing, stale.head_sequence, stale.as_of) == (Standing.STALE, 2, head.as_of)
    assert "moved on from 1" in stale.why
    lost = ledger.freshness("never-head", "plan", 2)  # it has lost the race for 2
    assert (lost.standing, lost.why) == (Standing.STALE, "plan has another baton as its 2")
    assert ledger.freshness("b9", "plan", 9).standing is Standing.UNKNOWN
    assert ledger.freshness("b1", "nowhere", 1).standing is Standing.STALE  # it is marked itself
    assert ledger.freshness("x", "nowhere", 1).standing is Standing.UNKNOWN
    assert ledger.freshness("x").standing is Standing.UNKNOWN
    ledger.record([Entry(baton("plain"))])
    assert ledger.freshness("plain").standing is Standing.CURRENT


def test_a_head_on_a_stale_context_is_stale(ledger: Ledger) -> None:
    """The head of one ref that was made from a replaced head of another is not current."""
    ledger.move("facts", baton("f1"), expected=0)
    ledger.move("plan", baton("p1", "f1"), expected=0)
    ledger.move("facts", baton("f2"), expected=1)
    found = ledger.freshness("p1", "plan", 1)
    assert (found.standing, found.why) == (Standing.STALE, "facts has moved on from 1")


# --- recording ---------------------------------------------------------------------------------


def test_a_record_is_written_once(ledger: Ledger) -> None:
    """Again under the same name, or under another name for the same node, changes nothing."""
    assert ledger.record([entry("x", once="r1"), entry("x", once="r1")]) == 1
    before = ledger.sequence()
    assert ledger.record([entry("x", once="r1"), entry("x", once="r2"), entry("x")]) == 0
    assert ledger.sequence() == before
    assert [event.node for event in ledger.log()] == ["x"]


@given(
    st.lists(
        st.tuples(st.integers(0, 11), st.lists(st.integers(0, 11), max_size=3)),
        unique_by=lambda one: one[0],
        max_size=12,
    ),
    st.integers(0, 11),
)
def test_a_batch_is_as_good_as_one_after_the_other(
    drawn: list[tuple[int, list[int]]], withdrawn: int
) -> None:
    """Nodes, marks, numbers and refusals are the same, in order or out of it."""
    entries = [entry(f"n{name}", *(f"n{p}" for p in parents)) for name, parents in drawn]

    def outcome(ledger: Ledger, batches: list[list[Entry]]) -> object:
        ledger.record([entry(f"n{withdrawn}")])
        ledger.withdraw(f"n{withdrawn}", why="test")
        try:
            for batch in batches:
                ledger.record(batch)
        except LineageCycle as error:
            return error.at
        known = sorted(ledger.nodes(limit=None), key=lambda node: node.id)
        return [(n.id, n.parents, n.sequence, n.stale and n.stale.sequence) for n in known]

    with TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/ledger.db"
        with Ledger(url, "one") as one, Ledger(url, "two") as two:
            assert outcome(one, [entries]) == outcome(two, [[each] for each in entries])


def test_cycles_are_refused_and_nothing_of_their_batch_is_recorded(ledger: Ledger) -> None:
    """Directly, and along edges that came out of order."""
    with pytest.raises(LineageCycle):
        ledger.record([entry("fine"), entry("x", "x")])
    ledger.record([entry("b", "a"), entry("c", "b")])
    with pytest.raises(LineageCycle) as caught:
        ledger.record([entry("also fine"), entry("a", "c")])
    assert caught.value.at == "a"
    assert {node.id for node in ledger.nodes()} == {"b", "c"}


def test_order_comes_from_sequences(url: str) -> None:
    """A clock that goes backwards changes what is shown, and nothing else."""
    times = iter(range(10_000_000, 0, -1000))
    with Ledger(url, "local", now_ms=lambda: next(times)) as ledger:
        for number in range(1, 6):
            ledger.move("plan", baton(f"b{number}"), expected=number - 1)
        assert ledger.head("plan").baton == "b5"
        log = ledger.log(ref="plan")
        assert [e.ref_sequence for e in log if e.kind is EventKind.MOVED] == [1, 2, 3, 4, 5]
        assert [event.sequence for event in log] == sorted(event.sequence for event in log)
        assert log[0].created_ms > log[-1].created_ms


def test_nodes_keep_what_they_were_recorded_with(ledger: Ledger) -> None:
    """All fields come back, and parents in their order."""
    node = Node(
        "b1", NodeKind.BATON, "the plan", ("z", "a"), "planner", "smollm2", "f" * 64, 7, 8,
        "int8", "lossy", 1, 2, "dir:///x", 3, 4, {"of": {"route": "baton", "n": [1, None]}},
    )  # fmt: skip
    ledger.record([Entry(node)])
    assert ledger.node("b1") == node.seen(1, None)
    assert ledger.graph().to_json()["edges"] == [["b1", "z"], ["b1", "a"]]


def test_ids_may_be_shortened(ledger: Ledger) -> None:
    """Eight characters that only one id begins with are enough; wildcards are characters."""
    ledger.record([entry("abcdefgh1"), entry("abcdefgh2"), entry("_%_%_%_%9")])
    assert ledger.node("abcdefgh1").id == "abcdefgh1"
    assert ledger.node("_%_%_%_%").id == "_%_%_%_%9"
    with pytest.raises(InputError, match="several"):
        ledger.node("abcdefgh")
    for name in ("abc", "%%%%%%%%", "nothing here"):
        with pytest.raises(UnknownNode):
            ledger.node(name)


def test_impact_lists_what_an_upgrade_voids(ledger: Ledger) -> None:
    """What the function has made, and all that builds on it."""
    ledger.record([Entry(baton("b1", function="a" * 64)), Entry(baton("b2", function="b" * 64))])
    ledger.record([Entry(answer("a1", "b1")), Entry(answer("a2", "b2"))])
    assert [node.id for node in ledger.impact("aaaaaaaa")] == ["b1", "a1"]
    assert ledger.impact("%%%%%%%%") == []
    with pytest.raises(InputError):
        ledger.impact("aaa")


def test_domains_do_not_see_each_other(url: str) -> None:
    """Refs, nodes, logs and sequences of another trust domain do not exist."""
    with Ledger(url, "one") as one, Ledger(url, "two") as two:
        one.move("plan", baton("b1"), expected=0)
        assert two.sequence() == 0
        assert (two.nodes(), two.heads(), two.log()) == ([], [], [])
        assert two.freshness("b1", "plan", 1).standing is Standing.UNKNOWN
        two.move("plan", baton("b1"), expected=0)
        one.move("plan", baton("b2"), expected=1)
        assert stale_in(two) == set()


def test_a_wide_lineage_is_marked_whole(ledger: Ledger) -> None:
    """More nodes than one statement may name."""
    ledger.move("plan", baton("b1"), expected=0)
    ledger.record([entry(f"n{number}", "b1") for number in range(1000)])
    ledger.move("plan", baton("b2"), expected=1)
    assert len(stale_in(ledger)) == 1001
    assert len(ledger.descendants("b1")) == 1000


# --- databases that cannot be used -------------------------------------------------------------


def test_files_are_private(ledger: Ledger, tmp_path: Path) -> None:
    """The folder is 0700, the database and its side files 0600."""
    ledger.record([entry("x")])
    folder = tmp_path / "ledger"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}


def test_a_locked_ledger_is_unavailable_and_nothing_is_lost(url: str) -> None:
    """Writers give up in time; reads go on; afterwards the same record is written."""
    path = url.removeprefix("sqlite:///")
    with Ledger(url, "local", wait_s=0.05) as ledger:
        ledger.record([entry("x")])
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerUnavailable, match="locked"):
            ledger.record([entry("y", once="r")])
        assert ledger.freshness("x").standing is Standing.CURRENT
        other.execute("ROLLBACK")
        other.close()
        assert ledger.record([entry("y", once="r")]) == 1


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_ledger_that_vanishes_is_noticed(ledger: Ledger, url: str, how: str) -> None:
    """Nothing is written to a file that nobody will find again."""
    path = Path(url.removeprefix("sqlite:///"))
    ledger.record([entry("x")])
    path.rename(path.with_name("away"))
    if how == "replaced":
        path.write_bytes(b"")
    for call in (lambda: ledger.record([entry("y")]), lambda: ledger.freshness("x")):
        with pytest.raises(LedgerUnavailable):
            call()


@pytest.mark.parametrize("content", [b"not a database, but a text\n" * 100, b"\x00" * 4096])
def test_foreign_files_are_no_ledger(tmp_path: Path, content: bytes) -> None:
    """They are refused, and stay as they are."""
    path = tmp_path / "file.db"
    path.write_bytes(content)
    with pytest.raises(LedgerError):
        Ledger(f"sqlite:///{path}", "local")
    assert path.read_bytes() == content


def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    """Its tables are not the ledger's, and none is added."""
    path = tmp_path / "file.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE things (x)")
    other.commit()
    other.close()
    with pytest.raises(LedgerError, match="something else"):
        Ledger(f"sqlite:///{path}", "local")
    other = sqlite3.connect(path)
    names = [row[0] for row in other.execute("SELECT name FROM sqlite_master")]
    other.close()
    assert names == ["things"]


@pytest.mark.parametrize(
    "url", ["", "nonsense", "sqlite://", "sqlite:///relative.db", "sqlite:///:memory:", "zoo://x"]
)
def test_urls_that_name_no_ledger(url: str) -> None:
    """The hint says how one looks."""
    with pytest.raises(InputError) as caught:
        Ledger(url, "local")
    assert "sqlite:////" in caught.value.hint


# --- versions ----------------------------------------------------------------------------------


def test_migrated_tables_are_those_of_the_program(url: str) -> None:
    """The steps lead to exactly the tables that are described."""
    from alembic.autogenerate import compare_metadata
    from alembic.runtime.migration import MigrationContext

    database = Database(url)
    assert migrate(database) == (None, VERSION)
    with database.writing() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    assert migrate(database) == (VERSION, VERSION)
    database.close()


def test_a_newer_version_is_refused(ledger: Ledger, url: str) -> None:
    """It is neither read nor changed; the hint is to upgrade."""
    ledger.close()
    other = sqlite3.connect(url.removeprefix("sqlite:///"))
    other.execute("UPDATE alembic_version SET version_num = '9999'")
    other.commit()
    other.close()
    with pytest.raises(LedgerVersion, match="9999") as caught:
        Ledger(url, "local")
    assert "upgrade" in caught.value.hint
    database = Database(url)
    with pytest.raises(LedgerVersion):
        migrate(database)
    assert version_of(database) == "9999"
    database.close()
