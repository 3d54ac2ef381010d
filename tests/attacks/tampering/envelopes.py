"""Tampered envelopes: syntax, base64, signatures, key ids, types, whitespace, length."""

from __future__ import annotations

import base64
import json
import re
import string
from dataclasses import replace
from typing import Any

from attacks.scene import signed, stranger
from tests.attacks.tampering.manifests import in_place, mutated, renamed
from tests.attacks.tampering.pool import Case, Pool, Random, other_than, signature, tampering

from kvbaton.seals.tickets import PAYLOAD_TYPE as TICKET_TYPE
from kvbaton.types import Baton
from kvbaton.wire import manifest

BASE64 = string.ascii_letters + string.digits + "+/"
NO_BASE64 = "-_*.!~ ,:;$%()"
MALFORMED = "not-trusted envelope-malformed"


def chosen(pool: Pool, rng: Random) -> Baton:
    """One of the honest batons."""
    return rng.choice(pool.batons)


def value_of(raw: bytes, name: str) -> tuple[int, int]:
    """Where the text of a field begins and ends in an envelope."""
    found = re.search(rf'"{name}":"([^"]*)"', raw.decode("ascii"))
    assert found is not None
    return found.span(1)


def with_character(raw: bytes, at: int, character: str) -> bytes:
    """The envelope with one character replaced."""
    return raw[:at] + character.encode("ascii") + raw[at + 1 :]


def rewritten(baton: Baton, **fields: Any) -> bytes:
    """The envelope with some of its fields replaced, spelled canonically."""
    value = json.loads(baton.envelope) | fields
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


def signature_json(baton: Baton, **fields: str) -> list[dict[str, str]]:
    """The one signature as JSON, with some of its fields replaced."""
    return [json.loads(baton.envelope)["signatures"][0] | fields]


@tampering("a character of the syntax", MALFORMED)
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton = chosen(pool, rng)
    raw = baton.envelope
    inside = [range(*value_of(raw, n)) for n in ("payload", "payloadType", "keyid", "sig")]
    at = rng.choice([i for i in range(len(raw)) if not any(i in one for one in inside)][-200:])
    return in_place(
        baton, with_character(raw, at, other_than(rng, chr(raw[at]), string.printable[:95]))
    )


@tampering("a character of the payload, still base64", "not-trusted other-baton")
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton = chosen(pool, rng)
    start, stop = value_of(baton.envelope, "payload")
    at = rng.randrange(start, stop - 4)
    old = chr(baton.envelope[at])
    return in_place(baton, with_character(baton.envelope, at, other_than(rng, old, BASE64)))


@tampering("a character of the payload that is not base64", MALFORMED)
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton = chosen(pool, rng)
    at = rng.randrange(*value_of(baton.envelope, "payload"))
    return in_place(baton, with_character(baton.envelope, at, rng.choice(NO_BASE64)))


@tampering("a character of the signature, still base64", "not-trusted signature-wrong")
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton = chosen(pool, rng)
    start, _ = value_of(baton.envelope, "sig")
    at = start + index % 85
    old = chr(baton.envelope[at])
    return in_place(baton, with_character(baton.envelope, at, other_than(rng, old, BASE64)))


@tampering("a signature of another length", "not-trusted signature-wrong")
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton = chosen(pool, rng)
    sig = signature(baton).sig
    cut = sig[: rng.randrange(64)] if index % 2 else sig + rng.randbytes(1 + index % 64)
    spelled = base64.b64encode(cut).decode("ascii")
    return in_place(baton, rewritten(baton, signatures=signature_json(baton, sig=spelled)))


@tampering("a signature that is not base64", MALFORMED)
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton = chosen(pool, rng)
    sig = signature_json(baton)[0]["sig"]
    at = rng.randrange(len(sig) - 2)
    spelled = [
        sig.rstrip("="), sig + "=", sig[:at] + rng.choice(NO_BASE64) + sig[at + 1 :],
        sig[:85] + other_than(rng, sig[85], BASE64.replace("A", "").replace("Q", "")
                              .replace("g", "").replace("w", "")) + "==",
        f"{sig[:at]}\n{sig[at:]}", f" {sig}",
    ][index % 6]  # fmt: skip
    return in_place(baton, rewritten(baton, signatures=signature_json(baton, sig=spelled)))


@tampering("another key id", "not-trusted keyid-wrong")
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton = chosen(pool, rng)
    keyid = signature(baton).keyid
    at = rng.randrange(64)
    spelled = [
        keyid[:at] + other_than(rng, keyid[at], "0123456789abcdef") + keyid[at + 1 :],
        keyid.upper(), "", keyid[: 1 + at % 63], keyid + "0" * (1 + at), f" {keyid}",
        pool.coder.keyid, pool.revoked.keyid, pool.tickets_only.keyid, stranger().keyid,
    ][index % 10]  # fmt: skip
    return in_place(baton, rewritten(baton, signatures=signature_json(baton, keyid=spelled)))


@tampering("another payload type", "not-trusted payload-type")
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton = chosen(pool, rng)
    kind = manifest.PAYLOAD_TYPE
    at = rng.randrange(len(kind))
    spelled = [
        kind[:at] + other_than(rng, kind[at], string.ascii_lowercase) + kind[at + 1 :],
        kind.upper(), "", f"{kind} ", f"{kind};charset=utf-8", TICKET_TYPE, kind[:at], kind + "x",
    ][index % 8]  # fmt: skip
    return in_place(baton, rewritten(baton, payloadType=spelled))


@tampering("a ticket as a baton", "not-trusted payload-type")
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton = chosen(pool, rng)
    if index % 2:
        payload = manifest.unwrap(baton.envelope)
        return in_place(baton, signed(payload, pool.planner, TICKET_TYPE))
    ticket = pool.ticket(baton, audience=f"coder{index}")
    return in_place(baton, base64.urlsafe_b64decode(ticket + "=" * (-len(ticket) % 4)))


@tampering("the signature stripped", "not-trusted unsigned")
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton = pool.batons[index % len(pool.batons)]
    if index < len(pool.batons):
        return in_place(baton, rewritten(baton, signatures=[]))
    again = replace(baton.manifest, created_ms=baton.manifest.created_ms + index)
    payload = manifest.encode_manifest(again)
    return renamed(baton, payload, manifest.wrap(payload))


@tampering("two signatures or more", "not-trusted doubly-signed")
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton, other = rng.sample(pool.batons, 2)
    mine, theirs = signature_json(baton)[0], signature_json(other)[0]
    several = [[mine, mine], [mine, theirs], [theirs, mine], [mine] * (2 + index), [mine, None]]
    return in_place(baton, rewritten(baton, signatures=several[index % 5]))


@tampering("the payload spelled in another base64", MALFORMED)
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton = chosen(pool, rng)
    text = json.loads(baton.envelope)["payload"]
    at = rng.randrange(1, len(text) - 4)
    last = text.rstrip("=")[-1]
    spelled = [
        f"{text[:at]} {text[at:]}", f"{text[:at]}\n{text[at:]}", f"{text[:at]}={text[at:]}",
        f"{text}=", f"{text}====", f"{text[:at]}-{text[at:]}", f"{text}\n", f"\t{text}",
        f"{text.rstrip('=')}{'' if text.endswith('=') else last}",
    ][index % 9]  # fmt: skip
    return in_place(baton, rewritten(baton, payload=spelled))


@tampering("the envelope spelled in another JSON", MALFORMED)
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton = chosen(pool, rng)
    raw, value = baton.envelope, json.loads(baton.envelope)
    marks = [i for i, byte in enumerate(raw) if byte in b"{}[],:"]
    at = rng.choice(marks)
    space = rng.choice([b" ", b"\n", b"\t", b"\r\n"])
    letter = rng.randrange(*value_of(raw, "payload"))
    spelled = [
        raw[:at] + space + raw[at:], raw[: at + 1] + space + raw[at + 1 :],
        json.dumps(value, indent=1 + index % 9).encode(),
        json.dumps(dict(reversed(list(value.items()))), separators=(",", ":")).encode(),
        raw[:letter] + f"\\u{raw[letter]:04x}".encode() + raw[letter + 1 :],
        b"\xef\xbb\xbf" + raw, b"[" + raw + b"]",
        raw[:1] + b'"payload":"",' + raw[1:], raw[:-1] + b',"payloadType":""}',
    ][index % 9]  # fmt: skip
    return in_place(baton, spelled)


@tampering("the envelope cut off", MALFORMED)
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton = chosen(pool, rng)
    return in_place(baton, baton.envelope[: rng.randrange(1, len(baton.envelope))])


@tampering("bytes behind the envelope", MALFORMED)
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton = chosen(pool, rng)
    behind = [b"\n", b"\0", b" ", baton.envelope, rng.randbytes(1 + index % 99)][index % 5]
    return in_place(baton, baton.envelope + behind)


@tampering("the manifest without its envelope", MALFORMED)
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton = chosen(pool, rng)
    payload = manifest.unwrap(baton.envelope)
    return in_place(baton, mutated(payload, rng, index) if index % 3 else payload)
