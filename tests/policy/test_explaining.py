"""Explanations of decisions, of receipts with and without theirs, and of odd ones."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbaton.errors import InputError
from kvbaton.policy.base import MeasuredPolicy
from kvbaton.policy.explaining import explain
from kvbaton.policy.explanation import ALLOWED, LESSER, NOT_ASKED, REFUSED, Explanation
from kvbaton.policy.gates import GATES, gate_name
from kvbaton.policy.rollout import RollOut, RollOutMode, decide_rolled_out
from kvbaton.policy.shadow import compare_answers
from kvbaton.testing.questions import plain_question, questions, refused_by_one_gate
from kvbaton.types import Mode, Outcome, Reason, ReasonCode, Receipt, Route

POLICY, PLAIN = MeasuredPolicy(), plain_question()
NAMES = [gate_name(gate) for gate in GATES]


def receipt(route: Route = Route.BATON, *reasons: Reason, **changes: Any) -> dict[str, Any]:
    """A receipt as it was stored, without a decision."""
    plain: dict[str, Any] = {"outcome": Outcome.USED, "baton": "b" * 64, "seconds": {"ttft": 0.1}}
    made = Receipt(
        id="r" * 32,
        agent="coder",
        model="smollm2-135m",
        mode=Mode.CONTINUE,
        route=route,
        reasons=reasons,
        **(plain | changes),
    )
    stored: dict[str, Any] = json.loads(json.dumps(made.to_json()))
    return stored


def marks(found: Explanation) -> dict[str, str]:
    """Name of each gate -> its mark."""
    return {line.name: line.mark for line in found.gates}


def decided(found: Explanation) -> list[str]:
    """Names of the lines that say that they decided."""
    return [line.name for line in (*found.gates, *found.afterwards) if line.decided]


# --- decisions ----------------------------------------------------------------------------------


def test_every_gate_has_its_mark() -> None:
    """Those that let it pass a tick, the one that refused a cross, and that one decided."""
    found = explain(POLICY.decide(refused_by_one_gate()["window"]))
    assert marks(found) == {n: REFUSED if n == "window" else ALLOWED for n in NAMES}
    assert decided(found) == ["window"] == [found.decided_by]
    assert (found.route, found.chosen, found.policy) == ("text", "text", "measured")


def test_of_several_that_refuse_the_first_decided() -> None:
    """The others have their cross, too."""
    twice = refused_by_one_gate()["window"]
    twice = replace(twice, manifest=replace(twice.manifest, segments=()))
    found = explain(POLICY.decide(twice))
    assert [n for n, mark in marks(found).items() if mark == REFUSED] == ["has-kv", "window"]
    assert decided(found) == ["has-kv"]


def test_lines_that_people_read() -> None:
    """The whole drawing of a partial route, line by line."""
    partial = replace(PLAIN, context=replace(PLAIN.context, reusable_tokens=500))
    lines = explain(POLICY.decide(partial)).lines()
    assert lines[0] == "route partial (exact)"
    assert lines[1] == "gates"
    assert "  ✓ kill-switch" in lines
    assert (
        "  ~ divergence      the receiver's prompt differs from the baton's tokens at position 500"
        "   <- decided"
    ) in lines
    assert lines[-6:] == (
        "predictions: seconds to the first token",
        "  ✗ text     10 (9 to 11)",
        "  ✓ exact    0.1 (0.09 to 0.11)",
        "  ✓ compact  0.1 (0.09 to 0.11)",
        "  ✗ slice    0.2 (0.18 to 0.22)",
        "decided by: divergence",
    )


def test_the_roll_out_decides_behind_the_gates() -> None:
    """It has a line of its own; in a shadow the compared route is named."""
    outside = decide_rolled_out(POLICY, PLAIN, RollOut(RollOutMode.CANARY, 0.0))
    found = explain(outside)
    assert set(marks(found).values()) == {ALLOWED}
    assert decided(found) == ["roll-out"]
    assert "not in the 0%" in found.afterwards[0].sentence
    shadow = explain(decide_rolled_out(POLICY, PLAIN, RollOut(RollOutMode.SHADOW)))
    assert shadow.lines()[:2] == (
        "route text",
        "shadow: text answers, exact is computed besides and compared",
    )


@given(question=questions())
def test_a_decision_is_explained_as_its_receipt_is(question: Any) -> None:
    """Kept in a receipt and read back, the gates and predictions say the same."""
    decision = POLICY.decide(question)
    direct = explain(decision)
    stored = receipt(decision.route, *decision.reasons) | {"decision": decision.to_json()}
    kept = explain(json.loads(json.dumps(stored)))
    assert (kept.gates, kept.decided_by) == (direct.gates, direct.decided_by)
    assert kept.afterwards == ()
    assert [one.route for one in kept.predictions] == [one.route for one in direct.predictions]


# --- receipts -----------------------------------------------------------------------------------


def test_what_came_true_stands_by_what_was_predicted() -> None:
    """Of the route that was taken; outside of its interval it says so."""
    kept = receipt(Route.BATON) | {"decision": POLICY.decide(PLAIN).to_json()}
    found = explain(kept)
    by_route = {one.route: one for one in found.predictions}
    assert (by_route["exact"].actual_s, by_route["exact"].came_true) == (0.1, True)
    assert (by_route["text"].actual_s, by_route["text"].came_true) == (None, None)
    late = explain(kept | {"seconds": {"ttft": 0.5}})
    assert "  ✓ exact    0.1 (0.09 to 0.11); came true 0.5 (outside)" in late.lines()


def test_a_take_that_failed_behind_the_gates_decided_itself() -> None:
    """The decision was the baton; a missing segment made it text."""
    gone = Reason(ReasonCode.SEGMENT_MISSING, "a segment is not in the store")
    kept = receipt(Route.TEXT, gone, outcome=Outcome.KV_UNUSABLE)
    found = explain(kept | {"decision": POLICY.decide(PLAIN).to_json()})
    assert (found.route, found.chosen) == ("text", "text")
    assert decided(found) == ["segment-missing"]
    assert found.afterwards[0].mark == REFUSED
    assert found.lines()[0] == f"receipt {'r' * 32}: route text, kv-unusable"


def test_a_note_that_changed_nothing_decides_nothing() -> None:
    """A reason behind a baton that was used all the same is a note."""
    noted = Reason(ReasonCode.PREFIX_HIT, "found in the store")
    found = explain(receipt(Route.BATON, noted) | {"decision": POLICY.decide(PLAIN).to_json()})
    assert decided(found) == []
    assert [(line.mark, line.name) for line in found.afterwards] == [(LESSER, "prefix-hit")]
    assert found.lines()[-1] == "decided by: nothing was against it"


@pytest.mark.parametrize("name", list(refused_by_one_gate()))
def test_without_a_decision_the_gate_is_found_by_its_reason(name: str) -> None:
    """Those before it have passed, and those behind it were not asked."""
    decision = POLICY.decide(refused_by_one_gate()[name])
    untrusted = name in {"trust", "audience"}
    outcome = Outcome.NOT_TRUSTED if untrusted else Outcome.KV_UNUSABLE
    found = explain(receipt(Route.TEXT, *decision.reasons, outcome=outcome))
    place = NAMES.index(name)
    expected = [ALLOWED] * place + [REFUSED] + [NOT_ASKED] * (len(NAMES) - place - 1)
    assert list(marks(found).values()) == expected
    assert decided(found) == [name] == [found.decided_by]
    assert found.lines()[-1].startswith("the receipt kept no decision")


def test_a_partial_route_without_a_decision() -> None:
    """The gate degraded it, all others passed."""
    shorter = Reason(ReasonCode.TOKENS_DIVERGE, "differs at position 5")
    found = explain(receipt(Route.PARTIAL, shorter))
    assert marks(found) == {n: LESSER if n == "divergence" else ALLOWED for n in NAMES}
    assert found.decided_by == "divergence"


def test_a_stale_label_without_a_decision_decided_nothing() -> None:
    """The baton was used; the answer is labelled."""
    found = explain(receipt(Route.BATON, Reason(ReasonCode.STALE, "based on stale context")))
    assert (found.decided_by, marks(found)["freshness"]) == ("", LESSER)


def test_a_run_without_a_baton_asked_no_gate() -> None:
    """Nothing was asked, and nothing was against it."""
    found = explain(receipt(Route.TEXT, outcome=Outcome.NO_BATON, baton=None))
    assert set(marks(found).values()) == {NOT_ASKED}
    assert found.decided_by == ""


def test_an_unavailable_baton_asked_no_gate() -> None:
    """What happened stands behind the gates."""
    gone = Reason(ReasonCode.MANIFEST_MISSING, "the baton's manifest is not in the store")
    found = explain(receipt(Route.TEXT, gone, outcome=Outcome.UNAVAILABLE, baton=None))
    assert set(marks(found).values()) == {NOT_ASKED}
    assert decided(found) == ["manifest-missing"]


def test_slices_are_not_asked_where_they_diverge() -> None:
    """Their ids are the receiver's own choice."""
    sliced = receipt(Route.PARTIAL) | {"mode": "slice"}
    assert "divergence" not in marks(explain(sliced))
    assert "divergence" in marks(explain(receipt()))


def test_a_receipt_in_process_is_explained_as_its_json() -> None:
    """Either may be given."""
    made = Receipt("r1", "coder", "m", Outcome.USED, Mode.CONTINUE, Route.BATON, baton="b" * 64)
    assert explain(made) == explain(made.to_json())


@pytest.mark.parametrize(
    ("shadow", "said"),
    [
        (None, ""),
        ({"route": "exact", "error": "no memory"}, "exact could not be compared: no memory"),
        (
            compare_answers([1, 2], [1, 2], route="exact").to_json(),
            "exact gave the same 2 tokens",
        ),
        (
            compare_answers(
                [1, 2, 3], [1, 4], route="compact", text_ttft_s=2.0, shadow_ttft_s=0.25
            ).to_json(),
            "compact agreed for the first 1 of 3 tokens; first token after 0.25 s, by text after 2"
            " s",
        ),
    ],
)
def test_the_answer_that_nobody_saw_is_compared(shadow: Any, said: str) -> None:
    """A sentence of the receipt's own comparison, without a token of it."""
    decision = decide_rolled_out(POLICY, PLAIN, RollOut(RollOutMode.SHADOW))
    kept = receipt(Route.TEXT, *decision.reasons) | {"decision": decision.to_json()}
    found = explain(kept | {"shadow": shadow})
    assert found.compared == said
    assert (f"shadow: {said}" in found.lines()) is bool(said)


# --- receipts from elsewhere --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "at"),
    [
        ({"id": 5}, "$.id"),
        ({"route": "magic"}, "$.route"),
        ({"route": None}, "$.route"),
        ({"outcome": []}, "$.outcome"),
        ({"reasons": {}}, "$.reasons"),
        ({"reasons": [3]}, "$.reasons[0]"),
        ({"reasons": [{"code": "x"}]}, "$.reasons[0].sentence"),
        ({"reasons": [{"code": "x", "sentence": "y"}] * 257}, "$.reasons"),
        ({"seconds": []}, "$.seconds"),
        ({"seconds": {"ttft": "soon"}}, "$.seconds.ttft"),
        ({"seconds": {"ttft": True}}, "$.seconds.ttft"),
        ({"seconds": {"ttft": 10**400}}, "$.seconds.ttft"),
        ({"seconds": {"ttft": float("nan")}}, "$.seconds.ttft"),
        ({"decision": 7}, "$.decision"),
        ({"shadow": "none"}, "$.shadow"),
        ({"shadow": {"route": "exact"}}, "$.shadow.same_tokens"),
        ({"decision": {}}, "$.decision.decided_by"),
    ],
)
def test_a_receipt_that_is_none_is_refused_with_its_place(changes: Any, at: str) -> None:
    """Typed, and with a path."""
    with pytest.raises(InputError) as caught:
        explain(receipt() | changes)
    assert caught.value.at == at


@pytest.mark.parametrize(
    ("changes", "at"),
    [
        ({"gates": [{"gate": "trust", "said": "perhaps"}]}, "$.decision.gates[0].said"),
        ({"gates": [{"said": "deny"}]}, "$.decision.gates[0].gate"),
        ({"gates": [{"gate": "g", "said": "deny", "reason": 1}]}, "$.decision.gates[0].reason"),
        ({"predictions": [{"route": "text"}]}, "$.decision.predictions[0].ttft_s"),
        ({"predictions": "none"}, "$.decision.predictions"),
        ({"route": "by air"}, "$.decision.route"),
    ],
)
def test_a_decision_that_is_none_is_refused_with_its_place(changes: Any, at: str) -> None:
    """Also inside of what a receipt kept."""
    kept = POLICY.decide(PLAIN).to_json() | changes
    with pytest.raises(InputError) as caught:
        explain(receipt() | {"decision": kept})
    assert caught.value.at == at


def test_nothing_of_a_receipt_steers_a_terminal() -> None:
    """Control characters, line ends and turned directions are shown as replaced."""
    evil = "a\x1b[2Jb\n\u202egnp.exe" + "x" * 5000
    reason = {"code": evil, "sentence": evil}
    shown = explain(receipt() | {"id": evil, "outcome": evil, "reasons": [reason]}).lines()
    assert all(line.isprintable() for line in shown)
    assert max(map(len, shown)) < 2500


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["code", "sentence", "gate", "said", "route", "ttft", "ttft_s"]), inner
        )
    ),
    max_leaves=10,
)


@given(
    changes=st.dictionaries(
        st.sampled_from(["id", "route", "outcome", "reasons", "seconds", "decision", "mode"]), _JSON
    )
)
def test_any_json_is_explained_or_refused(changes: dict[str, Any]) -> None:
    """Nothing else is raised."""
    try:
        explain(receipt() | changes)
    except InputError as error:
        assert error.at.startswith("$")
