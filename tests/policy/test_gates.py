"""Gates of fidelity: lossy hops, and codecs that nobody has measured for the model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbaton.policy import gates
from kvbaton.types import (
    Allow,
    Deny,
    Fidelity,
    FidelityClass,
    FunctionId,
    Hops,
    KVLayout,
    LayerKind,
    LayerLayout,
    Manifest,
    Mode,
    ReasonCode,
    Route,
    SegmentRef,
    SegmentSpan,
    Terms,
)

FUNCTION = FunctionId("f" * 64, ())
LAYOUT = KVLayout("F32", (LayerLayout(LayerKind.FULL, 1, 4, 4),))
RECORD, OTHER = "a" * 64, "b" * 64
COMPACT = Fidelity(FidelityClass.LOSSY, "compact", RECORD)


def baton(
    *fidelities: Fidelity, hops: Hops | None = None, overall: Fidelity | None = None
) -> Manifest:
    """A baton of segments of 16 tokens with these fidelities."""
    segments = tuple(
        SegmentRef("c" * 64, SegmentSpan(16 * i, 16), 100, fidelity)
        for i, fidelity in enumerate(fidelities or (Fidelity(),))
    )
    return Manifest(
        function=FUNCTION,
        domain="local",
        sender="a",
        mode=Mode.CONTINUE,
        created_ms=0,
        cached_tokens=16 * len(segments),
        pending_tokens=0,
        token_digest="d" * 64,
        transcript="e" * 64,
        transcript_bytes=1,
        spans=(),
        segments=segments,
        fidelity=overall or max((s.fidelity for s in segments), key=lambda f: f.rank),
        hops=hops or Hops(),
        parents=(),
        terms=Terms(),
        producer=(),
    )


CONTEXT = gates.TakeContext(
    function=FUNCTION,
    layout=LAYOUT,
    max_tokens=512,
    prompt_tokens=60,
    reusable_tokens=59,
    room_tokens=8,
    free_memory_bytes=1 << 30,
    calibrations=frozenset({RECORD}),
    model="smollm2-135m",
)


@given(lossy=st.integers(0, 9), exact=st.integers(0, 99), limit=st.none() | st.integers(0, 9))
def test_more_lossy_hops_than_the_limit_are_denied(
    lossy: int, exact: int, limit: int | None
) -> None:
    """Lossy hand-offs count, exact ones do not; no limit accepts any number."""
    verdict = gates.hops(baton(hops=Hops(exact, lossy)), replace(CONTEXT, max_lossy_hops=limit))
    if limit is None or lossy <= limit:
        assert verdict == Allow()
    else:
        assert isinstance(verdict, Deny)
        assert verdict.reason.code is ReasonCode.HOPS
        assert f"{lossy} lossy" in verdict.reason.sentence
        assert f"at most {limit}" in verdict.reason.sentence


def test_three_lossy_hops_pass_by_default_and_four_do_not() -> None:
    """The default limit is 3, and the receiver then answers by text."""
    for lossy, route in ((3, Route.BATON), (4, Route.TEXT)):
        found = baton(Fidelity(), Fidelity(), Fidelity(), hops=Hops(1, lossy))
        assert gates.decide(found, CONTEXT)[0] is route


def test_an_exact_baton_needs_no_calibration_record() -> None:
    """Lossless bytes are what they are, whatever is known here."""
    assert gates.calibration(baton(), replace(CONTEXT, calibrations=frozenset())) == Allow()


def test_a_lossy_baton_passes_with_a_known_record_only() -> None:
    """The record must be known here; otherwise the command that makes one is named."""
    assert gates.calibration(baton(COMPACT), CONTEXT) == Allow()
    for digest in (OTHER, None):
        unknown = replace(COMPACT, calibration=digest)
        verdict = gates.calibration(baton(unknown), CONTEXT)
        assert isinstance(verdict, Deny)
        assert verdict.reason.code is ReasonCode.CALIBRATION
        assert "kvbaton tune-codec smollm2-135m" in verdict.reason.sentence
        assert "'compact'" in verdict.reason.sentence


def test_every_lossy_segment_must_have_been_measured() -> None:
    """One segment of a codec without a record is enough to refuse, wherever it stands."""
    unmeasured = Fidelity(FidelityClass.LOSSY, "tiny", None)
    verdict = gates.calibration(baton(Fidelity(), COMPACT, unmeasured, overall=COMPACT), CONTEXT)
    assert isinstance(verdict, Deny)
    assert "'tiny'" in verdict.reason.sentence


@pytest.mark.parametrize(
    ("fidelity", "allowed"),
    [
        (Fidelity(FidelityClass.APPROXIMATE), True),
        (Fidelity(FidelityClass.APPROXIMATE, "compact", RECORD), True),
        (Fidelity(FidelityClass.APPROXIMATE, "compact", OTHER), False),
        (Fidelity(FidelityClass.APPROXIMATE, "compact", None), False),
    ],
)
def test_an_approximate_baton_needs_a_record_where_a_codec_lost_something(
    fidelity: Fidelity, allowed: bool
) -> None:
    """A moved slice of raw bytes needs none; one of quantized bytes does."""
    verdict = gates.calibration(baton(fidelity), CONTEXT)
    assert isinstance(verdict, Allow) is allowed


def test_the_minimum_fidelity_is_asked_before_the_calibration() -> None:
    """Who demands exact bytes is told that the baton is lossy, not how to measure its codec."""
    found = baton(replace(COMPACT, calibration=OTHER))
    _, (reason,) = gates.decide(found, replace(CONTEXT, minimum=FidelityClass.EXACT))
    assert reason.code is ReasonCode.FIDELITY
