"""Batons: the manifest as a payload, and the envelope around it (``docs/spec/baton.md``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvbaton.errors import DigestMismatch, Fault, FormatError, InputError
from kvbaton.types import (
    JSON,
    FidelityClass,
    FunctionId,
    Hops,
    Manifest,
    Mode,
    Role,
    SegmentKind,
    SegmentRef,
    Span,
    Terms,
)
from kvbaton.wire import digests
from kvbaton.wire import fields as f
from kvbaton.wire.canonical import dumps, loads
from kvbaton.wire.envelope import Envelope, Signature, encode_envelope, parse_envelope
from kvbaton.wire.extensions import encode_extensions, parse_extensions
from kvbaton.wire.header import read_fidelity, read_run, read_segment_span
from kvbaton.wire.limits import (
    FORMAT,
    MAX_HOPS,
    MAX_MANIFEST_BYTES,
    MAX_PARENTS,
    MAX_POSITION,
    MAX_SEGMENT_BYTES,
    MAX_SEGMENTS,
    MAX_SPANS,
    MAX_TERM_CHARS,
    MAX_TRANSCRIPT_BYTES,
)

PAYLOAD_TYPE = "application/vnd.kvbaton.baton+json"
_FIELDS = frozenset(
    {
        "cached_tokens",
        "created_ms",
        "critical",
        "domain",
        "extensions",
        "fidelity",
        "format",
        "function",
        "hops",
        "mode",
        "parents",
        "pending_tokens",
        "producer",
        "ref",
        "segments",
        "sender",
        "sequence",
        "spans",
        "terms",
        "token_digest",
        "transcript",
    }
)
_FUNCTION_FIELDS = frozenset({"digest", "parts"})
_HOPS_FIELDS = frozenset({"exact", "lossy"})
_SEGMENT_FIELDS = frozenset({"address", "count", "fidelity", "first", "kind", "size_bytes"})
_MOVED_FIELDS = _SEGMENT_FIELDS | {"shift"}
_SPAN_FIELDS = frozenset({"count", "first", "role", "shift"})
_TERMS_FIELDS = frozenset({"goal", "instruction", "receiver", "round", "summary"})
_TRANSCRIPT_FIELDS = frozenset({"address", "size_bytes"})
_INT_MAX = (1 << 63) - 1


# --- envelope ----------------------------------------------------------------------------------


def wrap(payload: bytes, *, signatures: Sequence[Signature] = ()) -> bytes:
    """The baton's envelope around a manifest's exact bytes."""
    return encode_envelope(Envelope(PAYLOAD_TYPE, payload, tuple(signatures)))


def unwrap(envelope: bytes, *, baton_id: str | None = None) -> bytes:
    """Inverse of :func:`wrap`: the manifest's exact bytes; signatures are not verified here.

    Raises
    ------
    DigestMismatch
        The payload is not the one with this id.
    FormatError
        The envelope is not one of a baton, or is not canonical.
    """
    payload = parse_envelope(envelope, payload_type=PAYLOAD_TYPE).payload
    found = digests.baton_id(payload)
    if baton_id is not None and found != baton_id:
        raise DigestMismatch(
            f"the manifest has the id {found[:16]}..., not {baton_id[:16]}...", at="$.payload"
        )
    return payload


# --- encode ------------------------------------------------------------------------------------


def encode_manifest(manifest: Manifest) -> bytes:
    """The payload of a baton: canonical bytes.

    Raises
    ------
    InputError
        The manifest could not be read back as the same manifest; ``at`` is the path.
    """
    data = dumps(_encode(manifest), what="manifest")
    try:
        same = parse_manifest(data)
    except FormatError as error:
        raise InputError(f"no manifest: {error.sentence}", at=error.at) from error
    if same != manifest:
        raise InputError("function parts and producer records are sorted by name")
    return data


def _encode(m: Manifest) -> JSON:
    critical, extensions = encode_extensions(m)
    return {
        "cached_tokens": m.cached_tokens,
        "created_ms": m.created_ms,
        "critical": critical,
        "domain": m.domain,
        "extensions": extensions,
        "fidelity": m.fidelity.to_json(),
        "format": FORMAT,
        "function": {"digest": m.function.digest, "parts": dict(m.function.parts)},
        "hops": {"exact": m.hops.exact, "lossy": m.hops.lossy},
        "mode": m.mode.value,
        "parents": list(m.parents),
        "pending_tokens": m.pending_tokens,
        "producer": dict(m.producer),
        "ref": m.ref,
        "segments": [_encode_segment(s) for s in m.segments],
        "sender": m.sender,
        "sequence": m.sequence,
        "spans": [_encode_span(s) for s in m.spans],
        "terms": _encode_terms(m.terms),
        "token_digest": m.token_digest,
        "transcript": {"address": m.transcript, "size_bytes": m.transcript_bytes},
    }


def _encode_segment(ref: SegmentRef) -> JSON:
    moved = {} if ref.shift is None else {"shift": ref.shift}
    return moved | {
        "address": ref.address,
        "count": ref.span.count,
        "fidelity": ref.fidelity.to_json(),
        "first": ref.span.first,
        "kind": ref.span.kind.value,
        "size_bytes": ref.size_bytes,
    }


def _encode_span(span: Span) -> JSON:
    return {
        "count": span.run.count,
        "first": span.run.first,
        "role": span.role.value,
        "shift": span.shift,
    }


def _encode_terms(terms: Terms) -> JSON:
    return {
        "goal": terms.goal,
        "instruction": terms.instruction,
        "receiver": terms.receiver,
        "round": terms.round,
        "summary": terms.summary,
    }


# --- parse -------------------------------------------------------------------------------------


def parse_manifest(payload: bytes) -> Manifest:
    """Inverse of :func:`encode_manifest`.

    Unknown fields are refused, except below ``extensions``, where those that ``critical`` does
    not name are ignored.

    Raises
    ------
    FormatError
        With the path of what is wrong.
    """
    value = loads(payload, limit_bytes=MAX_MANIFEST_BYTES, what="manifest")
    f.require_format(value, "$", FORMAT)
    top = f.read_object(value, "$", _FIELDS)
    f.read_format(top["format"], "$.format", FORMAT)
    extensions = parse_extensions(top["critical"], top["extensions"])
    transcript = f.read_object(top["transcript"], "$.transcript", _TRANSCRIPT_FIELDS)
    parents = f.read_list(top["parents"], "$.parents", at_most=MAX_PARENTS)
    manifest = Manifest(
        function=_parse_function(top["function"], "$.function"),
        domain=f.read_name(top, "domain", "$"),
        sender=f.read_name(top, "sender", "$"),
        mode=f.read_enum(top, "mode", "$", Mode, Fault.UNKNOWN_KIND),
        created_ms=f.read_int(top, "created_ms", "$", 0, _INT_MAX),
        cached_tokens=f.read_int(top, "cached_tokens", "$", 0, MAX_POSITION),
        pending_tokens=f.read_int(top, "pending_tokens", "$", 0, MAX_POSITION),
        token_digest=f.read_hex64(top, "token_digest", "$"),
        transcript=f.read_hex64(transcript, "address", "$.transcript"),
        transcript_bytes=f.read_int(
            transcript, "size_bytes", "$.transcript", 1, MAX_TRANSCRIPT_BYTES
        ),
        spans=_parse_spans(top["spans"], "$.spans"),
        segments=_parse_segments(top["segments"], "$.segments"),
        fidelity=read_fidelity(top["fidelity"], "$.fidelity"),
        hops=_parse_hops(top["hops"], "$.hops"),
        parents=tuple(f.read_hex64(parents, i, "$.parents") for i in range(len(parents))),
        terms=_parse_terms(top["terms"], "$.terms"),
        producer=f.read_table(top["producer"], "$.producer"),
        ref=f.read_name(top, "ref", "$", empty=True),
        sequence=f.read_int(top, "sequence", "$", -1, _INT_MAX),
        **extensions,
    )
    _check_tokens(manifest)
    return manifest


def _parse_function(value: Any, at: str) -> FunctionId:
    top = f.read_object(value, at, _FUNCTION_FIELDS)
    digest = f.read_hex64(top, "digest", at)
    return FunctionId(digest, f.read_table(top["parts"], f"{at}.parts"))


def _parse_hops(value: Any, at: str) -> Hops:
    top = f.read_object(value, at, _HOPS_FIELDS)
    return Hops(
        exact=f.read_int(top, "exact", at, 0, MAX_HOPS),
        lossy=f.read_int(top, "lossy", at, 0, MAX_HOPS),
    )


def _parse_terms(value: Any, at: str) -> Terms:
    top = f.read_object(value, at, _TERMS_FIELDS)
    instruction, summary, goal = (
        f.read_text(top, name, at, at_most=MAX_TERM_CHARS)
        for name in ("instruction", "summary", "goal")
    )
    return Terms(
        instruction=instruction,
        summary=summary,
        goal=goal,
        round=f.read_int(top, "round", at, 0, MAX_HOPS),
        receiver=f.read_name(top, "receiver", at, empty=True),
    )


def _parse_spans(value: Any, at: str) -> tuple[Span, ...]:
    spans = []
    for i, item in enumerate(f.read_list(value, at, at_most=MAX_SPANS)):
        here = f"{at}[{i}]"
        top = f.read_object(item, here, _SPAN_FIELDS)
        spans.append(
            Span(
                role=f.read_enum(top, "role", here, Role, Fault.UNKNOWN_KIND),
                run=read_run(top, here),
                shift=f.read_int(top, "shift", here, -MAX_POSITION, MAX_POSITION),
            )
        )
    return tuple(spans)


def _parse_segments(value: Any, at: str) -> tuple[SegmentRef, ...]:
    refs = []
    for i, item in enumerate(f.read_list(value, at, at_most=MAX_SEGMENTS)):
        here = f"{at}[{i}]"
        moved = type(item) is dict and "shift" in item
        top = f.read_object(item, here, _MOVED_FIELDS if moved else _SEGMENT_FIELDS)
        refs.append(
            SegmentRef(
                address=f.read_hex64(top, "address", here),
                span=read_segment_span(top, here),
                size_bytes=f.read_int(top, "size_bytes", here, 1, MAX_SEGMENT_BYTES),
                fidelity=read_fidelity(top["fidelity"], f"{here}.fidelity"),
                shift=f.read_int(top, "shift", here, -MAX_POSITION, MAX_POSITION)
                if moved
                else None,
            )
        )
    return tuple(refs)


def _parse_shift(segment: JSON, at: str) -> int:
    return f.read_int(segment, "shift", at, -MAX_POSITION, MAX_POSITION)


# --- what the fields say together ---------------------------------------------------------------


def _check_tokens(m: Manifest) -> None:
    total = m.cached_tokens + m.pending_tokens
    if not 1 <= total <= MAX_POSITION:
        raise f.refuse(f"a baton of {total} tokens", Fault.TOKENS, "$.cached_tokens")
    done = 0
    for i, span in enumerate(m.spans):
        if span.run.first < done or span.run.stop > total:
            raise f.refuse(
                f"span {i} covers {span.run.first} to {span.run.stop - 1}: spans ascend, do not "
                f"overlap and lie within {total} tokens",
                Fault.SPANS,
                f"$.spans[{i}]",
            )
        done = span.run.stop
    if m.export is not None and m.export.domain == m.domain:
        raise f.refuse("its own domain is no other one", Fault.OUT_OF_RANGE, "$.extensions.export")
    if m.segments and (m.export is not None or m.redacted):
        raise _bad_segment("a text-only baton lists none", "$.segments")
    _check_segments(m)


def _check_segments(m: Manifest) -> None:
    """Runs cover all cached tokens in order; one window segment ends them.

    What was moved is approximate, and so is everything that stands behind it.
    """
    done, runs, windows, moved = 0, 0, 0, False
    for i, ref in enumerate(m.segments):
        run, at = ref.run, f"$.segments[{i}]"
        if run.first < 0:
            raise _bad_segment(f"was moved to position {run.first}", at)
        if run.stop > m.cached_tokens:
            raise _bad_segment(f"ends at {run.stop}, behind {m.cached_tokens} cached tokens", at)
        if ref.span.kind is SegmentKind.WINDOW:
            windows += 1
            last = i + 1 == len(m.segments) and run.stop == m.cached_tokens
            if windows > 1 or not last or ref.moved:
                raise _bad_segment("one window segment at most, last, up to the last token", at)
            continue
        runs += 1
        if run.first != done:
            raise _bad_segment(f"starts at {run.first}, not at {done}", at)
        moved = moved or ref.moved
        if moved and ref.promised.kind is not FidelityClass.APPROXIMATE:
            raise _bad_segment("is not approximate, but stands behind what was moved", at)
        done = run.stop
    if runs and done != m.cached_tokens:
        raise _bad_segment(f"segments end at {done}, not at {m.cached_tokens}", "$.segments")
    _check_fidelity(m)


def _check_fidelity(m: Manifest) -> None:
    """A baton promises no more than its segments do."""
    worst = max((ref.promised.rank for ref in m.segments), default=0)
    if m.noise and m.fidelity.kind is not FidelityClass.APPROXIMATE:
        raise f.refuse("a noisy baton is approximate", Fault.SPANS, "$.fidelity")
    if m.fidelity.rank < worst:
        raise f.refuse(
            f"a baton that says {m.fidelity.kind} of segments that are not",
            Fault.SPANS,
            "$.fidelity",
        )


def _bad_segment(sentence: str, at: str) -> FormatError:
    return f.refuse(f"segment: {sentence}", Fault.SPANS, at)
