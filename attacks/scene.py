"""What the attacks share: a tiny real model, agents with key files, a store that others write to.

The attacker has whatever the attack says: the store, a stolen key, the domain's secret.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from tests.relay.conftest import SEGMENT_TOKENS, make_engine

from kvbaton.agent import Agent
from kvbaton.conversation import Turn
from kvbaton.errors import KvbatonError
from kvbaton.relay import Relay
from kvbaton.seals import Grant, Purpose, Signer, TrustDomain, TrustedKey, key_id, local_keys
from kvbaton.seals.ed25519 import Ed25519
from kvbaton.seals.statement import sign
from kvbaton.stores import Key, Kind, MemoryStore, Store, open_store
from kvbaton.types import Baton, Manifest, Outcome
from kvbaton.wire import manifest
from kvbaton.wire.digests import DomainKeys, baton_id

SECRET = bytes(range(32))
DOMAIN = "local"
LONG = "Hello there, you plan and code. " * 4
MESSAGES = [{"role": "user", "content": "Hello there"}]
AGENTS = ("planner", "coder", "critic")


@dataclass(frozen=True, slots=True)
class Finding:
    """One attempt: what was tried, what must come of it, what came of it."""

    tried: str
    wanted: str
    found: str

    @property
    def held(self) -> bool:
        """Whether the attack was fended off, in the way that it must be."""
        return self.wanted == self.found


Attack = Callable[[Path], Sequence[Finding]]


@cache
def engine() -> Any:
    """The tiny model; nobody may change it."""
    return make_engine()


class Scene:
    """A folder with a store, the key files of three agents and a trust file.

    A second scene over the same folder is another process's view of it.
    """

    def __init__(self, folder: Path, *, store: Store | None = None) -> None:
        self.folder = folder
        self.store = store or open_store(f"dir://{folder}/store")
        self.ring = local_keys(folder / "domains")
        self.trust = self.ring.trust
        if not self.trust.keys():
            for name in AGENTS:
                self.ring.generate([Grant(name, DOMAIN)], note=name)
        self.domain = TrustDomain(DOMAIN, DomainKeys(SECRET), signers=self.ring, trust=self.trust)

    def agent(self, name: str, **options: Any) -> Agent:
        """An agent over the scene's store."""
        return agent_of(name, options.pop("store", self.store), self.domain, **options)

    def turn(self, name: str = "planner", prompt: str = LONG) -> tuple[Agent, Turn]:
        """An agent and its answer to a long prompt."""
        sender = self.agent(name, system="You plan")
        return sender, sender.run(prompt, max_new_tokens=9)

    def baton(self, name: str = "planner", prompt: str = LONG, **options: Any) -> Baton:
        """An honest baton."""
        sender, turn = self.turn(name, prompt)
        return sender.hand_off(turn, **options)

    def key_of(self, name: str) -> TrustedKey:
        """The public key of an agent that signs now."""
        keyid = self.ring.signer(name, DOMAIN).keyid
        found = self.trust.find(keyid)
        if found is None:
            raise KeyError(keyid)
        return found

    def forge(self, listing: Manifest, signer: Signer | None) -> str:
        """Put a manifest, signed by whoever the attacker can sign as; its id."""
        payload = manifest.encode_manifest(listing)
        name = baton_id(payload)
        raw = manifest.wrap(payload) if signer is None else signed(payload, signer)
        self.put(Key(Kind.BATON, name), raw)
        return name

    def put(self, key: Key, data: bytes) -> None:
        """Write into the store as somebody else does: whatever lay there is replaced."""
        overwrite(self.store, key, data)


def agent_of(name: str, store: Store, domain: TrustDomain, **options: Any) -> Agent:
    """An agent of its own relay, with small segments."""
    relay = Relay(
        options.pop("engine", engine()),
        store,
        domain,
        segment_tokens=SEGMENT_TOKENS,
        observer=options.pop("observer", None),
        plan=options.pop("plan", None),
        calibrations=options.pop("calibrations", None),
        max_lossy_hops=options.pop("max_lossy_hops", 3),
    )
    return Agent(name, relay.engine, relay, **options)


def overwrite(store: Store, key: Key, data: bytes) -> None:
    """Replace an object, as only somebody behind the store's back can."""
    store.delete(key)
    store.put(key, [data])


def signed(payload: bytes, signer: Signer, payload_type: str = manifest.PAYLOAD_TYPE) -> bytes:
    """An envelope around any payload."""
    return sign(payload_type, payload, signer)


def stranger() -> Signer:
    """A key that nobody has been told of."""
    scheme = Ed25519()
    private = scheme.generate()
    return Signer(key_id(scheme.name, scheme.public_bytes(private)), scheme, private)


def acquaintance(
    scene: Scene, *grants: Grant, purposes: frozenset[Purpose] | None = None
) -> Signer:
    """A key of the attacker's that the trust file grants something."""
    signer = stranger()
    public = signer.scheme.public_bytes(signer.private)
    wanted = frozenset(Purpose) if purposes is None else purposes
    scene.trust.add(TrustedKey(signer.keyid, signer.scheme, public, grants, wanted))
    return signer


# --- what came of it -----------------------------------------------------------------------------


@cache
def plain_answer(max_new_tokens: int = 4) -> tuple[int, ...]:
    """What a run that never saw a baton answers to the caller's messages."""
    domain = TrustDomain(DOMAIN, DomainKeys(SECRET))
    turn = agent_of("x", MemoryStore(), domain).run(
        messages=MESSAGES, max_new_tokens=max_new_tokens
    )
    return tuple(turn.ids)


def outcome(
    agent: Agent, baton: Any, *, messages: Sequence[Mapping[str, Any]] = MESSAGES, **options: Any
) -> str:
    """Outcome and reason of a take, such as ``not-trusted unsigned``.

    Where nothing of the baton may be used, the answer is compared with that of a run that never
    saw one: the words ``but another answer`` are added where it differs.
    """
    turn = agent.take(baton, "Go on", messages=messages, max_new_tokens=4, **options)
    receipt = turn.receipt
    said = " ".join([receipt.outcome.value, *(reason.code.value for reason in receipt.reasons)])
    unused = receipt.outcome in (Outcome.NOT_TRUSTED, Outcome.UNAVAILABLE)
    refused = options.get("stale") == "refuse" or receipt.baton is None
    unused = unused or (receipt.outcome is Outcome.SUPERSEDED and refused)
    if unused and tuple(turn.ids) != plain_answer():
        return f"{said}, but another answer"
    if unused and receipt.baton is not None:
        return f"{said}, but the receipt names the baton"
    return said


def raised(agent: Agent, baton: Any, **options: Any) -> str:
    """Class and fault of what a take raises that has no messages to fall back on."""
    try:
        agent.take(baton, "Go on", max_new_tokens=1, **options)
    except KvbatonError as error:
        fault = getattr(error, "fault", "")
        return f"{error.code} {fault}".strip()
    return "taken"


def by_text(baton: Baton, said: str = "Go on", max_new_tokens: int = 4) -> tuple[int, ...]:
    """What a receiver answers that only ever prefills the baton's ids."""
    domain = TrustDomain(DOMAIN, DomainKeys(SECRET))
    agent = agent_of("text", MemoryStore(), domain, stream=False)
    alone = replace(baton, manifest=replace(baton.manifest, segments=(), parents=(), signers=()))
    turn = agent.take(alone, said, max_new_tokens=max_new_tokens, route="text")
    return tuple(turn.ids)


# --- the command line ----------------------------------------------------------------------------


def say(line: str) -> None:
    """One line on standard output."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def report(title: str, findings: Sequence[Finding]) -> bool:
    """Print what happened; whether every attempt was fended off."""
    say(title)
    for one in findings:
        mark = "held   " if one.held else "BROKEN "
        rest = "" if one.held else f", not: {one.wanted}"
        say(f"  {mark}{one.tried}: {one.found}{rest}")
    return all(one.held for one in findings)


def main(attack: Attack, doc: str | None) -> int:
    """Run one attack in a folder that is removed afterwards; the exit status."""
    title = (doc or "").strip().splitlines()[0]
    with tempfile.TemporaryDirectory() as folder:
        held = report(title, attack(Path(folder)))
    with suppress(BrokenPipeError):
        sys.stdout.flush()
    return 0 if held else 1
