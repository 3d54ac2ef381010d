"""Honest batons of many sorts: every one must be accepted.

Models of every family, two dtypes, several codecs, chains of hops, slices, batons of text only for
this domain and for another one, with encryption and without, with tickets and without.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from attacks.scene import DOMAIN, LONG, Scene, agent_of
from tests.engines.chat_tokenizers import word_tokenizer
from tests.engines.families import FAMILIES, WINDOWED, build
from tests.relay.conftest import TEMPLATE

from kvbaton.agent import Agent
from kvbaton.codecs import CodecChain, CodecPlan, Int, Nf4, Raw, Zstd, uniform
from kvbaton.engines.transformers.load import wrap_model
from kvbaton.policy.filters import Passed, Redact, Ruling
from kvbaton.seals import TrustDomain
from kvbaton.stores import MemoryStore, Store
from kvbaton.types import Baton, TokenRun
from kvbaton.vaults import sealed
from kvbaton.wire.digests import DomainKeys

RECORD = "ca" * 32
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PLANS = ("exact", "int8", "nf4", "zstd")
SORTS = ("whole", "chain", "slice", "text", "abroad", "ticket")
ABROAD = "tenant"
NO_SLICES = (*WINDOWED, "llama-rope-dynamic", "phi3-rope-longrope")
"""Families whose caches cannot be cut: window layers, tables that depend on the length."""
CANNOT = {"slice": NO_SLICES}


@dataclass(frozen=True)
class Accepted:
    """What came of one honest take."""

    sort: str
    family: str
    dtype: str
    plan: str
    encrypted: bool
    wanted: str
    found: str


@cache
def model(family: str, dtype: str) -> Any:
    """A tiny engine of a family."""
    tokenizer = word_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return wrap_model(build(family, DTYPES[dtype]), tokenizer, name=f"tiny-{family}")


def plan_of(name: str, layers: int) -> CodecPlan | None:
    """A codec plan for all layers alike."""
    chains: dict[str, tuple[Any, ...]] = {
        "int8": (Int(bits=8, axis="token", group=8),), "nf4": (Nf4(),),
        "zstd": (Raw(), Zstd(shuffle=2)),
    }  # fmt: skip
    if name == "exact":
        return None
    chain = CodecChain(chains[name])
    plan = uniform(name, chain, chain, layers)
    return plan if name == "zstd" else plan.calibrated(RECORD)


class House:
    """One trust domain with a store for each way of keeping it."""

    def __init__(self, folder: Path) -> None:
        self.scenes: dict[bool, Scene] = {}
        for encrypted in (False, True):
            scene = Scene(folder / str(encrypted), store=MemoryStore())
            scene.trust.require(DOMAIN, encryption=encrypted)
            self.scenes[encrypted] = scene

    def agent(self, name: str, engine: Any, plan: str, *, encrypted: bool, **options: Any) -> Agent:
        """An agent of the domain, or of the other one."""
        scene = self.scenes[encrypted]
        domain = options.pop("domain", scene.domain)
        store: Store = sealed(scene.store, domain)
        return agent_of(
            name, store, domain, engine=engine, max_lossy_hops=None,
            plan=plan_of(plan, len(engine.layout.layers)),
            calibrations=lambda function: frozenset({RECORD}), **options,
        )  # fmt: skip

    def abroad(self, *, encrypted: bool) -> TrustDomain:
        """Another domain, which knows the keys of this one's agents."""
        scene = self.scenes[encrypted]
        keys = DomainKeys(bytes(range(9, 41)))
        return TrustDomain(ABROAD, keys, signers=scene.ring, trust=scene.trust)


def said(agent: Agent, baton: Any, **options: Any) -> str:
    """Outcome and reasons of a take."""
    receipt = agent.take(baton, "Go on", max_new_tokens=3, **options).receipt
    return " ".join([receipt.outcome.value, *(r.code.value for r in receipt.reasons)])


def secret_filter(text: str) -> Ruling:
    """Takes a word out of every text."""
    return Redact(text.replace("Hello", "..."), 1) if "Hello" in text else Passed()


class Trial:
    """Hand-offs and takes of one engine, one plan, one way to keep them."""

    def __init__(self, house: House, family: str, dtype: str, plan: str, encrypted: bool) -> None:
        self.house, self.plan, self.encrypted = house, plan, encrypted
        self.family, self.dtype = family, dtype
        self.engine = model(family, dtype)

    def agent(self, name: str, **options: Any) -> Agent:
        """An agent of this trial."""
        return self.house.agent(name, self.engine, self.plan, encrypted=self.encrypted, **options)

    def handed(self, turns: int = 0, **options: Any) -> tuple[Agent, Baton]:
        """A baton of the planner's."""
        sender = self.agent("planner", system="You plan", **options.pop("with_", {}))
        turn = sender.run(LONG + "Hi " * turns, max_new_tokens=5)
        return sender, sender.hand_off(turn, **options)

    def results(self, sort: str, count: int) -> Iterator[Accepted]:
        """So many takes of a sort."""
        for number in range(count):
            wanted, found = getattr(self, f"_{sort}")(number)
            yield Accepted(sort, self.family, self.dtype, self.plan, self.encrypted, wanted, found)

    def _whole(self, number: int) -> tuple[str, str]:
        _, baton = self.handed(number)
        return "used", said(self.agent("coder"), baton.id)

    def _chain(self, number: int) -> tuple[str, str]:
        """Four hops; each hands on what it took by id."""
        _, baton = self.handed(number)
        found = []
        for hop in range(4):
            agent = self.agent(("coder", "critic")[hop % 2])
            turn = agent.take(baton.id, f"Go on {hop}", max_new_tokens=3)
            found.append(turn.receipt.outcome.value)
            baton = agent.hand_off(turn)
        found.append(said(self.agent("planner"), baton.id))
        return "used " * 4 + "used", " ".join(found)

    def _slice(self, number: int) -> tuple[str, str]:
        sender = self.agent("planner", system="You plan")
        turn = sender.run(LONG, max_new_tokens=5)
        baton = sender.hand_off(turn, spans=[TokenRun(18 + number, 40)])
        return "used", said(self.agent("coder", system="You code"), baton.id)

    def _text(self, number: int) -> tuple[str, str]:
        """A filter takes something out: text only."""
        _, baton = self.handed(number, with_={"filters": [secret_filter]})
        return "kv-unusable no-kv", said(self.agent("coder"), baton.id)

    def _abroad(self, number: int) -> tuple[str, str]:
        """For another domain, which takes it."""
        _, baton = self.handed(number, to_domain=ABROAD)
        domain = self.house.abroad(encrypted=self.encrypted)
        store = self.house.scenes[self.encrypted].store
        other = agent_of("coder", store, domain, engine=self.engine)
        return "kv-unusable no-kv", said(other, baton.id)

    def _ticket(self, number: int) -> tuple[str, str]:
        sender, baton = self.handed(number)
        ticket = sender.ticket(baton, "coder", uses=number % 3)
        return "used", said(self.agent("coder"), baton.id, ticket=ticket)


def trials(
    house: House,
    *,
    families: Sequence[str] = tuple(FAMILIES),
    dtypes: Sequence[str] = tuple(DTYPES),
    plans: Sequence[str] = PLANS,
    each: int = 1,
) -> Iterator[Accepted]:
    """Every sort of every family, dtype and plan, encrypted and not."""
    for family in families:
        for dtype in dtypes:
            for plan in plans:
                for encrypted in (False, True):
                    trial = Trial(house, family, dtype, plan, encrypted)
                    for sort in SORTS:
                        if family not in CANNOT.get(sort, ()):
                            yield from trial.results(sort, each)
