"""The honest rival: everything is prefilled as text, from nothing, in one go."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvbaton.backing import Shipment, Source, Taken
from kvbaton.decoding import Decoding, decode
from kvbaton.engines.base import Engine
from kvbaton.relay import Relay
from kvbaton.seals import TrustDomain
from kvbaton.shipping import Shipper
from kvbaton.stores import MemoryStore
from kvbaton.taking import ASKED
from kvbaton.types import Baton, Route, SegmentRef, TokenRun


class NothingShipped(Shipper):
    """Brings nothing into a store."""

    def ship_all(self, *_: Any, **__: Any) -> Shipment:
        """No segments."""
        return Shipment((), 0, 0)

    def ship_run(self, *_: Any, **__: Any) -> Iterator[tuple[SegmentRef, int]]:
        """Nothing is streamed."""
        return iter(())


class TextRelay(Relay):
    """Hands over token ids only, within this process.

    Nothing is exported, stored or looked up, so whoever takes its batons prefills all of their
    ids.  Agents on this relay keep their caches to themselves.
    """

    def __init__(self, engine: Engine, domain: TrustDomain) -> None:
        super().__init__(engine, MemoryStore(), domain)
        self.shipper = NothingShipped(
            engine,
            self.store,
            domain,
            self.prefixes,
            segment_tokens=self.segment_tokens,
            plan=None,
            observe=self.observe,
        )

    def hand_off(self, source: Source, **options: Any) -> Baton:
        """A baton without segments: all of its tokens are pending."""
        return super().hand_off(replace(source, cached=0), **options)

    def find_prefix(self, ids: Sequence[int]) -> tuple[SegmentRef, ...]:
        """Nothing is ever found."""
        return ()

    def take(self, baton: Baton, **_: Any) -> Taken:
        """Nothing is attached."""
        return Taken(None, 0, Route.TEXT, (ASKED,))

    def hang(self, baton: Baton, runs: Sequence[TokenRun], **_: Any) -> Taken:
        """Nothing is attached."""
        return self.take(baton)


@dataclass(frozen=True, slots=True)
class TextAnswer:
    """An answer by text: its text and ids, seconds to its first token and to its last."""

    output: str
    ids: tuple[int, ...]
    ttft_s: float
    wall_s: float


def answer_by_text(engine: Engine, prompt: Sequence[int], how: Decoding) -> TextAnswer:
    """Answer ids from nothing: one prefill, logits of the last position only, then the same loop.

    Rendering and tokenizing are not counted, which favours the text route.
    """
    started, first = time.perf_counter(), [0.0]

    def first_token() -> None:
        first[0] = time.perf_counter() - started

    cache = engine.new_cache(len(prompt) + min(how.max_new_tokens, engine.default_room))
    answer = decode(engine, cache, prompt, how, first_token=first_token)
    return TextAnswer(answer.text, answer.ids, first[0], time.perf_counter() - started)


def warm_up(engine: Engine) -> None:
    """Run a few tokens, so that nobody pays for first use."""
    prompt = engine.chat.render([{"role": "user", "content": "Hello"}]).ids
    answer_by_text(engine, prompt, Decoding(max_new_tokens=2))
