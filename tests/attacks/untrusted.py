"""Every way in which a baton can be untrusted, each around the same baton full of marked words."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from attacks.endless_data import plant
from attacks.scene import DOMAIN, Scene, acquaintance, signed, stranger
from attacks.unsigned import forgeries
from attacks.wrong_baton import baton_as_ticket, pass_of
from tests.attacks.witness import SENDER, canary, marked, poisoned_source

from kvbaton.seals import Grant
from kvbaton.seals.tickets import issue
from kvbaton.stores import Key, Kind
from kvbaton.testing import Do, FaultyStore, StoreFault
from kvbaton.types import EXACT, Baton, Export
from kvbaton.wire import manifest
from kvbaton.wire.canonical import dumps, loads
from kvbaton.wire.digests import baton_id
from kvbaton.wire.envelope import parse_envelope

HOUR_MS = 3_600_000
_LIMIT = 1 << 30


@dataclass(frozen=True)
class Attempt:
    """What is taken, with what ticket, from what store."""

    baton: str
    options: dict[str, Any] = field(default_factory=dict)
    store: Any = None


Prepare = Callable[[Scene], Attempt]


def in_its_place(raw: bytes, scene: Scene, baton: Baton) -> Attempt:
    """Something else where a baton lies."""
    scene.put(Key(Kind.BATON, baton.id), raw)
    return Attempt(baton.id)


# --- A1 ------------------------------------------------------------------------------------------


def forged(index: int) -> Prepare:
    """One of the forgeries of ``attacks/unsigned.py``."""

    def prepare(scene: Scene) -> Attempt:
        baton = canary(scene)
        return in_its_place([raw for _, raw, _ in forgeries(scene, baton)][index], scene, baton)

    return prepare


MALFORMED: dict[str, Callable[[bytes], bytes]] = {
    "an unknown field": lambda raw: changed(raw, lambda v: v.update({"zqxfield": "zqxvalue"})),
    "another type": lambda raw: changed(raw, lambda v: v.update({"payloadType": "zqxtype"})),
    "a duplicate key": lambda raw: raw[:1] + b'"zqxkey":1,"zqxkey":2,' + raw[1:],
    "a float": lambda raw: b'{"zqxkey":1.5,' + raw[1:],
    "a long number": lambda raw: b'{"zqxkey":' + b"9" * 30 + b"," + raw[1:],
    "half a surrogate": lambda raw: b'{"zqxkey":"zqx\\ud800",' + raw[1:],
    "no base64": lambda raw: changed(raw, lambda v: v.update({"payload": "zqx zqx"})),
    "a key id with control characters": lambda raw: changed(
        raw, lambda v: v["signatures"][0].update({"keyid": "zqx\n"})
    ),
    "a field of a signature": lambda raw: changed(
        raw, lambda v: v["signatures"][0].update({"zqxfield": 1})
    ),
    "bytes behind": lambda raw: raw + b" zqx",
    "no ASCII": lambda raw: b'{"zqx\xff":1}',
    "no JSON": lambda raw: b"zqx zqx zqx",
    "the payload alone": manifest.unwrap,
}


def changed(raw: bytes, change: Callable[[Any], None]) -> bytes:
    """An envelope with something done to its JSON."""
    value = loads(raw, limit_bytes=_LIMIT, what="envelope")
    change(value)
    return dumps(value)


def malformed(name: str) -> Prepare:
    """A malformed envelope in the place of the baton."""

    def prepare(scene: Scene) -> Attempt:
        baton = canary(scene)
        return in_its_place(MALFORMED[name](baton.envelope), scene, baton)

    return prepare


# --- A2, A3, A5: tickets, times, places ----------------------------------------------------------


def ticketed(make: Callable[[Scene, Baton], str | None], *, spent: bool = False) -> Prepare:
    """A domain that asks for tickets, and one that does not do."""

    def prepare(scene: Scene) -> Attempt:
        baton = canary(scene)
        scene.trust.require(DOMAIN, tickets=True)
        ticket = make(scene, baton)
        if spent:
            scene.agent("coder").take(baton.id, "Go on", ticket=ticket, max_new_tokens=1)
        return Attempt(baton.id, {"ticket": ticket})

    return prepare


def ticket_of(scene: Scene, given: Baton, **changes: Any) -> str:
    """A ticket of the sender's, with something changed."""
    now_ms = time.time_ns() // 1_000_000
    fields: dict[str, Any] = {
        "baton": given.id, "issuer": SENDER, "audience": "coder", "domain": DOMAIN, "uses": 1,
        "not_before_ms": now_ms - HOUR_MS, "expires_ms": now_ms + HOUR_MS,
        "signer": scene.ring.signer(SENDER, DOMAIN),
    }  # fmt: skip
    return issue(**fields | changes)


def expired(scene: Scene) -> Attempt:
    """A baton whose time is over."""
    listing = replace(marked(canary(scene).manifest), created_ms=1, expires_ms=2)
    return Attempt(scene.forge(listing, scene.ring.signer(SENDER, DOMAIN)))


def foreign(scene: Scene) -> Attempt:
    """A baton of another domain, whose key is known here."""
    listing = replace(marked(canary(scene).manifest), domain="zqxdomain")
    return Attempt(scene.forge(listing, acquaintance(scene, Grant(SENDER, "zqxdomain"))))


# --- A4, A9, A13: parts --------------------------------------------------------------------------


def swapped(kind: Kind) -> Prepare:
    """A part of the marked baton in the place of an honest one's."""

    def prepare(scene: Scene) -> Attempt:
        honest, marked_one = scene.baton(), canary(scene)
        mine, other = (_place(b, kind) for b in (honest, marked_one))
        scene.put(mine, scene.store.get(other, limit_bytes=_LIMIT))
        return Attempt(honest.id)

    return prepare


def _place(baton: Baton, kind: Kind) -> Key:
    names = {
        Kind.BATON: baton.id,
        Kind.TRANSCRIPT: baton.manifest.transcript,
        Kind.SEGMENT: baton.manifest.segments[0].address,
    }
    return Key(kind, names[kind])


def meanwhile(kind: Kind, nth: int) -> Prepare:
    """A file becomes that of the marked baton before its n-th read."""

    def prepare(scene: Scene) -> Attempt:
        honest, marked_one = scene.baton(), canary(scene)
        mine, other = (_place(b, kind) for b in (honest, marked_one))
        data = scene.store.get(other, limit_bytes=_LIMIT)
        path = scene.folder / "store" / kind.value / mine.name[:2] / mine.name

        def rewrite(_: Key | None) -> None:
            path.write_bytes(data)

        fault = StoreFault("read", Do(rewrite), key=mine, nth=nth)
        return Attempt(honest.id, store=FaultyStore(scene.store, fault))

    return prepare


def of_another_text(scene: Scene) -> Attempt:
    """Tensors of another text, with the number in them, signed by a trusted sender."""
    relay = scene.agent("planner").relay
    source = poisoned_source(scene, "Hello there, you plan and code.")
    return Attempt(relay.hand_off(source, sender="planner", text="").id)


# --- A6, A7, A8, A10, A12 ------------------------------------------------------------------------


def endless(data: bytes, size_bytes: int = 0) -> Prepare:
    """Too much of something in the place of the baton."""

    def prepare(scene: Scene) -> Attempt:
        baton = canary(scene)
        plant(scene, Key(Kind.BATON, baton.id), data, size_bytes)
        return Attempt(baton.id)

    return prepare


def by_another_key(scene: Scene) -> Attempt:
    """The key of an agent that may not speak for the sender."""
    listing = marked(canary(scene).manifest)
    return Attempt(scene.forge(listing, scene.ring.signer("coder", DOMAIN)))


NO_MANIFEST: dict[str, Callable[[Any], None]] = {
    "an unknown field": lambda v: v.update({"zqxfield": 1}),
    "an unknown field below": lambda v: v["terms"].update({"zqxfield": 1}),
    "a name with control characters": lambda v: v.update({"sender": "zqx\n"}),
    "a table's name": lambda v: v["producer"].update({"zqx": "zqx\n"}),
    "an unknown mode": lambda v: v.update({"mode": "zqxmode"}),
    "an unknown role": lambda v: v["spans"][0].update({"role": "zqxrole"}),
    "an unknown class": lambda v: v["fidelity"].update({"class": "zqxclass"}),
    "a critical field": lambda v: v.update(
        {"critical": ["zqxfield"], "extensions": {"zqxfield": 1}}
    ),
    "noise that is no number": lambda v: v["extensions"].update({"noise": "zqx"}),
}


def no_manifest(name: str) -> Prepare:
    """What a trusted key has signed, for nobody knows whom, is no manifest."""

    def prepare(scene: Scene) -> Attempt:
        value = json.loads(manifest.unwrap(canary(scene).envelope))
        NO_MANIFEST[name](value)
        payload = dumps(value)
        raw = signed(payload, scene.ring.signer("coder", DOMAIN))
        scene.put(Key(Kind.BATON, baton_id(payload)), raw)
        return Attempt(baton_id(payload))

    return prepare


def revoked(scene: Scene) -> Attempt:
    """The sender's key was revoked."""
    baton = canary(scene)
    scene.trust.revoke(baton.signer)
    return Attempt(baton.id)


def of_a_revoked_parent(scene: Scene) -> Attempt:
    """A key of an ancestor was revoked."""
    baton = canary(scene)
    coder = scene.agent("coder", stream=False)
    child = coder.hand_off(coder.take(baton.id, "Go on", max_new_tokens=1))
    scene.trust.revoke(baton.signer)
    return Attempt(child.id)


def for_another_domain(scene: Scene) -> Attempt:
    """Text that was made for another domain."""
    sender = scene.agent(SENDER, system="zqxsystem")
    canary(scene)
    return Attempt(sender.hand_off(sender.run("zqxprompt", max_new_tokens=1), to_domain="y").id)


def without_salt(scene: Scene) -> Attempt:
    """Text for another domain, passed off as this one's by another key."""
    sender = scene.agent(SENDER, system="zqxsystem")
    canary(scene)
    made = sender.hand_off(sender.run("zqxprompt", max_new_tokens=1), to_domain="y")
    assert isinstance(made.manifest.export, Export)
    listing = replace(marked(made.manifest), export=None)
    return Attempt(scene.forge(listing, scene.ring.signer("coder", DOMAIN)))


def odd_names(scene: Scene) -> Attempt:
    """SQL, HTML and markup in every name, by a stranger."""
    odd = "zqx<script>';DROP TABLE batons;--[red]../../zqx"
    listing = replace(marked(canary(scene).manifest), sender=odd, ref=odd)
    return Attempt(scene.forge(listing, stranger()))


def boastful(scene: Scene) -> Attempt:
    """A child that names no signers although its parent has one."""
    baton = canary(scene)
    listing = replace(marked(baton.manifest), parents=(baton.id,), signers=(), fidelity=EXACT)
    return Attempt(scene.forge(listing, scene.ring.signer(SENDER, DOMAIN)))


def odd_ticket(scene: Scene, baton: Baton) -> str:
    """What a trusted key has signed as a ticket, and is none."""
    raw = base64.urlsafe_b64decode(ticket_of(scene, baton) + "==")
    kind = "application/vnd.kvbaton.ticket+json"
    value = json.loads(parse_envelope(raw, payload_type=kind).payload)
    value["zqxfield"] = "zqxvalue"
    odd = signed(dumps(value), scene.ring.signer("coder", DOMAIN), kind)
    return base64.urlsafe_b64encode(odd).decode("ascii").rstrip("=")


FORGERIES = (
    "no signature", "an empty signature", "an unknown key", "an unknown key under a known id",
    "no key id", "two signatures", "a revoked key", "a key for tickets only",
)  # fmt: skip

ATTEMPTS: dict[str, Prepare] = {
    **{f"A1 {name}": forged(i) for i, name in enumerate(FORGERIES)},
    **{f"A1 malformed: {name}": malformed(name) for name in MALFORMED},
    "A1 the sender's key was revoked": revoked,
    "A2 a spent ticket": ticketed(ticket_of, spent=True),
    "A3 an expired baton": expired,
    "A3 an expired ticket": ticketed(lambda s, b: ticket_of(s, b, not_before_ms=1, expires_ms=2)),
    "A3 a ticket of later": ticketed(
        lambda s, b: ticket_of(s, b, not_before_ms=1 << 61, expires_ms=1 << 62)
    ),
    "A4 another's manifest": swapped(Kind.BATON),
    "A4 another's transcript": swapped(Kind.TRANSCRIPT),
    "A4 another's segment": swapped(Kind.SEGMENT),
    "A5 no ticket": ticketed(lambda s, b: None),
    "A5 a ticket for another": ticketed(lambda s, b: ticket_of(s, b, audience="zqxaudience")),
    "A5 a ticket for another baton": ticketed(lambda s, b: ticket_of(s, b, baton="0e" * 32)),
    "A5 a ticket of another domain": ticketed(lambda s, b: ticket_of(s, b, domain="zqxdomain")),
    "A5 a ticket by another's key": ticketed(
        lambda s, b: pass_of(b, "zqxissuer", s.ring.signer("coder", DOMAIN))
    ),
    "A5 a baton as a ticket": ticketed(lambda s, b: baton_as_ticket(b)),
    "A5 no ticket, by a trusted key": ticketed(odd_ticket),
    "A5 no ticket at all": ticketed(lambda s, b: "zqxticket"),
    "A5 another domain": foreign,
    "A6 a manifest of 1 TiB": endless(b"zqx" * 99, 1 << 40),
    "A6 nested without end": endless(b'{"zqx":' * 200_000),
    "A6 fields without end": endless(b'{"zqx":1,' * 200_000),
    "A7 another agent's key": by_another_key,
    **{f"A7 no manifest: {name}": no_manifest(name) for name in NO_MANIFEST},
    "A7 an ancestor's key was revoked": of_a_revoked_parent,
    "A8 text for another domain": for_another_domain,
    "A8 its salt dropped": without_salt,
    "A9 tensors of another text": of_another_text,
    "A10 names that act": odd_names,
    "A12 better claims": boastful,
    "A13 the manifest changes": meanwhile(Kind.BATON, 1),
    "A13 the transcript changes": meanwhile(Kind.TRANSCRIPT, 1),
    "A13 a segment changes before its header is read": meanwhile(Kind.SEGMENT, 1),
    "A13 a segment changes behind its header": meanwhile(Kind.SEGMENT, 2),
    "A13 a segment changes before its last layer": meanwhile(Kind.SEGMENT, 5),
}
