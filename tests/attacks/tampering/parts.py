"""Tampered transcripts, segments and tickets."""

from __future__ import annotations

import base64
import json
import string
from dataclasses import replace
from typing import Any

from attacks.scene import signed, stranger
from tests.attacks.tampering.manifests import mutated
from tests.attacks.tampering.pool import PROMPTS, Case, Pool, Random, other_than, tampering
from tests.relay.conftest import SEGMENT_TOKENS

from kvbaton.seals import Signer
from kvbaton.seals.statement import sign
from kvbaton.seals.tickets import PAYLOAD_TYPE as TICKET_TYPE
from kvbaton.stores import Key, Kind
from kvbaton.types import Baton
from kvbaton.wire.canonical import dumps
from kvbaton.wire.envelope import parse_envelope
from kvbaton.wire.prefix import PAYLOAD_TYPE as PREFIX_TYPE
from kvbaton.wire.prefix import PrefixRecord, encode_prefix, stored_record

WORDS = "unavailable transcript-corrupt"
SEGMENT = "kv-unusable segment-corrupt"
TICKET = "not-trusted ticket-invalid"
BASE64URL = string.ascii_letters + string.digits + "-_"


def flipped(data: bytes, at: int, rng: Random) -> bytes:
    """The same bytes, but for some bits of one."""
    return data[:at] + bytes([data[at] ^ rng.randrange(1, 256)]) + data[at + 1 :]


# --- transcripts ---------------------------------------------------------------------------------


def _words(pool: Pool, baton: Baton) -> tuple[Key, bytes]:
    return (
        Key(Kind.TRANSCRIPT, baton.manifest.transcript),
        pool.get(Kind.TRANSCRIPT, baton.manifest.transcript),
    )


@tampering("a byte of the transcript", WORDS)
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton = rng.choice(pool.batons)
    key, data = _words(pool, baton)
    return Case(baton, {key: flipped(data, rng.randrange(len(data)), rng)})


@tampering("the transcript cut off or longer", WORDS)
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton = rng.choice(pool.batons)
    key, data = _words(pool, baton)
    cut = data[: rng.randrange(1, len(data))]
    return Case(baton, {key: cut if index % 2 else data + rng.randbytes(1 + index % 64)})


@tampering("another transcript, or another spelling", WORDS)
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton, other = rng.sample(pool.raw, 2)
    key, data = _words(pool, baton)
    value = json.loads(data)
    value["ids"][rng.randrange(len(value["ids"]))] ^= 1
    spelled = [
        _words(pool, other)[1], json.dumps(json.loads(data)).encode(), dumps(value),
        baton.envelope,
    ][index % 4]  # fmt: skip
    return Case(baton, {key: spelled})


# --- segments ------------------------------------------------------------------------------------


def _segment(pool: Pool, rng: Random, batons: list[Baton]) -> tuple[Baton, Key, bytes, Any]:
    baton = rng.choice(batons)
    index = rng.randrange(len(baton.manifest.segments))
    return baton, *pool.header(baton, index)


@tampering("the length field of a segment", SEGMENT)
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton, key, data, _ = _segment(pool, rng, pool.batons)
    return Case(baton, {key: flipped(data, index % 8, rng)})


@tampering("the header of a segment", SEGMENT)
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton, key, data, header = _segment(pool, rng, pool.batons)
    end = len(data[: header.body_start].rstrip(b" "))
    return Case(baton, {key: flipped(data, rng.randrange(8, end), rng)})


@tampering("the padding of a header", SEGMENT)
def _(pool: Pool, rng: Random, index: int) -> Case:
    while True:
        baton, key, data, header = _segment(pool, rng, pool.batons)
        end = len(data[: header.body_start].rstrip(b" "))
        if end < header.body_start:
            return Case(baton, {key: flipped(data, rng.randrange(end, header.body_start), rng)})


def _in_tensor(pool: Pool, rng: Random, batons: list[Baton], wanted: Any) -> Case:
    """A byte of a tensor whose name without its layer is wanted."""
    baton, key, data, header = _segment(pool, rng, batons)
    tensors = [t for t in header.tensors if wanted(t.name.split(".", 2)[2])]
    tensor = rng.choice(tensors)
    at = header.body_start + rng.randrange(tensor.start, tensor.stop)
    return Case(baton, {key: flipped(data, at, rng)})


@tampering("a byte of K", SEGMENT)
def _(pool: Pool, rng: Random, index: int) -> Case:
    return _in_tensor(pool, rng, pool.raw, lambda name: name.startswith("k"))


@tampering("a byte of V", SEGMENT)
def _(pool: Pool, rng: Random, index: int) -> Case:
    return _in_tensor(pool, rng, pool.raw, lambda name: name.startswith("v"))


@tampering("a byte of scales and codes", SEGMENT)
def _(pool: Pool, rng: Random, index: int) -> Case:
    return _in_tensor(pool, rng, pool.lossy[:2], lambda name: True)


@tampering("a byte of a compressed layer", SEGMENT)
def _(pool: Pool, rng: Random, index: int) -> Case:
    return _in_tensor(pool, rng, pool.lossy[2:], lambda name: True)


@tampering("a byte between tensors", SEGMENT)
def _(pool: Pool, rng: Random, index: int) -> Case:
    while True:
        baton, key, data, header = _segment(pool, rng, pool.lossy)
        used = {i for t in header.tensors for i in range(t.start, t.stop)}
        free = sorted(set(range(len(data) - header.body_start)) - used)
        if free:
            return Case(baton, {key: flipped(data, header.body_start + rng.choice(free), rng)})


@tampering("a segment cut off", SEGMENT)
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton, key, data, _ = _segment(pool, rng, pool.batons)
    return Case(baton, {key: data[: rng.randrange(1, len(data))]})


@tampering("bytes behind a segment", SEGMENT)
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton, key, data, _ = _segment(pool, rng, pool.batons)
    behind = b"\0" * 64 if index % 2 else rng.randbytes(1 + index % 200)
    return Case(baton, {key: data + behind})


@tampering("another baton's segments at the same positions", SEGMENT)
def _(pool: Pool, rng: Random, index: int) -> Case:
    while True:
        baton, other = rng.sample(pool.batons, 2)
        pairs = zip(baton.manifest.segments, other.manifest.segments, strict=False)
        swapped = {
            Key(Kind.SEGMENT, mine.address): pool.get(Kind.SEGMENT, theirs.address)
            for mine, theirs in pairs
            if mine.address != theirs.address and rng.random() < 0.5
        }
        if swapped:
            return Case(baton, swapped)


@tampering("segments of the same baton exchanged", SEGMENT)
def _(pool: Pool, rng: Random, index: int) -> Case:
    while True:
        baton = rng.choice(pool.batons)
        names = [ref.address for ref in baton.manifest.segments]
        mixed = rng.sample(names, len(names))
        swapped = {
            Key(Kind.SEGMENT, mine): pool.get(Kind.SEGMENT, theirs)
            for mine, theirs in zip(names, mixed, strict=True)
            if mine != theirs
        }
        if swapped:
            return Case(baton, swapped)


@tampering("layers of a segment exchanged", SEGMENT)
def _(pool: Pool, rng: Random, index: int) -> Case:
    while True:
        baton, key, data, header = _segment(pool, rng, pool.raw)
        mixed = rng.sample(header.ranges, len(header.ranges))
        layers = [data[header.body_start + r.start : header.body_start + r.stop] for r in mixed]
        body = data[: header.body_start] + b"".join(layers)
        if body != data:
            return Case(baton, {key: body})


@tampering("something else in a segment's place", SEGMENT)
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton, key, data, _ = _segment(pool, rng, pool.batons)
    other = [
        rng.randbytes(1 + index), baton.envelope, _words(pool, baton)[1], bytes(len(data)),
        data[::-1],
    ][index % 5]  # fmt: skip
    return Case(baton, {key: other})


@tampering("segments removed", "kv-unusable segment-missing")
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton = rng.choice(pool.batons)
    names = [ref.address for ref in baton.manifest.segments]
    gone = rng.sample(names, rng.randrange(1, len(names) + 1))
    return Case(baton, {Key(Kind.SEGMENT, name): None for name in gone})


# --- prefix records: hints, and a bad one is as good as none ------------------------------------


def _record(pool: Pool, rng: Random, index: int) -> tuple[str, Key, bytes]:
    """The record of a prompt's first full segment: without it nothing is found."""
    number = index % len(pool.raw)
    baton = pool.raw[number]
    first = baton.transcript.ids[:SEGMENT_TOKENS]
    function = baton.manifest.function.digest
    (name,) = pool.scene.domain.keys.prefix_keys(function, first, [SEGMENT_TOKENS])
    return PROMPTS[number], Key(Kind.PREFIX, name), pool.get(Kind.PREFIX, name)


@tampering("a byte of a prefix record", "no-baton")
def _(pool: Pool, rng: Random, index: int) -> Case:
    prompt, key, data = _record(pool, rng, index)
    return Case(pool.raw[0], {key: flipped(data, rng.randrange(len(data)), rng)}, prompt=prompt)


@tampering("a prefix record cut off, longer or removed", "no-baton")
def _(pool: Pool, rng: Random, index: int) -> Case:
    prompt, key, data = _record(pool, rng, index)
    wrong = [data[: rng.randrange(1, len(data))], data + rng.randbytes(9), None][index % 3]
    return Case(pool.raw[0], {key: wrong}, prompt=prompt)


def _resigned(record: PrefixRecord, signer: Signer) -> bytes:
    return sign(PREFIX_TYPE, encode_prefix(record), signer)


@tampering("a prefix record that names another segment", "no-baton segment-contradicts")
def _(pool: Pool, rng: Random, index: int) -> Case:
    prompt, key, data = _record(pool, rng, index)
    record, domain = stored_record(data), pool.scene.domain
    others = {r.address for b in pool.batons for r in b.manifest.segments} - {record.address}
    wrong = replace(record, address=rng.choice(sorted(others)))
    signer = domain.signers.signer(record.sender, domain.name)
    return Case(pool.raw[0], {key: _resigned(wrong, signer)}, prompt=prompt)


@tampering("a prefix record by a key that is not trusted for its sender", "no-baton")
def _(pool: Pool, rng: Random, index: int) -> Case:
    prompt, key, data = _record(pool, rng, index)
    record = replace(stored_record(data), size_bytes=1 + index)  # no two alike
    signer = [stranger(), pool.coder, pool.revoked, pool.tickets_only][index % 4]
    return Case(pool.raw[0], {key: _resigned(record, signer)}, prompt=prompt)


@tampering("a byte of a segment that a prefix record names", "no-baton segment-corrupt")
def _(pool: Pool, rng: Random, index: int) -> Case:
    prompt, _, data = _record(pool, rng, index)
    key = Key(Kind.SEGMENT, stored_record(data).address)
    raw = pool.get(key.kind, key.name)
    return Case(pool.raw[0], {key: flipped(raw, rng.randrange(len(raw)), rng)}, prompt=prompt)


# --- tickets -------------------------------------------------------------------------------------


def _raw(ticket: str) -> bytes:
    return base64.urlsafe_b64decode(ticket + "=" * (-len(ticket) % 4))


def _spelled(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


@tampering("a character of a ticket", TICKET)
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton = rng.choice(pool.batons)
    text = pool.ticket(baton)
    at = rng.randrange(len(text) - 1)
    wrong = text[:at] + other_than(rng, text[at], BASE64URL) + text[at + 1 :]
    return Case(baton, ticket=wrong)


def _changed_ticket(pool: Pool, baton: Baton, rng: Random, index: int) -> tuple[bytes, Any]:
    envelope = parse_envelope(_raw(pool.ticket(baton)), payload_type=TICKET_TYPE)
    return mutated(envelope.payload, rng, index), envelope.signatures[0]


@tampering("a field of a ticket changed", TICKET)
def _(pool: Pool, rng: Random, index: int) -> Case:
    from kvbaton.wire.envelope import Envelope, encode_envelope

    baton = rng.choice(pool.batons)
    payload, sig = _changed_ticket(pool, baton, rng, index)
    raw = encode_envelope(Envelope(TICKET_TYPE, payload, (sig,)))
    return Case(baton, ticket=_spelled(raw))


@tampering("a ticket signed by an unknown key", TICKET)
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton = rng.choice(pool.batons)
    if index % 2:
        return Case(baton, ticket=pool.ticket(baton, signer=stranger()))
    payload, _ = _changed_ticket(pool, baton, rng, index)
    return Case(baton, ticket=_spelled(signed(payload, stranger(), TICKET_TYPE)))


@tampering("a ticket signed by another agent's key", "not-trusted signer-not-sender")
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton = rng.choice(pool.batons)
    issuer = "coder" if index % 2 else "planner"
    ticket = pool.ticket(baton, signer=pool.coder, issuer=issuer, uses=index)
    return Case(baton, ticket=ticket)


@tampering("a ticket for another baton", "not-trusted ticket-other-baton")
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton, other = rng.sample(pool.batons, 2)
    return Case(baton, ticket=pool.ticket(other, uses=index))


@tampering("a ticket for another receiver", "not-trusted ticket-audience")
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton = rng.choice(pool.batons)
    name = ["Coder", "coder ", "code", "coder2", "*", "critic", "planner"][index % 7]
    return Case(baton, ticket=pool.ticket(baton, audience=name, uses=index))


@tampering("a ticket out of its time", "not-trusted ticket-expired")
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton = rng.choice(pool.batons)
    stop = rng.randrange(1, 1_700_000_000_000)
    return Case(baton, ticket=pool.ticket(baton, expires_ms=stop))


@tampering("a baton as a ticket", TICKET)
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton = rng.choice(pool.batons)
    envelope = parse_envelope(_raw(pool.ticket(baton)), payload_type=TICKET_TYPE)
    as_baton = signed(envelope.payload, pool.planner)  # a ticket under a baton's type
    return Case(baton, ticket=_spelled(baton.envelope if index % 2 else as_baton))


@tampering("a ticket spelled otherwise, cut off or longer", TICKET)
def _(pool: Pool, rng: Random, index: int) -> Case:
    baton = rng.choice(pool.batons)
    text = pool.ticket(baton)
    at = rng.randrange(1, len(text) - 1)
    spelled = [
        f" {text}", f"{text}\n", f"{text}=", f"{text[:at]} {text[at:]}", text[:at],
        f"{text}AAAA", text[:at] + "+" + text[at:], text[:at] + "é" + text[at:], "", "a",
        _spelled(json.dumps(json.loads(_raw(text))).encode()),
    ][index % 11]  # fmt: skip
    return Case(baton, ticket=spelled)
