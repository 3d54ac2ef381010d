"""Both built-in policies against the suite, and the suite itself: wrong policies fail its laws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from kvbaton.errors import InputError
from kvbaton.policy import (
    DEFAULT_POLICY,
    Decision,
    Policy,
    Question,
    decide_by_gates,
    make_policy,
    policy_names,
    register_policy,
)
from kvbaton.policy.base import GatesOnly, MeasuredPolicy
from kvbaton.testing import PolicyTests
from kvbaton.testing.questions import SECRET, plain_question
from kvbaton.types import Reason, ReasonCode, Route


class TestGatesOnly(PolicyTests):
    """The policy that asks nothing but gates."""

    def make_policy(self) -> Policy:
        """Found by its name."""
        return make_policy("gates-only")


class TestMeasured(PolicyTests):
    """The policy that also asks what is faster."""

    def make_policy(self) -> Policy:
        """The default."""
        return make_policy()


# --- the suite ---------------------------------------------------------------------------------


class Misnamed(MeasuredPolicy):
    """Decisions carry another policy's name."""

    def decide(self, question: Question) -> Decision:
        """As ever, under another name."""
        return replace(super().decide(question), policy="another")


class Whimsical(MeasuredPolicy):
    """Every second question goes by text."""

    asked: ClassVar[int] = 0

    def decide(self, question: Question) -> Decision:
        """Counts."""
        type(self).asked += 1
        found = super().decide(question)
        reason = Reason(ReasonCode.TEXT_FASTER, "a whim")
        return found if self.asked % 2 else replace(found, route=Route.TEXT, reasons=(reason,))


class Trusting(MeasuredPolicy):
    """Asks no gate."""

    def decide(self, question: Question) -> Decision:
        """Always the baton."""
        return Decision(Route.BATON, question.offered, policy=self.name)


class Forgetful(MeasuredPolicy):
    """Asks all gates but the one of the window."""

    def decide(self, question: Question) -> Decision:
        """One gate fewer."""
        asked = [gate for gate in question.gates if gate.__name__ != "window"]
        return replace(decide_by_gates(question, asked), policy=self.name)


class TextOnly(MeasuredPolicy):
    """Never lets a cache be used."""

    def decide(self, question: Question) -> Decision:
        """Always text."""
        reason = Reason(ReasonCode.ASKED_FOR_TEXT, "as ever")
        return Decision(Route.TEXT, "text", (reason,), policy=self.name)


class Lax(MeasuredPolicy):
    """Lets tight rules open what loose ones keep closed."""

    def decide(self, question: Question) -> Decision:
        """Text without an allow list, whatever else there is."""
        found = super().decide(question)
        if question.rules.routes is not None:
            return found
        reason = Reason(ReasonCode.ROUTE_NOT_ALLOWED, "no list")
        return replace(found, route=Route.TEXT, chosen="text", reasons=(reason,))


class Silent(MeasuredPolicy):
    """Gives no reasons."""

    def decide(self, question: Question) -> Decision:
        """As ever, without a word."""
        return replace(super().decide(question), reasons=())


class Talkative(MeasuredPolicy):
    """Repeats what the sender has said."""

    def decide(self, question: Question) -> Decision:
        """As ever, with words of the prompt."""
        words = question.manifest.terms.instruction
        warned = Reason(ReasonCode.TOKENS_DIVERGE, f"about: {words}")
        found = super().decide(question)
        return replace(found, reasons=(*found.reasons, warned))


class Stumbles(MeasuredPolicy):
    """Divides by what a manifest may leave at zero."""

    def decide(self, question: Question) -> Decision:
        """As ever, or an exception."""
        _ = question.manifest.pending_tokens / question.manifest.cached_tokens
        return super().decide(question)


class Shadowy(MeasuredPolicy):
    """Does what the roll-out should."""

    def decide(self, question: Question) -> Decision:
        """A shadow of itself."""
        return replace(super().decide(question), shadow=True)


bounded = settings(
    max_examples=500, deadline=None, database=None, derandomize=True, phases=[Phase.generate]
)
"""Looks for a failure only, and not for the smallest."""
BROKEN = (AssertionError, ZeroDivisionError, ExceptionGroup)
"""What a law raises; Hypothesis gathers several of them in a group."""


@pytest.mark.parametrize(
    ("policy", "law"),
    [
        (Misnamed, "test_decisions_name_the_policy"),
        (Misnamed, "test_decisions_can_be_kept_and_explained"),
        (Whimsical, "test_the_same_question_has_the_same_answer"),
        (Stumbles, "test_any_manifest_has_an_answer"),
        (Shadowy, "test_any_manifest_has_an_answer"),
        (Trusting, "test_no_better_route_than_the_gates_allow"),
        (Trusting, "test_every_gate_is_obeyed"),
        (Forgetful, "test_every_gate_is_obeyed"),
        (TextOnly, "test_what_nothing_is_against_may_be_used"),
        (Lax, "test_tighter_rules_never_lead_to_a_better_route"),
        (Silent, "test_the_chosen_route_is_the_one_that_is_offered"),
        (Talkative, "test_no_words_of_the_sender_are_repeated"),
        (Whimsical, "test_a_roll_out_only_ever_takes_away"),
    ],
)
def test_a_wrong_policy_fails(policy: type[Policy], law: str) -> None:
    """The built-in policy keeps the law, and the one that is wrong does not."""

    class Held(PolicyTests):
        kind: type[Policy] = MeasuredPolicy

        def make_policy(self) -> Policy:
            return self.kind()

    class Wrong(Held):
        kind = policy

        def for_all(
            self, check: Callable[..., None], **strategies: st.SearchStrategy[object]
        ) -> None:
            bounded(given(**strategies)(check))()

    getattr(Held(), law)()
    with pytest.raises(BROKEN):
        getattr(Wrong(), law)()


def test_the_secret_is_in_the_questions() -> None:
    """The law of the sender's words looks for words that are there."""
    assert plain_question().manifest.terms.instruction == SECRET


# --- by name -----------------------------------------------------------------------------------


def test_policies_are_found_by_name() -> None:
    """The two that come along, sorted; the default is the one that measures."""
    assert {"gates-only", "measured"} <= set(policy_names())
    assert isinstance(make_policy("gates-only"), GatesOnly)
    assert isinstance(make_policy(), MeasuredPolicy)
    assert make_policy().name == DEFAULT_POLICY


def test_a_name_that_nobody_provides_is_refused() -> None:
    """The error says which there are."""
    with pytest.raises(InputError, match='no policy is called "mesured"') as caught:
        make_policy("mesured")
    assert "gates-only, measured" in caught.value.hint


class Elsewhere(GatesOnly):
    """Registered under its own name."""

    name: ClassVar[str] = "elsewhere"


@pytest.mark.parametrize(
    ("name", "target", "said"),
    [
        ("odd-name", "tests.policy.test_conformance:Elsewhere", "calls itself 'elsewhere'"),
        ("odd-kind", "tests.policy.test_conformance:PolicyTests", "is not a policy"),
        ("odd-value", "tests.policy.test_conformance:BROKEN", "is not a policy"),
        ("odd-module", "tests.policy.no_such:Elsewhere", "cannot be loaded"),
    ],
)
def test_what_is_registered_must_be_a_policy_of_that_name(
    name: str, target: str, said: str
) -> None:
    """Anything else is an error that names the target."""
    register_policy(name, target)
    with pytest.raises(InputError, match=said):
        make_policy(name)


def test_a_registered_policy_is_made() -> None:
    """By the name that it calls itself; the name cannot be given away again."""
    register_policy("elsewhere", "tests.policy.test_conformance:Elsewhere")
    assert make_policy("elsewhere").name == "elsewhere"
    with pytest.raises(InputError, match="already"):
        register_policy("elsewhere", "tests.policy.test_conformance:TextOnly")
