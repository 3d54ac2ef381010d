"""Segments and transcripts against the manifest and the tokens they claim to belong to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire import samples
from tests.wire.samples import FUNCTION, IDS, KEYS, TRANSCRIPT

from kvbaton.errors import Fault, FormatError
from kvbaton.types import Fidelity, FidelityClass, SegmentSpan, TokenRun
from kvbaton.wire.binding import check_segment, check_transcript, run_digests
from kvbaton.wire.digests import DomainKeys

MANIFEST = samples.manifest()
HEADER = samples.run_segment().header
REF = MANIFEST.segments[0]


@pytest.mark.parametrize(
    "ids",
    [IDS[:-1], (*IDS, 5), IDS[::-1], (*IDS[:4], IDS[5], IDS[4]), (2, *IDS[1:])],
    ids=["truncated", "over-long", "reversed", "swapped", "replaced"],
)
def test_other_ids_than_the_manifest_was_made_for_are_refused(ids: tuple[int, ...]) -> None:
    """Truncated, over-long, mis-ordered and replaced ids are refused."""
    with pytest.raises(FormatError) as caught:
        check_transcript(MANIFEST, replace(TRANSCRIPT, ids=ids), KEYS)
    assert (caught.value.fault, caught.value.at) == (Fault.TOKENS, "$.ids")


def test_the_right_transcript_and_segments_pass() -> None:
    """The documents of one baton belong to each other."""
    check_transcript(MANIFEST, TRANSCRIPT, KEYS)
    segments = (samples.run_segment(), samples.window_segment())
    spans = [ref.span for ref in MANIFEST.segments]
    digests = run_digests(KEYS, FUNCTION, IDS, spans)
    for segment, ref, (tokens, prefix) in zip(segments, MANIFEST.segments, digests, strict=True):
        check_segment(
            segment.header, ref, function=FUNCTION, token_digest=tokens, prefix_key=prefix
        )


@pytest.mark.parametrize(
    ("change", "fault", "at"),
    [
        ({"ref": replace(REF, span=SegmentSpan(1, 5))}, Fault.SPANS, "$.segments[0]"),
        ({"ref": replace(REF, size_bytes=64)}, Fault.SIZE_MISMATCH, "$.segments[0].size_bytes"),
        (
            {"ref": replace(REF, fidelity=Fidelity(FidelityClass.LOSSY))},
            Fault.SPANS,
            "$.segments[0].fidelity",
        ),
        ({"function": "0f" * 32}, Fault.TOKENS, "$.segments[0]"),
        ({"token_digest": "00" * 32}, Fault.TOKENS, "$.segments[0]"),
        ({"prefix_key": "00" * 32}, Fault.TOKENS, "$.segments[0]"),
    ],
    ids=["span", "size", "fidelity", "function", "tokens", "prefix"],
)
def test_a_segment_that_contradicts_its_reference_is_refused(
    change: dict[str, Any], fault: Fault, at: str
) -> None:
    """A good segment in the wrong place is refused, with its place in the manifest."""
    expected = {
        "ref": REF,
        "function": FUNCTION,
        "token_digest": HEADER.token_digest,
        "prefix_key": HEADER.prefix_key,
    } | change
    with pytest.raises(FormatError) as caught:
        check_segment(HEADER, at="$.segments[0]", **expected)
    assert (caught.value.fault, caught.value.at) == (fault, at)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.data())
def test_digests_of_runs_are_those_of_each_run_alone(ids: list[int], data: st.DataObject) -> None:
    """One pass over the ids gives, in the runs' order, what each run would give by itself."""
    run = st.builds(
        lambda first, count: TokenRun(first, min(count, len(ids) - first)),
        st.integers(0, len(ids) - 1),
        st.integers(1, 12),
    )
    runs = data.draw(st.lists(run, max_size=5))
    assert run_digests(KEYS, FUNCTION, ids, runs) == [
        (
            KEYS.token_digest(ids[r.first : r.stop]),
            KEYS.prefix_keys(FUNCTION, ids, [r.first])[0],
        )
        for r in runs
    ]


def test_another_domain_has_other_digests() -> None:
    """A transcript of the same ids does not belong to a manifest of another domain."""
    with pytest.raises(FormatError):
        check_transcript(MANIFEST, TRANSCRIPT, DomainKeys(bytes(32)))
