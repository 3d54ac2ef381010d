"""Slices behind another beginning, through the relay, and what they are held against.

A document is computed behind tokens that the receiver never sees, handed off as a slice, and hung
behind the receiver's own beginning by the code that ``Agent.take`` runs.  The truth is the
receiver's beginning with the document's ids prefilled behind it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kvbaton.account import Account
from kvbaton.alignment.recompute import Repair
from kvbaton.backing import Source
from kvbaton.bench.fidelity.session import Session
from kvbaton.bench.kl import Loss, Reference, text_ids
from kvbaton.bench.texts import Text
from kvbaton.joining import Join
from kvbaton.prompts import Hung, SlicePrompt
from kvbaton.relay import Relay
from kvbaton.taking import refused
from kvbaton.types import (
    Baton,
    FidelityClass,
    Mode,
    Outcome,
    Role,
    Route,
    Span,
    TokenRun,
)

DEADLINE_S = 36_000.0


class UnshiftedRelay(Relay):
    """Hangs slices without turning their keys: what it would cost to forget about positions."""

    def _shifter(self) -> Any:
        return _Unmoved()


class _Unmoved:
    """In place of a ``Shifter``: leaves every key as it is."""

    def moved(
        self, keys: torch.Tensor, *, layer: int, old_first: int, new_first: int
    ) -> torch.Tensor:
        """The same keys."""
        del layer, old_first, new_first
        return keys


def hang(relay: Relay, prompt: SlicePrompt, cache: Any, *, repair: Repair | None = None) -> Account:
    """Hang a prompt's slices behind the receiver's own beginning, as ``Agent.take`` does.

    Raises
    ------
    BatonRefused
        A slice was not attached.
    """
    account = Account(Outcome.USED, Mode.SLICE, Route.BATON, baton=prompt.slices[0].baton)
    join = Join(
        relay,
        prompt,
        account,
        repair=repair,
        minimum=FidelityClass.APPROXIMATE,
        function=relay.engine.function,
    )
    join.hang(cache, deadline_s=DEADLINE_S)
    if account.route is not Route.BATON:
        raise refused(account.reasons[0])
    return account


@dataclass(frozen=True)
class Hanging:
    """A receiver's cache with slices behind its own beginning, and what happened on the way."""

    cache: Any
    account: Account

    @property
    def seconds(self) -> dict[str, float]:
        """Wall seconds by phase."""
        return self.account.clock.seconds


class Own:
    """A receiver's own beginning, computed once and copied for each take."""

    def __init__(self, session: Session, ids: Sequence[int]) -> None:
        self.engine, self.ids = session.engine, tuple(ids)
        self._relay = session.relay()
        self._cache = self.engine.new_cache(len(ids))
        self.engine.forward(self._cache, ids)

    def copy(self, room: int) -> Any:
        """A cache of its own."""
        return self._relay.copy_prefix(self._cache, len(self.ids), room=room)

    def with_text(self, ids: Sequence[int], room: int) -> Any:
        """A copy with ids prefilled behind it."""
        cache = self.copy(len(ids) + room)
        self.engine.forward(cache, ids)
        return cache

    def with_slices(
        self, relay: Relay, batons: Sequence[Baton], *, room: int, repair: Repair | None = None
    ) -> Hanging:
        """A copy with slices behind it, as ``Agent.take`` hangs them.

        Raises
        ------
        BatonRefused
            A slice was not attached.
        """
        ids, hung = list(self.ids), []
        for baton in batons:
            words = baton.transcript.ids
            hung.append(Hung(baton, (TokenRun(0, len(words)),), len(ids), ()))
            ids.extend(words)
        prompt = SlicePrompt(tuple(ids), (), (), own_tokens=len(self.ids), slices=tuple(hung))
        cache = self.copy(len(ids) - len(self.ids) + room)
        return Hanging(cache, hang(relay, prompt, cache, repair=repair))


class Case:
    """One text as slices: senders' caches behind other tokens, and the truth to hold against.

    Parameters
    ----------
    text, before, own
        The document; what stood before it at its senders; the receiver's own beginning.
    slices
        Into how many slices, each of a sender of its own, the document is cut.
    """

    def __init__(
        self, session: Session, text: Text, before: Text, own: Text, *, slices: int = 1
    ) -> None:
        self.session, self.engine, scope = session, session.engine, session.scope
        ids = text_ids(self.engine, text, scope.slice_tokens + scope.positions)
        self.document = ids[: scope.slice_tokens]
        self.own = Own(session, text_ids(self.engine, own, scope.prefix_tokens))
        self._before = text_ids(self.engine, before, scope.before_tokens)
        self.senders = self._sent(slices)
        start = time.perf_counter()
        exact = self.own.with_text(self.document, scope.positions)
        self.prefill_s = time.perf_counter() - start
        tokens = scope.prefix_tokens + scope.slice_tokens
        self.reference = Reference(
            self.engine, text.name, (*self.own.ids, *ids), tokens, cache=exact
        )

    def _sent(self, slices: int) -> list[Source]:
        """Each sender has read the other tokens and its part of the document."""
        sent, size = Own(self.session, self._before), -(-len(self.document) // slices)
        first, found = len(self._before), []
        for start in range(0, len(self.document), size):
            part = self.document[start : start + size]
            cache = sent.with_text(part, 0)
            run = TokenRun(first, len(part))
            found.append(Source(cache, cache.length, (*self._before, *part), parts=(run,)))
        return found

    def hung(
        self,
        profile_name: str = "exact",
        *,
        kind: type[Relay] = Relay,
        repair: Repair | None = None,
    ) -> Hanging:
        """All slices handed off by a profile and hung behind the receiver's beginning."""
        relay = self.session.relay(profile_name, kind=kind)
        batons = [hand_off_slice(relay, source) for source in self.senders]
        return self.own.with_slices(relay, batons, room=self.session.scope.positions, repair=repair)

    def loss(self, hanging: Hanging) -> Loss:
        """What it costs to go on from there instead of from the text."""
        return self.reference.loss(hanging.cache)


def hand_off_slice(relay: Relay, source: Source) -> Baton:
    """Hand the parts of a source off as a slice."""
    whole = TokenRun(0, len(source.packed_ids))
    return relay.hand_off(
        source,
        sender="bench",
        text=relay.engine.chat.text_of(source.packed_ids),
        mode=Mode.SLICE,
        spans=(Span(Role.HISTORY, whole),),
    )
