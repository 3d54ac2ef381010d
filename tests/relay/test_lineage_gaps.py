"""Ways in which a context can travel unseen, and answers that trouble must not cost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.relay.conftest import make_engine
from tests.relay.test_following import LONG, MESSAGES, PATIENCE_S, open_keeper, planned

import kvbaton
from kvbaton.agent import Agent
from kvbaton.deciding import PolicySource
from kvbaton.errors import (
    InputError,
    LedgerUnavailable,
    RefConflict,
    SettingsError,
    StoreFull,
    Superseded,
    UnknownNode,
)
from kvbaton.following import Following
from kvbaton.lineage.keeper import LedgerKeeper
from kvbaton.policy.policy_files import parse_policy
from kvbaton.stores import Kind, MemoryStore, Store
from kvbaton.testing import Fail, FaultyStore, StoreFault
from kvbaton.types import Outcome, ReasonCode, Route

Make = Callable[..., Agent]


@pytest.fixture
def keeper(tmp_path: Path) -> Any:
    """The way to an empty ledger."""
    with open_keeper(f"sqlite:///{tmp_path}/ledger/ledger.db", tmp_path) as made:
        yield made


@pytest.fixture
def following_agent(agent_of: Any, keeper: LedgerKeeper) -> Make:
    """Makes agents that share store and ledger."""

    def make(name: str, **options: Any) -> Agent:
        made: Agent = agent_of(name, following=Following(keeper, name), **options)
        return made

    return make


def is_stale(keeper: LedgerKeeper, name: str) -> bool:
    """Whether the ledger has marked a node."""
    assert keeper.flush(PATIENCE_S)
    return keeper.ask(lambda ledger: ledger.node(name)).stale is not None


# --- refs that go on ----------------------------------------------------------------------------


def test_a_ref_that_is_refined_in_a_loop_is_current(
    following_agent: Make, keeper: LedgerKeeper
) -> None:
    """Whoever moves the ref goes on from the new head, also where it was taken from the old one;
    what was said on the way is stale, what comes behind it is not."""
    planner, coder, other = (following_agent(name) for name in ("planner", "coder", "other"))
    taken = coder.take(planned(planner), "Go on", max_new_tokens=3)
    for number in range(2, 6):
        head = coder.hand_off(coder.conversation and taken, ref="plan")
        assert head.manifest.sequence == number
        for rule in ("fetch", "refuse"):
            receipt = other.take(head, "Go on", max_new_tokens=1, stale=rule).receipt
            assert receipt.outcome is Outcome.USED
        assert is_stale(keeper, taken.receipt.id)
        taken = coder.run("And more", max_new_tokens=2)
        assert taken.receipt.outcome is Outcome.NO_BATON


def test_who_has_lost_stays_late_until_it_has_looked(following_agent: Make) -> None:
    """Trying again does not overwrite what nobody has read."""
    planner, coder = following_agent("planner"), following_agent("coder")
    turn = coder.take(planned(planner), "Go on", max_new_tokens=3)
    planned(planner)
    for _ in range(2):
        with pytest.raises(RefConflict):
            coder.hand_off(turn, ref="plan")
    coder.head("plan")
    assert coder.hand_off(turn, ref="plan").manifest.sequence == 3


def test_the_loser_of_two_equal_batons_leaves_the_winners(
    following_agent: Make, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal contexts at one time have one id: taken back is only what is no head."""
    from kvbaton import publishing

    now_ms = publishing.now_ms()
    monkeypatch.setattr(publishing, "now_ms", lambda: now_ms)
    planner = following_agent("planner")
    turn = planner.run(LONG, max_new_tokens=3)
    won = planner.hand_off(turn, ref="plan", expect=0)
    with pytest.raises((RefConflict, InputError)):
        planner.hand_off(turn, ref="plan", expect=0)
    assert [entry.key.name for entry in store.list(Kind.BATON)] == [won.id]


def test_what_cannot_be_fetched_is_refused_not_raised(
    following_agent: Make, keeper: LedgerKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger that goes away between the look and the head: the caller's messages answer."""
    planner, coder = following_agent("planner"), following_agent("coder")
    old = planned(planner)
    planned(planner)

    def gone(ref: str) -> Any:
        raise LedgerUnavailable("gone")

    monkeypatch.setattr(keeper, "head", gone)
    receipt = coder.take(old, messages=MESSAGES, max_new_tokens=2, stale="fetch").receipt
    assert receipt.outcome is Outcome.SUPERSEDED
    assert "gone" in receipt.reasons[0].sentence
    assert [one.code for one in receipt.warnings] == []
    with pytest.raises(Superseded):
        coder.take(old, "Go on", stale="fetch")


# --- an agent's own conversation ----------------------------------------------------------------


def test_going_on_in_a_stale_conversation_is_labelled_or_refused(following_agent: Make) -> None:
    """The next turn is as stale as the last; a policy that refuses that refuses it here, too."""
    planner, coder = following_agent("planner"), following_agent("coder")
    coder.take(planned(planner), "Go on", max_new_tokens=3)
    planned(planner)
    receipt = coder.run("And more", max_new_tokens=3).receipt
    assert receipt.outcome is Outcome.SUPERSEDED
    assert receipt.freshness["standing"] == "stale"
    assert [one.code for one in receipt.reasons] == [ReasonCode.STALE]
    coder.relay.deciding.source = PolicySource(parse_policy({"rules": {"stale": "refuse"}}))
    with pytest.raises(Superseded, match="goes on based on stale"):
        coder.run("And more", max_new_tokens=3)
    coder.forget()
    assert coder.run(LONG, max_new_tokens=3).receipt.outcome is Outcome.NO_BATON


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_turn_that_failed_loses_no_lineage(
    following_agent: Make, keeper: LedgerKeeper, family: str
) -> None:
    """What is answered behind it descends from what the failed one descended from."""
    engine, store = make_engine(family), MemoryStore()
    planner = following_agent("planner", engine=engine, store=store)
    coder = following_agent("coder", engine=engine, store=store)
    plan = planned(planner)
    coder.take(plan, "Go on", max_new_tokens=3)

    def gone(text: str) -> None:
        raise RuntimeError("the client has gone")

    with pytest.raises(RuntimeError):
        coder.run("And more", max_new_tokens=5, on_text=gone)
    turn = coder.run("And more", max_new_tokens=3)
    assert turn.receipt.outcome is Outcome.NO_BATON
    assert turn.conversation.signers == tuple(sorted({plan.signer, *plan.manifest.signers} - {""}))
    assert keeper.flush(PATIENCE_S)
    keeper.ask(lambda ledger: ledger.withdraw(plan.id, why="wrong"))
    assert is_stale(keeper, turn.receipt.id)


def test_what_merely_begins_alike_descends_from_nothing(
    following_agent: Make, keeper: LedgerKeeper
) -> None:
    """Template and system prompt in common make no descent; an answer that is read again does."""
    planner, coder = following_agent("planner"), following_agent("coder", system="You code")
    plan = planned(planner)
    coder.take(plan, "Go on", max_new_tokens=3)
    first = coder.run(messages=[{"role": "user", "content": "Hello there"}], max_new_tokens=3)
    assert keeper.flush(PATIENCE_S)
    assert keeper.ask(lambda ledger: ledger.node(first.receipt.id)).parents == ()
    history = [
        {"role": "user", "content": "Hello there"},
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "Go on"},
    ]
    again = coder.run(messages=history, max_new_tokens=3)
    assert again.receipt.reused_tokens > 0
    assert keeper.flush(PATIENCE_S)
    parents = keeper.ask(lambda ledger: ledger.node(again.receipt.id)).parents
    assert parents in ((first.receipt.id,), ())  # where the answer was rendered alike


# --- contexts of others -------------------------------------------------------------------------


def test_batons_of_senders_without_a_ledger_are_known_once_taken(
    agent_of: Any, following_agent: Make, keeper: LedgerKeeper
) -> None:
    """Their manifests list parents: withdrawing one of those reaches what was made from them."""
    plain = agent_of("plain")
    first = plain.hand_off(plain.run(LONG, max_new_tokens=5))
    onward = plain.hand_off(agent_of("x").take(first, "Go on", max_new_tokens=3))
    coder = following_agent("coder")
    answer = coder.take(onward.id, "Go on", max_new_tokens=3)
    keeper.flush(PATIENCE_S)
    coder.take(first.id, "Go on", max_new_tokens=3)  # known to the ledger from here on
    assert keeper.flush(PATIENCE_S)
    keeper.ask(lambda ledger: ledger.withdraw(first.id, why="wrong"))
    assert is_stale(keeper, onward.id)
    assert is_stale(keeper, answer.receipt.id)


def test_artefacts_are_made_from_what_there_is(following_agent: Make, keeper: LedgerKeeper) -> None:
    """A shortened id is looked up; a name or a typo is refused, and does not become a parent."""
    agent = following_agent("a")
    turn = agent.run(LONG, max_new_tokens=3)
    made = agent.artefact("plan.md", turn.receipt.id[:12])
    assert keeper.flush(PATIENCE_S)
    assert keeper.ask(lambda ledger: ledger.node(made)).parents == (turn.receipt.id,)
    onward = agent.artefact("report.md", made)
    assert keeper.flush(PATIENCE_S)
    assert keeper.ask(lambda ledger: ledger.node(onward)).parents == (made,)
    for wrong in ("plan", "paln.md", "f" * 12):
        with pytest.raises((UnknownNode, InputError)):
            agent.artefact("x", wrong)


def test_what_was_made_from_other_answers_says_so(
    following_agent: Make, keeper: LedgerKeeper
) -> None:
    """`sources` are parents: an answer whose prompt quotes others descends from them."""
    left, writer = following_agent("left"), following_agent("writer")
    said = left.run(LONG, max_new_tokens=3)
    written = writer.run(f"Left said: {said.text}", max_new_tokens=3, sources=[said])
    assert keeper.flush(PATIENCE_S)
    keeper.ask(lambda ledger: ledger.withdraw(said.receipt.id, why="wrong"))
    assert is_stale(keeper, written.receipt.id)


def test_agents_may_be_called_anything(following_agent: Make, keeper: LedgerKeeper) -> None:
    """A name that no database wants is kept as far as it can be shown, and costs no answer."""
    odd = following_agent("a\n\x00b" + 300 * "c", stream=False)
    turn = odd.take(planned(following_agent("planner")), "Go on", max_new_tokens=3)
    assert turn.receipt.warnings == ()
    assert keeper.flush(PATIENCE_S)
    kept = keeper.ask(lambda ledger: ledger.node(turn.receipt.id)).agent
    assert (kept[:4], len(kept)) == ("a\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}b", 200)


# --- answers are not lost -----------------------------------------------------------------------


def test_a_hand_off_that_fails_behind_the_answer_costs_only_itself(
    following_agent: Make, store: Store
) -> None:
    """A full store, or a full disk for the log of receipts: warnings, and the answer is there."""
    full = FaultyStore(store, StoreFault("put", Fail(StoreFull("no room"))))
    agent = following_agent("a", store=full, stream=False)
    turn = agent.run(LONG, max_new_tokens=5, hand_off_when=(kvbaton.predicate(lambda p: True),))
    assert (turn.baton, turn.fired is not None) == (None, True)
    assert turn.receipt.warnings[-1].sentence == "no room"

    def no_disk(receipt: Any) -> None:
        raise SettingsError("the receipt cannot be written: No space left on device")

    logged = following_agent("b", log=no_disk)
    turn = logged.run(LONG, max_new_tokens=3)
    assert "No space left" in turn.receipt.warnings[-1].sentence
    assert logged.conversation is turn.conversation


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_shadows_draw_alike_and_their_failures_cost_nothing(
    following_agent: Make, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    """Without a seed both get the same; a shadow that runs out of memory is only stated."""
    from kvbaton import shadowing

    planner, coder = following_agent("planner"), following_agent("coder")
    baton = planned(planner)
    coder.relay.deciding.source = PolicySource(parse_policy({"roll_out": {"mode": "shadow"}}))
    sampling = kvbaton.Sampling(temperature=temperature)
    turn = coder.take(baton, "Go on", max_new_tokens=12, sampling=sampling)
    assert turn.receipt.shadow["first_divergence"] is None

    def no_memory(*arguments: Any, **options: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(shadowing, "decode", no_memory)
    turn = coder.take(baton, "Go on", max_new_tokens=3)
    assert turn.receipt.route is Route.TEXT
    assert turn.receipt.shadow == {"route": "exact", "error": "MemoryError"}
    assert coder.conversation is turn.conversation
