"""Transcripts and prefix records: round trips, and each way in which they can be bad."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire import samples
from tests.wire.samples import IDS, KEYS, TRANSCRIPT, spell

from kvbaton.errors import DigestMismatch, Fault, FormatError, InputError
from kvbaton.types import Transcript
from kvbaton.wire import limits
from kvbaton.wire.digests import DomainKeys
from kvbaton.wire.envelope import Envelope, Signature, encode_envelope
from kvbaton.wire.prefix import PAYLOAD_TYPE as PREFIX_TYPE
from kvbaton.wire.prefix import PrefixRecord, encode_prefix, parse_prefix, stored_record
from kvbaton.wire.transcript import encode_transcript, parse_transcript

DATA = encode_transcript(TRANSCRIPT)
ADDRESS = KEYS.transcript_address(DATA)
RECORD = samples.prefix_record()
PREFIX = encode_prefix(RECORD)
ID = st.integers(0, (1 << 32) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
HEX = st.binary(min_size=32, max_size=32).map(bytes.hex)
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            TEXT | st.sampled_from(["$float", "$object", "$", "$$float"]), inner, max_size=4
        )
    ),
    max_leaves=10,
)
MESSAGES = st.builds(
    lambda role, rest: rest | {"role": role},
    st.sampled_from(["user", "assistant", "tool"]),
    st.dictionaries(TEXT, JSON_VALUES, max_size=3),
)


@given(st.lists(ID, min_size=1).map(tuple), TEXT, st.lists(MESSAGES, max_size=3).map(tuple))
def test_transcripts_come_back(
    ids: tuple[int, ...], text: str, messages: tuple[dict[str, Any], ...]
) -> None:
    """Ids, text and messages come back, floats and keys with dollars in messages included."""
    transcript = Transcript(ids, text, messages)
    data = encode_transcript(transcript)
    again = parse_transcript(data, address=KEYS.transcript_address(data), keys=KEYS)
    assert again == transcript
    assert encode_transcript(again) == data


@given(JSON_VALUES)
def test_the_order_of_keys_below_a_message_survives(value: Any) -> None:
    """A template that prints a tool call's arguments prints the same text afterwards."""
    data = encode_transcript(Transcript((1,), "", ({"role": "tool", "content": value},)))
    again = parse_transcript(data).messages[0]["content"]
    assert json.dumps(again) == json.dumps(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_in_messages_keep_their_type_and_sign(value: float) -> None:
    """A tool call's 1.0 stays a float, and minus zero stays minus zero."""
    message = {"role": "tool", "content": [value]}
    data = encode_transcript(Transcript((1,), "", (message,)))
    (again,) = parse_transcript(data).messages[0]["content"]
    assert type(again) is float
    assert (again, math.copysign(1, again)) == (value, math.copysign(1, value))


@given(
    HEX,
    HEX,
    st.integers(1, 1 << 40),
    st.integers(0, 1 << 20),
    st.lists(ID, min_size=1).map(tuple),
    st.sampled_from(["", "planner"]),
)
def test_prefix_records_come_back(
    function: str, address: str, size_bytes: int, first: int, ids: tuple[int, ...], sender: str
) -> None:
    """parse(encode(record)) is the record, also out of an envelope."""
    record = PrefixRecord(function, address, size_bytes, first, ids, "local", sender)
    assert parse_prefix(encode_prefix(record)) == record
    envelope = Envelope(PREFIX_TYPE, encode_prefix(record), (Signature("k", b"s"),))
    assert stored_record(encode_envelope(envelope)) == record


@dataclass(frozen=True)
class Case:
    """Bytes, and what must come of them."""

    name: str
    fault: Fault
    at: str
    data: bytes


def transcript(name: str, fault: Fault, at: str, **values: Any) -> Case:
    """The transcript with other fields."""
    return Case(name, fault, at, spell(json.loads(DATA) | values))


def prefix(name: str, fault: Fault, at: str, **values: Any) -> Case:
    """The prefix record with other fields."""
    return Case(name, fault, at, spell(json.loads(PREFIX) | values))


def spellings(data: bytes, limit_bytes: int) -> list[Case]:
    """Ways in which the JSON of any document can be bad."""
    return [
        Case("empty", Fault.TRUNCATED, "$", b""),
        Case("cut", Fault.TRUNCATED, "$", data[:-1]),
        Case("longer", Fault.TRAILING_BYTES, "$", data + b" "),
        Case("too large", Fault.TOO_LARGE, "$", bytes(limit_bytes + 1)),
        Case("not ASCII", Fault.NOT_UTF8, "$", data[:-1] + b"\xff}"),
        Case("no JSON", Fault.NOT_JSON, "$", data.replace(b":", b"=", 1)),
        Case("whitespace", Fault.NOT_CANONICAL, "$", data.replace(b":", b": ", 1)),
        Case("twice a field", Fault.DUPLICATE_KEY, "$", data.replace(b'"ids":', b'"ids":0,"ids":')),
        Case("deep", Fault.TOO_DEEP, "$", b"[" * 9999),
        Case("a float", Fault.NOT_AN_INTEGER, "$", data.replace(b"[1,", b"[1.0,")),
        Case("NaN", Fault.NOT_AN_INTEGER, "$", data.replace(b"[1,", b"[NaN,")),
        Case("vast", Fault.OUT_OF_RANGE, "$", data.replace(b"[1,", b"[" + b"1" * 5000 + b",")),
    ]


TRANSCRIPT_CASES = [
    *spellings(DATA, limits.MAX_TRANSCRIPT_BYTES),
    transcript("format", Fault.UNKNOWN_FORMAT, "$.format", format=0),
    transcript("extra field", Fault.UNKNOWN_FIELD, "$.author", author=""),
    transcript(
        "unknown tag", Fault.UNKNOWN_FIELD, "$.messages[0].a.$date",
        messages=[{"role": "user", "a": {"$date": "now"}}],
    ),
    Case("missing field", Fault.MISSING_FIELD, "$.text",
         spell({"format": 1, "ids": [1], "messages": []})),
    transcript("no role", Fault.MISSING_FIELD, "$.messages[0].role", messages=[{"content": ""}]),
    transcript("ids type", Fault.WRONG_TYPE, "$.ids", ids={"0": 1}),
    transcript("id type", Fault.WRONG_TYPE, "$.ids[1]", ids=[1, "2"]),
    transcript("bool as id", Fault.WRONG_TYPE, "$.ids[1]", ids=[1, True]),
    transcript("message type", Fault.WRONG_TYPE, "$.messages[0]", messages=["hello"]),
    transcript("role type", Fault.WRONG_TYPE, "$.messages[0].role", messages=[{"role": 1}]),
    transcript("no ids", Fault.OUT_OF_RANGE, "$.ids", ids=[]),
    transcript("negative id", Fault.OUT_OF_RANGE, "$.ids[1]", ids=[1, -1]),
    transcript("33 bits", Fault.OUT_OF_RANGE, "$.ids[0]", ids=[1 << 32]),
    transcript("text", Fault.WRONG_TYPE, "$.text", text=None),
    transcript(
        "infinite", Fault.NOT_FINITE, "$.messages[0].a",
        messages=[{"role": "user", "a": {"$float": "inf"}}],
    ),
    transcript(
        "sorted pairs", Fault.NOT_CANONICAL, "$.messages[0].a",
        messages=[{"role": "user", "a": {"$object": [["a", 1], ["b", 2]]}}],
    ),
    transcript(
        "a key twice in pairs", Fault.DUPLICATE_KEY, "$.messages[0].a",
        messages=[{"role": "user", "a": {"$object": [["b", 1], ["a", 2], ["b", 3]]}}],
    ),
    transcript(
        "pairs of three", Fault.OUT_OF_RANGE, "$.messages[0].a",
        messages=[{"role": "user", "a": {"$object": [["b", 1, 2]]}}],
    ),
    transcript(
        "a pair without a key", Fault.WRONG_TYPE, "$.messages[0].a[0]",
        messages=[{"role": "user", "a": {"$object": [[1, 2]]}}],
    ),
    transcript(
        "float spelling", Fault.NOT_CANONICAL, "$.messages[0].a",
        messages=[{"role": "user", "a": {"$float": "0x1p+0"}}],
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", TRANSCRIPT_CASES, ids=lambda c: f"{c.fault}: {c.name}")
def test_each_bad_transcript_has_its_fault_and_place(case: Case) -> None:
    """A transcript that breaks one rule is refused with that rule's fault at that place."""
    with pytest.raises(FormatError) as caught:
        parse_transcript(case.data)
    assert (caught.value.fault, caught.value.at) == (case.fault, case.at)


PREFIX_CASES = [
    *spellings(PREFIX, limits.MAX_PREFIX_RECORD_BYTES),
    prefix("format", Fault.UNKNOWN_FORMAT, "$.format", format=2),
    prefix("extra field", Fault.UNKNOWN_FIELD, "$.text", text=""),
    Case("missing field", Fault.MISSING_FIELD, "$.address", spell({"format": 1})),
    prefix("ids type", Fault.WRONG_TYPE, "$.ids", ids="1"),
    prefix("address", Fault.OUT_OF_RANGE, "$.address", address="../../etc/passwd"),
    prefix("size", Fault.OUT_OF_RANGE, "$.size_bytes", size_bytes=0),
    prefix("no ids", Fault.OUT_OF_RANGE, "$.ids", ids=[]),
    prefix("last position", Fault.TOKENS, "$.ids", first=limits.MAX_POSITION - 4),
]


@pytest.mark.parametrize("case", PREFIX_CASES, ids=lambda c: f"{c.fault}: {c.name}")
def test_each_bad_prefix_record_has_its_fault_and_place(case: Case) -> None:
    """A prefix record that breaks one rule is refused with that rule's fault at that place."""
    with pytest.raises(FormatError) as caught:
        parse_prefix(case.data)
    assert (caught.value.fault, caught.value.at) == (case.fault, case.at)


def test_every_single_flipped_bit_of_a_transcript_is_found() -> None:
    """Any flipped bit of a transcript is a digest mismatch before anything is parsed."""
    assert parse_transcript(DATA, address=ADDRESS, keys=KEYS) == TRANSCRIPT
    for bit in range(8 * len(DATA)):
        broken = bytearray(DATA)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DigestMismatch) as caught:
            parse_transcript(bytes(broken), address=ADDRESS, keys=KEYS)
        assert caught.value.at == "$"


@pytest.mark.parametrize("length", range(len(DATA)))
def test_a_transcript_cut_anywhere_is_refused(length: int) -> None:
    """A transcript that ends early is refused, with and without its address."""
    with pytest.raises(FormatError):
        parse_transcript(DATA[:length])
    with pytest.raises(DigestMismatch):
        parse_transcript(DATA[:length], address=ADDRESS, keys=KEYS)


def test_a_transcript_of_another_domain_does_not_verify() -> None:
    """The address is keyed: another domain's keys do not find it."""
    with pytest.raises(DigestMismatch):
        parse_transcript(DATA, address=ADDRESS, keys=DomainKeys(bytes(32)))


def test_an_address_needs_the_keys() -> None:
    """Asking for an address to be verified without keys is an error, not a pass."""
    with pytest.raises(InputError):
        parse_transcript(DATA, address=ADDRESS)


@pytest.mark.parametrize(
    "change",
    [
        {"ids": ()},
        {"ids": (-1,)},
        {"ids": (1 << 32,)},
        {"text": "\udc80"},
        {"messages": ({"content": "no role"},)},
        {"messages": ({"role": "user", "content": float("nan")},)},
        {"messages": ({"role": "user", "content": b"bytes"},)},
        {"messages": ({"role": "user", 1: "key"},)},
        {"messages": ({"role": "user", "content": 1 << 64},)},
    ],
    ids=["none", "negative", "wide", "text", "role", "nan", "bytes", "key", "integer"],
)
def test_what_could_not_be_read_back_is_not_written(change: dict[str, Any]) -> None:
    """A transcript that the parser would refuse is the caller's mistake."""
    with pytest.raises(InputError):
        encode_transcript(replace(TRANSCRIPT, **change))


def test_a_prefix_record_without_ids_is_not_written() -> None:
    """A record stands for at least one token."""
    with pytest.raises(InputError):
        encode_prefix(replace(RECORD, ids=()))


def test_text_and_messages_are_inert() -> None:
    """Markup, paths and template syntax in messages come back as the same text."""
    text = "<script>{{ 7*7 }}</script> ../../etc/passwd '; DROP TABLE t; --"
    transcript = Transcript(IDS, text, ({"role": text, "content": text},))
    assert parse_transcript(encode_transcript(transcript)) == transcript
