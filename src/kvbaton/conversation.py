"""What an agent keeps between turns, and what a turn remembers of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from kvbaton.backing import Inherited, Source
from kvbaton.outbox import Outbox
from kvbaton.triggers import Fired
from kvbaton.types import (
    JSON,
    Baton,
    Hops,
    Reason,
    Receipt,
    Role,
    SegmentKind,
    SegmentRef,
    Span,
    TokenRun,
)


@dataclass
class Conversation:
    """Token ids with their cache.

    The first ``cache.length`` of ``ids`` have KV; the rest are pending: sampled, never fed.
    ``held`` are segments of the store that back positions of the cache; ``inherited`` are the
    positions whose KV is not exact.  ``signers`` are the key ids of all who have had a part in the
    context, by cache or by text; ``built_on`` are the ids of what it was made from, in the ledger.
    """

    cache: Any
    ids: list[int]
    spans: list[Span] = field(default_factory=list)
    messages: list[JSON] = field(default_factory=list)
    held: tuple[SegmentRef, ...] = ()
    parents: tuple[str, ...] = ()
    hops: Hops = field(default_factory=Hops)
    outbox: Outbox | None = None
    inherited: tuple[Inherited, ...] = ()
    signers: tuple[str, ...] = ()
    built_on: tuple[str, ...] = ()

    @property
    def shared_tokens(self) -> int:
        """Tokens of the preamble that several agents share."""
        return sum(span.run.count for span in self.spans if span.role is Role.SHARED)

    def stored(self) -> tuple[SegmentRef, ...]:
        """Segments of the store that back the cache, those that were streamed among them."""
        if self.outbox is not None:
            self._remember(self.outbox.finish())
        return self.held

    def shipped(self, segments: Sequence[SegmentRef]) -> None:
        """Remember what a hand-off of everything has stored: it need not be exported again."""
        self._remember(segments)

    def _remember(self, segments: Sequence[SegmentRef]) -> None:
        """Hold segments, each in place of those that it covers."""
        runs = [ref for ref in segments if ref.span.kind is SegmentKind.RUN]
        kept = [old for old in self.held if not any(_covers(new.run, old.run) for new in runs)]
        self.held = tuple(sorted((*kept, *runs), key=lambda ref: ref.run.first))

    def source(self, tokens: int, cached: int, parts: tuple[TokenRun, ...] = ()) -> Source:
        """The first ``tokens`` ids, of which ``cached`` have KV, as something to hand off."""
        return Source(
            self.cache,
            cached,
            tuple(self.ids[:tokens]),
            held=self.stored(),
            parents=self.parents,
            hops=self.hops,
            inherited=self.inherited,
            parts=parts,
            signers=self.signers,
        )


def _covers(new: TokenRun, old: TokenRun) -> bool:
    return new.first <= old.first and old.stop <= new.stop


@dataclass(frozen=True)
class Turn:
    """One answer of an agent.

    Parameters
    ----------
    text
        The answer, without special tokens and cut before a stop string.
    ids
        All ids that were sampled, the last of which was never fed.
    receipt
        The evidence.
    finish
        ``end``, ``stop``, ``length`` or ``hand-off``.
    baton
        What was handed off when a trigger fired.
    receiver
        Whom the trigger named; empty where anybody may take the baton.
    tokens, cached
        Tokens of the conversation when the turn ended, and how many of them had KV.
    known
        How many of them were there before the turn.
    """

    agent: str
    text: str
    ids: tuple[int, ...]
    receipt: Receipt
    finish: str
    conversation: Conversation = field(repr=False)
    tokens: int
    cached: int
    known: int = 0
    fired: Fired | None = None
    baton: Baton | None = None

    @property
    def receiver(self) -> str:
        """Name of the receiver that a trigger chose."""
        return self.fired.receiver if self.fired else ""

    @property
    def spans(self) -> tuple[Span, ...]:
        """Spans of the conversation as it was when the turn ended, by role."""
        return clip(self.conversation.spans, self.tokens)

    def runs(
        self, spans: str | Sequence[tuple[int, int] | TokenRun], *, private: bool = False
    ) -> tuple[TokenRun, ...]:
        """Runs of the turn's tokens, by name or as ranges.

        ``prompt`` is what stood before this answer, ``generated`` the answer with its opening,
        ``all`` both; ``turn`` is what the turn itself added, question and answer.  System prompt
        and reasoning are left out unless ``private``.

        Raises
        ------
        SliceError
            Nothing is left, or ranges that are empty, overlap, or reach outside.
        """
        from kvbaton.alignment.slicing import PRIVATE_ROLES, Selection, as_runs, by_role

        if not isinstance(spans, str):
            return as_runs(spans, tokens=self.tokens)
        prompt = self.tokens - len(self.ids)
        opening = [s for s in self.spans if s.run.stop == prompt and s.role is Role.GENERATED]
        if self.ids and opening:
            prompt = opening[0].run.first
        left_out = frozenset() if private else PRIVATE_ROLES
        if spans == "turn":
            own = [s for s in self.spans if s.run.first >= self.known]
            return by_role(own, "all", private=left_out)
        return by_role(self.spans, cast("Selection", spans), prompt_tokens=prompt, private=left_out)

    @property
    def messages(self) -> tuple[Mapping[str, Any], ...]:
        """Chat messages of the conversation."""
        return tuple(self.conversation.messages)


def warned(turn: Turn, reason: Reason) -> Turn:
    """The turn with one more warning in its receipt."""
    receipt = turn.receipt
    return replace(turn, receipt=replace(receipt, warnings=(*receipt.warnings, reason)))


def clip(spans: list[Span], tokens: int) -> tuple[Span, ...]:
    """Spans cut to the first ``tokens`` positions."""
    kept = []
    for span in spans:
        count = min(span.run.stop, tokens) - span.run.first
        if count > 0:
            kept.append(Span(span.role, TokenRun(span.run.first, count), span.shift))
    return tuple(kept)
