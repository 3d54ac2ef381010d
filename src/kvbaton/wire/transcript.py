"""Transcripts: token ids, the text they stand for, and the chat messages they came from."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from kvbaton.errors import DigestMismatch, Fault, FormatError, InputError
from kvbaton.types import JSON, Transcript
from kvbaton.wire import fields as f
from kvbaton.wire.canonical import dumps, hex_float, loads, parse_hex_float
from kvbaton.wire.digests import DomainKeys
from kvbaton.wire.limits import (
    FORMAT,
    MAX_MESSAGES,
    MAX_POSITION,
    MAX_TOKEN_ID,
    MAX_TRANSCRIPT_BYTES,
)

_FIELDS = frozenset({"format", "ids", "messages", "text"})
_FLOAT = "$float"
_OBJECT = "$object"


def encode_transcript(transcript: Transcript) -> bytes:
    """Canonical bytes of a transcript.

    Raises
    ------
    InputError
        An id is out of range, a message is no JSON object with a ``role``, or it is too large.
    """
    value = {
        "format": FORMAT,
        "ids": list(transcript.ids),
        "messages": [
            _pack_message(m, f"$.messages[{i}]") for i, m in enumerate(transcript.messages)
        ],
        "text": transcript.text,
    }
    data = dumps(value, what="transcript")
    try:
        if len(data) > MAX_TRANSCRIPT_BYTES:
            raise f.refuse(f"{len(data)} bytes", Fault.TOO_LARGE, "$")
        _parse(value)
    except FormatError as error:
        raise InputError(f"no transcript: {error.sentence}", at=error.at) from error
    return data


def parse_transcript(
    data: bytes, *, address: str | None = None, keys: DomainKeys | None = None
) -> Transcript:
    """Inverse of :func:`encode_transcript`; with an address, nothing is parsed before it is
    verified.

    Raises
    ------
    DigestMismatch
        The bytes are not the ones that have this address.
    FormatError
        With the path of what is wrong.
    """
    if len(data) > MAX_TRANSCRIPT_BYTES:
        raise f.refuse(f"a transcript of {len(data)} bytes", Fault.TOO_LARGE, "$")
    if address is not None:
        if keys is None:
            raise InputError("an address can be verified with the domain's keys only")
        if (found := keys.transcript_address(data)) != address:
            raise DigestMismatch(
                f"the transcript has the address {found[:16]}..., not {address[:16]}...", at="$"
            )
    return _parse(loads(data, limit_bytes=MAX_TRANSCRIPT_BYTES, what="transcript"))


def _parse(value: Any) -> Transcript:
    f.require_format(value, "$", FORMAT)
    top = f.read_object(value, "$", _FIELDS)
    f.read_format(top["format"], "$.format", FORMAT)
    messages = f.read_list(top["messages"], "$.messages", at_most=MAX_MESSAGES)
    return Transcript(
        ids=read_ids(top["ids"], "$.ids"),
        text=f.read_text(top, "text", "$", at_most=MAX_TRANSCRIPT_BYTES),
        messages=tuple(_parse_message(m, f"$.messages[{i}]") for i, m in enumerate(messages)),
    )


def read_ids(value: Any, at: str, *, at_least: int = 1) -> tuple[int, ...]:
    """A list of token ids; looked at one by one only where one is wrong."""
    ids = f.read_list(value, at, at_least=at_least, at_most=MAX_POSITION)
    if ids and (set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) > MAX_TOKEN_ID):
        for i in range(len(ids)):
            f.read_int(ids, i, at, 0, MAX_TOKEN_ID)
    return tuple(ids)


def _parse_message(value: Any, at: str) -> JSON:
    if type(value) is not dict:
        raise f.refuse("a message is an object", Fault.WRONG_TYPE, at)
    message = {_unescape(key, at): _unpack(item, f"{at}.{key}") for key, item in value.items()}
    if "role" not in message:
        raise f.refuse("field 'role' is missing", Fault.MISSING_FIELD, f"{at}.role")
    f.read_name(message, "role", at)
    return message


# --- what canonical JSON has no place for -------------------------------------------------------
#
# Templates print the arguments of tool calls, so floats and the order of keys below a message's
# own fields must survive: {"$float": "0x1.8000000000000p+0"} and {"$object": [["b", 1], ["a", 2]]}.
# A key that begins with a dollar gets another one.


def _pack_message(message: JSON, at: str) -> JSON:
    if not isinstance(message, dict):
        raise InputError("a message is an object", at=at)
    return {_escape(key, at): _pack(item, f"{at}.{key}") for key, item in message.items()}


def _pack(value: Any, at: str) -> Any:
    if isinstance(value, float):
        return {_FLOAT: hex_float(value)}
    if isinstance(value, list | tuple):
        return [_pack(item, f"{at}[{i}]") for i, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    items = [(_escape(key, at), _pack(item, f"{at}.{key}")) for key, item in value.items()]
    if _is_sorted([key for key, _ in items]):
        return dict(items)
    return {_OBJECT: [[key, item] for key, item in items]}


def _escape(key: Any, at: str) -> str:
    if not isinstance(key, str):
        raise InputError("a key of a message is not text", at=at)
    return f"${key}" if key.startswith("$") else key


def _unpack(value: Any, at: str) -> Any:
    if type(value) is list:
        return [_unpack(item, f"{at}[{i}]") for i, item in enumerate(value)]
    if type(value) is not dict:
        return value
    if value.keys() == {_FLOAT}:
        return parse_hex_float(f.read_text(value, _FLOAT, at, at_most=64), at=at)
    items = _read_pairs(value[_OBJECT], at) if value.keys() == {_OBJECT} else value
    return {_unescape(key, at): _unpack(item, f"{at}.{key}") for key, item in items.items()}


def _read_pairs(value: Any, at: str) -> JSON:
    """The items of an object whose keys are not in sorted order."""
    pairs = f.read_list(value, at, at_most=MAX_TRANSCRIPT_BYTES)
    for pair in pairs:
        f.read_list(pair, at, at_least=2, at_most=2)
        f.read_text(pair, 0, at, at_most=MAX_TRANSCRIPT_BYTES)
    keys = [pair[0] for pair in pairs]
    if len(set(keys)) != len(keys):
        raise f.refuse("an object has a key twice", Fault.DUPLICATE_KEY, at)
    if _is_sorted(keys):
        raise f.refuse("an object with sorted keys is written as one", Fault.NOT_CANONICAL, at)
    return dict(pairs)


def _is_sorted(keys: list[str]) -> bool:
    return all(a < b for a, b in pairwise(keys))


def _unescape(key: str, at: str) -> str:
    if not key.startswith("$"):
        return key
    if not key.startswith("$$"):
        raise f.refuse(f"unknown field {key[:80]!r}", Fault.UNKNOWN_FIELD, f"{at}.{key[:80]}")
    return key[1:]
