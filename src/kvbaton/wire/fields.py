"""Typed readers for decoded JSON, so that a parser reads like the table in its specification.

Readers of containers take the value and its path; readers of leaves take the container, the key
and the container's path, so that a leaf's path is only written out when the leaf is wrong.  Each
raises ``FormatError`` with the path.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from kvbaton.errors import Fault, FormatError
from kvbaton.wire.limits import MAX_ENTRIES, MAX_NAME_CHARS, MAX_VALUE_CHARS

_HEX64 = re.compile(r"[0-9a-f]{64}").fullmatch
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_E = TypeVar("_E", bound=StrEnum)


def refuse(sentence: str, fault: Fault, at: str) -> FormatError:
    """Build the error to raise."""
    return FormatError(sentence, fault=fault, at=at)


def read_object(value: Any, at: str, names: Collection[str]) -> dict[str, Any]:
    """An object with exactly the fields ``names``."""
    if type(value) is not dict:
        raise _wrong_type(value, at, "an object")
    if value.keys() != names:
        raise _fields_differ(value, at, names)
    return value


def _fields_differ(value: dict[str, Any], at: str, names: Collection[str]) -> FormatError:
    unknown = sorted(value.keys() - set(names))
    if unknown:
        name = unknown[0][:80]
        return refuse(f"unknown field {name!r}", Fault.UNKNOWN_FIELD, f"{at}.{name}")
    name = min(set(names) - value.keys())
    return refuse(f"field {name!r} is missing", Fault.MISSING_FIELD, f"{at}.{name}")


def read_list(value: Any, at: str, *, at_most: int, at_least: int = 0) -> list[Any]:
    """A list with a bounded number of items."""
    if type(value) is not list:
        raise _wrong_type(value, at, "a list")
    if not at_least <= len(value) <= at_most:
        raise refuse(f"{len(value)} items, not {at_least} to {at_most}", Fault.OUT_OF_RANGE, at)
    return value


def place(at: str, key: str | int) -> str:
    """Path of an item of the container at ``at``."""
    return f"{at}[{key}]" if isinstance(key, int) else f"{at}.{key}"


def read_int(inside: Any, key: str | int, at: str, low: int, high: int) -> int:
    """An integer (no boolean) from ``low`` to ``high``, both included."""
    value = inside[key]
    if type(value) is not int:
        raise _wrong_type(value, place(at, key), "an integer")
    if not low <= value <= high:
        raise refuse(f"{value} is not within {low} to {high}", Fault.OUT_OF_RANGE, place(at, key))
    return value


def read_text(inside: Any, key: str | int, at: str, *, at_most: int) -> str:
    """Text of at most ``at_most`` characters."""
    return _check_text(inside[key], place(at, key), at_most)


def _check_text(value: Any, at: str, at_most: int) -> str:
    if type(value) is not str:
        raise _wrong_type(value, at, "text")
    if len(value) > at_most:
        raise refuse(f"{len(value)} characters, more than {at_most}", Fault.OUT_OF_RANGE, at)
    return value


def read_name(
    inside: Any, key: str | int, at: str, *, empty: bool = False, at_most: int = MAX_NAME_CHARS
) -> str:
    """One line of text without control characters."""
    return check_name(inside[key], place(at, key), empty=empty, at_most=at_most)


def check_name(value: Any, at: str, *, empty: bool = False, at_most: int = MAX_NAME_CHARS) -> str:
    """:func:`read_name` for a value that has a path of its own."""
    text = _check_text(value, at, at_most)
    if not text and not empty:
        raise refuse("a name is empty", Fault.OUT_OF_RANGE, at)
    if _CONTROL.search(text):
        raise refuse("a name holds control characters", Fault.OUT_OF_RANGE, at)
    return text


def read_hex64(inside: Any, key: str | int, at: str) -> str:
    """A digest: 64 lower-case hexadecimal digits."""
    value = inside[key]
    if type(value) is str and _HEX64(value):
        return value
    return check_hex64(value, place(at, key))


def check_hex64(value: Any, at: str) -> str:
    """:func:`read_hex64` for a value that has a path of its own."""
    if type(value) is not str:
        raise _wrong_type(value, at, "text")
    if not _HEX64(value):
        raise refuse("not 64 lower-case hexadecimal digits", Fault.OUT_OF_RANGE, at)
    return value


def read_enum(
    inside: Any, key: str | int, at: str, kinds: type[_E], fault: Fault = Fault.OUT_OF_RANGE
) -> _E:
    """One of an enumeration's values; ``fault`` is what any other text is."""
    text = read_text(inside, key, at, at_most=MAX_NAME_CHARS)
    try:
        return kinds(text)
    except ValueError as error:
        known = ", ".join(kinds)
        raise refuse(f"{text!r} is none of {known}", fault, place(at, key)) from error


def read_table(value: Any, at: str) -> tuple[tuple[str, str], ...]:
    """An object of names and one-line values, as pairs sorted by name."""
    if type(value) is not dict:
        raise _wrong_type(value, at, "an object")
    if len(value) > MAX_ENTRIES:
        raise refuse(f"{len(value)} entries, more than {MAX_ENTRIES}", Fault.OUT_OF_RANGE, at)
    for name, text in value.items():
        check_name(name, at)
        check_name(text, f"{at}.{name}", empty=True, at_most=MAX_VALUE_CHARS)
    return tuple(value.items())


def read_format(value: Any, at: str, known: int) -> int:
    """The document's format version, which must be ``known``."""
    if type(value) is not int:
        raise _wrong_type(value, at, "an integer")
    if value != known:
        raise FormatError(
            f"format {value} is not known",
            fault=Fault.UNKNOWN_FORMAT,
            at=at,
            hint=f"this version of kvbaton reads format {known}",
        )
    return value


def require_format(value: Any, at: str, known: int) -> None:
    """Look at ``format`` before the other fields, since they depend on it."""
    if isinstance(value, Mapping) and "format" in value:
        read_format(value["format"], f"{at}.format", known)


def _wrong_type(value: Any, at: str, wanted: str) -> FormatError:
    return refuse(f"{type(value).__name__} where {wanted} belongs", Fault.WRONG_TYPE, at)
