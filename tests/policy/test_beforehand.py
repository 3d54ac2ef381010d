"""What can be said of a baton before there is a receiver."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from kvbaton.policy.base import Question
from kvbaton.policy.beforehand import LATER, Circumstances, explain_manifest
from kvbaton.policy.explanation import ALLOWED, LESSER, NOT_ASKED, REFUSED
from kvbaton.policy.gates import GATES, gate_name
from kvbaton.policy.rules import PolicyRules, StaleRule
from kvbaton.testing.questions import plain_question, questions, refused_by_one_gate
from kvbaton.types import Deny, Reason, ReasonCode

MANIFEST = plain_question().manifest
NAMES = [gate_name(gate) for gate in GATES]


def marks(**known: Any) -> dict[str, str]:
    """The gates' marks for the plain manifest."""
    found = explain_manifest("b" * 64, MANIFEST, Circumstances(**known))
    return {line.name: line.mark for line in found.gates}


def test_gates_that_need_a_receiver_say_so() -> None:
    """All gates are listed in their order; the open ones name what they need."""
    found = explain_manifest("b" * 64, MANIFEST, Circumstances())
    assert [line.name for line in found.gates] == NAMES
    assert {line.name: line.sentence for line in found.gates if line.mark == NOT_ASKED} == LATER
    assert {line.mark for line in found.gates if line.name not in LATER} == {ALLOWED}
    assert (found.route, found.chosen, found.decided_by) == ("baton", "exact", "")
    lines = found.lines()
    assert lines[0] == (
        f"baton {'b' * 64}: route baton (exact), as far as it can be told without a receiver"
    )
    assert not any(line.startswith("predictions") for line in lines)


def test_a_ticket_that_is_needed_leaves_the_audience_open() -> None:
    """Whoever takes it must bring one."""
    assert marks(needs_ticket=True)["audience"] == NOT_ASKED
    assert marks()["audience"] == ALLOWED


@pytest.mark.parametrize(
    ("known", "gate"),
    [
        ({"killed": "by hand"}, "kill-switch"),
        ({"distrust": Reason(ReasonCode.EXPIRED, "it expired")}, "trust"),
        ({"standing": "stale", "rules": PolicyRules(stale=StaleRule.REFUSE)}, "freshness"),
        ({"rules": PolicyRules(routes=frozenset())}, "allow-list"),
        ({"rules": PolicyRules(max_exact_hops=0)}, "exact-hops"),
        ({"rules": PolicyRules(max_rounds=0)}, "rounds"),
        (
            {"rules": PolicyRules(max_moves_per_minute=1), "moves_per_minute": 2.0},
            "change-rate",
        ),
        ({"rules": PolicyRules(min_tokens=513)}, "minimum-length"),
    ],
)
def test_what_is_known_is_asked(known: dict[str, Any], gate: str) -> None:
    """The one gate refuses and decides; text would answer."""
    found = explain_manifest("b" * 64, MANIFEST, Circumstances(**known))
    assert [line.name for line in found.gates if line.mark == REFUSED] == [gate]
    assert (found.route, found.chosen, found.decided_by) == ("text", "text", gate)


def test_a_stale_baton_is_noted() -> None:
    """It may be used, and the answer is labelled."""
    assert marks(standing="stale", stale_why="moved on")["freshness"] == LESSER


def test_segments_that_are_missing_decide_behind_the_gates() -> None:
    """Unless a gate has decided before."""
    found = explain_manifest("b" * 64, MANIFEST, Circumstances(missing=1))
    (line,) = found.afterwards
    assert (line.name, line.decided) == ("segment-missing", True)
    assert line.sentence == "1 of 2 segments are not in the store"
    assert (found.route, found.decided_by) == ("text", "segment-missing")
    both = explain_manifest("b" * 64, MANIFEST, Circumstances(missing=1, killed="by hand"))
    assert (both.decided_by, both.afterwards[0].decided) == ("kill-switch", False)


@given(question=questions())
def test_no_receiver_gets_a_better_answer_than_the_gates_it_shares(question: Question) -> None:
    """What is refused here is refused to any receiver of the same rules; nothing raises."""
    context = replace(
        question.context, max_lossy_hops=3, sliced=False, moves_per_minute=None, distrust=None
    )
    known = Circumstances(rules=context.rules, killed=context.killed, standing=context.standing)
    found = explain_manifest("b" * 64, question.manifest, known)
    marked = {line.name: line.mark for line in found.gates}
    for gate in GATES:
        if marked[gate_name(gate)] == REFUSED:
            assert isinstance(gate(question.manifest, context), Deny)


def test_every_gate_that_stays_open_is_a_gate() -> None:
    """The list of open ones names no gate that does not exist."""
    assert LATER.keys() <= set(NAMES)
    assert set(refused_by_one_gate()) - set(LATER) > {"has-kv", "hops", "rounds"}
