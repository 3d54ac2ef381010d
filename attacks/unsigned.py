"""A1, arbitrary software: batons that nobody signed, or nobody who is believed.

Attacked: whatever parses a baton.  The attacker can write into the store, and knows the domain's
secret, so that every digest is right; only the signature is not.  Each is refused before a byte of
the payload is parsed, and none of its text is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from attacks.scene import (
    DOMAIN,
    Finding,
    Scene,
    acquaintance,
    main,
    outcome,
    raised,
    signed,
    stranger,
)
from kvbaton.seals import Grant, Purpose
from kvbaton.stores import Key, Kind
from kvbaton.types import Baton
from kvbaton.wire import manifest
from kvbaton.wire.canonical import dumps, loads
from kvbaton.wire.envelope import Signature, parse_envelope

_LIMIT = 1 << 24


def attack(folder: Path) -> Sequence[Finding]:
    """Every way to have no signature that counts."""
    scene = Scene(folder)
    baton = scene.baton()
    receiver = scene.agent("coder")
    findings = [Finding("the honest baton", "used", outcome(receiver, baton.id))]
    for tried, raw, fault in forgeries(scene, baton):
        scene.put(Key(Kind.BATON, baton.id), raw)
        fresh = scene.agent("coder")
        wanted = f"not-trusted {fault}"
        findings.append(Finding(tried, wanted, outcome(fresh, baton.id)))
        findings.append(
            Finding(f"{tried}, no messages", wanted, raised(scene.agent("coder"), baton.id))
        )
    return findings


def forgeries(scene: Scene, baton: Baton) -> Iterator[tuple[str, bytes, str]]:
    """What was tried, the envelope that lies in the baton's place, and the fault to be named."""
    payload = manifest.unwrap(baton.envelope)
    mine = parse_envelope(baton.envelope, payload_type=manifest.PAYLOAD_TYPE).signatures[0]
    yield "no signature", manifest.wrap(payload), "unsigned"
    yield (
        "an empty signature",
        manifest.wrap(payload, signatures=[replaced(mine, b"")]),
        "signature-wrong",
    )
    yield "an unknown key", signed(payload, stranger()), "unknown-key"
    borrowed = parse_envelope(
        signed(payload, stranger()), payload_type=manifest.PAYLOAD_TYPE
    ).signatures[0]
    yield (
        "an unknown key under the sender's key id",
        manifest.wrap(payload, signatures=[Signature(mine.keyid, borrowed.sig)]),
        "signature-wrong",
    )
    yield "no key id", manifest.wrap(payload, signatures=[Signature("", mine.sig)]), "keyid-wrong"
    yield "two signatures", doubled(baton.envelope, borrowed), "doubly-signed"
    revoked = acquaintance(scene, Grant("planner", DOMAIN))
    scene.trust.revoke(revoked.keyid)
    yield "a revoked key", signed(payload, revoked), "key-revoked"
    tickets_only = acquaintance(
        scene, Grant("planner", DOMAIN), purposes=frozenset({Purpose.TICKET})
    )
    yield "a key for tickets only", signed(payload, tickets_only), "signer-not-sender"


def replaced(signature: Signature, sig: bytes) -> Signature:
    """The same key id with other bytes."""
    return Signature(signature.keyid, sig)


def doubled(envelope: bytes, second: Signature) -> bytes:
    """A signed envelope with somebody's signature besides."""
    value = loads(envelope, limit_bytes=_LIMIT, what="envelope")
    other = loads(manifest.wrap(b"", signatures=[second]), limit_bytes=_LIMIT, what="envelope")
    value["signatures"] += other["signatures"]
    return dumps(value)


if __name__ == "__main__":
    raise SystemExit(main(attack, __doc__))
