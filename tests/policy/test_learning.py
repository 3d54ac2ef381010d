"""Learning on line: lasting changes are followed, odd turns are not, nothing leaves its bounds."""

from __future__ import annotations

import copy
import dataclasses
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.policy.speed_examples import KNOWN, STORE

from kvbaton.errors import FormatError
from kvbaton.policy.costs import CacheTake, cache_phases, text_s
from kvbaton.policy.learning import MOST, WINDOW, Learner, Learnt, corrected, learn
from kvbaton.policy.observed import observed
from kvbaton.policy.speeds import Speeds


def text_receipt(tokens: int = 100, *, slow: float = 1.0) -> dict[str, Any]:
    """A take by text on a host that is so many times as slow as measured."""
    forward = slow * KNOWN.prefill_s(tokens)
    ttft = forward + slow * KNOWN.overhead.seconds(tokens)
    return {
        "agent": "a", "mode": "continue", "outcome": "kv-unusable", "route": "text", "baton": "b",
        "context_tokens": tokens, "reused_tokens": 0, "computed_tokens": tokens,
        "generated_tokens": 10, "recomputed_token_layers": 0, "bytes_moved": 0,
        "fidelity": {"class": "exact", "codec": "raw", "calibration": None}, "finish": "stop",
        "seconds": {"get": 0.001, "first_forward": forward, "ttft": ttft + 0.0},
    }  # fmt: skip


def cache_receipt(
    *, slow: float = 1.0, store: float = 1.0, codec: str = "raw", size: int = 3_000_000
) -> dict[str, Any]:
    """A take of 300 cached tokens and 10 new ones, host and store so many times as slow."""
    name = "exact" if codec == "raw" else codec
    take = CacheTake(310, 300, 300, size, 2, name)
    phases = cache_phases(KNOWN, take, KNOWN.stores[STORE].times(store))
    assert phases is not None
    seconds = {
        "get": phases.get_s + slow * phases.opening_s,
        "verify": slow * phases.verify_s,
        "decode": slow * phases.decode_s,
        "probe": slow * phases.probe_s,
        "attach": slow * phases.attach_s,
        "first_forward": slow * phases.forward_s,
    }
    # what is opened and what a take costs besides is not told apart from the store's waiting
    aside = phases.opening_s + phases.overhead_s
    host = sum(seconds[name] for name in seconds if name != "get")
    return text_receipt() | {
        "outcome": "used", "route": "baton", "context_tokens": 310, "reused_tokens": 300,
        "computed_tokens": 10, "bytes_moved": size,
        "fidelity": {"class": "exact", "codec": codec, "calibration": None},
        "seconds": seconds | {"ttft": host + aside + phases.get_s},
    }  # fmt: skip


def after(receipts: list[dict[str, Any]], known: Speeds = KNOWN) -> Speeds:
    """Speeds after some receipts."""
    learnt = Learnt()
    for one in receipts:
        learnt = learn(learnt, known, one, store=STORE)
    return corrected(known, learnt)


def test_turns_as_measured_change_nothing() -> None:
    """What comes as predicted leaves the speeds as they are, and the load at one."""
    learner = Learner(KNOWN)
    for _ in range(12):
        assert learner.seen(text_receipt(), store=STORE)
        assert learner.seen(cache_receipt(), store=STORE)
    assert learner.load == pytest.approx(1.0)
    assert learner.speeds.prefill_s(100) == pytest.approx(0.2)
    assert learner.speeds.stores[STORE].get_bytes_per_s == pytest.approx(1e8)


@given(st.floats(0.2, 8), st.integers(5, 20))
def test_a_lasting_change_is_learnt(slow: float, turns: int) -> None:
    """After five turns at most the prediction is what comes."""
    found = after([text_receipt(slow=slow)] * turns)
    assert found.prefill_s(100) == pytest.approx(slow * 0.2)
    assert text_s(found, 100) == pytest.approx(slow * text_s(KNOWN, 100), rel=0.01)


@given(st.floats(0.25, 8))
def test_a_slower_store_is_told_from_a_slower_host(slow: float) -> None:
    """Only the store's own speed moves."""
    found = after([cache_receipt(store=slow)] * 9)
    assert found.stores[STORE].get_bytes_per_s == pytest.approx(1e8 / slow, rel=0.02)
    assert found.attach.unit_s == pytest.approx(KNOWN.attach.unit_s)


def test_waiting_for_something_else_is_not_the_stores() -> None:
    """A ledger or a filter that takes a second leaves the store's speed as it is."""
    receipt = cache_receipt()
    receipt["seconds"] |= {"freshness": 1.0, "ttft": receipt["seconds"]["ttft"] + 1.0}
    found = after([receipt] * 9)
    opening = KNOWN.opening.seconds(2) / KNOWN.stores[STORE].get_s(3e6, objects=2, reads=20)
    assert 1e8 / found.stores[STORE].get_bytes_per_s <= 1.001 + opening


def test_a_codec_is_learnt_apart_from_others() -> None:
    """Takes of compact say nothing of how exact ones are decoded."""
    found = after([cache_receipt(slow=3.0, codec="compact")] * 9)
    assert found.codecs["compact"].decode.unit_s == pytest.approx(3 * 5e-6)
    assert found.codecs["exact"].decode.unit_s == pytest.approx(1e-6)


@given(st.floats(1e-9, 1e12), st.integers(0, 8))
def test_one_odd_turn_moves_nothing(odd: float, place: int) -> None:
    """Eight ordinary ones stand against it."""
    receipts = [text_receipt(slow=1.0)] * 8
    receipts.insert(place, text_receipt(slow=odd))
    assert after(receipts).prefill_s(100) == pytest.approx(0.2)


@given(st.lists(st.floats(1e-12, 1e12), max_size=40))
def test_no_correction_leaves_its_bounds(slow: list[float]) -> None:
    """Whatever receipts say."""
    learner = Learner(KNOWN)
    for one in slow:
        learner.seen(text_receipt(slow=one), store=STORE)
        learner.seen(cache_receipt(slow=one, store=one), store=STORE)
    for ratio in (
        learner.load,
        learner.speeds.prefill_s(100) / 0.2,
        learner.speeds.attach.unit_s / KNOWN.attach.unit_s,
        1e8 / learner.speeds.stores[STORE].get_bytes_per_s,
    ):
        assert 1 / MOST / 1.001 <= ratio <= MOST * 1.001
    assert all(len(kept) <= 25 for kept in learner.learnt.ratios.values())


@given(st.lists(st.floats(0.5, 2), min_size=WINDOW, max_size=30), st.randoms())
def test_noise_around_a_change_averages_out(noise: list[float], order: random.Random) -> None:
    """The correction lies within what the last turns were."""
    order.shuffle(noise)
    found = after([text_receipt(slow=3 * one) for one in noise]).prefill_s(100) / 0.2
    assert min(1.0, 3 * min(noise)) <= found * 1.001
    assert found <= 3.001 * max(noise)


def test_other_lengths_follow_where_only_some_were_seen() -> None:
    """A host that is slow at 100 tokens is expected to be so at 1,000."""
    found = after([text_receipt(100, slow=2.0)] * 9)
    assert found.prefill_s(1000) == pytest.approx(4.0)
    both = after([text_receipt(100, slow=2.0)] * 9 + [text_receipt(1000, slow=1.0)] * 9)
    assert both.prefill_s(1000) == pytest.approx(2.0)
    assert both.prefill_s(100) == pytest.approx(0.4)


# --- load --------------------------------------------------------------------------------------


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


def test_load_is_felt_at_once_and_forgotten_soon() -> None:
    """Three slow turns say so; five minutes later nobody knows."""
    clock = Hand()
    learner = Learner(KNOWN, clock=clock)
    for _ in range(9):
        learner.seen(text_receipt(), store=STORE)
    for _ in range(3):
        learner.seen(text_receipt(slow=2.0), store=STORE)
    assert learner.load == pytest.approx(2.0)
    clock.now += 301
    assert learner.load == 1.0


def test_load_that_stays_becomes_speed() -> None:
    """What was learnt of the phases is not counted twice."""
    learner = Learner(KNOWN)
    for _ in range(12):
        learner.seen(text_receipt(slow=2.0), store=STORE)
        predicted = learner.load * text_s(learner.speeds, 100)
        assert predicted <= 2.02 * text_s(KNOWN, 100)
    assert learner.load == pytest.approx(1.0, rel=0.01)
    assert learner.speeds.prefill_s(100) == pytest.approx(0.4)


def test_intervals_follow_what_came_true() -> None:
    """Of ten takes, one at twice and the others as predicted: eight of ten lie at one."""
    learner = Learner(KNOWN)
    for _ in range(24):
        learner.seen(text_receipt(), store=STORE)
    assert learner.speeds.text_spread.low == pytest.approx(1.0)
    assert learner.speeds.text_spread.high == pytest.approx(1.0)


def test_a_store_that_was_never_measured_is_learnt_from_takes() -> None:
    """Three takes say how many bytes come in a second."""
    elsewhere, learner = "s3://bucket/folder", Learner(KNOWN)
    for _ in range(3):
        assert learner.speeds.store(elsewhere) is None
        learner.seen(cache_receipt(), store=elsewhere)
    found = learner.speeds.store(elsewhere)
    assert found is not None
    line = KNOWN.stores[STORE]
    waited = line.get_s(3_000_000, objects=2, reads=20)
    assert found.get_bytes_per_s == pytest.approx(3_000_000 / waited)


# --- receipts that say nothing -----------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"mode": "slice"},
        {"outcome": "not-trusted"},
        {"computed_tokens": 99},
        {"recomputed_token_layers": 5},
        {"seconds": {}},
        {"seconds": {"first_forward": math.nan}},
        {"seconds": {"first_forward": -1.0}},
        {"seconds": None},
        {"seconds": {"first_forward": "soon"}},
        {"context_tokens": -5},
        {"context_tokens": True},
        {"context_tokens": 10**30},
        {"fidelity": None},
        {"reused_tokens": 1000},
    ],
)
def test_receipts_that_say_nothing_are_passed_over(change: dict[str, Any]) -> None:
    """What was mended, sliced, cut short, or is no receipt."""
    learner = Learner(KNOWN)
    receipt = text_receipt() | change
    before = copy.deepcopy(receipt)
    assert not learner.seen(receipt, store=STORE)
    assert learner.speeds == KNOWN
    assert repr(receipt) == repr(before)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(sorted(text_receipt())), json_values))
def test_hostile_receipts_never_raise(change: dict[str, Any]) -> None:
    """Neither does what comes after them."""
    learner = Learner(KNOWN)
    learner.seen(text_receipt() | change, store=STORE)
    learner.seen(text_receipt(), store=STORE)
    assert math.isfinite(learner.load)
    assert 0 < learner.speeds.prefill_s(100) < math.inf


def test_a_take_that_fell_back_says_what_prefill_costs_and_no_more() -> None:
    """Time that went into a cache that was not used is no overhead of text."""
    receipt = text_receipt()
    receipt["seconds"] |= {"verify": 0.1, "ttft": 5.0}
    found = observed(KNOWN, receipt, STORE)
    assert found is not None
    assert set(found.phases) == {"prefill", "prefill/100"}
    assert found.ttft_s == 0


def test_turns_without_a_baton_say_what_prefill_costs() -> None:
    """An agent's own first turn is one."""
    found = observed(KNOWN, text_receipt(slow=2.0) | {"baton": None, "outcome": "no-baton"}, "")
    assert found is not None
    assert found.phases == pytest.approx({"prefill": 2.0, "prefill/100": 2.0})


# --- kept --------------------------------------------------------------------------------------


def test_what_was_learnt_survives_being_kept() -> None:
    """Another process goes on from the same speeds."""
    learner = Learner(KNOWN)
    for _ in range(9):
        learner.seen(text_receipt(slow=2.0), store=STORE)
    again = Learnt.from_json(learner.learnt.to_json())
    assert Learner(KNOWN, again).speeds == learner.speeds


@pytest.mark.parametrize(
    "value",
    [None, [], {"x": None}, {"x": ["1"]}, {"x": [0.0]}, {"x": [math.inf]}, {"x": [1.0] * 99},
     {str(i): [1.0] for i in range(1000)}],
)  # fmt: skip
def test_what_is_no_record_of_learning_is_refused(value: Any) -> None:
    """With the place."""
    with pytest.raises(FormatError):
        Learnt.from_json(value)


def test_learning_leaves_what_was_measured_alone() -> None:
    """The measurement stays what it was; corrections lie beside it."""
    learner, before = Learner(KNOWN), dataclasses.replace(KNOWN)
    for _ in range(9):
        learner.seen(cache_receipt(slow=3.0), store=STORE)
    assert learner.measured == before
    assert learner.speeds != before
