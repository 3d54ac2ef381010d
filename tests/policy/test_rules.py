"""Gates of the owner's rules, the rules themselves, and routes by name."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbaton.errors import InputError
from kvbaton.policy import gates
from kvbaton.policy.base import Question, decide_by_gates, predicted_s
from kvbaton.policy.judgements import Judgement, route_rank, ruling
from kvbaton.policy.routes import EXACT, SLICE, TEXT, Prediction, fastest, route_name
from kvbaton.policy.rules import PolicyRules, StaleRule
from kvbaton.testing.questions import (
    COMPACT,
    fidelities,
    plain_question,
    questions,
    refused_by_one_gate,
    tightenings,
)
from kvbaton.types import (
    Allow,
    Degrade,
    Deny,
    Fidelity,
    FidelityClass,
    Hops,
    ReasonCode,
    Route,
)
from kvbaton.wire.limits import MAX_HOPS

PLAIN = plain_question()
BY_NAME = {gates.gate_name(gate): gate for gate in gates.GATES}

SAID = {
    "kill-switch": (ReasonCode.KILL_SWITCH, "hand-off is switched off: by a test"),
    "trust": (ReasonCode.SIGNATURE, "the signature is wrong"),
    "audience": (ReasonCode.TICKET_AUDIENCE, "not for this agent"),
    "has-kv": (ReasonCode.NO_KV, "the baton carries text only"),
    "compatibility": (
        ReasonCode.FUNCTION_DIFFERS,
        "the cache comes from another function: dtype, weights differ",
    ),
    "freshness": (ReasonCode.STALE, "based on stale context, planner/context@4"),
    "allow-list": (
        ReasonCode.ROUTE_NOT_ALLOWED,
        "the route 'exact' is not allowed here; allowed: compact",
    ),
    "fidelity": (ReasonCode.FIDELITY, "the cache is lossy, the receiver asks for exact"),
    "critical-path": (
        ReasonCode.CRITICAL_PATH,
        "the task is on the critical path (payment), which accepts exact caches only",
    ),
    "calibration": (
        ReasonCode.CALIBRATION,
        "no calibration record is known here for codec 'compact' on this model; make one with: "
        "kvbaton tune-codec smollm2-135m",
    ),
    "hops": (
        ReasonCode.HOPS,
        "4 lossy or approximate hand-offs since the last exact prefill, and at most 3 are "
        "accepted; the text of planner/context@4 is read",
    ),
    "exact-hops": (
        ReasonCode.EXACT_HOPS,
        "1 exact hand-offs since the last prefill from text, and at most 0 are accepted; the text "
        "of planner/context@4 is read",
    ),
    "rounds": (ReasonCode.ROUNDS, "round 1 of the chain, and at most 0 are accepted"),
    "change-rate": (
        ReasonCode.CHANGE_RATE,
        "the ref 'planner/context' moves 0.5 times a minute, and at most 0.4 are accepted; the "
        "text of planner/context@4 is read",
    ),
    "divergence": (
        ReasonCode.TOKENS_DIVERGE,
        "the receiver's prompt differs from the first token on",
    ),
    "minimum-length": (
        ReasonCode.TOO_SHORT,
        "512 tokens could be reused, and at least 513 are asked for",
    ),
    "window": (
        ReasonCode.WINDOW_EXCEEDED,
        "600 tokens do not fit the model's window of 599",
    ),
    "memory": (ReasonCode.MEMORY, "the cache needs 21248 bytes and 0 are free"),
}


def ruled(question: Question = PLAIN, /, **rules: Any) -> Question:
    """A question under these rules."""
    return replace(question, context=replace(question.context, rules=PolicyRules(**rules)))


def receiver(**changes: Any) -> Question:
    """The plain question of another receiver."""
    return replace(PLAIN, context=replace(PLAIN.context, **changes))


def route_of(question: Question) -> Route:
    """What all gates leave."""
    return decide_by_gates(question, question.gates).route


# --- one gate at a time -------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAID)
def test_one_gate_denies_and_no_other(name: str) -> None:
    """Each gate has a question that it alone denies, with its code and a sentence of numbers."""
    question = refused_by_one_gate()[name]
    decision = decide_by_gates(question, question.gates)
    assert (decision.route, decision.chosen, decision.decided_by) == (Route.TEXT, TEXT, name)
    (reason,) = decision.reasons
    assert (reason.code, reason.sentence) == SAID[name]
    assert [one.name for one in decision.judgements if one.said == "deny"] == [name]


def test_every_gate_is_tried() -> None:
    """No gate is left out above but the one that compares predictions, which has its own test."""
    assert [*SAID, "worth-it"] == list(BY_NAME) == [*refused_by_one_gate(), "worth-it"]


def test_nothing_is_against_the_plain_question() -> None:
    """All gates allow, and nothing decided."""
    decision = decide_by_gates(PLAIN, PLAIN.gates)
    assert (decision.route, decision.chosen) == (Route.BATON, EXACT)
    assert (decision.reasons, decision.decided_by) == ((), "")
    assert {one.said for one in decision.judgements} == {"allow"}
    assert predicted_s(decision) == 0.1


@given(question=questions())
def test_gates_are_pure_and_total(question: Question) -> None:
    """Each gate gives the same verdict twice for any manifest, and leaves what it was given."""
    before = repr(question)
    for gate in gates.GATES:
        verdict = gate(question.manifest, question.context)
        assert isinstance(verdict, Allow | Degrade | Deny)
        assert gate(question.manifest, question.context) == verdict
    assert repr(question) == before


@given(question=questions(), data=st.data())
def test_no_gate_lets_more_pass_under_tighter_rules(
    question: Question, data: st.DataObject
) -> None:
    """Gate by gate: what was denied stays denied, and nothing goes by a better route."""
    tight = data.draw(tightenings(question.rules))
    context = replace(question.context, rules=tight)
    for gate in gates.GATES:
        loose = ruling([Judgement("x", gate(question.manifest, question.context))])
        strict = ruling([Judgement("x", gate(question.manifest, context))])
        assert route_rank(strict.route) >= route_rank(loose.route)


def test_a_stale_baton_is_labelled_unless_it_is_refused() -> None:
    """By default the whole baton is used and the answer labelled; ``fetch`` and ``refuse`` deny."""
    stale = receiver(standing="stale", stale_why="planner/context is at 5")
    decision = decide_by_gates(stale, stale.gates)
    assert (decision.route, decision.decided_by) == (Route.BATON, "")
    (reason,) = decision.reasons
    assert reason.code is ReasonCode.STALE
    assert reason.sentence.endswith("planner/context@4: planner/context is at 5")
    for rule in (StaleRule.FETCH, StaleRule.REFUSE):
        assert route_of(ruled(stale, stale=rule)) is Route.TEXT


@pytest.mark.parametrize(("standing", "route"), [("current", Route.BATON), ("unknown", Route.TEXT)])
def test_known_freshness_refuses_what_nobody_knows(standing: str, route: Route) -> None:
    """Where it must be known, unknown is refused, with a code of its own."""
    asked = ruled(receiver(standing=standing), stale=StaleRule.REFUSE, known_freshness=True)
    decision = decide_by_gates(asked, asked.gates)
    assert decision.route is route
    codes = [reason.code for reason in decision.reasons]
    assert codes == ([] if route is Route.BATON else [ReasonCode.FRESHNESS_UNKNOWN])


def test_what_is_not_known_breaks_no_rule_of_rates() -> None:
    """Where nobody knows how often a ref moves, the limit does not apply."""
    limits = {"max_moves_per_minute": 0.0}
    assert route_of(ruled(receiver(moves_per_minute=None), **limits)) is Route.BATON
    assert route_of(ruled(receiver(moves_per_minute=0.0), **limits)) is Route.BATON
    assert route_of(ruled(receiver(moves_per_minute=0.1), **limits)) is Route.TEXT


@pytest.mark.parametrize(
    ("caller", "owner", "accepted"), [(3, None, 3), (3, 1, 1), (1, 3, 1), (None, 2, 2)]
)
def test_the_stricter_limit_of_hops_holds(
    caller: int | None, owner: int | None, accepted: int
) -> None:
    """Of the caller's and the owner's limit."""
    for lossy, route in ((accepted, Route.BATON), (accepted + 1, Route.TEXT)):
        asked = ruled(receiver(max_lossy_hops=caller), max_lossy_hops=owner)
        found = replace(asked, manifest=replace(asked.manifest, hops=Hops(0, lossy)))
        assert route_of(found) is route


@pytest.mark.parametrize("hops", [Hops(0, MAX_HOPS), Hops(MAX_HOPS, 0)])
def test_hops_that_cannot_be_counted_are_too_many(hops: Hops) -> None:
    """Where a parent is missing, the sentence says so instead of a number."""
    asked = ruled(max_exact_hops=5)
    found = replace(asked, manifest=replace(asked.manifest, hops=hops))
    (reason,) = decide_by_gates(found, found.gates).reasons
    assert "cannot be counted: a parent is missing" in reason.sentence


@pytest.mark.parametrize("name", ["hops", "exact-hops"])
def test_without_a_ref_too_many_hops_name_no_number(name: str) -> None:
    """There is none to refer to."""
    asked = refused_by_one_gate()[name]
    plain = replace(asked, manifest=replace(asked.manifest, ref="", sequence=-1))
    (reason,) = decide_by_gates(plain, plain.gates).reasons
    assert reason.sentence.endswith("are accepted")


def test_a_shorter_match_is_partial() -> None:
    """Tokens that differ behind the beginning leave a partial route, and the gate decided."""
    asked = receiver(reusable_tokens=500)
    decision = decide_by_gates(asked, asked.gates)
    assert (decision.route, decision.decided_by) == (Route.PARTIAL, "divergence")
    assert "at position 500" in decision.reasons[0].sentence
    sliced = receiver(reusable_tokens=0, sliced=True, minimum=FidelityClass.APPROXIMATE)
    assert route_of(sliced) is Route.BATON


# --- what is faster -----------------------------------------------------------------------------


def predicted(text_s: float, exact_s: float) -> Question:
    """A question with these predictions."""
    both = (Prediction(TEXT, text_s, 0, 20), Prediction(EXACT, exact_s, 0, 20))
    return receiver(predictions=both)


@pytest.mark.parametrize(
    ("text_s", "exact_s", "route"),
    [
        (1.0, 0.9, Route.BATON),
        (1.0, 0.96, Route.TEXT),
        (1.0, 1.0, Route.TEXT),
        (0.5, 1, Route.TEXT),
    ],
)
def test_text_is_taken_where_it_is_as_fast(text_s: float, exact_s: float, route: Route) -> None:
    """Within 5% text is as fast, and ties go to text."""
    asked = predicted(text_s, exact_s)
    decision = decide_by_gates(asked, asked.gates)
    assert decision.route is route
    if route is Route.TEXT:
        assert decision.decided_by == "worth-it"
        assert decision.reasons[0].code is ReasonCode.TEXT_FASTER
        assert f"{text_s:g} s to the first token by text" in decision.reasons[0].sentence
        assert predicted_s(decision) == text_s


def test_the_rules_say_what_ties() -> None:
    """Without ``worth_it`` nobody asks; with a tie of 0 any gain is one."""
    assert route_of(ruled(predicted(0.5, 1), worth_it=False)) is Route.BATON
    assert route_of(ruled(predicted(1.0, 0.96), tie=0.0)) is Route.BATON
    assert route_of(ruled(predicted(1.0, 0.96), tie=0.05)) is Route.TEXT


@pytest.mark.parametrize("odd", [math.nan, -1.0])
def test_what_is_no_number_of_seconds_predicts_nothing(odd: float) -> None:
    """The cache is used where text has no number, and text where the cache has none."""
    assert route_of(predicted(odd, 1.0)) is Route.BATON
    assert route_of(predicted(1.0, odd)) is Route.TEXT
    assert route_of(predicted(odd, odd)) is Route.BATON


def test_without_a_prediction_of_both_nothing_is_compared() -> None:
    """A route that nobody has measured is not refused for it."""
    assert route_of(receiver(predictions=())) is Route.BATON
    assert route_of(receiver(predictions=(Prediction(TEXT, 0.0, 0, 0),))) is Route.BATON


def test_of_what_ties_the_most_faithful_is_the_fastest() -> None:
    """Text before exact, exact before profiles, these in their order, slices last."""
    named = (SLICE, "tiny", "compact", EXACT, TEXT)
    all_alike = [Prediction(name, 1.0, 1, 1) for name in named]
    order = []
    while (best := fastest(all_alike, named)) is not None:
        order.append(best.route)
        all_alike.remove(best)
    assert order == [TEXT, EXACT, "tiny", "compact", SLICE]
    quick = [Prediction(TEXT, 1.06, 1, 2), Prediction(SLICE, 1.0, 1, 2)]
    found = fastest(quick, (TEXT, SLICE))
    assert found is quick[1]
    assert fastest(quick, (EXACT,)) is None


# --- routes by name -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fidelity", "name"),
    [
        (Fidelity(), EXACT),
        (COMPACT, "compact"),
        (Fidelity(FidelityClass.APPROXIMATE), SLICE),
        (Fidelity(FidelityClass.LOSSY, "exact"), SLICE),
        (Fidelity(FidelityClass.LOSSY, "text"), SLICE),
        (Fidelity(FidelityClass.EXACT, "compact"), "compact"),
    ],
)
def test_a_route_is_named_by_what_the_cache_promises(fidelity: Fidelity, name: str) -> None:
    """A codec that is called like a better route does not become one."""
    manifest = replace(PLAIN.manifest, fidelity=fidelity)
    assert route_name(manifest) == name
    assert route_name(manifest, sliced=True) == SLICE
    moved = tuple(replace(ref, shift=3) for ref in manifest.segments)
    assert route_name(replace(manifest, segments=moved)) == SLICE


@given(fidelity=fidelities())
def test_no_cache_passes_for_text(fidelity: Fidelity) -> None:
    """Whatever a sender claims, its cache is not named text, and exact only if it is raw."""
    name = route_name(replace(PLAIN.manifest, fidelity=fidelity))
    assert name != TEXT
    assert name != EXACT or fidelity.codec == "raw"


# --- the rules themselves -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "at", "said"),
    [
        ({"max_lossy_hops": -1}, "$.max_lossy_hops", "must be 0 to"),
        ({"max_exact_hops": MAX_HOPS + 1}, "$.max_exact_hops", "must be 0 to"),
        ({"max_exact_hops": True}, "$.max_exact_hops", "must be an integer"),
        ({"min_tokens": 1.5}, "$.min_tokens", "must be an integer"),
        ({"min_tokens": 1 << 31}, "$.min_tokens", "must be 0 to 2147483647"),
        ({"max_rounds": -3}, "$.max_rounds", "must be 0 to"),
        ({"max_moves_per_minute": math.inf}, "$.max_moves_per_minute", "finite"),
        ({"max_moves_per_minute": "1"}, "$.max_moves_per_minute", "must be a number"),
        ({"tie": math.nan}, "$.tie", "from 0 to 1, not nan"),
        ({"tie": 1.5}, "$.tie", "from 0 to 1, not 1.5"),
        ({"critical_tags": frozenset({"a b"})}, "$.critical_tags", "'a b' is no name"),
        ({"routes": frozenset({""})}, "$.routes", "'' is no name"),
        ({"routes": frozenset(str(n) for n in range(257))}, "$.routes", "more than 256"),
        ({"known_freshness": True}, "$.known_freshness", "only labelled"),
        (
            {"minimum_fidelity": FidelityClass.EXACT, "routes": frozenset({"compact", "text"})},
            "$.routes",
            "none of the allowed routes is exact",
        ),
    ],
)
def test_rules_that_cannot_be_meant_are_refused(rules: dict[str, Any], at: str, said: str) -> None:
    """Each error names its rule, and what it must be."""
    with pytest.raises(InputError, match=said) as caught:
        PolicyRules(**rules)
    assert caught.value.at == at


def test_text_can_always_be_taken() -> None:
    """An allow list may be empty, or name text only."""
    for routes in (frozenset(), frozenset({TEXT})):
        rules = PolicyRules(routes=routes, minimum_fidelity=FidelityClass.EXACT)
        assert rules.allows(TEXT)
        assert not rules.allows(EXACT)
