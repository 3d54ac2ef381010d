"""The length of answers: a small regression that converges, and does not follow odd turns."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.policy.speed_examples import KNOWN, STORE

from kvbaton.errors import FormatError
from kvbaton.policy.costs import predictions_ahead
from kvbaton.policy.output_length import FEW, Length, LengthModel, OutputLengths, foresee


def receipt(tokens: int, answer: int, **more: Any) -> dict[str, Any]:
    """The part of a receipt that says how long an answer was."""
    plain = {"agent": "coder", "mode": "continue", "finish": "stop"}
    return plain | {"context_tokens": tokens, "generated_tokens": answer} | more


def after(turns: list[tuple[int, int]]) -> OutputLengths:
    """What is known after some turns."""
    known = OutputLengths()
    for tokens, answer in turns:
        known = known.seen(receipt(tokens, answer))
    return known


def predicted(known: OutputLengths, tokens: int, **more: Any) -> Length:
    """The predicted length, which there is."""
    found = known.predict(tokens, **{"agent": "coder", "at_most": 10**9} | more)
    assert found is not None
    return found


def test_answers_that_are_half_as_long_as_their_input_are_learnt() -> None:
    """After fifty turns between 100 and 1,600 tokens, 400 are answered by about 200."""
    lengths = [100, 200, 400, 800, 1600] * 10
    found = predicted(after([(n, n // 2) for n in lengths]), 400)
    assert found.tokens == pytest.approx(200, rel=0.05)
    assert found.low <= 200 <= found.high


def test_answers_of_one_length_do_not_depend_on_the_input() -> None:
    """Neither within what was seen nor a hundred times beyond."""
    known = after([(n, 64) for n in (100, 300, 1000) * 10])
    assert predicted(known, 500).tokens == 64
    assert predicted(known, 50_000).tokens == pytest.approx(64, abs=1)


def test_little_is_said_of_few_turns() -> None:
    """Nothing before the third; the slope is drawn towards zero, and the interval is wide."""
    assert after([(100, 50)] * (FEW - 1)).predict(100, agent="coder", at_most=999) is None
    few, many = (after([(n, n) for n in [100, 1000] * k]) for k in (2, 40))
    wide, narrow = predicted(few, 300), predicted(many, 300)
    assert wide.high / wide.low > narrow.high / narrow.low


@given(st.integers(1, 10**8), st.integers(10, 30))
def test_one_odd_answer_moves_little(odd: int, ordinary: int) -> None:
    """Whatever its length, it counts as if it lay at the edge of what is expected."""
    turns = [(n, 100) for n in (200, 400, 800, 1600) for _ in range(ordinary // 4 + 3)]
    found = predicted(after([*turns, (400, odd)]), 400).tokens
    assert 85 <= found <= 118


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)), min_size=4, max_size=60))
def test_predictions_are_bounded_and_ordered(turns: list[tuple[int, int]]) -> None:
    """Between one token and the limit, with the interval around them."""
    known = after(turns)
    for tokens in (1, 1000, 10**9):
        found = predicted(known, tokens, at_most=4096)
        assert 1 <= found.low <= found.tokens <= found.high <= 4096


def test_eight_of_ten_answers_lie_in_their_intervals() -> None:
    """Of 400 answers with noise of a third, between seven and nine of ten."""
    noise, known, inside = random.Random(3), OutputLengths(), 0
    for turn in range(440):
        tokens = noise.randrange(100, 3000)
        answer = max(1, round(0.3 * tokens * math.exp(noise.gauss(0, 0.3))))
        if turn >= 40:
            found = predicted(known, tokens)
            inside += found.low <= answer <= found.high
        known = known.seen(receipt(tokens, answer))
    assert 280 <= inside <= 360


def test_agents_and_modes_are_told_apart() -> None:
    """One that nobody has seen yet is judged by all."""
    known = OutputLengths()
    for _ in range(20):
        known = known.seen(receipt(100, 10, agent="brief"))
        known = known.seen(receipt(100, 1000, agent="long"))
    assert predicted(known, 100, agent="brief").tokens == 10
    assert predicted(known, 100, agent="long").tokens == 1000
    assert 10 < predicted(known, 100, agent="new").tokens < 1000
    assert predicted(known, 100, agent="brief", mode="slice").tokens > 10


def test_habits_that_change_are_followed() -> None:
    """After fifty turns of another length, the first fifty hardly count."""
    known = after([(100, 50)] * 50 + [(100, 400)] * 80)
    assert predicted(known, 100).tokens == pytest.approx(400, rel=0.2)


@pytest.mark.parametrize(
    "bad",
    [
        {"finish": "length"},
        {"context_tokens": 0},
        {"generated_tokens": -1},
        {"generated_tokens": "7"},
        {"generated_tokens": True},
        {"context_tokens": 10**30},
    ],
)
def test_receipts_that_say_nothing_are_passed_over(bad: dict[str, Any]) -> None:
    """Answers that were cut off say nothing of how long they would have been."""
    known = after([(100, 50)] * 5)
    assert known.seen(receipt(100, 50, **bad)) == known
    assert known.seen({}) == known


def test_what_is_kept_is_read_again() -> None:
    """Through JSON text, to the last bit."""
    known = after([(n, n // 3 + 1) for n in range(1, 500, 7)])
    assert OutputLengths.from_json(json.loads(json.dumps(known.to_json()))) == known


@pytest.mark.parametrize(
    "change",
    [{"weight": -1.0}, {"var": math.inf}, {"cov": None}, {"novel": 1.0}, {"mean_x": math.nan}],
)
def test_models_that_cannot_be_are_refused(change: dict[str, Any]) -> None:
    """With the place."""
    value = after([(100, 50)] * 5).to_json()
    value[""] = value[""] | change
    with pytest.raises(FormatError):
        OutputLengths.from_json(value)


def test_a_model_begins_at_its_first_turn() -> None:
    """Logarithms of 100 and of 50."""
    assert LengthModel().seen(100, 50) == LengthModel(1.0, math.log(100), math.log(50))


def test_routes_are_foreseen_before_the_sender_starts() -> None:
    """Those of the expected length, with intervals that cover the shortest and the longest."""
    found = foresee(KNOWN, Length(112, 12, 412), input_tokens=400, new_tokens=10, store=STORE)
    short, middle, long = (
        predictions_ahead(KNOWN, cached_tokens=400 + n, new_tokens=10, store=STORE)
        for n in (12, 112, 412)
    )
    assert [one.ttft_s for one in found] == [one.ttft_s for one in middle]
    assert [one.low_s for one in found] == [one.low_s for one in short]
    assert [one.high_s for one in found] == [one.high_s for one in long]
