"""What an agent keeps between turns, and what a turn remembers of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvbaton.outbox import Outbox
from kvbaton.relay import Source
from kvbaton.triggers import Fired
from kvbaton.types import (
    JSON,
    Baton,
    Hops,
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
    ``held`` are segments of the store that back the head of the cache.
    """

    cache: Any
    ids: list[int]
    spans: list[Span] = field(default_factory=list)
    messages: list[JSON] = field(default_factory=list)
    held: tuple[SegmentRef, ...] = ()
    parents: tuple[str, ...] = ()
    hops: Hops = field(default_factory=Hops)
    outbox: Outbox | None = None

    @property
    def shared_tokens(self) -> int:
        """Tokens of the preamble that several agents share."""
        return sum(span.run.count for span in self.spans if span.role is Role.SHARED)

    def stored(self) -> tuple[SegmentRef, ...]:
        """Segments of the store that back the head of the cache, after what was streamed."""
        if self.outbox is not None:
            streamed = self.outbox.finish()
            if len(streamed) > len(self.held):
                self.held = streamed
        return self.held

    def shipped(self, segments: Sequence[SegmentRef]) -> None:
        """Remember what a hand-off has stored, so that the next one need not export it again."""
        runs = tuple(ref for ref in segments if ref.span.kind is SegmentKind.RUN)
        if runs and runs[-1].span.stop > (self.held[-1].span.stop if self.held else 0):
            self.held = runs

    def source(self, tokens: int, cached: int) -> Source:
        """The first ``tokens`` ids, of which ``cached`` have KV, as something to hand off."""
        ids = tuple(self.ids[:tokens])
        return Source(self.cache, cached, ids, self.stored(), self.parents, self.hops)


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
    """

    agent: str
    text: str
    ids: tuple[int, ...]
    receipt: Receipt
    finish: str
    conversation: Conversation = field(repr=False)
    tokens: int
    cached: int
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

    @property
    def messages(self) -> tuple[Mapping[str, Any], ...]:
        """Chat messages of the conversation."""
        return tuple(self.conversation.messages)


def clip(spans: list[Span], tokens: int) -> tuple[Span, ...]:
    """Spans cut to the first ``tokens`` positions."""
    kept = []
    for span in spans:
        count = min(span.run.stop, tokens) - span.run.first
        if count > 0:
            kept.append(Span(span.role, TokenRun(span.run.first, count), span.shift))
    return tuple(kept)
