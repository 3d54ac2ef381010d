"""Mode ``hops``: what is lost when a lossy baton is handed on again and again.

A context of fixed length is read by n agents in turn: each takes what the ones before it have
read, adds its part and hands all of it on.  Against it stands a cache that one agent has computed
and handed off once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kvbaton.backing import Inherited, Source, Taken
from kvbaton.bench.fidelity.session import Row, Session, Task, loss_json
from kvbaton.bench.fidelity.splice import DEADLINE_S
from kvbaton.bench.kl import Reference
from kvbaton.bench.texts import Text
from kvbaton.relay import Relay
from kvbaton.taking import refused
from kvbaton.types import JSON, Baton, Hops

HOP_TOKENS = 1024
_TEXTS = 3


def tasks(session: Session) -> list[Task]:
    """One measurement per text and number of hops, and a hand-off of everything at once."""
    return [
        _task(session, text, hops) for text in _texts(session) for hops in (0, *session.scope.hops)
    ]


def _texts(session: Session) -> tuple[Text, ...]:
    return session.texts(_tokens(session))[:_TEXTS]


def _tokens(session: Session) -> int:
    return min(HOP_TOKENS, max(session.scope.tokens))


def _task(session: Session, text: Text, hops: int) -> Task:
    def run() -> JSON:
        reference = session.reference(text, _tokens(session))
        chain = Chain(session, reference)
        chain.once() if hops == 0 else chain.handed_on(hops)
        loss = reference.loss(chain.cache)
        return loss_json(loss, same=chain.same, bits_per_element=chain.bits_per_element)

    name = session.plan_key(session.scope.hop_profile)
    key = f"hops/{_tokens(session)}/{text.name}/{hops}/{name}"
    label = f"{hops} hops" if hops else "everything at once"
    return Task(key, f"{label} on {text.name}", run)


class Chain:
    """Agents that hand a growing context on.  ``same`` says whether no inherited bit changed."""

    def __init__(self, session: Session, reference: Reference) -> None:
        self.session, self.engine = session, session.engine
        self.reference = reference
        self.ids = reference.ids[: reference.tokens]
        self.relay: Relay = session.relay(session.scope.hop_profile)
        self.cache: Any = None
        self.same = True
        self._size_bytes = 0

    @property
    def bits_per_element(self) -> float:
        """Of the segments that are listed in the last baton."""
        elements = sum(
            spec.kv_heads * (spec.k_dim + spec.v_dim) for spec in self.engine.layout.layers
        )
        return 8 * self._size_bytes / (elements * len(self.ids))

    def once(self) -> None:
        """The exact cache of everything, handed off once."""
        source = Source(self.reference.cache, len(self.ids), self.ids)
        self._take(self._hand_off(source), len(self.ids))

    def handed_on(self, hops: int) -> None:
        """Parts of equal length, each computed behind what was handed on."""
        first = len(self.ids) // 2
        stops = [first + (len(self.ids) - first) * k // hops for k in range(1, hops)]
        stops = [first, *stops] if hops > 1 else [len(self.ids)]
        stops[-1] = len(self.ids)
        cache, taken, count = self.engine.new_cache(len(self.ids)), None, Hops()
        for stop in stops:
            self.engine.forward(cache, self.ids[cache.length : stop])
            baton = self._hand_off(self._source(cache, stop, taken, count))
            before, known = cache, taken.inherited if taken else ()
            taken, count = self._take(baton, stop), baton.manifest.hops
            cache = taken.cache
            self.same &= _same_bits(before, cache, known)
        self.cache = cache

    def _source(self, cache: Any, stop: int, taken: Taken | None, count: Hops) -> Source:
        if taken is None:
            return Source(cache, stop, self.ids[:stop])
        return Source(
            cache,
            stop,
            self.ids[:stop],
            held=taken.held,
            inherited=taken.inherited,
            hops=count,
        )

    def _hand_off(self, source: Source) -> Baton:
        return self.relay.hand_off(source, sender="bench", text="")

    def _take(self, baton: Baton, tokens: int) -> Taken:
        taken = self.relay.take(
            baton,
            prompt_tokens=len(self.ids) + 1,
            reusable=tokens,
            room=len(self.ids) - tokens + self.session.scope.positions,
            deadline_s=DEADLINE_S,
        )
        if taken.cache is None:
            raise refused(taken.reasons[0])
        self.cache = taken.cache
        self._size_bytes = sum(ref.size_bytes for ref in baton.manifest.segments)
        return taken


def _same_bits(before: Any, after: Any, inherited: Sequence[Inherited]) -> bool:
    """Whether what the sender had inherited is, bit for bit, what its receiver has."""
    return all(
        torch.equal(mine, theirs)
        for known in inherited
        for layer in range(len(before.layers))
        for mine, theirs in zip(
            before.layer_view(layer, known.run.first, known.run.count),
            after.layer_view(layer, known.run.first, known.run.count),
            strict=True,
        )
    )


def rows(session: Session) -> list[JSON]:
    """One row per number of hops; ``kl_over_once`` is against one hand-off of everything."""
    texts = _texts(session)
    once = session.found([_task(session, text, 0) for text in texts])
    base = _row(session, 1, once)["kl"] if once else None
    found = []
    for hops in session.scope.hops:
        losses = session.found([_task(session, text, hops) for text in texts])
        if losses:
            row = _row(session, hops, losses)
            ratio = row["kl"] / base if base else None
            found.append({**row, "kl_once": base, "kl_over_once": ratio})
    return found


def _row(session: Session, hops: int, losses: Sequence[JSON]) -> JSON:
    return Row(
        session.scope.hop_profile,
        "continue",
        _tokens(session),
        session.engine.layout.dtype,
        bits_per_element=sum(loss["bits_per_element"] for loss in losses) / len(losses),
        hops=hops,
        losses=losses,
        more={"inherited_bit_identical": all(loss["same"] for loss in losses)},
    ).to_json()
