"""The conformance suite for policies: what a policy must do to decide over hand-offs.

Derive from :class:`PolicyTests` and say how the policy is made::

    class TestMyPolicy(PolicyTests):
        def make_policy(self):
            return MyPolicy()
"""

from __future__ import annotations

import copy
import json
import re
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from kvbaton.policy import gates
from kvbaton.policy.base import Decision, Policy, Question, make_policy, policy_names
from kvbaton.policy.explaining import explain
from kvbaton.policy.judgements import route_rank
from kvbaton.policy.rollout import EVERYWHERE, RollOut, RollOutMode, decide_rolled_out
from kvbaton.policy.routes import TEXT
from kvbaton.testing.questions import (
    SECRET,
    plain_question,
    questions,
    refused_by_one_gate,
    tightenings,
)
from kvbaton.types import Reason, Route


class PolicyTests:
    """Conformance suite of :class:`kvbaton.policy.Policy`.

    Attributes
    ----------
    registered
        The policy is found by its name; ``False`` for one that only a test knows.
    max_examples
        Examples for each property test.
    """

    registered = True
    max_examples = 50

    @abstractmethod
    def make_policy(self) -> Policy:
        """Return the policy."""

    def for_all(self, check: Callable[..., None], **strategies: st.SearchStrategy[object]) -> None:
        """Run a property: ``check`` on many values."""
        bounded = settings(max_examples=self.max_examples, deadline=None, database=None)
        bounded(given(**strategies)(check))()

    # -- its name -----------------------------------------------------------------------------

    def test_the_name_can_stand_in_files(self) -> None:
        """A name is lower-case letters, digits, dots and hyphens."""
        assert re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,63}", self.make_policy().name)

    def test_the_policy_is_found_by_its_name(self) -> None:
        """Policy files name policies; who reads one gets this policy."""
        if self.registered:
            policy = self.make_policy()
            assert policy.name in policy_names()
            assert type(make_policy(policy.name)) is type(policy)

    def test_decisions_name_the_policy(self) -> None:
        """Receipts say whose decision it was."""
        policy = self.make_policy()

        def check(question: Question) -> None:
            assert policy.decide(question).policy == policy.name

        self.for_all(check, question=questions())

    # -- one question, one answer -------------------------------------------------------------

    def test_the_same_question_has_the_same_answer(self) -> None:
        """Whatever was asked in between, of whichever copy of the policy."""
        policy = self.make_policy()

        def check(question: Question, other: Question) -> None:
            first = policy.decide(question)
            policy.decide(other)
            assert policy.decide(copy.deepcopy(question)) == first
            assert self.make_policy().decide(question) == first

        self.for_all(check, question=questions(), other=questions())

    def test_any_manifest_has_an_answer(self) -> None:
        """Nothing that a manifest says raises, or makes a decision that is none."""
        policy = self.make_policy()

        def check(question: Question) -> None:
            decision = policy.decide(question)
            assert isinstance(decision, Decision)
            assert isinstance(decision.route, Route)
            assert all(isinstance(reason, Reason) for reason in decision.reasons)
            assert not decision.shadow, "shadows are a matter of the roll-out"

        self.for_all(check, question=questions())

    # -- gates and rules ----------------------------------------------------------------------

    def test_no_better_route_than_the_gates_allow(self) -> None:
        """What a gate denies goes by text, and what it degrades by no better route.

        A policy need not ask whether the cache is worth it.
        """
        policy = self.make_policy()

        def check(question: Question) -> None:
            asked = tuple(gate for gate in question.gates if gate is not gates.worth_it)
            allowed, _ = gates.decide(question.manifest, question.context, asked)
            assert route_rank(policy.decide(question).route) >= route_rank(allowed)

        self.for_all(check, question=questions())

    def test_every_gate_is_obeyed(self) -> None:
        """For each gate there is a question that only this gate denies: text answers it."""
        policy = self.make_policy()
        for gate, question in refused_by_one_gate().items():
            decision = policy.decide(question)
            assert decision.route is Route.TEXT, f"the gate {gate!r} is not asked"

    def test_what_nothing_is_against_may_be_used(self) -> None:
        """A policy is no policy if it never lets a cache be used, however fast it is."""
        decision = self.make_policy().decide(plain_question())
        assert decision.route is not Route.TEXT

    def test_tighter_rules_never_lead_to_a_better_route(self) -> None:
        """Rules tighten: with more of them, nothing passes that did not pass before."""
        policy = self.make_policy()

        def check(question: Question, data: st.DataObject) -> None:
            tight = data.draw(tightenings(question.rules))
            asked = replace(question, context=replace(question.context, rules=tight))
            loosely, tightly = policy.decide(question), policy.decide(asked)
            assert route_rank(tightly.route) >= route_rank(loosely.route)

        self.for_all(check, question=questions(), data=st.data())

    # -- what it says -------------------------------------------------------------------------

    def test_the_chosen_route_is_the_one_that_is_offered(self) -> None:
        """By text, ``chosen`` is text and there is a reason; else it is the baton's own route."""
        policy = self.make_policy()

        def check(question: Question) -> None:
            decision = policy.decide(question)
            if decision.route is Route.TEXT:
                assert decision.chosen == TEXT
                assert decision.reasons, "text needs a reason"
            else:
                assert decision.chosen == question.offered
            if decision.route is Route.PARTIAL:
                assert decision.reasons, "less than the whole baton needs a reason"

        self.for_all(check, question=questions())

    def test_decisions_can_be_kept_and_explained(self) -> None:
        """A decision is JSON, without any number that JSON has not, and explained by its lines."""
        policy = self.make_policy()

        def check(question: Question) -> None:
            decision = policy.decide(question)
            stored = json.loads(json.dumps(decision.to_json(), allow_nan=False))
            explained = explain(decision)
            assert (stored["route"], stored["policy"]) == (decision.route.value, policy.name)
            assert explained.decided_by == decision.decided_by
            assert all(line.isprintable() for line in explained.lines())

        self.for_all(check, question=questions())

    def test_no_words_of_the_sender_are_repeated(self) -> None:
        """Receipts hold no text of prompts, so no decision may."""
        policy = self.make_policy()

        def check(question: Question) -> None:
            assert SECRET not in json.dumps(policy.decide(question).to_json())

        self.for_all(check, question=questions())

    # -- roll-out -----------------------------------------------------------------------------

    def test_a_roll_out_only_ever_takes_away(self) -> None:
        """Rolled out everywhere it decides as ever; switched off, or not drawn, text answers."""
        policy = self.make_policy()
        off, shadow = RollOut(RollOutMode.OFF), RollOut(RollOutMode.SHADOW)

        def check(question: Question) -> None:
            decision = policy.decide(question)
            assert decide_rolled_out(policy, question, EVERYWHERE) == decision
            assert decide_rolled_out(policy, question, off).route is Route.TEXT
            shadowed = decide_rolled_out(policy, question, shadow)
            assert shadowed.route is Route.TEXT
            assert shadowed.shadow is (decision.route is not Route.TEXT)
            assert shadowed.chosen == decision.chosen

        self.for_all(check, question=questions())
