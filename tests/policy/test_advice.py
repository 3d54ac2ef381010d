"""Whether hand-off suits: what receipts say of each hop, and what follows from it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbaton.policy.advice import Advice, PipelineShape, Suits, advise
from kvbaton.policy.evidence import ARMS, COMPARED, FORETOLD, hop_evidence, seen_in
from kvbaton.policy.explanation import ALLOWED, LESSER, NOT_ASKED, REFUSED
from kvbaton.policy.shadow import compare_answers


def receipt(**changes: Any) -> dict[str, Any]:
    """A take by cache: 2,000 of 2,100 tokens reused, first token after 0.2 s."""
    plain = {
        "id": "r1",
        "agent": "coder",
        "model": "smollm2-135m",
        "baton": "b" * 64,
        "outcome": "used",
        "route": "baton",
        "reasons": [],
        "context_tokens": 2100,
        "reused_tokens": 2000,
        "seconds": {"ttft": 0.2},
        "sender_seconds": {"export": 0.1, "put": 0.2, "total": 9.0},
        "hops": {"exact": 1, "lossy": 0},
        "freshness": {"standing": "current"},
        "labels": {"conversation": "c1"},
    }
    return plain | changes


def by_text(*, code: str = "asked-for-text", ttft_s: float = 1.0, **changes: Any) -> dict[str, Any]:
    """The same take by text, for a reason."""
    reasons = [{"code": code, "sentence": "why"}]
    plain: dict[str, Any] = {"route": "text", "reasons": reasons, "reused_tokens": 0}
    plain["seconds"] = {"ttft": ttft_s}
    return receipt(**(plain | changes))


def judged(*receipts: dict[str, Any], shape: PipelineShape | None = None) -> Advice:
    """The advice by these receipts."""
    return advise([one for one in map(seen_in, receipts) if one is not None], shape)


def mark(found: Advice, name: str) -> str:
    """The mark of a criterion."""
    return next(one.mark for one in found.criteria if one.name == name)


def sentence(found: Advice, name: str) -> str:
    """The sentence of a criterion."""
    return next(one.sentence for one in found.criteria if one.name == name)


# --- what receipts say --------------------------------------------------------------------------


def test_a_take_by_cache_is_seen() -> None:
    """Its tokens, its seconds, and those of its sender without their total."""
    seen = seen_in(receipt(), text_s=1.5)
    assert seen is not None
    assert (seen.by_cache, seen.by_choice, seen.tokens, seen.reused) == (True, False, 2100, 2000)
    assert (seen.cache_s, seen.text_s) == (0.2, 1.5)
    assert seen.sender_s == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("code", "chosen"),
    [
        ("asked-for-text", True),
        ("not-rolled-out", True),
        ("text-faster", True),
        ("kill-switch", True),
        ("segment-missing", False),
        ("function-differs", False),
    ],
)
def test_text_by_choice_is_no_fallback(code: str, chosen: bool) -> None:
    """Seconds of a text that was chosen are text's; a fallback's hold a vain attempt, too."""
    seen = seen_in(by_text(code=code))
    assert seen is not None
    assert (seen.by_choice, seen.text_s) == (chosen, 1.0 if chosen else None)
    assert seen.cache_s is None


def test_a_shadow_has_both_times() -> None:
    """Of one and the same answer."""
    shadow = {"route": "exact", "text_ttft_s": 1.0, "shadow_ttft_s": 0.25}
    seen = seen_in(by_text(code="shadow", shadow=shadow))
    assert seen is not None
    assert (seen.cache_s, seen.text_s) == (0.25, 1.0)


@pytest.mark.parametrize("changes", [{"outcome": "no-baton"}, {"outcome": None}, {"outcome": []}])
def test_what_took_no_baton_is_not_seen(changes: dict[str, Any]) -> None:
    """First agents, and what is no receipt."""
    assert seen_in(receipt(**changes)) is None


@given(
    changes=st.dictionaries(
        st.sampled_from(list(receipt())),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
            max_leaves=6,
        ),
    )
)
def test_odd_receipts_raise_nothing(changes: dict[str, Any]) -> None:
    """Whatever a log holds, an advice comes of it, and can be written as JSON."""
    found = judged(receipt(), receipt() | changes, by_text() | changes)
    json.dumps(found.to_json(), allow_nan=False)


# --- hops ---------------------------------------------------------------------------------------


def test_the_same_answer_by_text_counts_most() -> None:
    """Then other answers by text, then what was predicted; ratios are those of medians."""
    predicted = {"predictions": [{"route": "text", "ttft_s": 0.8}]}
    takes = [receipt(decision=predicted), receipt(seconds={"ttft": 0.4}, decision=predicted)]
    only = [seen_in(one) for one in takes]
    arms = [*only, seen_in(by_text(ttft_s=3.0))]
    pair = [*arms, seen_in(receipt(seconds={"ttft": 0.1}), text_s=1.0)]
    found = [hop_evidence("coder", [one for one in seen if one]) for seen in (only, arms, pair)]
    assert [one.basis for one in found] == [FORETOLD, ARMS, COMPARED]
    assert [one.ratio for one in found] == pytest.approx([0.3 / 0.8, 0.3 / 3.0, 0.1])


def test_one_slow_answer_does_not_decide() -> None:
    """Medians of several runs."""
    times = (0.1, 0.1, 9.0)
    takes = [seen_in(receipt(seconds={"ttft": s}), text_s=1.0) for s in times]
    assert hop_evidence("coder", [one for one in takes if one]).ratio == pytest.approx(0.1)


def test_reuse_counts_takes_that_used_a_cache() -> None:
    """Tokens from caches over tokens of context."""
    takes = [seen_in(receipt()), seen_in(receipt(reused_tokens=1150)), seen_in(by_text())]
    found = hop_evidence("coder", [one for one in takes if one])
    assert found.reused_share == pytest.approx(3150 / 4200)
    assert (found.takes, found.by_cache, found.by_choice, found.refused) == (3, 2, 1, 0)


# --- verdicts -----------------------------------------------------------------------------------


def test_faster_hops_suit() -> None:
    """All of them: everything speaks for it, with numbers."""
    found = judged(*(receipt() for _ in range(4)), by_text())
    assert (found.verdict, found.why) == (Suits.SUITS, "the cache is faster on the one hop")
    (hop,) = found.hops
    assert hop.why == "first token after 0.2 s by cache and 1 s by text (of other answers)"
    names = ("context", "exchanges", "reuse", "speed", "use", "one model", "one domain")
    assert {mark(found, name) for name in (*names, "short chain", "freshness")} == {ALLOWED}
    assert sentence(found, "speed") == "times as fast as text to the first token: coder 5.0 (arms)"
    assert mark(found, "balance") == NOT_ASKED


@pytest.mark.parametrize(
    ("ttft_s", "verdict"), [(0.94, Suits.SUITS), (0.96, Suits.NOT), (1.5, Suits.NOT)]
)
def test_text_that_is_as_fast_does_not_suit(ttft_s: float, verdict: Suits) -> None:
    """Within 5% both are as fast, and text is the simpler one."""
    assert judged(receipt(seconds={"ttft": ttft_s}), by_text()).verdict is verdict


def test_a_verdict_by_predictions_alone_says_so() -> None:
    """Nobody has read the text."""
    found = judged(receipt(decision={"predictions": [{"route": "text", "ttft_s": 1.0}]}))
    assert found.verdict is Suits.SUITS
    assert found.why == "the cache is faster on the one hop, as far as text is predicted"


def test_some_hops_suit() -> None:
    """Both kinds are named, and hops of which nothing is known are counted."""
    slow: dict[str, Any] = {"context_tokens": 200, "reused_tokens": 100}
    found = judged(
        receipt(),
        by_text(),
        receipt(agent="critic", seconds={"ttft": 1.2}, **slow),
        by_text(agent="critic", **slow),
        receipt(agent="writer"),
    )
    assert found.verdict is Suits.PARTLY
    assert found.why == "for coder; not for critic; of 1 more nothing is known"
    assert mark(found, "context") == LESSER
    assert "faster from 2,100 tokens on; it was not at 200" in sentence(found, "context")


@pytest.mark.parametrize(
    ("code", "criterion"),
    [
        ("function-differs", "one model"),
        ("domain-differs", "one domain"),
        ("lossy-hops", "short chain"),
        ("stale", "freshness"),
        ("segment-missing", "use"),
    ],
)
def test_a_cache_that_is_mostly_refused_does_not_suit(code: str, criterion: str) -> None:
    """However fast it would have been: the reason speaks against it."""
    found = judged(
        receipt(),
        by_text(),
        by_text(code=code),
        by_text(code=code),
        by_text(code=code),
        by_text(code=code),
    )
    assert found.verdict is Suits.NOT
    assert found.hops[0].why == f"the cache was not used in 4 of 6 takes: {code}"
    assert mark(found, criterion) == REFUSED
    assert f"4 fell back ({code} 4)" in sentence(found, "use")


def test_without_receipts_nobody_can_tell() -> None:
    """The shape alone is no verdict, but says what it can."""
    shape = PipelineShape("deep", ("a", "b"), longest=5, slices=("b",))
    found = judged(shape=shape)
    assert (found.pipeline, found.verdict) == ("deep", Suits.UNKNOWN)
    assert [hop.why for hop in found.hops] == ["no receipt of it"] * 2
    assert (mark(found, "short chain"), mark(found, "exchanges")) == (LESSER, LESSER)
    assert sentence(found, "short chain").endswith("slices, which are approximate, go to b")
    assert mark(found, "speed") == NOT_ASKED
    assert judged().verdict is Suits.UNKNOWN


def test_a_pipeline_is_judged_by_its_own_receivers() -> None:
    """Receipts of others are left alone."""
    shape = PipelineShape("mine", ("coder",), longest=1)
    found = judged(
        receipt(), by_text(), receipt(agent="stranger", seconds={"ttft": 9}), shape=shape
    )
    assert [hop.evidence.agent for hop in found.hops] == ["coder"]
    assert found.verdict is Suits.SUITS


def test_the_balance_counts_a_hand_off_once() -> None:
    """Three takes of one baton: seconds saved by each, and one hand-off."""
    takes = [seen_in(receipt(), text_s=1.0) for _ in range(3)]
    found = advise([one for one in takes if one])
    assert [found.saved_s, found.cost_s] == pytest.approx([2.4, 0.3])
    assert mark(found, "balance") == ALLOWED
    dear = [seen_in(receipt(sender_seconds={"put": 7.0}), text_s=1.0)]
    assert mark(advise([one for one in dear if one]), "balance") == REFUSED


def test_exchanges_are_counted_in_conversations() -> None:
    """The median of takes; more than three speak for it."""
    few = [receipt(labels={"conversation": f"c{n}"}) for n in range(5)]
    assert sentence(judged(*few), "exchanges") == "1 takes in a conversation"
    assert mark(judged(*few), "exchanges") == LESSER
    assert mark(judged(*[receipt()] * 4), "exchanges") == ALLOWED


def test_answers_are_compared_route_by_route() -> None:
    """All the same speaks for it; a difference is a note, and odd comparisons count for nothing."""
    same = compare_answers([1, 2], [1, 2], route="exact").to_json()
    other = compare_answers([1, 2, 3, 4], [1, 9], route="compact").to_json()
    alike = judged(*(by_text(code="shadow", shadow=same) for _ in range(2)))
    assert mark(alike, "answers") == ALLOWED
    assert sentence(alike, "answers") == (
        "the same as by text: exact 2 of 2, and 100% of the tokens up to the first difference"
    )
    mixed = judged(by_text(code="shadow", shadow=same), by_text(code="shadow", shadow=other))
    assert mark(mixed, "answers") == LESSER
    assert "compact 0 of 1, and 25% of the tokens" in sentence(mixed, "answers")
    for odd in ({"route": "exact", "error": "gone"}, same | {"same_tokens": 9}, {"route": 1}):
        assert mark(judged(by_text(code="shadow", shadow=odd)), "answers") == NOT_ASKED


def test_rules_of_thumb_decide_nothing() -> None:
    """A short context that was measured to be faster suits all the same; the rule stands beside."""
    short: dict[str, Any] = {"context_tokens": 300, "reused_tokens": 250}
    found = judged(receipt(**short), by_text(**short))
    assert found.verdict is Suits.SUITS
    (context,) = [one for one in found.criteria if one.name == "context"]
    assert (context.mark, context.rule) == (
        ALLOWED,
        "below 512 tokens a net loss, from 1,000 on worth it",
    )
