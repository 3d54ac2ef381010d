"""What a trust file says, as canonical JSON: keys with their grants, and what domains ask for.

It is read strictly: unknown fields, a key id that is not the public key's, and anything that stands
twice are refused with their place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvbaton.errors import Fault, FormatError, InputError
from kvbaton.seals.base import (
    Grant,
    KeyStatus,
    Purpose,
    Requirements,
    SealScheme,
    TrustedKey,
    key_id,
)
from kvbaton.seals.public import MAX_PUBLIC_CHARS, read_public, spell_public
from kvbaton.seals.schemes import seal_scheme
from kvbaton.wire import fields as f
from kvbaton.wire.canonical import dumps, loads
from kvbaton.wire.limits import MAX_VALUE_CHARS

TRUST_FORMAT = 1
MAX_TRUST_BYTES = 4 << 20
MAX_KEYS = 4096
MAX_GRANTS = 256
_MAX_MS = (1 << 53) - 1


@dataclass(frozen=True, slots=True)
class TrustEntry:
    """A known key, when it was added (milliseconds since 1970), and a note for people."""

    key: TrustedKey
    added_ms: int
    note: str = ""


_TOP = frozenset({"format", "keys", "domains"})
_ENTRY = frozenset(
    {"keyid", "scheme", "public", "grants", "purposes", "status", "added_ms", "note"}
)
_GRANT = frozenset({"sender", "domain"})
_REQUIREMENTS = frozenset({"tickets", "encryption"})


def encode_trust(entries: Sequence[TrustEntry], domains: Mapping[str, Requirements]) -> bytes:
    """The bytes of a trust file.

    Raises
    ------
    InputError
        They could not be read back; ``at`` is the place.
    """
    data = _encoded(entries, domains)
    try:
        parse_trust(data)
    except FormatError as error:
        raise InputError(error.sentence, at=error.at) from error
    return data


def _encoded(entries: Sequence[TrustEntry], domains: Mapping[str, Requirements]) -> bytes:
    return dumps(
        {
            "format": TRUST_FORMAT,
            "keys": [_entry_json(entry) for entry in entries],
            "domains": {
                name: {"tickets": wanted.tickets, "encryption": wanted.encryption}
                for name, wanted in domains.items()
            },
        },
        what="trust file",
    )


def _entry_json(entry: TrustEntry) -> dict[str, Any]:
    key = entry.key
    return {
        "keyid": key.keyid,
        "scheme": key.scheme.name,
        "public": spell_public(key.public),
        "grants": [{"sender": g.sender, "domain": g.domain} for g in key.grants],
        "purposes": sorted(purpose.value for purpose in key.purposes),
        "status": key.status.value,
        "added_ms": entry.added_ms,
        "note": entry.note,
    }


def parse_trust(data: bytes) -> tuple[tuple[TrustEntry, ...], dict[str, Requirements]]:
    """Inverse of :func:`encode_trust`.

    Raises
    ------
    FormatError, InputError
        With the path of what is wrong; ``InputError`` for a scheme that is not known here.
    """
    top = loads(data, limit_bytes=MAX_TRUST_BYTES, what="trust file")
    f.require_format(top, "$", TRUST_FORMAT)
    f.read_object(top, "$", _TOP)
    listed = f.read_list(top["keys"], "$.keys", at_most=MAX_KEYS)
    entries = tuple(_entry(item, f"$.keys[{index}]") for index, item in enumerate(listed))
    seen: set[str] = set()
    for index, entry in enumerate(entries):
        if entry.key.keyid in seen:
            raise f.refuse("a key stands twice", Fault.DUPLICATE_KEY, f"$.keys[{index}].keyid")
        seen.add(entry.key.keyid)
    return entries, _domains(top["domains"])


def _domains(value: Any) -> dict[str, Requirements]:
    if type(value) is not dict:
        raise f.refuse("no object", Fault.WRONG_TYPE, "$.domains")
    found = {}
    for name, item in value.items():
        at = f"$.domains.{f.check_name(name, '$.domains')}"
        f.read_object(item, at, _REQUIREMENTS)
        for wanted in _REQUIREMENTS:
            if type(item[wanted]) is not bool:
                raise f.refuse("neither true nor false", Fault.WRONG_TYPE, f"{at}.{wanted}")
        found[name] = Requirements(tickets=item["tickets"], encryption=item["encryption"])
    return found


def _entry(value: Any, at: str) -> TrustEntry:
    item = f.read_object(value, at, _ENTRY)
    scheme = _scheme(f.read_name(item, "scheme", at), f"{at}.scheme")
    public = _public(f.read_text(item, "public", at, at_most=MAX_PUBLIC_CHARS), f"{at}.public")
    keyid = f.read_hex64(item, "keyid", at)
    if keyid != key_id(scheme.name, public):
        raise f.refuse("not the id of this public key", Fault.DIGEST, f"{at}.keyid")
    key = TrustedKey(
        keyid,
        scheme,
        public,
        grants=_grants(item["grants"], f"{at}.grants"),
        purposes=_purposes(item["purposes"], f"{at}.purposes"),
        status=f.read_enum(item, "status", at, KeyStatus),
    )
    note = f.read_name(item, "note", at, empty=True, at_most=MAX_VALUE_CHARS)
    return TrustEntry(key, f.read_int(item, "added_ms", at, 0, _MAX_MS), note)


def _public(text: str, at: str) -> bytes:
    try:
        return read_public(text)
    except InputError as error:
        raise InputError(error.sentence, at=at) from error


def _scheme(name: str, at: str) -> SealScheme:
    try:
        return seal_scheme(name)
    except InputError as error:
        raise InputError(error.sentence, at=at, hint=error.hint) from error


def _grants(value: Any, at: str) -> tuple[Grant, ...]:
    grants = []
    for index, listed in enumerate(f.read_list(value, at, at_most=MAX_GRANTS, at_least=1)):
        item = f.read_object(listed, f"{at}[{index}]", _GRANT)
        here = f"{at}[{index}]"
        grants.append(Grant(f.read_name(item, "sender", here), f.read_name(item, "domain", here)))
    if len(set(grants)) != len(grants):
        raise f.refuse("a grant stands twice", Fault.DUPLICATE_KEY, at)
    return tuple(grants)


def _purposes(value: Any, at: str) -> frozenset[Purpose]:
    listed = f.read_list(value, at, at_most=len(Purpose), at_least=1)
    found = [f.read_enum(listed, index, at, Purpose) for index in range(len(listed))]
    if len(set(found)) != len(found):
        raise f.refuse("a purpose stands twice", Fault.DUPLICATE_KEY, at)
    return frozenset(found)
