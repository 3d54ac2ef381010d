"""The honest batons that are tampered with, a store with some objects replaced, and a take."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from attacks.scene import (
    DOMAIN,
    LONG,
    MESSAGES,
    Scene,
    acquaintance,
    agent_of,
    by_text,
    plain_answer,
)

from kvbaton.agent import Agent
from kvbaton.codecs import CodecChain, Int, Nf4, Raw, Zstd, storage, uniform
from kvbaton.seals import Grant, Purpose
from kvbaton.stores import Entry, Key, Kind, MemoryStore, Reader, Store
from kvbaton.types import Baton, Outcome, SegmentHeader
from kvbaton.wire import manifest, segment
from kvbaton.wire.envelope import Signature, parse_envelope

RECORD = "ca" * 32
LIMIT = 1 << 30
PROMPTS = (
    LONG, f"Hi {LONG}", "You code, and plan. " * 5, "Go on there! " * 9,
    *(f"You plan {number}. {LONG}" for number in range(8)),
)  # fmt: skip


class Patched(Store):
    """Another store with some objects replaced, or missing where they are None."""

    def __init__(self, inner: Store, patches: Mapping[Key, bytes | None]) -> None:
        self.inner, self.url, self.patches = inner, inner.url, patches
        self.own = MemoryStore()
        for key, data in patches.items():
            if data is not None:
                self.own.put(key, [data])

    def open(self, key: Key) -> Reader:
        """See :meth:`Store.open`."""
        return (self.own if key in self.patches else self.inner).open(key)

    def put(self, key: Key, parts: Sequence[memoryview | bytes]) -> int:
        """Nothing is written."""
        return 0

    def delete(self, key: Key) -> bool:
        """Nothing is removed."""
        return False

    def list(self, kind: Kind) -> Iterator[Entry]:
        """See :meth:`Store.list`."""
        return self.inner.list(kind)

    def claim(self, key: Key, data: bytes) -> bool:
        """Tickets are never spent here."""
        return True


@dataclass(frozen=True)
class Case:
    """One tampering: which baton it is about, what is replaced, what is taken."""

    about: Baton
    patches: Mapping[Key, bytes | None] = field(default_factory=dict)
    take: str = ""
    ticket: str | None = None
    prompt: str = ""
    """Nothing is taken: a prompt is answered whose beginning lies in the store."""


class Pool:
    """A store with honest batons (raw, quantized with side tensors, compressed) and keys."""

    def __init__(self, folder: Path) -> None:
        self.scene = Scene(folder, store=MemoryStore())
        self.store, self.trust = self.scene.store, self.scene.trust
        self.raw = [self._baton(prompt) for prompt in PROMPTS]
        layers = 4
        eight = CodecChain((Int(bits=8, axis="token", group=8),))
        four = CodecChain((Nf4(),))
        self.lossy = [
            self._baton(LONG, plan=uniform("eight", eight, eight, layers).calibrated(RECORD)),
            self._baton(LONG, plan=uniform("four", four, four, layers).calibrated(RECORD)),
            self._baton(
                LONG,
                plan=uniform("small", *[CodecChain((Raw(), Zstd(shuffle=4)))] * 2, layers),
            ),
        ]
        self.batons = [*self.raw, *self.lossy]
        self.planner = self.scene.ring.signer("planner", DOMAIN)
        self.coder = acquaintance(self.scene, Grant("coder", DOMAIN))
        self.tickets_only = acquaintance(
            self.scene, Grant("planner", DOMAIN), purposes=frozenset({Purpose.TICKET})
        )
        self.revoked = acquaintance(self.scene, Grant("planner", DOMAIN))
        self.trust.revoke(self.revoked.keyid)

    def _baton(self, prompt: str, **options: Any) -> Baton:
        sender = self.scene.agent("planner", system="You plan", stream=False, **options)
        return sender.hand_off(sender.run(prompt, max_new_tokens=9), instruction="Go on")

    def get(self, kind: Kind, name: str) -> bytes:
        """An honest object."""
        return self.store.get(Key(kind, name), limit_bytes=LIMIT)

    def ticket(self, baton: Baton, **changes: Any) -> str:
        """An honest ticket for the coder, or one with something changed."""
        from attacks.wrong_baton import issue

        fields: dict[str, Any] = {
            "issuer": "planner", "audience": "coder", "domain": DOMAIN, "uses": 0,
            "not_before_ms": 0, "expires_ms": 1 << 62, "signer": self.planner,
        }  # fmt: skip
        return issue(changes.pop("baton", baton.id), **fields | changes)

    def header(self, baton: Baton, index: int) -> tuple[Key, bytes, SegmentHeader]:
        """A segment's key, bytes and header."""
        key = Key(Kind.SEGMENT, baton.manifest.segments[index].address)
        data = self.store.get(key, limit_bytes=LIMIT)
        start = segment.header_length(data[:8])
        return key, data, segment.parse_header(data[:start], file_size=len(data), storage=storage)

    @cached_property
    def texts(self) -> dict[str, tuple[int, ...]]:
        """What a receiver of each baton answers that prefills its ids."""
        return {baton.id: by_text(baton, max_new_tokens=2) for baton in self.batons}

    def _run(self, agent: Agent, prompt: str) -> str:
        """The same for a prompt whose beginning is looked for in the store."""
        agent.writer = self.scene.agent("planner", system="You plan").writer
        turn = agent.run(prompt, max_new_tokens=2)
        said = " ".join(["no-baton", *(r.code.value for r in turn.receipt.reasons)])
        return said if tuple(turn.ids) == self.alone[prompt] else f"{said}, but another answer"

    @cached_property
    def alone(self) -> dict[str, tuple[int, ...]]:
        """What is answered to each prompt without a store."""
        found = {}
        for prompt in PROMPTS:
            agent = self.scene.agent("x", store=MemoryStore(), system="You plan")
            found[prompt] = tuple(agent.run(prompt, max_new_tokens=2).ids)
        return found

    def tried(self, case: Case) -> str:
        """Outcome and reasons of a take; the answer must be the one that never saw the baton."""
        agent = agent_of(
            "coder", Patched(self.store, case.patches), self.scene.domain, stream=False,
            calibrations=lambda function: frozenset({RECORD}), max_lossy_hops=None,
        )  # fmt: skip
        if case.prompt:
            return self._run(agent, case.prompt)
        turn = agent.take(
            case.take or case.about.id, "Go on", messages=MESSAGES, max_new_tokens=2,
            ticket=case.ticket,
        )  # fmt: skip
        receipt = turn.receipt
        said = " ".join([receipt.outcome.value, *(r.code.value for r in receipt.reasons)])
        known = receipt.outcome is Outcome.KV_UNUSABLE
        right = self.texts[case.about.id] if known else plain_answer(2)
        if receipt.outcome is not Outcome.USED and tuple(turn.ids) != right:
            return f"{said}, but another answer"
        return said


def signature(baton: Baton) -> Signature:
    """The honest signature of a baton."""
    return parse_envelope(baton.envelope, payload_type=manifest.PAYLOAD_TYPE).signatures[0]


Random = random.Random
Make = Callable[[Pool, Random, int], Case]


@dataclass(frozen=True)
class Tampering:
    """A kind of tampering, and what must come of every one of it."""

    name: str
    wanted: str
    make: Make


KINDS: dict[str, Tampering] = {}


def tampering(name: str, wanted: str) -> Callable[[Make], Make]:
    """Enter a function as a kind of tampering."""

    def enter(make: Make) -> Make:
        if name in KINDS:
            raise ValueError(name)
        KINDS[name] = Tampering(name, wanted, make)
        return make

    return enter


def cases(pool: Pool, kind: Tampering, count: int) -> Iterator[Case]:
    """So many of a kind, no two alike, the same ones every time."""
    seen: set[object] = set()
    for index in range(100 * count):
        case = kind.make(pool, Random(f"{kind.name} {index}"), index)
        replaced = tuple(sorted(case.patches.items(), key=lambda pair: pair[0]))
        what = (replaced, case.take, case.ticket, case.prompt)
        if what not in seen:
            seen.add(what)
            yield case
        if len(seen) == count:
            return
    raise ValueError(f"only {len(seen)} cases of {kind.name!r} differ")


def other_than(rng: Random, old: str, several: str) -> str:
    """One of several characters that is not the old one."""
    return rng.choice([one for one in several if one != old])
