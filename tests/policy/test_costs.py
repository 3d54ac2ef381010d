"""The cost model: sums that can be checked by hand, and laws that hold for any speeds."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.policy.speed_examples import FUNCTION, KNOWN, STORE, speeds, store_speeds

from kvbaton.policy.costs import (
    CacheTake,
    cache_phases,
    hand_off_s,
    predict,
    predictions_ahead,
    predictions_for,
    text_s,
)
from kvbaton.policy.gates import TakeContext
from kvbaton.policy.routes import Prediction
from kvbaton.policy.speeds import Knot, Speeds, StoreSpeed, interpolated, rising, store_name
from kvbaton.types import (
    Fidelity,
    FidelityClass,
    FunctionId,
    Hops,
    KVLayout,
    LayerKind,
    LayerLayout,
    Manifest,
    Mode,
    SegmentRef,
    SegmentSpan,
    Terms,
)

takes = st.builds(
    lambda prompt, share, size, segments, codec: CacheTake(
        prompt, int(share * prompt), int(share * prompt), size, segments, codec
    ),
    st.integers(2, 100_000),
    st.floats(0, 1),
    st.floats(0, 1e9),
    st.integers(0, 500),
    st.sampled_from(["exact", "compact"]),
)


def baton(
    fidelity: Fidelity | None = None, *, count: int = 3, shift: int | None = None
) -> Manifest:
    """A baton of segments of 100 tokens and 25,000 bytes each."""
    kind = fidelity or Fidelity()
    refs = tuple(
        SegmentRef("c" * 64, SegmentSpan(100 * i, 100), 25_000, kind, shift) for i in range(count)
    )
    return Manifest(
        function=FunctionId(FUNCTION, ()),
        domain="local",
        sender="a",
        mode=Mode.CONTINUE,
        created_ms=0,
        cached_tokens=100 * count,
        pending_tokens=0,
        token_digest="d" * 64,
        transcript="e" * 64,
        transcript_bytes=1,
        spans=(),
        segments=refs,
        fidelity=kind,
        hops=Hops(),
        parents=(),
        terms=Terms(),
        producer=(),
    )


def context(reusable: int, prompt: int, *, sliced: bool = False) -> TakeContext:
    """A receiver of the very function."""
    return TakeContext(
        function=FunctionId(FUNCTION, ()),
        layout=KVLayout("F32", (LayerLayout(LayerKind.FULL, 1, 4, 4),)),
        max_tokens=10_000,
        prompt_tokens=prompt,
        reusable_tokens=reusable,
        room_tokens=1,
        free_memory_bytes=1 << 40,
        sliced=sliced,
    )


def seconds_of(predictions: tuple[Prediction, ...]) -> dict[str, float]:
    """Seconds by route."""
    return {one.route: one.ttft_s for one in predictions}


# --- by hand -----------------------------------------------------------------------------------


def test_text_is_overhead_and_prefill() -> None:
    """At 100 tokens: 0.01 + 100 x 1e-5, and the knot's 0.2."""
    assert text_s(KNOWN, 100) == pytest.approx(0.011 + 0.2)


def test_prefill_between_knots_is_a_power_of_the_length() -> None:
    """Halfway between 100 and 1,000 tokens on a log scale lies the geometric mean of the times."""
    assert KNOWN.prefill_s(math.sqrt(100 * 1000)) == pytest.approx(math.sqrt(0.2 * 2.0))


def test_prefill_goes_on_beyond_the_last_knot_and_stays_below_the_first() -> None:
    """Ten times the length at slope 1 takes ten times as long; one token takes what ten take."""
    assert KNOWN.prefill_s(10_000) == pytest.approx(20.0)
    assert KNOWN.prefill_s(1) == 0.1


def test_phases_of_a_take_add_up() -> None:
    """300 cached tokens in 3 segments of 10 layers, 75,000 bytes, 10 new tokens."""
    take = CacheTake(310, 300, 300, 75_000, 3, "compact")
    phases = cache_phases(KNOWN, take, KNOWN.stores[STORE])
    assert phases is not None
    assert phases.get_s == pytest.approx(3 * 1e-3 + 30 * 1e-4 + 75_000 / 1e8)
    assert phases.opening_s == pytest.approx(3e-3)
    assert phases.verify_s == pytest.approx(75_000e-8)
    assert phases.decode_s == pytest.approx(0.001 + 300 * 5e-6)
    assert phases.probe_s == pytest.approx(0.0023)
    assert phases.attach_s == pytest.approx(0.0016)
    assert phases.forward_s == pytest.approx(0.1 + 300 * (1e-5 + 10 * 1e-6))
    assert phases.overhead_s == pytest.approx(0.01 + 310e-5)
    assert phases.align_s == phases.recompute_s == 0
    named = [getattr(phases, f.name) for f in dataclasses.fields(phases)]
    assert phases.get_s + phases.host_s == pytest.approx(sum(named))


def test_load_slows_the_host_and_not_the_store() -> None:
    """Twice the load doubles everything but the bytes on their way."""
    take = CacheTake(310, 300, 300, 75_000, 3, "exact")
    phases = cache_phases(KNOWN, take, KNOWN.stores[STORE])
    assert phases is not None
    found = seconds_of(predict(KNOWN, 310, [("exact", take)], store=STORE, load=2.0))
    assert found["exact"] == pytest.approx(phases.get_s + 2 * phases.host_s)
    assert found["text"] == pytest.approx(2 * text_s(KNOWN, 310))


def test_intervals_are_the_spreads() -> None:
    """What was measured to lie between 0.9 and 1.2 times is said to."""
    text = predict(KNOWN, 100, [], store=STORE)[0]
    assert (text.low_s, text.high_s) == pytest.approx((0.9 * text.ttft_s, 1.2 * text.ttft_s))


# --- of a baton --------------------------------------------------------------------------------


def test_a_manifest_says_what_is_read() -> None:
    """Whole segments are read for the tokens that are reused: three of 25,000 bytes."""
    found = seconds_of(predictions_for(KNOWN, baton(), context(300, 310), store=STORE))
    take = CacheTake(310, 300, 300, 75_000, 3, "exact")
    assert found == seconds_of(predict(KNOWN, 310, [("exact", take)], store=STORE))


def test_segments_behind_the_last_reused_token_are_not_read() -> None:
    """150 tokens lie in the first two segments."""
    found = seconds_of(predictions_for(KNOWN, baton(), context(150, 310), store=STORE))
    take = CacheTake(310, 150, 200, 50_000, 2, "exact")
    assert found == seconds_of(predict(KNOWN, 310, [("exact", take)], store=STORE))


def test_a_profile_is_predicted_by_its_own_speeds() -> None:
    """The route is called what the codec is called."""
    lossy = Fidelity(FidelityClass.LOSSY, "compact", "b" * 64)
    found = seconds_of(predictions_for(KNOWN, baton(lossy), context(300, 310), store=STORE))
    assert set(found) == {"text", "compact"}


def test_a_slice_pays_for_turning_and_for_rows_computed_again() -> None:
    """300 turned keys, and 30 rows at a share of a tenth."""
    whole = seconds_of(predictions_for(KNOWN, baton(), context(300, 310), store=STORE))
    cut = seconds_of(
        predictions_for(
            KNOWN, baton(), context(300, 310, sliced=True), store=STORE, recompute_share=0.1
        )
    )
    assert cut["slice"] - whole["exact"] == pytest.approx(300e-5 + 0.1 + 30e-3)


def test_one_of_many_small_slices_can_be_worth_it() -> None:
    """300 tokens of a prompt of 9,000: held against 600, not against all of them."""
    found = seconds_of(
        predictions_for(KNOWN, baton(), context(300, 9000, sliced=True), store=STORE)
    )
    assert found["text"] == pytest.approx(text_s(KNOWN, 600))
    assert found["slice"] < 0.95 * found["text"]


def test_moved_segments_are_turned() -> None:
    """Keys that stand elsewhere than where they were computed are turned on the way."""
    found = seconds_of(predictions_for(KNOWN, baton(shift=7), context(300, 310), store=STORE))
    whole = seconds_of(predictions_for(KNOWN, baton(), context(300, 310), store=STORE))
    assert found["slice"] - whole["exact"] == pytest.approx(300e-5)


@pytest.mark.parametrize(
    "manifest",
    [baton(Fidelity(FidelityClass.LOSSY, "unheard-of", "b" * 64)), baton(count=0)],
    ids=["unknown codec", "text only"],
)
def test_what_was_not_measured_is_not_predicted(manifest: Manifest) -> None:
    """Text still is."""
    found = predictions_for(KNOWN, manifest, context(manifest.cached_tokens, 310), store=STORE)
    assert [one.route for one in found] == ["text"]


def test_another_store_is_judged_by_the_slowest_of_its_kind() -> None:
    """One of another kind is not judged at all."""
    slow = StoreSpeed(0.0, 0.0, 1e6, 1e6)
    both = dataclasses.replace(KNOWN, stores={**KNOWN.stores, "dir:///slow": slow})
    assert both.store("dir:///never/seen?max_bytes=2GB") == slow
    assert both.store(STORE + "?max_bytes=2GB") == KNOWN.stores[STORE]
    assert both.store("s3://bucket/folder") is None
    found = predictions_for(both, baton(), context(300, 310), store="s3://bucket/folder")
    assert [one.route for one in found] == ["text"]


def test_speeds_of_another_function_predict_nothing() -> None:
    """Not even text."""
    other = dataclasses.replace(KNOWN, function="0" * 64)
    assert predictions_for(other, baton(), context(300, 310), store=STORE) == ()


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("dir:///data/store?max_bytes=2GB", "dir:///data/store"),
        ("/data/store/", "dir:///data/store"),
        ("S3://key:secret@bucket/folder", "s3://bucket/folder"),
        ("memory://", "memory://"),
        ("memory://name", "memory://"),
    ],
)
def test_stores_are_named_without_options_and_secrets(url: str, name: str) -> None:
    """Speeds do not depend on them, and files would keep them."""
    assert store_name(url) == name


# --- ahead -------------------------------------------------------------------------------------


def test_every_route_is_predicted_ahead() -> None:
    """Text, exact, each profile, slice; the profile's bytes are those measured per token."""
    found = predictions_ahead(KNOWN, cached_tokens=512, new_tokens=10, store=STORE)
    assert [one.route for one in found] == ["text", "exact", "compact", "slice"]
    take = CacheTake(522, 512, 512, 512 * 250, 2, "compact")
    assert found[2] == predict(KNOWN, 522, [("compact", take)], store=STORE)[1]


def test_a_hand_off_encodes_and_puts() -> None:
    """100 tokens of compact: 0.001 + 100 x 1e-5 to encode, 25,000 bytes at 50 MB/s."""
    found = hand_off_s(KNOWN, "compact", 100, store=STORE)
    assert found == pytest.approx(0.002 + 1e-3 + 25_000 / 5e7)
    assert hand_off_s(KNOWN, "unheard-of", 100, store=STORE) is None


# --- laws --------------------------------------------------------------------------------------


@given(speeds, takes, st.floats(0.01, 32))
def test_times_are_finite_and_not_negative(known: Speeds, take: CacheTake, load: float) -> None:
    """Whatever was measured; and a prediction lies in its own interval."""
    for one in predict(known, take.prompt_tokens, [("exact", take)], store=STORE, load=load):
        assert 0 <= one.low_s <= one.ttft_s <= one.high_s < math.inf


@given(speeds, takes, st.floats(0, 1e9))
def test_more_bytes_never_take_less(known: Speeds, take: CacheTake, more: float) -> None:
    """At the same store."""
    heavier = dataclasses.replace(take, read_bytes=take.read_bytes + more)
    least, most = (
        seconds_of(predict(known, 10, [("exact", one)], store=STORE)) for one in (take, heavier)
    )
    assert least["exact"] <= most["exact"]
    assert least["text"] == most["text"]


@given(speeds, takes, st.floats(1, 1e3))
def test_a_faster_store_never_takes_more(known: Speeds, take: CacheTake, factor: float) -> None:
    """Text does not care."""
    store = known.stores[STORE]
    faster = dataclasses.replace(store, get_bytes_per_s=factor * store.get_bytes_per_s)
    quick = dataclasses.replace(known, stores={STORE: faster})
    slow_s, quick_s = (
        seconds_of(predict(one, 10, [("exact", take)], store=STORE)) for one in (known, quick)
    )
    assert quick_s["exact"] <= slow_s["exact"]
    assert quick_s["text"] == slow_s["text"]


@given(speeds, st.integers(1, 100_000), store_speeds)
def test_text_is_independent_of_the_store(known: Speeds, tokens: int, other: StoreSpeed) -> None:
    """The same to the last bit."""
    moved = dataclasses.replace(known, stores={STORE: other})
    assert predict(known, tokens, [], store=STORE) == predict(moved, tokens, [], store=STORE)


@given(speeds, st.integers(1, 200_000), st.integers(0, 200_000))
def test_more_tokens_never_prefill_faster(known: Speeds, tokens: int, more: int) -> None:
    """Between the knots, beyond and below them."""
    assert known.prefill_s(tokens) <= known.prefill_s(tokens + more) * (1 + 1e-9)


@given(
    st.lists(st.floats(1e-4, 100), min_size=1, max_size=10),
)
def test_rising_knots_never_fall_and_keep_what_rises(times: list[float]) -> None:
    """Those that fall get the mean of their logarithms, so that the sum stays."""
    given_knots = [Knot(2**i, s) for i, s in enumerate(times)]
    found = rising(given_knots)
    levels = [knot.seconds for knot in found]
    assert all(a <= b * (1 + 1e-9) for a, b in itertools.pairwise(levels))
    total = math.fsum(map(math.log, times))
    assert math.fsum(map(math.log, levels)) == pytest.approx(total, abs=1e-6)
    if sorted(times) == times:
        assert levels == pytest.approx(times)


@given(speeds)
def test_knots_are_met_exactly(known: Speeds) -> None:
    """The measured length takes what was measured."""
    for knot in known.prefill:
        assert interpolated(known.prefill, knot.tokens) == pytest.approx(knot.seconds)
