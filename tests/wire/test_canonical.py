"""Canonical JSON: one value, one spelling."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbaton.errors import Fault, FormatError, InputError
from kvbaton.wire import canonical
from kvbaton.wire.limits import MAX_DEPTH

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | INT64 | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=20,
)


def loads(data: bytes) -> object:
    """Read a document of at most a mebibyte."""
    return canonical.loads(data, limit_bytes=1 << 20, what="document")


@given(VALUES)
def test_values_come_back_and_are_plain_json(value: object) -> None:
    """loads(dumps(x)) is x, and the standard library reads the same value."""
    data = canonical.dumps(value)
    assert loads(data) == value == json.loads(data)
    assert data.isascii()


@given(VALUES, st.integers(0, 10))
def test_other_spellings_are_refused(value: object, indent: int) -> None:
    """Indented JSON of the same value is not accepted unless it is the canonical spelling."""
    other = json.dumps(value, indent=indent, sort_keys=True).encode("ascii")
    if other == canonical.dumps(value):
        assert loads(other) == value
    else:
        with pytest.raises(FormatError) as caught:
            loads(other)
        assert caught.value.fault is Fault.NOT_CANONICAL


@given(st.binary(max_size=60))
def test_any_bytes_give_a_value_or_a_format_error(data: bytes) -> None:
    """No bytes make the reader raise anything but FormatError; what it accepts is canonical."""
    try:
        value = loads(data)
    except FormatError:
        return
    assert canonical.dumps(value) == data


WIDE = st.integers(-(10**25), 10**25)
LOOSE = st.recursive(
    st.none() | st.booleans() | WIDE | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(LOOSE, st.integers(0, MAX_DEPTH + 3))
def test_the_glance_and_the_item_by_item_check_agree(value: object, depth: int) -> None:
    """What passes at a glance also passes item by item, at any depth and any integer."""
    for _ in range(depth):
        value = [value]
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    if canonical._is_plain(text) and canonical._is_shallow(value):
        canonical._check(value, None, MAX_DEPTH, "value")


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", Fault.TRUNCATED),
        (b"[1", Fault.TRUNCATED),
        (b'{"a":"b', Fault.TRUNCATED),
        (b"nil", Fault.NOT_JSON),
        (b"{'a':1}", Fault.NOT_JSON),
        (b" 1", Fault.NOT_JSON),
        (b"1 ", Fault.TRAILING_BYTES),
        (b"[]\n", Fault.TRAILING_BYTES),
        (b'"\xc3\xa9"', Fault.NOT_UTF8),
        (b'{"a":1,"a":1}', Fault.DUPLICATE_KEY),
        (b'{"b":1,"a":1}', Fault.NOT_CANONICAL),
        (b"[1, 2]", Fault.NOT_CANONICAL),
        (b'"\\u0041"', Fault.NOT_CANONICAL),
        (b'"\\u00E9"', Fault.NOT_CANONICAL),
        (b'"\\/"', Fault.NOT_CANONICAL),
        (b"-0", Fault.NOT_CANONICAL),
        (b"01", Fault.TRAILING_BYTES),
        (b"1.0", Fault.NOT_AN_INTEGER),
        (b"1e5", Fault.NOT_AN_INTEGER),
        (b"NaN", Fault.NOT_AN_INTEGER),
        (b"-Infinity", Fault.NOT_AN_INTEGER),
        (b"9223372036854775808", Fault.OUT_OF_RANGE),
        (b"-9223372036854775809", Fault.OUT_OF_RANGE),
        (b"[" + b"9" * 100_000 + b"]", Fault.OUT_OF_RANGE),
        (b'"\\ud800"', Fault.OUT_OF_RANGE),
        (b'{"\\udfff":1}', Fault.OUT_OF_RANGE),
        (b"[" * 65 + b"]" * 65, Fault.TOO_DEEP),
        (b"[" * 500_000, Fault.TOO_DEEP),
        (b" " * (1 << 20) + b"1", Fault.TOO_LARGE),
    ],
)
def test_each_bad_spelling_has_its_fault(data: bytes, fault: Fault) -> None:
    """Bytes that are not canonical JSON are refused with the fault that they have."""
    with pytest.raises(FormatError) as caught:
        loads(data)
    assert caught.value.fault is fault
    assert caught.value.at.startswith("$")


def test_the_extremes_that_are_allowed_pass() -> None:
    """64-bit integers, pairs of surrogates and 64 levels are read."""
    assert loads(b"[-9223372036854775808,9223372036854775807]") == [-(1 << 63), (1 << 63) - 1]
    assert loads(b'"\\ud83c\\udfc3"') == "\U0001f3c3"
    assert loads(b"[" * 64 + b"]" * 64) is not None


@pytest.mark.parametrize(
    ("value", "at"),
    [
        (1.5, "$"),
        ({"a": [1, float("nan")]}, "$.a[1]"),
        ((1, 2), "$"),
        ({"a": {1: 2}}, "$.a"),
        ([b"x"], "$[0]"),
        ([1 << 63], "$[0]"),
        ({"k": "\ud800"}, "$.k"),
    ],
)
def test_values_outside_the_data_model_are_the_callers_mistake(value: object, at: str) -> None:
    """Floats, tuples, bytes, other keys and lone surrogates cannot be written."""
    with pytest.raises(InputError) as caught:
        canonical.dumps(value)
    assert caught.value.at == at


def test_a_value_that_contains_itself_is_refused() -> None:
    """A circular list is an error, not an endless recursion."""
    value: list[object] = []
    value.append(value)
    with pytest.raises(InputError):
        canonical.dumps(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_hex_floats_are_exact(value: float) -> None:
    """A finite float comes back with the same bits, the sign of zero included."""
    again = canonical.parse_hex_float(canonical.hex_float(value))
    assert again == value
    assert math.copysign(1, again) == math.copysign(1, value)


def test_hex_floats_by_hand() -> None:
    """10,000 is 1.220703125 times 2**13."""
    assert canonical.hex_float(10_000.0) == "0x1.3880000000000p+13"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("1.5", Fault.NOT_CANONICAL),
        ("0x1p0", Fault.NOT_CANONICAL),
        ("0X1.8000000000000P+0", Fault.NOT_CANONICAL),
        ("inf", Fault.NOT_FINITE),
        ("nan", Fault.NOT_FINITE),
        ("0x1p99999", Fault.WRONG_TYPE),
        ("ten", Fault.WRONG_TYPE),
        ("", Fault.WRONG_TYPE),
    ],
)
def test_other_texts_are_no_hex_floats(text: str, fault: Fault) -> None:
    """Only the one spelling of a finite float is accepted."""
    with pytest.raises(FormatError) as caught:
        canonical.parse_hex_float(text, at="$.base")
    assert (caught.value.fault, caught.value.at) == (fault, "$.base")


def test_an_infinite_float_cannot_be_spelled() -> None:
    """Infinity is the caller's mistake."""
    with pytest.raises(InputError):
        canonical.hex_float(math.inf)
