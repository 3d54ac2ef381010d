"""Shadows: two answers held against each other, and many of them summed up."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbaton.errors import InputError
from kvbaton.policy.shadow import compare_answers, sum_up

IDS = st.lists(st.integers(0, 3), max_size=8)


@pytest.mark.parametrize(
    ("text", "shadow", "same", "first"),
    [
        ([1, 2, 3], [1, 2, 3], 3, None),
        ([1, 2, 3], [1, 5, 3], 1, 1),
        ([1, 2, 3], [1, 2], 2, 2),
        ([1, 2], [1, 2, 3], 2, 2),
        ([], [], 0, None),
        ([], [4], 0, 0),
        ([4], [], 0, 0),
    ],
)
def test_the_first_token_that_differs(
    text: list[int], shadow: list[int], same: int, first: int | None
) -> None:
    """An answer that stops earlier differs where it stops."""
    found = compare_answers(text, shadow, route="exact")
    assert (found.same_tokens, found.first_divergence) == (same, first)
    assert found.identical is (first is None)
    assert (found.text_tokens, found.shadow_tokens) == (len(text), len(shadow))


@given(text=IDS, shadow=IDS)
def test_both_answers_agree_up_to_the_divergence(text: list[int], shadow: list[int]) -> None:
    """The law of it, for any two answers; it is symmetric but for the lengths."""
    found = compare_answers(text, shadow, route="exact")
    same = found.same_tokens
    assert text[:same] == shadow[:same]
    assert found.identical is (text == shadow)
    assert text[same : same + 1] != shadow[same : same + 1] or text == shadow
    assert compare_answers(shadow, text, route="exact").same_tokens == same


def test_a_report_holds_no_tokens() -> None:
    """Receipts keep it, and receipts have no text."""
    found = compare_answers([77, 88], [77, 99], route="compact", kl=0.25, text_ttft_s=2.0)
    assert json.loads(json.dumps(found.to_json(), allow_nan=False)) == {
        "route": "compact",
        "text_tokens": 2,
        "shadow_tokens": 2,
        "same_tokens": 1,
        "first_divergence": 1,
        "kl": 0.25,
        "text_ttft_s": 2.0,
        "shadow_ttft_s": None,
    }


@pytest.mark.parametrize("name", ["kl", "text_ttft_s", "shadow_ttft_s"])
@pytest.mark.parametrize("odd", [-0.1, math.nan, math.inf])
def test_a_measure_that_is_none_is_refused(name: str, odd: float) -> None:
    """The error names it."""
    with pytest.raises(InputError) as caught:
        compare_answers([1], [1], route="exact", **{name: odd})
    assert caught.value.at == f"$.{name}"


def test_shadows_are_summed_up_by_route() -> None:
    """Counts, shares of tokens, means of what was measured, and times over those that have both."""
    reports = [
        compare_answers([1, 2], [1, 2], route="exact", text_ttft_s=4.0, shadow_ttft_s=1.0),
        compare_answers([1, 2], [1, 3], route="compact", kl=0.1, text_ttft_s=4.0),
        compare_answers(
            [1, 2], [1, 2], route="compact", kl=0.3, text_ttft_s=2.0, shadow_ttft_s=1.0
        ),
        compare_answers([1, 2, 3, 4], [2], route="compact"),
    ]
    compact, exact = sum_up(reports)
    assert (exact.route, exact.count, exact.identical) == ("exact", 1, 1)
    assert (exact.same_share, exact.ttft_ratio, exact.kl) == (1.0, 0.25, None)
    assert (compact.route, compact.count, compact.identical) == ("compact", 3, 1)
    assert compact.same_share == 3 / 8
    assert compact.kl == pytest.approx(0.2)
    assert (compact.worst_kl, compact.ttft_ratio) == (0.3, 0.5)
    assert sum_up([]) == ()


def test_empty_answers_have_all_in_common() -> None:
    """Nothing was said by either route, so nothing differs."""
    (found,) = sum_up([compare_answers([], [], route="exact")])
    assert (found.same_share, found.ttft_ratio) == (1.0, None)
