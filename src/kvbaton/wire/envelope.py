"""DSSE envelopes: a payload's exact bytes, their type, and signatures over both.

An envelope has one spelling: canonical JSON, standard padded base64.  The payload is decoded
once, and the bytes that a signature covers are the bytes that are parsed.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

from kvbaton.errors import Fault, InputError
from kvbaton.wire import fields as f
from kvbaton.wire.canonical import dumps, loads
from kvbaton.wire.limits import MAX_ENVELOPE_BYTES, MAX_SIGNATURES, MAX_VALUE_CHARS

_FIELDS = frozenset({"payload", "payloadType", "signatures"})
_SIGNATURE_FIELDS = frozenset({"keyid", "sig"})


@dataclass(frozen=True, slots=True)
class Signature:
    """``keyid`` is a hint, nothing more; ``sig`` the raw signature."""

    keyid: str
    sig: bytes


@dataclass(frozen=True, slots=True)
class Envelope:
    """A payload, its media type, and at most one signature."""

    payload_type: str
    payload: bytes
    signatures: tuple[Signature, ...] = ()


def encode_envelope(envelope: Envelope) -> bytes:
    """The envelope's bytes.

    Raises
    ------
    InputError
        More than one signature, or a larger envelope than would be read back.
    """
    if len(envelope.signatures) > MAX_SIGNATURES:
        raise InputError(f"an envelope has at most {MAX_SIGNATURES} signature")
    data = dumps(
        {
            "payload": base64.b64encode(envelope.payload).decode("ascii"),
            "payloadType": envelope.payload_type,
            "signatures": [
                {"keyid": s.keyid, "sig": base64.b64encode(s.sig).decode("ascii")}
                for s in envelope.signatures
            ],
        },
        what="envelope",
    )
    if len(data) > MAX_ENVELOPE_BYTES:
        raise InputError(
            f"an envelope of {len(data)} bytes, more than the {MAX_ENVELOPE_BYTES} allowed"
        )
    return data


def parse_envelope(data: bytes, *, payload_type: str) -> Envelope:
    """Inverse of :func:`encode_envelope` for one payload type; signatures are not verified here.

    Raises
    ------
    FormatError
        With the path of what is wrong; ``ENVELOPE`` for another payload type, for base64 that is
        not the payload's only spelling, and for more than one signature.
    """
    value = loads(data, limit_bytes=MAX_ENVELOPE_BYTES, what="envelope")
    top = f.read_object(value, "$", _FIELDS)
    found = f.read_text(top, "payloadType", "$", at_most=MAX_VALUE_CHARS)
    if found != payload_type:
        raise f.refuse(
            f"payload type {found[:80]!r} where {payload_type!r} belongs",
            Fault.ENVELOPE,
            "$.payloadType",
        )
    if type(top["signatures"]) is list and len(top["signatures"]) > MAX_SIGNATURES:
        raise f.refuse(
            f"{len(top['signatures'])} signatures, at most {MAX_SIGNATURES} is allowed",
            Fault.ENVELOPE,
            "$.signatures",
        )
    signatures = f.read_list(top["signatures"], "$.signatures", at_most=MAX_SIGNATURES)
    return Envelope(
        payload_type=found,
        payload=_bytes(top, "payload", "$", MAX_ENVELOPE_BYTES),
        signatures=tuple(_signature(s, f"$.signatures[{i}]") for i, s in enumerate(signatures)),
    )


def _signature(value: Any, at: str) -> Signature:
    top = f.read_object(value, at, _SIGNATURE_FIELDS)
    return Signature(
        keyid=f.read_name(top, "keyid", at, empty=True),
        sig=_bytes(top, "sig", at, MAX_VALUE_CHARS),
    )


def _bytes(value: dict[str, Any], key: str, at: str, at_most: int) -> bytes:
    text = f.read_text(value, key, at, at_most=at_most)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise f.refuse("not base64", Fault.ENVELOPE, f"{at}.{key}") from error
    if base64.b64encode(data).decode("ascii") != text:
        raise f.refuse("not how base64 spells these bytes", Fault.ENVELOPE, f"{at}.{key}")
    return data
