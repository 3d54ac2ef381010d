"""A3, freeze: what was good once is kept alive.

Attacked: a receiver that does not know what time it is for the sender.  The attacker serves a baton
that has expired, with a ticket that is still valid, or a ticket that is not valid yet or no longer.
Each is refused with its age; who alters the time in it breaks the signature.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from attacks.scene import DOMAIN, Finding, Scene, main, outcome
from kvbaton.errors import NotTrusted
from kvbaton.seals.tickets import issue
from kvbaton.stores import Key, Kind
from kvbaton.types import Baton
from kvbaton.wire import manifest
from kvbaton.wire.digests import baton_id

HOUR_MS = 3_600_000


def attack(folder: Path) -> Sequence[Finding]:
    """Batons and tickets out of their time."""
    scene = Scene(folder)
    alive = scene.baton(expires_s=3600)
    late = expired(scene, alive, age_ms=2 * HOUR_MS)
    signer = scene.ring.signer("planner", DOMAIN)
    kept = manifest.wrap(
        manifest.encode_manifest(replace(alive.manifest, expires_ms=now_ms() + 9 * HOUR_MS)),
        signatures=[signature_of(alive)],
    )
    name = baton_id(manifest.unwrap(kept))
    scene.put(Key(Kind.BATON, name), kept)

    def ticket(start_ms: int, stop_ms: int) -> str:
        return issue(
            alive.id, issuer="planner", audience="coder", domain=DOMAIN, uses=1, signer=signer,
            not_before_ms=now_ms() + start_ms, expires_ms=now_ms() + stop_ms,
        )  # fmt: skip

    def take(tried: str, wanted: str, baton: str, pass_: str | None = None) -> Finding:
        return Finding(tried, wanted, outcome(scene.agent("coder"), baton, ticket=pass_))

    return [
        take("a baton in its time", "used", alive.id),
        take("an expired baton", "not-trusted expired", late),
        take("its time prolonged by the attacker", "not-trusted signature-wrong", name),
        take("a ticket in its time", "used", alive.id, ticket(-HOUR_MS, HOUR_MS)),
        take(
            "an expired ticket", "not-trusted ticket-expired", alive.id,
            ticket(-2 * HOUR_MS, -HOUR_MS),
        ),
        take(
            "a ticket of tomorrow", "not-trusted not-yet-valid", alive.id,
            ticket(24 * HOUR_MS, 25 * HOUR_MS),
        ),
        take("a valid ticket for an expired baton", "not-trusted expired", late,
             ticket(-HOUR_MS, HOUR_MS)),
        told_the_age(scene, late),
    ]  # fmt: skip


def expired(scene: Scene, baton: Baton, *, age_ms: int) -> str:
    """The baton as if it had been made long ago and had expired an hour later; its id."""
    born = now_ms() - age_ms
    old = replace(baton.manifest, created_ms=born, expires_ms=born + HOUR_MS)
    return scene.forge(old, scene.ring.signer("planner", DOMAIN))


def told_the_age(scene: Scene, late: str) -> Finding:
    """The refusal says how old the baton is, in seconds."""
    try:
        scene.agent("coder").take(late, "Go on")
    except NotTrusted as error:
        words = error.sentence.split()
        told = 3600 <= int(words[3]) < 3700 and 7200 <= int(words[8]) < 7300
        return Finding("the age is told", "yes", "yes" if told else error.sentence)
    return Finding("the age is told", "yes", "taken")


def signature_of(baton: Baton) -> manifest.Signature:
    """The honest signature of a baton."""
    envelope = manifest.parse_envelope(baton.envelope, payload_type=manifest.PAYLOAD_TYPE)
    return envelope.signatures[0]


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    raise SystemExit(main(attack, __doc__))
