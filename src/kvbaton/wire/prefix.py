"""Prefix records: which segment ends the prefix that a prefix key stands for.

A record lies in the store under the key of all tokens up to the segment's end, as a signed
statement.  It carries the segment's own tokens, because a hit is a hit only when the tokens
themselves are equal, and says whose segment it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvbaton.errors import Fault, FormatError, InputError
from kvbaton.wire import fields as f
from kvbaton.wire.canonical import dumps, loads
from kvbaton.wire.envelope import parse_envelope
from kvbaton.wire.limits import FORMAT, MAX_POSITION, MAX_PREFIX_RECORD_BYTES, MAX_SEGMENT_BYTES
from kvbaton.wire.transcript import read_ids

PAYLOAD_TYPE = "application/vnd.kvbaton.prefix+json"
_FIELDS = frozenset(
    {"address", "domain", "first", "format", "function", "ids", "sender", "size_bytes"}
)


@dataclass(frozen=True, slots=True)
class PrefixRecord:
    """The segment at ``address`` (``size_bytes`` long) holds the KV that ``function`` computes
    for ``ids`` at positions ``first`` and on, behind the prefix of the record's key.  ``sender`` of
    ``domain`` has stored it; it may have no name."""

    function: str
    address: str
    size_bytes: int
    first: int
    ids: tuple[int, ...]
    domain: str
    sender: str = ""


def encode_prefix(record: PrefixRecord) -> bytes:
    """The payload of a prefix record: canonical bytes.

    Raises
    ------
    InputError
        A field is out of range, or the record is too large.
    """
    data = dumps(
        {
            "address": record.address,
            "domain": record.domain,
            "first": record.first,
            "format": FORMAT,
            "function": record.function,
            "ids": list(record.ids),
            "sender": record.sender,
            "size_bytes": record.size_bytes,
        },
        what="prefix record",
    )
    try:
        parse_prefix(data)
    except FormatError as error:
        raise InputError(f"no prefix record: {error.sentence}", at=error.at) from error
    return data


def parse_prefix(data: bytes) -> PrefixRecord:
    """Inverse of :func:`encode_prefix`.

    Raises
    ------
    FormatError
        With the path of what is wrong.
    """
    value = loads(data, limit_bytes=MAX_PREFIX_RECORD_BYTES, what="prefix record")
    f.require_format(value, "$", FORMAT)
    top = f.read_object(value, "$", _FIELDS)
    f.read_format(top["format"], "$.format", FORMAT)
    record = PrefixRecord(
        function=f.read_hex64(top, "function", "$"),
        address=f.read_hex64(top, "address", "$"),
        size_bytes=f.read_int(top, "size_bytes", "$", 1, MAX_SEGMENT_BYTES),
        first=f.read_int(top, "first", "$", 0, MAX_POSITION),
        ids=read_ids(top["ids"], "$.ids"),
        domain=f.read_name(top, "domain", "$"),
        sender=f.read_name(top, "sender", "$", empty=True),
    )
    if record.first + len(record.ids) > MAX_POSITION:
        raise f.refuse("the ids leave the positions there are", Fault.TOKENS, "$.ids")
    return record


def stored_record(raw: bytes) -> PrefixRecord:
    """What a stored record says, its signature not verified: for who removes what it leads to.

    Raises
    ------
    FormatError
        It is no record in its envelope.
    """
    return parse_prefix(parse_envelope(raw, payload_type=PAYLOAD_TYPE).payload)
