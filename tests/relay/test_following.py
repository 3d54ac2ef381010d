"""Agents and the ledger: refs, what is fresh, the receiver's rules, and ledgers that fail."""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvbaton.agent import Agent
from kvbaton.deciding import PolicySource
from kvbaton.errors import (
    InputError,
    LedgerRolledBack,
    LedgerUnavailable,
    RefConflict,
    Superseded,
    UnknownRef,
)
from kvbaton.following import Following
from kvbaton.lineage.keeper import LedgerKeeper
from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.records import NodeKind
from kvbaton.policy.policy_files import parse_policy
from kvbaton.stores import Kind, Store
from kvbaton.types import Baton, Outcome, ReasonCode, Route

LONG = "Hello there, you plan and code. " * 4
MESSAGES = [{"role": "user", "content": "Hello there"}]
PATIENCE_S = 30.0


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Where the test's ledger lies."""
    return f"sqlite:///{tmp_path}/ledger/ledger.db"


def open_keeper(url: str, folder: Path, **options: Any) -> LedgerKeeper:
    """A way to the ledger, with spool and what was seen beside it."""
    return LedgerKeeper(url, "local", folder / "spool", seen=folder / "seen", **options)


@pytest.fixture
def keeper(url: str, tmp_path: Path) -> Iterator[LedgerKeeper]:
    """The way to an empty ledger, that of all agents of the test."""
    with open_keeper(url, tmp_path) as made:
        yield made


@pytest.fixture
def following_agent(agent_of: Any, keeper: LedgerKeeper) -> Callable[..., Agent]:
    """Makes agents that share store and ledger."""

    def make(name: str, **options: Any) -> Agent:
        kept = options.pop("keeper", keeper)
        made: Agent = agent_of(name, following=Following(kept, name), **options)
        return made

    return make


Make = Callable[..., Agent]


def planned(agent: Agent, said: str = LONG, **options: Any) -> Baton:
    """A baton of a fresh conversation, the new head of ``plan``."""
    agent.forget()
    return agent.hand_off(agent.run(said, max_new_tokens=5), ref="plan", **options)


def marks(keeper: LedgerKeeper) -> dict[str, bool]:
    """Which ids the ledger has marked as stale."""
    assert keeper.flush(PATIENCE_S)
    return {node.id: node.stale is not None for node in keeper.ask(lambda led: led.nodes())}


# --- refs ---------------------------------------------------------------------------------------


def test_a_ref_moves_with_the_hand_off_and_stands_in_the_manifest(following_agent: Make) -> None:
    """The signed manifest names the ref and its number, and the head is the baton."""
    planner, coder = following_agent("planner"), following_agent("coder")
    first = planned(planner)
    assert (first.manifest.ref, first.manifest.sequence) == ("plan", 1)
    second = planned(planner)
    assert (second.manifest.ref, second.manifest.sequence) == ("plan", 2)
    assert coder.head("plan").id == second.id
    turn = coder.take(coder.head("plan"), "Go on", max_new_tokens=3)
    fresh = turn.receipt.freshness
    assert turn.receipt.outcome is Outcome.USED
    assert (fresh["standing"], fresh["ref_sequence"], fresh["head_sequence"]) == ("current", 2, 2)
    assert fresh["as_of"] > 0
    assert fresh["after"]["standing"] == "current"
    assert turn.receipt.seconds["freshness"] <= turn.receipt.seconds["ttft"]


def test_who_comes_too_late_makes_no_baton(following_agent: Make, store: Store) -> None:
    """A lost compare-and-set is an error, and what was stored for it is taken back."""
    one, other = following_agent("one"), following_agent("other")
    first = planned(one)
    other.take(first, "Go on", max_new_tokens=3)  # has seen plan@1
    second = planned(one)
    before = {entry.key.name for entry in store.list(Kind.BATON)}
    assert before == {first.id, second.id}
    turn = other.run("And more", max_new_tokens=3)
    with pytest.raises(RefConflict, match="stands at 2"):
        other.hand_off(turn, ref="plan")
    assert {entry.key.name for entry in store.list(Kind.BATON)} == before
    assert other.head("plan").id == second.id  # now it has seen plan@2
    third = other.hand_off(turn, ref="plan")
    assert third.manifest.sequence == 3


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"ref": "plan", "expect": 7}, RefConflict, "has no head yet"),
        ({"ref": "plan", "expect": -1}, InputError, "0 or more"),
        ({"ref": "plan", "expect": True}, InputError, "0 or more"),
        ({"ref": "Plan A"}, InputError, "no name of a ref"),
        ({"expect": 1}, InputError, "a ref is needed"),
        ({"ref": "plan", "to_domain": "lab"}, InputError, "own trust domain"),
    ],
)
def test_refs_that_cannot_be_moved(
    following_agent: Make, store: Store, options: Any, error: type[Exception], said: str
) -> None:
    """Each says why, and no baton is left."""
    agent = following_agent("planner")
    turn = agent.run(LONG, max_new_tokens=3)
    with pytest.raises(error, match=said):
        agent.hand_off(turn, **options)
    assert list(store.list(Kind.BATON)) == []
    with pytest.raises(UnknownRef):
        agent.head("plan")


def test_without_a_ledger_everything_goes_on_but_refs(agent_of: Any) -> None:
    """Freshness is unknown, and refs say what is missing."""
    agent = agent_of("alone")
    turn = agent.run(LONG, max_new_tokens=3)
    assert turn.receipt.freshness["standing"] == "unknown"
    with pytest.raises(LedgerUnavailable, match="no ledger"):
        agent.hand_off(turn, ref="plan")
    with pytest.raises(LedgerUnavailable, match="no ledger"):
        agent.artefact("plan.md", turn)
    taken = agent_of("b").take(agent.hand_off(turn), "Go on", max_new_tokens=3)
    assert taken.receipt.freshness["standing"] == "unknown"
    assert taken.receipt.warnings == ()


# --- the receiver's rules -----------------------------------------------------------------------


def test_going_on_from_a_stale_context_is_labelled(following_agent: Make) -> None:
    """By cache as by text, the receipt says on what the answer is based."""
    planner, coder = following_agent("planner"), following_agent("coder")
    old = planned(planner)
    planned(planner)
    for route in (None, "text"):
        receipt = coder.take(old, "Go on", max_new_tokens=3, route=route).receipt
        assert receipt.outcome is Outcome.SUPERSEDED
        assert receipt.route is (Route.BATON if route is None else Route.TEXT)
        stale = [reason for reason in receipt.reasons if reason.code is ReasonCode.STALE]
        assert [one.sentence for one in stale] == [
            "based on stale context, plan@1: plan has moved on from 1"
        ]
        assert receipt.freshness["standing"] == "stale"


def test_a_stale_baton_is_replaced_by_the_newer(following_agent: Make) -> None:
    """The head of its ref is read instead, and the receipt says so."""
    planner, coder = following_agent("planner"), following_agent("coder")
    old = planned(planner)
    planned(planner)
    new = planned(planner, LONG + "Go on.")
    turn = coder.take(old, "Go on", max_new_tokens=3, stale="fetch")
    assert turn.receipt.baton == new.id
    assert turn.receipt.outcome is Outcome.USED
    assert [w.code for w in turn.receipt.warnings] == [ReasonCode.REPLACED]
    assert "plan@3" in turn.receipt.warnings[0].sentence
    assert turn.conversation.ids[: len(new.transcript.ids)] == list(new.transcript.ids)


def test_a_stale_baton_is_refused(following_agent: Make) -> None:
    """With messages they are answered, without them the error says what is newer."""
    planner, coder = following_agent("planner"), following_agent("coder")
    old = planned(planner)
    planned(planner)
    with pytest.raises(Superseded, match="plan@1"):
        coder.take(old, "Go on", stale="refuse")
    turn = coder.take(old, messages=MESSAGES, max_new_tokens=3, stale="refuse")
    assert turn.receipt.outcome is Outcome.SUPERSEDED
    assert turn.receipt.route is Route.TEXT
    assert [reason.code for reason in turn.receipt.reasons] == [ReasonCode.STALE]
    assert turn.receipt.freshness["standing"] == "stale"
    plain = following_agent("plain").run(messages=MESSAGES, max_new_tokens=3)
    assert turn.ids == plain.ids  # nothing of the baton was read


def test_a_withdrawn_context_has_nothing_newer(following_agent: Make, keeper: LedgerKeeper) -> None:
    """Fetching is refusing there; everything that was built on it is listed."""
    planner, coder = following_agent("planner"), following_agent("coder")
    baton = planner.hand_off(planner.run(LONG, max_new_tokens=3))
    answer = coder.take(baton, "Go on", max_new_tokens=3)
    plan = coder.artefact("plan.md", answer)
    assert keeper.flush(PATIENCE_S)
    marked = keeper.ask(lambda ledger: ledger.withdraw(baton.id, why="a wrong figure"))
    assert {node.id for node in marked.affected} == {baton.id, answer.receipt.id, plan}
    with pytest.raises(Superseded, match="withdrawn: a wrong figure"):
        coder.take(baton, "Go on", stale="fetch")
    assert coder.take(baton, "Go on", max_new_tokens=3).receipt.outcome is Outcome.SUPERSEDED


def test_the_owners_rule_is_kept_where_it_is_stricter(following_agent: Make) -> None:
    """A caller may ask for more, never for less."""
    planner, coder = following_agent("planner"), following_agent("coder")
    old = planned(planner)
    planned(planner)
    rules = parse_policy({"rules": {"stale": "refuse", "known_freshness": True}})
    coder.relay.deciding.source = PolicySource(rules)
    with pytest.raises(Superseded):
        coder.take(old, "Go on", stale="label")
    unknown = following_agent("foreign", keeper=None).hand_off(
        following_agent("x", keeper=None).run(LONG, max_new_tokens=3)
    )
    with pytest.raises(Superseded, match="nobody can say"):
        coder.take(unknown, "Go on")
    with pytest.raises(InputError, match="rule for stale batons"):
        coder.take(old, "Go on", stale="maybe")


def test_a_ticket_is_not_spent_on_a_stale_baton(following_agent: Make) -> None:
    """What is refused as stale leaves the ticket as it was."""
    planner, coder = following_agent("planner"), following_agent("coder")
    old = planned(planner)
    ticket = planner.ticket(old, "coder")
    new = planned(planner)
    with pytest.raises(Superseded):
        coder.take(old.id, "Go on", ticket=ticket, stale="refuse")
    turn = coder.take(old.id, "Go on", ticket=ticket, max_new_tokens=3)
    assert turn.receipt.outcome is Outcome.SUPERSEDED
    assert coder.take(new.id, "Go on", max_new_tokens=3).receipt.outcome is Outcome.USED


def test_several_slices_are_as_fresh_as_the_stalest(following_agent: Make) -> None:
    """One stale slice labels the answer; fetching replaces only that one."""
    planner, other, coder = (following_agent(name) for name in ("planner", "other", "coder"))
    old = planned(planner, spans="generated")
    fresh = other.hand_off(other.run(LONG, max_new_tokens=5), spans="generated", ref="facts")
    assert coder.take(old, fresh, "Go on", max_new_tokens=3).receipt.outcome is Outcome.USED
    new = planned(planner, LONG + "Go on.", spans="generated")
    labelled = coder.take(old, fresh, "Go on", max_new_tokens=3).receipt
    assert labelled.outcome is Outcome.SUPERSEDED
    assert "plan@1" in labelled.reasons[-1].sentence
    fetched = coder.take(old, fresh, "Go on", max_new_tokens=3, stale="fetch").receipt
    assert fetched.batons == (new.id, fresh.id)
    assert fetched.outcome is Outcome.USED


def test_what_becomes_stale_while_it_is_answered_is_reported(following_agent: Make) -> None:
    """Current when it was checked, stale at the end: a warning, and the answer's node is marked."""
    planner, coder = following_agent("planner"), following_agent("coder")
    baton = planned(planner)
    moved: list[Baton] = []

    def move(text: str) -> None:
        if not moved:
            moved.append(planned(planner))

    receipt = coder.take(baton, "Go on", max_new_tokens=6, on_text=move).receipt
    assert moved
    assert receipt.outcome is Outcome.USED  # it was, when it was taken
    assert receipt.freshness["standing"] == "current"
    assert receipt.freshness["after"]["standing"] == "stale"
    late = [one for one in receipt.warnings if one.code is ReasonCode.STALE]
    assert [one.sentence for one in late] == [
        "based on stale context, plan@1: plan has moved on from 1; "
        "it was current when the answer began"
    ]
    keeper = coder.following.keeper
    assert keeper is not None
    assert marks(keeper)[receipt.id]


# --- who builds on what -------------------------------------------------------------------------


def test_lineage_goes_on_by_cache_by_text_and_over_turns(
    following_agent: Make, keeper: LedgerKeeper
) -> None:
    """Planner -> coder (cache) -> tester (text) -> a second turn -> a file: all are marked."""
    planner, coder, tester = (following_agent(name) for name in ("planner", "coder", "tester"))
    plan = planned(planner)
    code = coder.take(plan, "Go on", max_new_tokens=3)
    handed = coder.hand_off(code)
    test = tester.take(handed, "Go on", max_new_tokens=3, route="text")
    again = tester.run("And then", max_new_tokens=3)
    onward = tester.hand_off(again)
    slice_ = tester.hand_off(again, spans="generated")
    file = tester.artefact("report.txt", again, onward)
    alone = following_agent("alone").run(LONG, max_new_tokens=3)
    built = {code.receipt.id, handed.id, test.receipt.id, again.receipt.id, onward.id, slice_.id}
    assert not any(marks(keeper).values())
    newer = planned(planner)
    found = marks(keeper)
    assert {name for name, stale in found.items() if stale} == {plan.id, file} | built
    assert alone.receipt.id in found
    assert newer.id in found
    nodes = {n.id: n for n in keeper.ask(lambda led: led.descendants(plan.id))}
    assert set(nodes) == built | {file}
    assert nodes[file].kind is NodeKind.ARTEFACT
    assert nodes[handed.id].model == coder.engine.name


def test_a_fresh_conversation_builds_on_nothing(
    following_agent: Make, keeper: LedgerKeeper
) -> None:
    """What an agent answers after it has forgotten does not descend from what it took."""
    planner, coder = following_agent("planner"), following_agent("coder")
    baton = planned(planner)
    coder.take(baton, "Go on", max_new_tokens=3)
    coder.forget()
    fresh = coder.run(LONG, max_new_tokens=3)
    assert keeper.flush(PATIENCE_S)
    assert keeper.ask(lambda led: led.ancestors(fresh.receipt.id)) == []


def test_an_artefact_needs_something_it_was_made_from(following_agent: Make) -> None:
    """By default that is the last answer."""
    agent = following_agent("a")
    with pytest.raises(InputError, match="nothing that it was made from"):
        agent.artefact("plan.md")
    turn = agent.run(LONG, max_new_tokens=3)
    name = agent.artefact("plan.md")
    keeper = agent.following.keeper
    assert keeper is not None
    assert keeper.flush(PATIENCE_S)
    assert keeper.ask(lambda led: led.node(name)).parents == (turn.receipt.id,)
    with pytest.raises(InputError, match="label"):
        agent.artefact("a\nb", turn)


def test_holders_are_told_when_their_context_becomes_stale(following_agent: Make) -> None:
    """In process at once, whoever moves the ref; who has let go hears nothing."""
    planner, coder, gone = (following_agent(name) for name in ("planner", "coder", "gone"))
    with pytest.raises(InputError, match="no conversation"):
        coder.when_stale(lambda node: None)
    baton = planned(planner)
    heard: list[str] = []
    told = threading.Event()
    for agent in (coder, gone):
        agent.take(baton, "Go on", max_new_tokens=3)
        let_go = agent.when_stale(lambda node: (heard.append(node.id), told.set()))  # type: ignore[func-returns-value]
    let_go()
    planned(planner)
    assert told.wait(PATIENCE_S)
    assert coder.conversation is not None
    assert heard == list(coder.conversation.built_on)


# --- ledgers that fail (C7, A2, A3) -------------------------------------------------------------


def recorded(url: str) -> list[str]:
    """Ids in the ledger, each as often as it was recorded."""
    with Ledger(url, "local") as ledger:
        return [event.node for event in ledger.log(limit=10_000) if event.kind.value == "recorded"]


def test_a_locked_ledger_stops_no_answer(agent_of: Any, url: str, tmp_path: Path) -> None:
    """C7: answers come, refs cannot be moved, and records are written exactly once afterwards."""
    with Ledger(url, "local"):
        pass
    path = Path(url.removeprefix("sqlite:///"))
    lock = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    with open_keeper(url, tmp_path, wait_s=0.2, retry_s=0.05) as keeper:
        one = agent_of("one", following=Following(keeper, "one"))
        two = agent_of("two", following=Following(keeper, "two"))
        lock.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        turns = [one.run(LONG, max_new_tokens=3)]
        batons = [one.hand_off(turns[0])]
        turns.append(two.take(batons[0], "Go on", max_new_tokens=3))
        assert turns[-1].receipt.outcome is Outcome.USED
        assert time.monotonic() - began < PATIENCE_S
        with pytest.raises(LedgerUnavailable):
            one.hand_off(turns[0], ref="plan")
        lock.execute("ROLLBACK")
        lock.close()
        assert keeper.flush(PATIENCE_S)
    wanted = [turn.receipt.id for turn in turns] + [baton.id for baton in batons]
    assert sorted(recorded(url)) == sorted(wanted)


def test_a_vanished_ledger_stops_no_answer(agent_of: Any, url: str, tmp_path: Path) -> None:
    """C7: the file is gone in the middle; when it is back, everything is there exactly once."""
    path = Path(url.removeprefix("sqlite:///"))
    with open_keeper(url, tmp_path, retry_s=0.05) as keeper:
        agent = agent_of("one", following=Following(keeper, "one"))
        first = agent.run(LONG, max_new_tokens=3)
        assert keeper.flush(PATIENCE_S)
        aside = tmp_path / "aside"
        path.parent.rename(aside)
        path.parent.write_text("in its place")
        baton = agent.hand_off(first)
        receipt = (
            agent_of("two", following=Following(keeper, "two"))
            .take(baton, "Go on", max_new_tokens=3)
            .receipt
        )
        assert receipt.outcome is Outcome.USED
        path.parent.unlink()
        aside.rename(path.parent)
        deadline = time.monotonic() + PATIENCE_S
        while not keeper.flush(1.0):
            assert time.monotonic() < deadline
    assert sorted(recorded(url)) == sorted([first.receipt.id, baton.id, receipt.id])


def test_a_ledger_of_another_version_stops_no_answer(
    agent_of: Any, url: str, tmp_path: Path
) -> None:
    """The receipt warns, with the command that migrates."""
    with Ledger(url, "local"):
        pass
    with sqlite3.connect(url.removeprefix("sqlite:///")) as database:
        database.execute("UPDATE alembic_version SET version_num='v9999'")
    database.close()
    with open_keeper(url, tmp_path, retry_s=0.05) as keeper:
        agent = agent_of("one", following=Following(keeper, "one"))
        baton = agent.hand_off(agent.run(LONG, max_new_tokens=3))
        receipt = agent.take(baton, "Go on", max_new_tokens=3).receipt
        assert receipt.outcome is Outcome.USED
        warned = [one for one in receipt.warnings if one.code is ReasonCode.LEDGER]
        assert "version" in warned[0].sentence
    left = list((tmp_path / "spool").rglob("*.jsonl"))
    assert left
    assert left[0].stat().st_size > 0


def test_an_older_baton_stays_refused_after_a_restart(
    agent_of: Any, url: str, tmp_path: Path
) -> None:
    """A2: the ref's older baton, replayed to another process's agent, is refused."""
    with open_keeper(url, tmp_path) as keeper:
        planner = agent_of("planner", following=Following(keeper, "planner"))
        old = planned(planner)
        planned(planner)
    with open_keeper(url, tmp_path) as keeper:
        coder = agent_of("coder", following=Following(keeper, "coder"))
        with pytest.raises(Superseded, match="plan@1"):
            coder.take(old.id, "Go on", stale="refuse")


def test_an_old_copy_of_the_ledger_makes_nothing_current(
    agent_of: Any, url: str, tmp_path: Path
) -> None:
    """A3: yesterday's ledger is put back; the old head is refused with its age, the receipt of
    the newer baton warns, also in a process that begins afterwards."""
    folder = Path(url.removeprefix("sqlite:///")).parent
    with open_keeper(url, tmp_path) as keeper:
        planner = agent_of("planner", following=Following(keeper, "planner"))
        old = planned(planner)
    shutil.copytree(folder, tmp_path / "yesterday")
    with open_keeper(url, tmp_path) as keeper:
        planner = agent_of("planner", following=Following(keeper, "planner"))
        planner.head("plan")
        new = planned(planner)
    shutil.rmtree(folder)
    (tmp_path / "yesterday").rename(folder)
    with open_keeper(url, tmp_path, retry_s=0.0) as keeper:
        coder = agent_of("coder", following=Following(keeper, "coder"))
        with pytest.raises(LedgerRolledBack, match=r"old copy .* stood at \d+.* ago"):
            coder.head("plan")
        with pytest.raises(Superseded, match="was seen to move on from 1 to 2"):
            coder.take(old.id, "Go on", stale="refuse")
        receipt = coder.take(new.id, "Go on", max_new_tokens=3).receipt
        assert receipt.freshness["standing"] == "unknown"
        warned = [one.sentence for one in receipt.warnings if one.code is ReasonCode.LEDGER]
        assert "old copy of the ledger" in warned[0]


def test_a_ledger_that_hangs_while_it_is_opened_costs_a_part_of_the_deadline(
    agent_of: Any, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database's host does not answer: the first take still has its baton in time."""
    release = threading.Event()
    monkeypatch.setattr("kvbaton.lineage.ledger.require_newest", lambda _: release.wait(60))
    try:
        with open_keeper(url, tmp_path) as keeper:
            one = agent_of("one", following=Following(keeper, "one"))
            baton = one.hand_off(one.run(LONG, max_new_tokens=3))
            two = agent_of("two", following=Following(keeper, "two"))
            receipt = two.take(baton, "Go on", max_new_tokens=3, deadline_s=4.0).receipt
            assert receipt.outcome is Outcome.USED
            assert receipt.seconds["freshness"] < 3.0
            assert ReasonCode.LEDGER in [one.code for one in receipt.warnings]
            release.set()
    finally:
        release.set()


def test_a_ledger_that_hangs_costs_a_take_no_more_than_its_limit(
    agent_of: Any, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the database waits for, the take goes on without it, and the next ones at once."""
    release = threading.Event()
    with open_keeper(url, tmp_path, read_s=0.1, retry_s=60.0) as keeper:
        agent = agent_of("one", following=Following(keeper, "one"))
        baton = agent.hand_off(agent.run(LONG, max_new_tokens=3))
        assert keeper.flush(PATIENCE_S)
        assert keeper.freshness(baton.id).standing.value == "current"
        monkeypatch.setattr(Ledger, "freshness", lambda *_: release.wait(PATIENCE_S))
        receipt = agent.take(baton, "Go on", max_new_tokens=3).receipt
        assert receipt.seconds["freshness"] < PATIENCE_S / 2
        assert [one.code for one in receipt.warnings] == [ReasonCode.LEDGER]
        again = agent.take(baton, "Go on", max_new_tokens=3).receipt
        assert again.outcome is Outcome.USED
        release.set()


def test_a_spool_that_cannot_be_written_warns(agent_of: Any, url: str, tmp_path: Path) -> None:
    """Neither the answer nor the baton is lost; both say that they were not noted."""
    (tmp_path / "spool").write_text("in the way")
    with open_keeper(url, tmp_path) as keeper:
        agent = agent_of("one", following=Following(keeper, "one"))
        turn = agent.run(LONG, max_new_tokens=3)
        assert [one.code for one in turn.receipt.warnings] == [ReasonCode.LEDGER]
        assert [one.code for one in agent.hand_off(turn).warnings] == [ReasonCode.LEDGER]


# --- loops of one's own -------------------------------------------------------------------------


def test_own_loops_are_followed_too(following_agent: Make, keeper: LedgerKeeper) -> None:
    """What `attach_cache` takes is checked, and what `export_cache` hands off is noted."""
    from kvbaton import api

    kept: Any = {"ledger": keeper}
    planner = following_agent("planner")
    old = planned(planner)
    cache, ids = api.attach_cache(planner.engine, old.id, store=planner.relay, **kept)
    new = planned(planner)
    onward = api.export_cache(
        planner.engine, cache, ids[0, : cache.length].tolist(), store=planner.relay, **kept
    )
    assert isinstance(onward, Baton)
    assert marks(keeper)[onward.id]
    with pytest.warns(api.StaleContext, match="plan@1"):
        api.attach_cache(planner.engine, old.id, store=planner.relay, **kept)
    with pytest.raises(Superseded, match="plan@1"):
        api.attach_cache(planner.engine, old.id, store=planner.relay, **kept, stale="refuse")
    with pytest.warns(api.StaleContext, match="plan@2 was taken in place"):
        newer, _ = api.attach_cache(
            planner.engine, old.id, store=planner.relay, **kept, stale="fetch"
        )
    assert newer.origin.parents == (new.id,)
