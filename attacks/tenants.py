"""A8, tenant confusion: two trust domains, the same text, one store.

Attacked: the wall between domains.  The attacker is a domain that shares the store with another one
and knows the other's text: it looks for objects with its own addresses, watches what is
de-duplicated, asks for prefixes, and swaps fields that could be taken for one another.  It learns
nothing.  (Who a caller is comes from authentication, which a server brings.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from attacks.scene import (
    DOMAIN,
    LONG,
    Finding,
    Scene,
    acquaintance,
    agent_of,
    engine,
    main,
    outcome,
)
from kvbaton.engines.transformers.identity import function_id
from kvbaton.seals import Grant, TrustDomain
from kvbaton.stores import Kind, MemoryStore, Store
from kvbaton.testing import FaultyStore
from kvbaton.types import Baton, Export
from kvbaton.wire.digests import DomainKeys

OTHER = TrustDomain("tenant", DomainKeys(bytes(range(1, 33))))


def attack(folder: Path) -> Sequence[Finding]:
    """What one domain can find out about another one, and what it can pass off as the other's."""
    scene = Scene(folder)
    mine = scene.baton()
    before = names(scene)
    alone = FaultyStore(MemoryStore())
    shared = FaultyStore(scene.store)
    own_way = hand_off_as_other(alone)
    baton = hand_off_as_other(shared)
    added = names(scene) - before
    prompt = agent_of("spy", shared, OTHER, system="You plan").writer.fresh(LONG, None)
    guessing = TrustDomain(DOMAIN, DomainKeys(bytes(range(2, 34))))
    spying = agent_of("spy", scene.store, guessing, system="You plan")
    hits = len(spying.relay.find_prefix(prompt.ids))
    own_hits = len(scene.agent("coder").relay.find_prefix(prompt.ids))
    calls = [[(c.operation, c.kind, c.size_bytes) for c in s.calls] for s in (alone, shared)]
    return [
        Finding("de-duplicated within the domain", "all", dedup(hand_off_as_other(shared))),
        Finding("de-duplicated across domains", "nothing", dedup(baton)),
        Finding("nor beside nobody", "nothing", dedup(own_way)),
        Finding("the same calls, whoever else is there", "yes", yes(calls[0] == calls[1])),
        Finding("objects of its own", "yes", yes(len(added) == len(names_of(alone)))),
        Finding("a prefix, for its domain", "found", "found" if own_hits else "none"),
        Finding("a prefix, for another secret", "none", "found" if hits else "none"),
        Finding(
            "the other's baton", "not-trusted unknown-key",
            outcome(agent_of("spy", scene.store, OTHER), mine.id),
        ),
        *salts(scene),
        *tags(),
    ]  # fmt: skip


def hand_off_as_other(store: Store) -> Baton:
    """The same text, handed off in the other domain."""
    sender = agent_of("planner", store, OTHER, system="You plan", stream=False)
    return sender.hand_off(sender.run(LONG, max_new_tokens=9))


def names(scene: Scene) -> set[str]:
    """All names in the scene's store."""
    return names_of(scene.store)


def names_of(store: Store) -> set[str]:
    """All names in a store."""
    return {entry.key.name for kind in Kind for entry in store.list(kind)}


def dedup(baton: Baton) -> str:
    """How much of a hand-off was there already."""
    if baton.bytes_deduplicated and baton.bytes_written:
        return "some"
    return "all" if baton.bytes_deduplicated else "nothing"


def salts(scene: Scene) -> list[Finding]:
    """What is made for another domain: its digests have a salt of their own, that is signed."""
    sender, turn = scene.turn()
    first, second = (sender.hand_off(turn, to_domain="tenant") for _ in range(2))
    parted = {first.manifest.transcript, first.manifest.token_digest}.isdisjoint(
        {second.manifest.transcript, second.manifest.token_digest}
    )
    ambassador = acquaintance(scene, Grant("coder", DOMAIN))
    salt = second.manifest.export.salt if second.manifest.export else ""
    resalted = replace(first.manifest, export=Export("tenant", salt))
    dropped = replace(first.manifest, export=None)
    honest = scene.ring.signer("planner", DOMAIN)
    tenant = TrustDomain("tenant", OTHER.keys, signers=scene.ring, trust=scene.trust)
    return [
        Finding("two exports of one text have nothing in common", "yes", yes(parted)),
        Finding("a salt dropped, by another's key", "not-trusted signer-not-sender",
                outcome(scene.agent("coder"), scene.forge(dropped, ambassador))),
        Finding("a salt dropped, by the sender's own", "unavailable transcript-corrupt",
                outcome(scene.agent("coder"), scene.forge(dropped, honest))),
        Finding("an export, taken by whom it is for", "kv-unusable no-kv",
                outcome(agent_of("coder", scene.store, tenant), first.id)),
        Finding("an export under another one's salt", "unavailable transcript-corrupt",
                outcome(agent_of("coder", scene.store, tenant), scene.forge(resalted, honest))),
    ]  # fmt: skip


def tags() -> list[Finding]:
    """An adapter may be called what another field says: parts of an identity are named."""
    parts = dict(engine().function.parts)
    one = function_id(parts | {"adapter": "x", "template": "y"})
    other = function_id(parts | {"adapter": "y", "template": "x"})
    joined = function_id(parts | {"adapter": "xy", "template": ""})
    split = function_id(parts | {"adapter": "x", "template": "y"})
    return [
        Finding("fields swapped are another identity", "yes", yes(one.digest != other.digest)),
        Finding("so are fields joined", "yes", yes(joined.digest != split.digest)),
        Finding("and they are named", "adapter template", " ".join(one.differing(other))),
    ]


def yes(what: object) -> str:
    """``yes`` or ``no``."""
    return "yes" if what else "no"


if __name__ == "__main__":
    raise SystemExit(main(attack, __doc__))
