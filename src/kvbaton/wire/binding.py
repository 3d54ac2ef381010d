"""Segments and transcripts against the manifest and the tokens that they claim to belong to."""

from __future__ import annotations

from collections.abc import Sequence

from kvbaton.errors import Fault
from kvbaton.types import Manifest, SegmentHeader, SegmentRef, TokenRun, Transcript
from kvbaton.wire import fields as f
from kvbaton.wire.digests import DomainKeys


def check_transcript(manifest: Manifest, transcript: Transcript, keys: DomainKeys) -> None:
    """The transcript has as many ids as the manifest counts, and exactly those.

    Raises
    ------
    FormatError
        ``TOKENS``: truncated, over-long, mis-ordered or other ids.
    """
    wanted = manifest.cached_tokens + manifest.pending_tokens
    if len(transcript.ids) != wanted:
        raise f.refuse(
            f"the transcript has {len(transcript.ids)} ids, the manifest counts {wanted}",
            Fault.TOKENS,
            "$.ids",
        )
    if keys.token_digest(transcript.ids) != manifest.token_digest:
        raise f.refuse(
            "the transcript's ids are not the ones that the manifest was made for",
            Fault.TOKENS,
            "$.ids",
        )


def ref_digests(
    keys: DomainKeys, function: str, ids: Sequence[int], refs: Sequence[SegmentRef]
) -> list[tuple[str, str | None]]:
    """``(token_digest, prefix_key)`` that each segment of a baton must have.

    ``ids`` are the baton's.  What stood before a moved segment where it was computed is not known
    here: its prefix key is None, and only its address binds it.
    """
    found = run_digests(keys, function, ids, [ref.run for ref in refs])
    return [
        (tokens, None if ref.moved else before)
        for ref, (tokens, before) in zip(refs, found, strict=True)
    ]


def run_digests(
    keys: DomainKeys, function: str, ids: Sequence[int], runs: Sequence[TokenRun]
) -> list[tuple[str, str]]:
    """``(token_digest, prefix_key)`` of each run, as a segment's header states them.

    ``runs`` may be in any order; the ids are passed once for all prefix keys.
    """
    firsts = sorted({run.first for run in runs})
    prefixes = dict(zip(firsts, keys.prefix_keys(function, ids, firsts), strict=True))
    return [(keys.token_digest(ids[r.first : r.stop]), prefixes[r.first]) for r in runs]


def check_segment(
    header: SegmentHeader,
    ref: SegmentRef,
    *,
    function: str,
    token_digest: str,
    prefix_key: str | None,
    at: str = "$",
) -> None:
    """A segment is the one that the manifest lists, for its function and its tokens.

    ``at`` is the reference's path in the manifest, such as ``$.segments[2]``.

    Raises
    ------
    FormatError
        ``SPANS`` or ``SIZE_MISMATCH`` where it contradicts the reference, ``TOKENS`` where it
        holds the KV of other tokens or of another function.
    """
    if header.span != ref.span:
        raise f.refuse(
            f"the segment covers {header.span.kind} {header.span.first} to "
            f"{header.span.stop - 1}, the manifest says {ref.span.kind} {ref.span.first} to "
            f"{ref.span.stop - 1}",
            Fault.SPANS,
            at,
        )
    if header.size_bytes != ref.size_bytes:
        raise f.refuse(
            f"the segment has {header.size_bytes} bytes, the manifest says {ref.size_bytes}",
            Fault.SIZE_MISMATCH,
            f"{at}.size_bytes",
        )
    if header.fidelity != ref.fidelity:
        raise f.refuse(
            "the segment states another fidelity than the manifest",
            Fault.SPANS,
            f"{at}.fidelity",
        )
    if header.function != function:
        raise f.refuse("the segment was computed by another function", Fault.TOKENS, at)
    wanted = (token_digest, header.prefix_key if prefix_key is None else prefix_key)
    if (header.token_digest, header.prefix_key) != wanted:
        raise f.refuse("the segment holds the KV of other tokens", Fault.TOKENS, at)
