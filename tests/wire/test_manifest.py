"""Batons: round trips of manifests and envelopes, and each way in which they can be bad."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire import samples
from tests.wire.samples import spell

from kvbaton.errors import DigestMismatch, Fault, FormatError, InputError
from kvbaton.types import (
    Export,
    Fidelity,
    FidelityClass,
    FunctionId,
    Hops,
    Manifest,
    Mode,
    Role,
    SegmentKind,
    SegmentRef,
    SegmentSpan,
    Span,
    Terms,
    TokenRun,
    worst_fidelity,
)
from kvbaton.wire import limits
from kvbaton.wire.digests import baton_id
from kvbaton.wire.envelope import Envelope, Signature, encode_envelope, parse_envelope
from kvbaton.wire.manifest import PAYLOAD_TYPE, encode_manifest, parse_manifest, unwrap, wrap

MANIFEST = samples.manifest()
PAYLOAD = encode_manifest(MANIFEST)
ENVELOPE = wrap(PAYLOAD)
HEX = st.binary(min_size=32, max_size=32).map(bytes.hex)
NAME = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=20)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
TABLE = st.dictionaries(NAME, NAME, max_size=4).map(lambda d: tuple(sorted(d.items())))
FIDELITY = st.builds(Fidelity, st.sampled_from(FidelityClass), NAME, st.none() | HEX)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Manifests whose segments partition the cached tokens and whose spans cover all tokens.

    From some segment on they may have been moved; what stands behind those is approximate.
    """
    counts = draw(st.lists(st.integers(1, 300), min_size=1, max_size=5))
    cached, first, segments, moved = sum(counts), 0, [], False
    for count in counts:
        shift = draw(st.none() | st.integers(-99, first))
        moved = moved or shift is not None
        fidelity = draw(FIDELITY)
        if moved:
            fidelity = replace(fidelity, kind=FidelityClass.APPROXIMATE)
        span = SegmentSpan(first - (shift or 0), count)
        size_bytes = draw(st.integers(1, 1 << 40))
        segments.append(SegmentRef(draw(HEX), span, size_bytes, fidelity, shift))
        first += count
    if draw(st.booleans()):
        start = draw(st.integers(0, cached - 1))
        span = SegmentSpan(start, cached - start, SegmentKind.WINDOW)
        segments.append(SegmentRef(draw(HEX), span, 64, draw(FIDELITY)))
    pending = draw(st.integers(0, 3))
    cut = draw(st.integers(1, cached))
    spans = [Span(draw(st.sampled_from(Role)), TokenRun(0, cut), draw(st.integers(-9, 9)))]
    if cut < cached + pending:
        spans.append(Span(Role.GENERATED, TokenRun(cut, cached + pending - cut)))
    promised = worst_fidelity(draw(FIDELITY), *(ref.promised for ref in segments))
    noise = draw(st.just(0.0) | st.floats(1e-6, limits.MAX_NOISE))
    if noise:
        promised = replace(promised, kind=FidelityClass.APPROXIMATE)
    return Manifest(
        function=FunctionId(draw(HEX), draw(TABLE)),
        domain=draw(NAME),
        sender=draw(NAME),
        mode=draw(st.sampled_from(Mode)),
        created_ms=draw(st.integers(0, (1 << 63) - 1)),
        cached_tokens=cached,
        pending_tokens=pending,
        token_digest=draw(HEX),
        transcript=draw(HEX),
        transcript_bytes=draw(st.integers(1, limits.MAX_TRANSCRIPT_BYTES)),
        spans=tuple(spans),
        segments=tuple(segments),
        fidelity=promised,
        hops=Hops(draw(st.integers(0, 9)), draw(st.integers(0, 9))),
        parents=tuple(draw(st.lists(HEX, max_size=3))),
        terms=Terms(draw(TEXT), draw(TEXT), draw(TEXT), draw(st.integers(0, 9)), draw(NAME)),
        producer=draw(TABLE),
        ref=draw(st.just("") | NAME),
        sequence=draw(st.integers(-1, 1 << 40)),
        expires_ms=draw(st.integers(0, (1 << 63) - 1)),
        signers=tuple(sorted(draw(st.sets(HEX, max_size=3)))),
        noise=noise,
    )


@given(manifests())
def test_manifests_come_back(manifest: Manifest) -> None:
    """unwrap(wrap(payload)) is the payload, and parse(encode(m)) is m."""
    payload = encode_manifest(manifest)
    assert unwrap(wrap(payload), baton_id=baton_id(payload)) == payload
    assert parse_manifest(payload) == manifest


@given(st.binary(max_size=90), st.lists(st.builds(Signature, NAME, st.binary()), max_size=1))
def test_envelopes_come_back(payload: bytes, signatures: list[Signature]) -> None:
    """Any payload and at most one signature come back as the same bytes."""
    envelope = Envelope(PAYLOAD_TYPE, payload, tuple(signatures))
    assert parse_envelope(encode_envelope(envelope), payload_type=PAYLOAD_TYPE) == envelope


def test_a_baton_without_segments_is_text_only() -> None:
    """A manifest may list no segment: its receiver has the ids alone."""
    manifest = replace(MANIFEST, cached_tokens=0, pending_tokens=6, segments=())
    assert parse_manifest(encode_manifest(manifest)) == manifest


TEXT_ONLY = replace(MANIFEST, cached_tokens=0, pending_tokens=6, segments=())
SALT = "5a" * 32


@given(NAME, HEX, st.lists(NAME, max_size=3))
def test_what_is_made_for_another_domain_comes_back(
    domain: str, salt: str, names: list[str]
) -> None:
    """A text-only baton says for whom it is, and what was taken out of it."""
    manifest = replace(TEXT_ONLY, export=Export(domain, salt), redacted=tuple(names))
    assert parse_manifest(encode_manifest(manifest)) == manifest


@pytest.mark.parametrize("change", [{"export": Export("others", SALT)}, {"redacted": ("system",)}])
def test_a_redacted_baton_carries_no_cache(change: dict[str, Any]) -> None:
    """What was taken out of the text, the cache has attended to."""
    with pytest.raises(InputError) as caught:
        encode_manifest(replace(MANIFEST, **change))
    assert caught.value.at == "$.segments"


EXPIRY, SIGNERS = "$.extensions.expires_ms", "$.extensions.signers"
EXPIRES = {"critical": ["expires_ms"], "extensions": {"expires_ms": 5}}


@pytest.mark.parametrize(
    ("change", "fault", "at"),
    [
        ({"extensions": {"expires_ms": 5}}, Fault.NOT_CANONICAL, "$.critical"),
        ({**EXPIRES, "critical": ["expires_ms", "expires_ms"]}, Fault.NOT_CANONICAL, "$.critical"),
        ({**EXPIRES, "extensions": {"expires_ms": 0}}, Fault.OUT_OF_RANGE, EXPIRY),
        ({**EXPIRES, "extensions": {"expires_ms": "5"}}, Fault.WRONG_TYPE, EXPIRY),
        ({"extensions": {"signers": []}}, Fault.OUT_OF_RANGE, SIGNERS),
        ({"extensions": {"signers": [SALT, SALT]}}, Fault.NOT_CANONICAL, SIGNERS),
        ({"extensions": {"signers": ["b" * 64, "a" * 64]}}, Fault.NOT_CANONICAL, SIGNERS),
        ({"extensions": {"noise": "0x0.0p+0"}}, Fault.OUT_OF_RANGE, "$.extensions.noise"),
        ({"extensions": {"noise": "0.5"}}, Fault.NOT_CANONICAL, "$.extensions.noise"),
        ({"extensions": {"noise": "nan"}}, Fault.NOT_FINITE, "$.extensions.noise"),
        ({"extensions": {"redacted": []}}, Fault.OUT_OF_RANGE, "$.extensions.redacted"),
        (
            {"critical": ["export"], "extensions": {"export": {"domain": "b", "salt": "1"}}},
            Fault.OUT_OF_RANGE,
            "$.extensions.export.salt",
        ),
        (
            {"critical": ["export"], "extensions": {"export": {"domain": "b"}}},
            Fault.MISSING_FIELD,
            "$.extensions.export.salt",
        ),
    ],
)  # fmt: skip
def test_extensions_have_one_spelling(change: dict[str, Any], fault: Fault, at: str) -> None:
    """Each way in which a known extension can be bad, with its place."""
    with pytest.raises(FormatError) as caught:
        parse_manifest(spell(json.loads(PAYLOAD) | change))
    assert (caught.value.fault, caught.value.at) == (fault, at)


def test_a_model_of_window_layers_has_no_run_segments() -> None:
    """Where every layer has a window, the window segment is the whole cache."""
    manifest = replace(MANIFEST, segments=MANIFEST.segments[1:])
    assert parse_manifest(encode_manifest(manifest)) == manifest


APPROXIMATE = Fidelity(FidelityClass.APPROXIMATE)


def moved_manifest() -> Manifest:
    """A baton whose only segment was computed three positions further on."""
    span = SegmentSpan(MANIFEST.segments[0].span.first + 3, MANIFEST.segments[0].span.count)
    only = replace(MANIFEST.segments[0], span=span, shift=-3)
    return replace(MANIFEST, mode=Mode.SLICE, segments=(only,), fidelity=APPROXIMATE)


def test_a_segment_says_how_far_it_was_moved() -> None:
    """It keeps the positions at which it was computed, and stands elsewhere in the baton."""
    manifest = moved_manifest()
    assert parse_manifest(encode_manifest(manifest)) == manifest
    assert manifest.segments[0].run.first == 0


@pytest.mark.parametrize("kind", [FidelityClass.EXACT, FidelityClass.LOSSY])
def test_what_was_moved_makes_a_baton_approximate(kind: FidelityClass) -> None:
    """A baton of moved segments cannot promise more."""
    with pytest.raises(InputError, match="says"):
        encode_manifest(replace(moved_manifest(), fidelity=Fidelity(kind)))


def test_what_stands_behind_a_moved_segment_is_approximate() -> None:
    """A segment that attended to moved ones cannot be exact itself."""
    manifest = moved_manifest()
    done = manifest.segments[0].run.stop
    behind = SegmentRef("ab" * 32, SegmentSpan(done, 2), 64)
    longer = replace(
        manifest,
        cached_tokens=done + 2,
        pending_tokens=1,
        spans=(),
        segments=(*manifest.segments, behind),
    )
    with pytest.raises(InputError) as caught:
        encode_manifest(longer)
    assert caught.value.at == "$.segments[1]"
    fine = replace(behind, fidelity=APPROXIMATE)
    longer = replace(longer, segments=(*manifest.segments, fine))
    assert parse_manifest(encode_manifest(longer)) == longer


@pytest.mark.parametrize("mode", list(Mode))
def test_segments_leave_nothing_out(mode: Mode) -> None:
    """In every mode the segments of a baton stand one behind the other from its first token on."""
    only = replace(MANIFEST.segments[0], span=SegmentSpan(2, 2))
    with pytest.raises(InputError):
        encode_manifest(replace(MANIFEST, mode=mode, segments=(only,)))


def test_extensions_that_are_not_critical_are_ignored() -> None:
    """A newer sender may say more; what need not be understood changes nothing."""
    value = json.loads(PAYLOAD)
    value["extensions"] = {"colour": {"deep": [1, "x"]}}
    assert parse_manifest(spell(value)) == MANIFEST


# --- bad manifests -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Bytes, and what must come of them."""

    name: str
    fault: Fault
    at: str
    data: bytes


def changed(name: str, fault: Fault, at: str, **values: Any) -> Case:
    """The manifest with other top-level fields."""
    return Case(name, fault, at, spell(json.loads(PAYLOAD) | values))


def edited(name: str, fault: Fault, at: str, change: Callable[[Any], Any]) -> Case:
    """The manifest after ``change`` has edited it."""
    value = json.loads(PAYLOAD)
    change(value)
    return Case(name, fault, at, spell(value))


def segment(index: int, **values: Any) -> Callable[[Any], Any]:
    """Set fields of a segment reference."""
    return lambda value: value["segments"][index].update(values)


def span(index: int, **values: Any) -> Callable[[Any], Any]:
    """Set fields of a span."""
    return lambda value: value["spans"][index].update(values)


MANIFEST_CASES = [
    Case("empty", Fault.TRUNCATED, "$", b""),
    Case("cut", Fault.TRUNCATED, "$", PAYLOAD[:-1]),
    Case("longer", Fault.TRAILING_BYTES, "$", PAYLOAD + b"\n"),
    Case("too large", Fault.TOO_LARGE, "$", b" " * (limits.MAX_MANIFEST_BYTES + 1)),
    Case("not ASCII", Fault.NOT_UTF8, "$", PAYLOAD.replace(b"planner", b"pl\xe4nner")),
    Case("no JSON", Fault.NOT_JSON, "$", PAYLOAD.replace(b":", b"=", 1)),
    Case("whitespace", Fault.NOT_CANONICAL, "$", PAYLOAD.replace(b",", b", ", 1)),
    Case("twice a field", Fault.DUPLICATE_KEY, "$", b'{"cached_tokens":5,' + PAYLOAD[1:]),
    Case("deep", Fault.TOO_DEEP, "$", PAYLOAD.replace(b'"local"', b"[" * 9999 + b"]" * 9999)),
    Case("a float", Fault.NOT_AN_INTEGER, "$", PAYLOAD.replace(b":5,", b":5.0,", 1)),
    Case("NaN", Fault.NOT_AN_INTEGER, "$", PAYLOAD.replace(b":5,", b":NaN,", 1)),
    Case("a list", Fault.WRONG_TYPE, "$", b"[]"),
    changed("format", Fault.UNKNOWN_FORMAT, "$.format", format=2),
    changed("mode", Fault.UNKNOWN_KIND, "$.mode", mode="guess"),
    edited("role", Fault.UNKNOWN_KIND, "$.spans[1].role", span(1, role="oracle")),
    edited("segment kind", Fault.UNKNOWN_KIND, "$.segments[0].kind", segment(0, kind="side")),
    edited("fidelity", Fault.UNKNOWN_KIND, "$.fidelity.class",
           lambda v: v["fidelity"].update({"class": "perfect"})),
    changed("extra field", Fault.UNKNOWN_FIELD, "$.salt", salt=""),
    edited("extra field inside", Fault.UNKNOWN_FIELD, "$.terms.tone",
           lambda v: v["terms"].update(tone="kind")),
    changed("critical extension", Fault.UNKNOWN_CRITICAL, "$.critical[0]",
            critical=["lock"], extensions={"lock": 1}),
    changed("critical nothing", Fault.MISSING_FIELD, "$.critical[0]", critical=["lock"]),
    edited("missing field", Fault.MISSING_FIELD, "$.token_digest",
           lambda v: v.pop("token_digest")),
    edited("missing field inside", Fault.MISSING_FIELD, "$.segments[1].address",
           lambda v: v["segments"][1].pop("address")),
    changed("text as number", Fault.WRONG_TYPE, "$.cached_tokens", cached_tokens="5"),
    changed("bool as number", Fault.WRONG_TYPE, "$.pending_tokens", pending_tokens=True),
    changed("extensions type", Fault.WRONG_TYPE, "$.extensions", extensions=[]),
    changed("producer value", Fault.WRONG_TYPE, "$.producer.threads", producer={"threads": 1}),
    changed("negative", Fault.OUT_OF_RANGE, "$.cached_tokens", cached_tokens=-1),
    changed("no sender", Fault.OUT_OF_RANGE, "$.sender", sender=""),
    changed("long sender", Fault.OUT_OF_RANGE, "$.sender", sender="x" * 257),
    changed("escape codes", Fault.OUT_OF_RANGE, "$.sender", sender="\x1b]0;owned\x07"),
    changed("many parents", Fault.OUT_OF_RANGE, "$.parents", parents=["00" * 32] * 257),
    changed("parent", Fault.OUT_OF_RANGE, "$.parents[0]", parents=["../../etc/passwd"]),
    changed("hops", Fault.OUT_OF_RANGE, "$.hops.lossy", hops={"exact": 0, "lossy": -1}),
    edited("empty segment", Fault.OUT_OF_RANGE, "$.segments[0].count", segment(0, count=0)),
    edited("address", Fault.OUT_OF_RANGE, "$.segments[0].address", segment(0, address="A5" * 32)),
    edited("long transcript", Fault.OUT_OF_RANGE, "$.transcript.size_bytes",
           lambda v: v["transcript"].update(size_bytes=1 << 40)),
    changed("no tokens", Fault.TOKENS, "$.cached_tokens",
            cached_tokens=0, pending_tokens=0, segments=[], spans=[]),
    edited("span too long", Fault.SPANS, "$.spans[1]", span(1, count=5)),
    edited("spans overlap", Fault.SPANS, "$.spans[1]", span(1, first=1)),
    edited("spans descend", Fault.SPANS, "$.spans[1]", lambda v: v["spans"].reverse()),
    edited("segment missing", Fault.SPANS, "$.segments", segment(0, count=4)),
    edited("segments apart", Fault.SPANS, "$.segments[0]", segment(0, first=1, count=4)),
    edited("segment of pending tokens", Fault.SPANS, "$.segments[0]", segment(0, count=6)),
    edited("window first", Fault.SPANS, "$.segments[0]", lambda v: v["segments"].reverse()),
    edited("two windows", Fault.SPANS, "$.segments[1]",
           lambda v: v["segments"].append(v["segments"][1])),
    edited("window ends early", Fault.SPANS, "$.segments[1]", segment(1, count=2)),
]  # fmt: skip


@pytest.mark.parametrize("case", MANIFEST_CASES, ids=lambda c: f"{c.fault}: {c.name}")
def test_each_bad_manifest_has_its_fault_and_place(case: Case) -> None:
    """A manifest that breaks one rule is refused with that rule's fault at that place."""
    with pytest.raises(FormatError) as caught:
        parse_manifest(case.data)
    assert (caught.value.fault, caught.value.at) == (case.fault, case.at)


def wrapped(name: str, fault: Fault, at: str, **values: Any) -> Case:
    """The envelope with other fields."""
    return Case(name, fault, at, spell(json.loads(ENVELOPE) | values))


B64 = base64.b64encode(PAYLOAD).decode()
SIG = {"keyid": "", "sig": ""}
ENVELOPE_CASES = [
    Case("cut", Fault.TRUNCATED, "$", ENVELOPE[:-2]),
    Case("longer", Fault.TRAILING_BYTES, "$", ENVELOPE + ENVELOPE),
    Case("too large", Fault.TOO_LARGE, "$", b" " * (limits.MAX_ENVELOPE_BYTES + 1)),
    Case("not ASCII", Fault.NOT_UTF8, "$", ENVELOPE.replace(b"payload", b"p\xffyload")),
    Case("no JSON", Fault.NOT_JSON, "$", b"envelope"),
    Case("whitespace", Fault.NOT_CANONICAL, "$", ENVELOPE.replace(b":", b": ", 1)),
    Case("twice a payload", Fault.DUPLICATE_KEY, "$", b'{"payload":"",' + ENVELOPE[1:]),
    Case("deep", Fault.TOO_DEEP, "$", b"[" * 9999),
    Case("a float", Fault.NOT_AN_INTEGER, "$", ENVELOPE.replace(b"[]", b"[0.5]")),
    Case("a vast integer", Fault.OUT_OF_RANGE, "$",
         ENVELOPE.replace(b"[]", b"[" + b"1" * 5000 + b"]")),
    wrapped("extra field", Fault.UNKNOWN_FIELD, "$.salt", salt=""),
    wrapped("signature field", Fault.UNKNOWN_FIELD, "$.signatures[0].alg",
            signatures=[SIG | {"alg": "none"}]),
    wrapped("no sig", Fault.MISSING_FIELD, "$.signatures[0].sig", signatures=[{"keyid": ""}]),
    wrapped("payload type", Fault.WRONG_TYPE, "$.payload", payload=7),
    wrapped("signatures type", Fault.WRONG_TYPE, "$.signatures", signatures={}),
    wrapped("long keyid", Fault.OUT_OF_RANGE, "$.signatures[0].keyid",
            signatures=[SIG | {"keyid": "k" * 257}]),
    wrapped("another type", Fault.ENVELOPE, "$.payloadType", payloadType="application/json"),
    wrapped("two signatures", Fault.ENVELOPE, "$.signatures", signatures=[SIG, SIG]),
    wrapped("no base64", Fault.ENVELOPE, "$.payload", payload="{}"),
    wrapped("base64 of a web address", Fault.ENVELOPE, "$.payload", payload="_-8="),
    wrapped("base64 without padding", Fault.ENVELOPE, "$.payload", payload="YQ"),
    wrapped("base64 with loose bits", Fault.ENVELOPE, "$.payload", payload="YR=="),
    wrapped("base64 with a line", Fault.ENVELOPE, "$.payload", payload="YWJj\nYWJj"),
    wrapped("loose bits in a sig", Fault.ENVELOPE, "$.signatures[0].sig",
            signatures=[SIG | {"sig": "YR=="}]),
    wrapped("another payload", Fault.DIGEST, "$.payload",
            payload=base64.b64encode(PAYLOAD.replace(b"planner", b"Planner")).decode()),
]  # fmt: skip


@pytest.mark.parametrize("case", ENVELOPE_CASES, ids=lambda c: f"{c.fault}: {c.name}")
def test_each_bad_envelope_has_its_fault_and_place(case: Case) -> None:
    """An envelope that breaks one rule is refused with that rule's fault at that place."""
    with pytest.raises(FormatError) as caught:
        unwrap(case.data, baton_id=baton_id(PAYLOAD))
    assert (caught.value.fault, caught.value.at) == (case.fault, case.at)


def test_every_single_flipped_bit_of_a_baton_is_found() -> None:
    """Any flipped bit of an envelope is an error that names a place."""
    promised = baton_id(PAYLOAD)
    assert unwrap(ENVELOPE, baton_id=promised) == PAYLOAD
    for bit in range(8 * len(ENVELOPE)):
        broken = bytearray(ENVELOPE)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError) as caught:
            unwrap(bytes(broken), baton_id=promised)
        assert caught.value.at.startswith("$")


@pytest.mark.parametrize("length", range(0, len(ENVELOPE), 53))
def test_a_baton_cut_anywhere_is_refused(length: int) -> None:
    """An envelope that ends early is refused."""
    with pytest.raises(FormatError):
        unwrap(ENVELOPE[:length])


def test_another_baton_under_the_id_is_a_digest_mismatch() -> None:
    """A well-formed baton is refused where another one was promised."""
    other = wrap(encode_manifest(replace(MANIFEST, sequence=4)))
    with pytest.raises(DigestMismatch):
        unwrap(other, baton_id=baton_id(PAYLOAD))


@pytest.mark.parametrize(
    "name", ["'; DROP TABLE batons; --", "<script>alert(1)</script>", "../../etc/passwd", "%s{0}"]
)
def test_names_are_inert(name: str) -> None:
    """SQL, HTML, paths and format strings as sender, receiver, domain or ref are only text."""
    manifest = replace(
        MANIFEST, sender=name, domain=name, ref=name, terms=Terms(name, name, name, 0, name)
    )
    assert parse_manifest(encode_manifest(manifest)) == manifest


@pytest.mark.parametrize(
    "change",
    [
        {"sender": "two\nlines"},
        {"cached_tokens": 4},
        {"parents": ("5e",)},
        {"producer": (("b", ""), ("a", ""))},
        {"terms": Terms(instruction="x" * (limits.MAX_TERM_CHARS + 1))},
        {"terms": Terms(instruction="\ud800")},
    ],
    ids=["control", "tokens", "parent", "order", "long", "surrogate"],
)
def test_what_could_not_be_read_back_is_not_written(change: dict[str, Any]) -> None:
    """A manifest that the parser would refuse or change is the caller's mistake."""
    with pytest.raises(InputError):
        encode_manifest(replace(MANIFEST, **change))


def test_an_envelope_holds_one_signature_at_most() -> None:
    """A second signature cannot be written either."""
    with pytest.raises(InputError):
        wrap(PAYLOAD, signatures=[Signature("", b""), Signature("", b"")])


def test_an_envelope_that_is_too_large_is_not_written() -> None:
    """The writer keeps the reader's limit."""
    with pytest.raises(InputError):
        wrap(bytes(limits.MAX_ENVELOPE_BYTES))
