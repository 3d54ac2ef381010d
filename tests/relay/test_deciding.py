"""Policies in the flow: rules, roll-outs, kill switches, shadows, predictions, learning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.policy.speed_examples import KNOWN

from kvbaton import deciding
from kvbaton.agent import Agent
from kvbaton.deciding import PolicySource
from kvbaton.errors import BatonRefused, SettingsError
from kvbaton.forecasts import Forecasts
from kvbaton.policy.base import Decision, Policy, Question, decide_by_gates
from kvbaton.policy.hosts import host_id
from kvbaton.policy.policy_files import parse_policy
from kvbaton.policy.rollout import Arm, RollOut, RollOutMode
from kvbaton.policy.routes import Prediction
from kvbaton.policy.speed_files import Kept, load_speeds, speeds_file, store_speeds
from kvbaton.stores import Kind, Store
from kvbaton.types import Baton, Outcome, ReasonCode, Route

LONG = "Hello there, you plan and code. " * 4
Make = Callable[..., Agent]


@pytest.fixture
def policy_agent(agent_of: Any) -> Make:
    """Makes agents with a policy of their own."""

    def make(name: str, policy: Any = None, **options: Any) -> Agent:
        made: Agent = agent_of(name, **options)
        if policy is not None:
            source = PolicySource(parse_policy(policy) if isinstance(policy, dict) else policy)
            made.relay.deciding.source = source
        return made

    return make


def handed_off(make: Make, **options: Any) -> Baton:
    """A baton of a sender that answered."""
    sender = make("sender")
    return sender.hand_off(sender.run(LONG, max_new_tokens=9), **options)


def code_of(turn: Any) -> str:
    """The first reason's code."""
    found: str = turn.receipt.reasons[0].code.value
    return found


# --- rules --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "options", "code"),
    [
        ({"routes": ["compact"]}, {}, "route-not-allowed"),
        ({"min_tokens": 100_000}, {}, "too-short"),
        ({"max_exact_hops": 0}, {}, "exact-hops"),
        ({"max_rounds": 1}, {}, "too-many-rounds"),
        ({"critical_tags": ["pay"], "routes": ["slice"]}, {"tags": ["pay"]}, "route-not-allowed"),
    ],
)
def test_rules_send_a_take_by_text(
    policy_agent: Make, agent_of: Any, rules: Any, options: Any, code: str
) -> None:
    """The token ids are prefilled, no segment is read, and the receipt names the gate."""
    baton = handed_off(policy_agent, round=2)
    agent = policy_agent("b", {"rules": rules})
    turn = agent.take(baton, "Go on", max_new_tokens=6, **options)
    assert (turn.receipt.route, code_of(turn)) == (Route.TEXT, code)
    assert turn.receipt.outcome is Outcome.KV_UNUSABLE
    assert turn.receipt.bytes_moved == 0
    decision = turn.receipt.decision
    assert decision["route"] == "text"
    assert decision["decided_by"] in {one["gate"] for one in decision["gates"]}
    plain = agent_of("plain").take(baton, "Go on", max_new_tokens=6, route="text")
    assert turn.ids == plain.ids
    with pytest.raises(BatonRefused):
        agent.take(baton, "Go on", strict=True, **options)


def test_rules_are_the_receivers_own(policy_agent: Make) -> None:
    """An agent's own tables hold for it alone."""
    baton = handed_off(policy_agent)
    policy = {"agents": {"careful": {"rules": {"min_tokens": 100_000}}}}
    assert policy_agent("careful", policy).take(baton, "Go on").receipt.route is Route.TEXT
    assert policy_agent("other", policy).take(baton, "Go on").receipt.route is Route.BATON


def test_slices_are_decided_too(policy_agent: Make) -> None:
    """Every slice is asked; what is refused is computed from its ids."""
    baton = handed_off(policy_agent, spans="generated")
    agent = policy_agent("b", {"rules": {"routes": ["exact"]}})
    receipt = agent.take(baton, "Go on", max_new_tokens=3).receipt
    assert receipt.route is Route.TEXT
    assert receipt.decision["decided_by"] == "allow-list"


@pytest.mark.parametrize("summary", ["You code.", ""])
def test_beyond_the_hop_limit_a_summary_stands_for_the_context(
    policy_agent: Make, summary: str
) -> None:
    """Where the sender gave one and the policy asks for it; else all tokens are read."""
    baton = handed_off(policy_agent, summary=summary)
    rules = {"rules": {"max_exact_hops": 0, "beyond_hops": "summary"}}
    turn = policy_agent("b", rules).take(baton, "Go on", max_new_tokens=3)
    codes = [reason.code for reason in turn.receipt.reasons]
    assert turn.receipt.route is Route.TEXT
    if summary:
        assert codes == [ReasonCode.EXACT_HOPS, ReasonCode.SUMMARIZED]
        assert turn.receipt.context_tokens < len(baton.transcript.ids)
        assert turn.conversation.messages[0]["content"].startswith(summary)
    else:
        assert codes == [ReasonCode.EXACT_HOPS]
        assert turn.receipt.context_tokens > len(baton.transcript.ids)


def test_a_summary_stands_before_the_callers_messages(policy_agent: Make) -> None:
    """What was asked is asked still; behind a shared preamble nothing is left out."""
    baton = handed_off(policy_agent, summary="You code.")
    rules = {"rules": {"max_exact_hops": 0, "beyond_hops": "summary"}}
    asked = [{"role": "user", "content": "Which limits"}]
    turn = policy_agent("b", rules).take(baton, messages=asked, max_new_tokens=3)
    assert ReasonCode.SUMMARIZED in [reason.code for reason in turn.receipt.reasons]
    said = turn.conversation.messages[0]["content"]
    assert said.startswith("You code.")
    assert said.endswith("Which limits")


# --- roll-out -----------------------------------------------------------------------------------


def test_a_kill_file_takes_effect_in_running_processes(policy_agent: Make, tmp_path: Path) -> None:
    """While it is there nothing goes by cache; afterwards everything does again."""
    baton = handed_off(policy_agent)
    switch = tmp_path / "stop"
    policy = tmp_path / "policy.toml"
    policy.write_text('[roll_out]\nkill_file = "stop"\n')
    agent = policy_agent("b", policy)
    assert agent.take(baton, "Go on").receipt.route is Route.BATON
    switch.touch()
    turn = agent.take(baton, "Go on")
    assert (turn.receipt.route, code_of(turn)) == (Route.TEXT, "kill-switch")
    switch.unlink()
    assert agent.take(baton, "Go on").receipt.route is Route.BATON


def test_a_policy_file_is_read_again_and_a_broken_one_leaves_the_last(
    policy_agent: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that holds no policy any more is warned of, and what was in force stays."""
    baton = handed_off(policy_agent)
    policy = tmp_path / "policy.toml"
    agent = policy_agent("b", policy)  # not there yet: no rules
    assert agent.take(baton, "Go on").receipt.route is Route.BATON
    policy.write_text("[rules]\nmin_tokens = 100000\n")
    assert agent.take(baton, "Go on").receipt.route is Route.TEXT
    policy.write_text("[rules]\nmin_token = 1\n")
    receipt = agent.take(baton, "Go on").receipt
    assert receipt.route is Route.TEXT
    warned = [one for one in receipt.warnings if one.code is ReasonCode.POLICY]
    assert "did you mean min_tokens" in warned[0].sentence
    with pytest.raises(SettingsError, match="unknown key"):
        PolicySource(policy)
    fresh = policy_agent("c")
    fresh.relay.deciding.source = PolicySource(policy, strict=False)
    receipt = fresh.take(baton, "Go on").receipt
    assert (receipt.route, receipt.reasons[0].code) == (Route.TEXT, ReasonCode.KILL_SWITCH)
    assert "unknown key" in receipt.warnings[0].sentence
    policy.write_text("")  # in the middle of an edit
    assert agent.take(baton, "Go on").receipt.route is Route.TEXT
    policy.unlink()
    assert agent.take(baton, "Go on").receipt.route is Route.TEXT
    monkeypatch.setattr(deciding, "EDIT_S", 0.0)
    receipt = agent.take(baton, "Go on").receipt
    assert (receipt.route, receipt.warnings) == (Route.BATON, ())
    policy.symlink_to(policy)  # cannot be looked at for a while
    assert agent.take(baton, "Go on").receipt.warnings[0].code is ReasonCode.POLICY
    policy.unlink()
    policy.write_text("[rules]\nmin_tokens = 100000\n")
    receipt = agent.take(baton, "Go on").receipt
    assert (receipt.route, receipt.warnings) == (Route.TEXT, ())


@settings(max_examples=20)
@given(share=st.floats(0.05, 0.95), names=st.sets(st.text(min_size=1, max_size=8), min_size=1))
def test_a_conversation_keeps_its_arm(share: float, names: set[str]) -> None:
    """The same id is in the same arm in every process: what decides is a pure function of it."""
    first, second = (RollOut(RollOutMode.CANARY, share) for _ in range(2))
    assert [first.arm(name) for name in names] == [second.arm(name) for name in names]


def test_a_canary_goes_by_the_conversations_id(policy_agent: Make) -> None:
    """Each conversation goes as it is assigned, take after take."""
    baton = handed_off(policy_agent)
    roll_out = RollOut(RollOutMode.CANARY, 0.5)
    agent = policy_agent("b", {"roll_out": {"mode": "canary", "share": 0.5}})
    routes = set()
    for n in range(8):
        name = f"conversation {n}"
        for _ in range(2):
            receipt = agent.take(
                baton, "Go on", max_new_tokens=1, labels={"conversation": name}
            ).receipt
            assert (receipt.route is Route.BATON) == (roll_out.arm(name) is Arm.BATON)
        routes.add(receipt.route)
    assert routes == {Route.BATON, Route.TEXT}


@pytest.mark.parametrize("spans", [None, "generated"])
def test_a_shadow_is_compared_and_thrown_away(policy_agent: Make, spans: str | None) -> None:
    """Text answers, as if there had been no cache; the shadow's figures stand in the receipt."""
    baton = handed_off(policy_agent, **({} if spans is None else {"spans": spans}))
    agent = policy_agent("b", {"roll_out": {"mode": "shadow"}})
    shown: list[str] = []
    turn = agent.take(baton, "Go on", max_new_tokens=6, on_text=shown.append)
    receipt = turn.receipt
    assert (receipt.route, code_of(turn)) == (Route.TEXT, "shadow")
    assert receipt.shadow["route"] == ("exact" if spans is None else "slice")
    assert receipt.shadow["text_tokens"] == len(turn.ids)
    assert receipt.shadow["shadow_tokens"] > 0
    assert "".join(shown).strip() == turn.text.strip()
    if spans is None:  # in float32 both say the same
        assert receipt.shadow["first_divergence"] is None
    plain = policy_agent("plain").take(baton, "Go on", max_new_tokens=6, route="text")
    assert turn.ids == plain.ids
    again = agent.run("And then", max_new_tokens=3)  # the conversation is that of the text
    assert again.receipt.reused_tokens > 0


def test_a_shadow_that_fails_says_why(policy_agent: Make, store: Store) -> None:
    """The answer by text is given all the same."""
    baton = handed_off(policy_agent)
    for entry in list(store.list(Kind.SEGMENT)):
        store.delete(entry.key)
    agent = policy_agent("b", {"roll_out": {"mode": "shadow"}})
    receipt = agent.take(baton, "Go on", max_new_tokens=3).receipt
    assert receipt.route is Route.TEXT
    assert "error" in receipt.shadow


# --- predictions --------------------------------------------------------------------------------


class Told(Policy):
    """Decides by the gates, and remembers what it was asked."""

    name = "told"
    asked: list[Question]

    def decide(self, question: Question) -> Decision:
        """See ``Policy.decide``."""
        self.asked = [question]
        return decide_by_gates(question, question.gates)


def test_what_is_predicted_decides(policy_agent: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is taken where it is predicted to be faster, and text where that is, or both are
    as fast; what came true stands beside."""
    baton = handed_off(policy_agent)
    for text_s, cache_s, route in ((2.0, 1.0, Route.BATON), (1.0, 2.0, Route.TEXT),
                                   (1.0, 1.0, Route.TEXT)):  # fmt: skip
        agent = policy_agent("b")
        found = (Prediction("text", text_s, 0.5, 3.0), Prediction("exact", cache_s, 0.5, 3.0))

        class Known:
            """Knows it all."""

            predict = staticmethod(lambda manifest, context, store, found=found: found)
            seen = staticmethod(lambda receipt, store: None)
            troubles = staticmethod(lambda: ())

        monkeypatch.setattr(agent.relay.deciding, "forecasts", Known())
        receipt = agent.take(baton, "Go on", max_new_tokens=3).receipt
        assert receipt.route is route
        assert [one["route"] for one in receipt.decision["predictions"]] == ["text", "exact"]
        if route is Route.TEXT:
            assert receipt.reasons[0].code is ReasonCode.TEXT_FASTER


def test_a_policy_of_ones_own_is_asked(policy_agent: Make, agent_of: Any) -> None:
    """With the manifest, the tags, the freshness and the conversation."""
    baton = handed_off(policy_agent)
    policy = Told()
    agent = agent_of("b")
    agent.relay.deciding.source = PolicySource(policy=policy)
    agent.take(baton, "Go on", tags=["x"], labels={"conversation": "c"}, max_new_tokens=1)
    question = policy.asked[0]
    assert (question.conversation, question.context.tags) == ("c", frozenset({"x"}))
    assert question.manifest == baton.manifest
    assert question.context.standing == "unknown"


class Reckless(Policy):
    """Takes every cache, or breaks."""

    name = "reckless"

    def __init__(self, *, breaks: bool) -> None:
        self.breaks = breaks

    def decide(self, question: Question) -> Decision:
        """See ``Policy.decide``."""
        if self.breaks:
            raise RuntimeError("who knows")
        return Decision(route=Route.BATON, chosen=question.offered, policy=self.name)


@pytest.mark.parametrize("breaks", [False, True])
def test_a_policy_of_somebody_else_cannot_do_harm(
    policy_agent: Make, agent_of: Any, breaks: bool
) -> None:
    """What it allows against the gates is refused; a failure costs the cache, not the answer."""
    baton = handed_off(policy_agent)
    agent = agent_of("b")
    rules = parse_policy({"rules": {"min_tokens": 0 if breaks else 100_000}})
    agent.relay.deciding.source = PolicySource(rules, Reckless(breaks=breaks))
    receipt = agent.take(baton, "Go on", max_new_tokens=3).receipt
    code = ReasonCode.POLICY if breaks else ReasonCode.TOO_SHORT
    assert (receipt.route, receipt.reasons[0].code) == (Route.TEXT, code)


def test_speeds_are_learnt_kept_and_read_again(policy_agent: Make, tmp_path: Path) -> None:
    """Receipts refine what was measured; another process begins with that, and speeds of another
    host are named and not used."""
    agent = policy_agent("b")
    function = agent.engine.function.digest
    speeds = replace(KNOWN, function=function, host=host_id())
    store_speeds(Kept(speeds), tmp_path)
    forecasts = Forecasts(tmp_path, function)
    agent.relay.deciding.forecasts = forecasts
    for _ in range(4):
        agent.forget()
        agent.run(LONG, max_new_tokens=3)
    learner = forecasts.learner
    assert learner is not None
    kept, error = load_speeds(tmp_path, function)
    assert (kept is not None, error) == (True, None)
    assert kept is not None
    assert kept.learnt.ratios

    file = speeds_file(tmp_path, function)
    other = tmp_path / "speeds" / ("0" * 16)
    other.mkdir()
    file.rename(other / file.name)
    baton = handed_off(policy_agent)
    strange = policy_agent("d")
    strange.relay.deciding.forecasts = Forecasts(tmp_path, function)
    receipt = strange.take(baton, "Go on", max_new_tokens=1).receipt
    warned = [one for one in receipt.warnings if one.code is ReasonCode.NOT_MEASURED]
    assert "another host" in warned[0].sentence
    assert "kvbaton policy calibrate" in warned[0].sentence
    assert receipt.route is Route.BATON
