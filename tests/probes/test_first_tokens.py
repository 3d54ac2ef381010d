"""The watch of the first tokens: what raises an alarm, and when."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.probes.conftest import TEXTS

from kvbaton.decoding import Decoding, decode
from kvbaton.errors import FormatError
from kvbaton.probes.first_tokens import (
    AlarmCount,
    Watch,
    WatchRange,
    sureness,
    watch_of,
)
from kvbaton.probes.spread import Spread
from kvbaton.types import AlignedLayer, ReasonCode, SegmentSpan

LIMITS = WatchRange(
    tokens=3,
    layers=(2, 3),
    activations=Spread((0.0,), (1.0,), 1.0),
    choices=Spread((math.log(2), -math.log(2)), (1.0, 0.0, 0.0, 1.0), 1.0),
    limit=2.0,
    alarm_rate=0.005,
    runs=200,
    false_alarms=(AlarmCount("exact", 1, 100),),
)
EVEN = torch.tensor([0.0, 0.0, -math.inf])
"""Two tokens of probability one half: entropy log 2, just the center of the range."""
SURE = torch.tensor([0.0, -math.inf, -math.inf])
FLAT = torch.zeros(256)


def test_sureness_can_be_checked_by_hand() -> None:
    """Entropy in nats, and the log probability of the likeliest token."""
    assert sureness(EVEN) == pytest.approx((math.log(2), -math.log(2)))
    assert sureness(SURE) == pytest.approx((0.0, 0.0))
    assert sureness(FLAT.bfloat16()) == pytest.approx((math.log(256), -math.log(256)), rel=1e-4)


def test_ordinary_tokens_pass_and_end_the_watch() -> None:
    """Three tokens are watched; what comes after them is not looked at."""
    watch = Watch(LIMITS)
    for _ in range(3):
        assert not watch.done
        assert watch.push(EVEN, (0.0,)) is None
    assert watch.done
    assert watch.push(FLAT, (99.0,)) is None
    assert watch.scores == {"activations": 0.0, "choices": pytest.approx(0.0, abs=1e-6)}


def test_odd_activations_raise_an_alarm_before_anything_is_sampled() -> None:
    """The first push decides; the sentence names the distance and the limit."""
    reason = Watch(LIMITS).push(EVEN, (-2.5,))
    assert reason is not None
    assert reason.code is ReasonCode.FIRST_TOKENS
    assert "activations of later layers lie 2.50 times as far" in reason.sentence
    assert "the limit is 2.00" in reason.sentence


def test_the_limit_itself_is_not_odd() -> None:
    """Beyond the limit, not at it; and only the first forward pass is measured."""
    watch = Watch(LIMITS)
    assert watch.push(EVEN, (2.0,)) is None
    assert watch.push(EVEN, (99.0,)) is None


def test_unsure_tokens_raise_an_alarm_when_all_have_been_seen() -> None:
    """One odd token may be chance; the mean over all of them is judged."""
    watch = Watch(LIMITS)
    assert [watch.push(FLAT, (0.0,)), watch.push(FLAT)] == [None, None]
    reason = watch.push(FLAT)
    assert reason is not None and "sureness of its first 3 tokens lies" in reason.sentence
    calm = Watch(LIMITS)
    assert [calm.push(logits, (0.0,)) for logits in (FLAT, SURE, SURE)] == [None] * 3


def test_logits_that_are_not_finite_raise_an_alarm_at_once() -> None:
    """No activation is needed to see that."""
    reason = Watch(LIMITS).push(torch.tensor([0.0, math.nan]))
    assert reason is not None and "not finite" in reason.sentence


def test_a_short_answer_is_judged_by_its_activations_alone() -> None:
    """Few tokens say little of how sure a model is."""
    watch = Watch(LIMITS)
    assert watch.push(FLAT, (0.0,)) is None
    assert watch.finish() is None


def test_at_high_temperatures_only_activations_are_watched() -> None:
    """Then the first token ends the watch."""
    watch = Watch(LIMITS, choices=False)
    assert watch.push(FLAT, (0.0,)) is None
    assert watch.done
    assert Watch(LIMITS, choices=False).push(FLAT, (3.0,)) is not None


def test_json_gives_the_same_range_again() -> None:
    """A calibration record keeps it whole, through text."""
    assert WatchRange.from_json(json.loads(json.dumps(LIMITS.to_json()))) == LIMITS


@pytest.mark.parametrize(
    ("change", "at"),
    [
        ({"format": "another"}, "$.ranges"),
        ({"tokens": 0}, "$.ranges"),
        ({"limit": math.nan}, "$.ranges"),
        ({"layers": [-1]}, "$.ranges"),
        ({"layers": None}, "$.ranges"),
        ({"false_alarms": [{}]}, "$.ranges"),
        ({"choices": {}}, "$.ranges.choices"),
    ],
)
def test_a_damaged_range_is_refused_with_its_place(change: dict[str, object], at: str) -> None:
    """The error names where it stands."""
    with pytest.raises(FormatError) as error:
        WatchRange.from_json(LIMITS.to_json() | change, at="$.ranges")
    assert error.value.at == at


# --- on a model --------------------------------------------------------------------------------


def continued(engine: Any, limits: WatchRange, factor: float) -> Any:
    """An answer behind an attached cache whose values were multiplied by ``factor``."""
    chat = engine.chat
    said = [{"role": "user", "content": TEXTS[0][:60]}, {"role": "assistant", "content": "Hello"}]
    ids = chat.render(said, add_generation_prompt=False).ids
    feed = chat.suffix(ids, [{"role": "user", "content": "Continue the text."}]).ids
    cache = engine.new_cache(len(ids))
    engine.forward(cache, ids)
    slot = engine.slot(len(ids), room=64)
    for p in engine.export(cache, [SegmentSpan(0, len(ids))]):
        slot.write(AlignedLayer(p.span, p.layer, p.run, p.keys, p.values * factor))
    shown: list[str] = []
    how = Decoding(max_new_tokens=8, on_text=shown.append)
    generous = replace(limits, limit=4 * limits.limit)
    watch = watch_of(engine, generous)
    answer = decode(engine, slot.finish(), feed, how, watch=watch)
    return answer, shown, watch


def test_an_honest_cache_passes_on_a_model(engine: Any, limits: WatchRange) -> None:
    """Activations and tokens are measured, and the answer is shown."""
    answer, shown, watch = continued(engine, limits, 1.0)
    assert answer.alarm is None
    assert "".join(shown) == answer.text
    assert watch.scores.keys() == {"activations", "choices"}


def test_a_grossly_wrong_cache_is_noticed_on_a_model(engine: Any, limits: WatchRange) -> None:
    """Values a thousand times too large: an alarm with the first forward pass, nothing shown."""
    answer, shown, watch = continued(engine, limits, 1000.0)
    assert answer.alarm is not None and "activations" in answer.alarm.sentence
    assert (answer.ids, shown) == ((), [])
    assert watch.scores.keys() == {"activations"}
