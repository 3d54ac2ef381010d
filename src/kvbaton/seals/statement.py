"""Signed statements: one payload, one type, one signature, by a key that is trusted for it.

A signature covers the payload's exact bytes and their type (DSSE's pre-authentication encoding).
:func:`verify` returns the very bytes that it has verified; nothing is parsed before, but for the
envelope around them.  No error quotes what is not trusted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from kvbaton.errors import Fault, FormatError, NotTrusted, TrustFault
from kvbaton.seals.base import KeyStatus, Purpose, Signer, Trust, TrustedKey
from kvbaton.wire.digests import baton_id
from kvbaton.wire.envelope import Envelope, Signature, encode_envelope, parse_envelope

T = TypeVar("T")

_PLACES = frozenset(
    {
        "$",
        "$.payload",
        "$.payloadType",
        "$.signatures",
        "$.signatures[0]",
        "$.signatures[0].keyid",
        "$.signatures[0].sig",
    }
)
_OF_PLACE = {
    "$.payloadType": TrustFault.PAYLOAD_TYPE,
    "$.signatures": TrustFault.DOUBLY_SIGNED,
}


def pae(payload_type: str, payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding: what a signature covers."""
    kind = payload_type.encode("utf-8")
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def sign(payload_type: str, payload: bytes, signer: Signer) -> bytes:
    """The envelope of a payload, signed."""
    signature = Signature(signer.keyid, signer.sign(pae(payload_type, payload)))
    return encode_envelope(Envelope(payload_type, payload, (signature,)))


@dataclass(frozen=True, slots=True)
class Verified:
    """The bytes that a trusted key has signed, and that key."""

    payload: bytes
    key: TrustedKey


def verify(
    raw: bytes,
    *,
    payload_type: str,
    purpose: Purpose,
    trust: Trust,
    promised: str | None = None,
    revoked: bool = False,
) -> Verified:
    """The payload of an envelope, once its signature is known to be a trusted key's.

    Parameters
    ----------
    promised
        The plain digest (hex) that the payload must have: a baton's id.
    revoked
        Accept a revoked key as well: to know what has to be deleted, and for nothing else.

    Raises
    ------
    NotTrusted
        With its own fault: the envelope is malformed, of another type, unsigned, or signed by a
        key that is not known, revoked, or not for this purpose; the signature is wrong; or the
        key id is not that of the key that signed.
    """
    envelope = _parsed(raw, payload_type)
    if promised is not None and baton_id(envelope.payload) != promised:
        raise _refuse(
            "it is another than the one that was asked for", TrustFault.OTHER, "$.payload"
        )
    if not envelope.signatures:
        raise _refuse(
            "it is not signed",
            TrustFault.UNSIGNED,
            "$.signatures",
            hint="batons from before signing was on have to be handed off again",
        )
    signature = envelope.signatures[0]
    message = pae(payload_type, envelope.payload)
    key = trust.find(signature.keyid)
    if key is None:
        raise _unknown(message, signature, trust)
    if not key.scheme.verify(key.public, message, signature.sig):
        raise _unsound(message, signature, trust)
    if key.status is KeyStatus.REVOKED and not revoked:
        raise _refuse("its key was revoked", TrustFault.KEY_REVOKED, "$.signatures[0].keyid")
    if purpose not in key.purposes:
        raise _refuse(
            f"its key may not sign a {purpose.value}", TrustFault.SIGNER, "$.signatures[0].keyid"
        )
    return Verified(envelope.payload, key)


def parsed_quietly(parse: Callable[[bytes], T], payload: bytes) -> T | Fault:
    """What a payload parses to, or only which fault it has.

    An error raised after this returns has no trace of the parser's own, which quotes what it has
    read: who may say something is not known yet.
    """
    try:
        return parse(payload)
    except FormatError as error:
        return error.fault


def _parsed(raw: bytes, payload_type: str) -> Envelope:
    try:
        return parse_envelope(raw, payload_type=payload_type)
    except FormatError as error:
        at = error.at if error.at in _PLACES else "$"
        fault = TrustFault.ENVELOPE
        if error.fault is Fault.ENVELOPE:
            fault = _OF_PLACE.get(at, fault)
        why = error.fault.value
    raise _refuse(f"its envelope is malformed ({why})", fault, at)


def _unknown(message: bytes, signature: Signature, trust: Trust) -> NotTrusted:
    """A key id that is not known: of another key that did sign, or of nobody's."""
    return _misnamed(message, signature, trust) or _refuse(
        "its key is not known here",
        TrustFault.UNKNOWN_KEY,
        "$.signatures[0].keyid",
        hint="kvbaton keys trust adds a sender's public key",
    )


def _unsound(message: bytes, signature: Signature, trust: Trust) -> NotTrusted:
    return _misnamed(message, signature, trust) or _refuse(
        "its signature is wrong", TrustFault.SIGNATURE, "$.signatures[0].sig"
    )


def _misnamed(message: bytes, signature: Signature, trust: Trust) -> NotTrusted | None:
    """A key id is a hint, and one that misleads is refused: an envelope has one spelling."""
    for key in tuple(trust.keys()):
        if key.scheme.verify(key.public, message, signature.sig):
            return _refuse(
                "it names another key than the one that signed",
                TrustFault.KEYID,
                "$.signatures[0].keyid",
            )
    return None


def _refuse(why: str, fault: TrustFault, at: str, hint: str = "") -> NotTrusted:
    return NotTrusted(f"this is not trusted: {why}", fault=fault, at=at, hint=hint)
