r"""Canonical JSON: one value, one spelling.

Keys sorted, ASCII with ``\uXXXX`` escapes, no whitespace; null, booleans, 64-bit integers, text,
lists and objects.  Floats have no place in it: they travel as hexadecimal text (``hex_float``).
"""

from __future__ import annotations

import json
import math
from itertools import chain
from typing import Any, NoReturn

from kvbaton.errors import Fault, FormatError, InputError
from kvbaton.wire.limits import MAX_DEPTH

INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1


def dumps(value: Any, *, what: str = "value") -> bytes:
    """Encode ``value`` canonically.

    Raises
    ------
    InputError
        Something in it is not in the data model above; ``at`` is its place.
    """
    try:
        _check(value, None, MAX_DEPTH, what)
    except FormatError as error:
        raise InputError(error.sentence, at=error.at) from error
    return _encode(value)


def loads(data: bytes | memoryview, *, limit_bytes: int, what: str) -> Any:
    """Decode canonical JSON, refusing any other spelling of the same value.

    Parameters
    ----------
    data
        The whole document.
    limit_bytes
        Its largest size; checked before anything is decoded.
    what
        Name of the document in error sentences.

    Raises
    ------
    FormatError
        With the fault and, where it is known, the path or the byte offset.
    """
    text = _ascii(data, limit_bytes, what)
    value = _decode(text, what)
    if not (_is_plain(text) and _is_shallow(value)):
        _check(value, None, MAX_DEPTH, what)
    if _encoder.encode(value) != text:
        _refuse_spelling(text, what)
    return value


def hex_float(value: float) -> str:
    """Spell a finite float exactly, as ``float.hex`` does: ``0x1.8000000000000p+1``.

    Raises
    ------
    InputError
        The value is not finite.
    """
    if not math.isfinite(value):
        raise InputError(f"{value!r} is not a finite number")
    return float(value).hex()


def parse_hex_float(text: str, *, at: str = "$") -> float:
    """Inverse of :func:`hex_float`.

    Raises
    ------
    FormatError
        Not a hexadecimal float, not its only spelling, or not finite.
    """
    try:
        value = float.fromhex(text)
    except (ValueError, OverflowError) as error:
        raise FormatError(
            f"{text[:40]!r} is not a hexadecimal float", fault=Fault.WRONG_TYPE, at=at
        ) from error
    if not math.isfinite(value):
        raise FormatError(f"{text[:40]!r} is not finite", fault=Fault.NOT_FINITE, at=at)
    if value.hex() != text:
        raise FormatError(
            f"{text[:40]!r} is not how this float is spelled", fault=Fault.NOT_CANONICAL, at=at
        )
    return value


class _FloatFound(Exception):
    """Raised out of the JSON scanner; never leaves this module."""


class _DuplicateFound(Exception):
    """Raised out of the JSON scanner; never leaves this module."""


def _float_found(text: str) -> NoReturn:
    raise _FloatFound(text)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _DuplicateFound(key)
        found[key] = value
    return found


_encoder = json.JSONEncoder(
    ensure_ascii=True, allow_nan=False, sort_keys=True, separators=(",", ":"), check_circular=False
)
_decoder = json.JSONDecoder(parse_float=_float_found, parse_constant=_float_found)
_careful_decoder = json.JSONDecoder(
    parse_float=_float_found, parse_constant=_float_found, object_pairs_hook=_no_duplicates
)


def _encode(value: Any) -> bytes:
    return _encoder.encode(value).encode("ascii")


def _ascii(data: bytes | memoryview, limit_bytes: int, what: str) -> str:
    if len(data) > limit_bytes:
        raise FormatError(
            f"the {what} has {len(data)} bytes, more than the {limit_bytes} allowed",
            fault=Fault.TOO_LARGE,
            at="$",
        )
    if not data:
        raise FormatError(f"the {what} is empty", fault=Fault.TRUNCATED, at="$")
    try:
        return str(data, "ascii")
    except UnicodeDecodeError as error:
        raise FormatError(
            f"byte {error.start} of the {what} is not ASCII", fault=Fault.NOT_UTF8, at="$"
        ) from error


def _decode(text: str, what: str, decoder: json.JSONDecoder = _decoder) -> Any:
    try:
        value, end = decoder.raw_decode(text)
    except json.JSONDecodeError as error:
        cut = error.pos >= len(text) or error.msg.startswith("Unterminated")
        raise FormatError(
            f"the {what} is not JSON: {error.msg} (byte {error.pos})",
            fault=Fault.TRUNCATED if cut else Fault.NOT_JSON,
            at="$",
        ) from error
    except _FloatFound as error:
        raise FormatError(
            f"the {what} holds the number {str(error)[:40]}; only integers are allowed",
            fault=Fault.NOT_AN_INTEGER,
            at="$",
        ) from error
    except RecursionError as error:
        raise FormatError(
            f"the {what} is nested too deeply", fault=Fault.TOO_DEEP, at="$"
        ) from error
    except ValueError as error:  # an integer with more digits than the interpreter converts
        raise FormatError(
            f"the {what} holds an integer beyond 64 bits", fault=Fault.OUT_OF_RANGE, at="$"
        ) from error
    if end != len(text):
        raise FormatError(
            f"the {what} ends at byte {end}, but {len(text) - end} more follow",
            fault=Fault.TRAILING_BYTES,
            at="$",
        )
    return value


def _refuse_spelling(text: str, what: str) -> NoReturn:
    """Say why text that decodes is not what the encoder would have written."""
    try:
        _decode(text, what, _careful_decoder)
    except _DuplicateFound as error:
        raise FormatError(
            f"the {what} has the key {str(error)[:80]!r} twice", fault=Fault.DUPLICATE_KEY, at="$"
        ) from error
    raise FormatError(
        f"the {what} is not canonical: order of keys, whitespace or escapes differ",
        fault=Fault.NOT_CANONICAL,
        at="$",
    )


# --- the data model ----------------------------------------------------------------------------

_CONTAINERS = frozenset({dict, list})
_DIGITS_TO_ZERO = bytes.maketrans(b"123456789", b"0" * 9)


def _is_plain(text: str) -> bool:
    """Whether no integer can be beyond 64 bits and no surrogate can be alone: :func:`_check`
    need not look at each item.  False where that cannot be seen at a glance."""
    data = text.encode("ascii")
    return b"\\ud" not in data and b"0" * 19 not in data.translate(_DIGITS_TO_ZERO)


def _is_shallow(value: Any) -> bool:
    """Whether lists and objects nest at most ``MAX_DEPTH`` deep."""
    level = [value] if type(value) in _CONTAINERS else []
    for _ in range(MAX_DEPTH):
        items = chain.from_iterable(x.values() if type(x) is dict else x for x in level)
        level = [item for item in items if type(item) in _CONTAINERS]
        if not level:
            return True
    return False


_Place = tuple[Any, str | int]
"""A path that is only written out when something is wrong: (place of the parent, name)."""


def _check(value: Any, at: _Place | None, depth: int, what: str) -> None:
    """Hold a value to the data model; lists of one kind are checked without a Python loop."""
    if type(value) not in _CONTAINERS:
        return _check_scalar(value, at, what)
    if depth == 0:
        raise FormatError(
            f"the {what} is nested deeper than {MAX_DEPTH}", fault=Fault.TOO_DEEP, at=_path(at)
        )
    pairs = value.items() if type(value) is dict else enumerate(value)
    if type(value) is dict:
        _check_keys(value, at, what)
    elif set(map(type, value)) == {int} and min(value) >= INT_MIN and max(value) <= INT_MAX:
        return None
    for name, item in pairs:
        kind = type(item)
        if kind in _CONTAINERS:
            _check(item, (at, name), depth - 1, what)
        elif kind is not str or not item.isascii():
            _check_scalar(item, (at, name), what)
    return None


def _check_keys(value: dict[Any, Any], at: _Place | None, what: str) -> None:
    for key in value:
        if type(key) is not str:
            raise FormatError(
                f"a key of the {what} is not text", fault=Fault.WRONG_TYPE, at=_path(at)
            )
        if not key.isascii():
            _check_scalar(key, at, what)


def _check_scalar(value: Any, at: _Place | None, what: str) -> None:
    kind = type(value)
    if kind is int:
        if not INT_MIN <= value <= INT_MAX:
            raise FormatError(
                f"the {what} holds an integer beyond 64 bits",
                fault=Fault.OUT_OF_RANGE,
                at=_path(at),
            )
    elif kind is str:
        if not is_text(value):
            raise FormatError(
                f"the {what} holds half of a surrogate pair", fault=Fault.OUT_OF_RANGE, at=_path(at)
            )
    elif kind is not bool and value is not None:
        fault = Fault.NOT_AN_INTEGER if kind is float else Fault.WRONG_TYPE
        raise FormatError(f"the {what} cannot hold a {kind.__name__}", fault=fault, at=_path(at))


def is_text(value: str) -> bool:
    """Whether every character is a Unicode scalar value (no lone surrogates)."""
    if value.isascii():
        return True
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _path(at: _Place | None) -> str:
    steps = []
    while at is not None:
        at, name = at
        steps.append(f"[{name}]" if isinstance(name, int) else f".{name[:80]}")
    return "$" + "".join(reversed(steps))
