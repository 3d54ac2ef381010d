"""The decode loop: feed, sample, show, stop; one forward pass per token."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvbaton.engines.base import Engine
from kvbaton.engines.transformers.sampling import Sampler, Sampling
from kvbaton.engines.transformers.stream import StopStrings, TextStream
from kvbaton.errors import CacheBusy, InputError
from kvbaton.triggers import Fired, Progress, Trigger


@dataclass(frozen=True, slots=True)
class Decoding:
    """How to decode an answer.

    ``stop`` are strings that end it; ``on_text`` is called with each piece of text as soon as it
    can no longer become part of a stop string; ``hand_off_when`` are triggers.
    """

    max_new_tokens: int = 256
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    on_text: Callable[[str], None] | None = None
    hand_off_when: tuple[Trigger, ...] = ()

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise InputError("max_new_tokens must be at least 1")


@dataclass(frozen=True, slots=True)
class Answer:
    """What was decoded.

    ``ids`` are all sampled tokens; the last one was never fed.  ``text`` is cut before a stop
    string and holds no special tokens.  ``finish`` is ``end``, ``stop``, ``length`` or
    ``hand-off``; ``computed_tokens`` counts positions run through the model before the first
    token, ``ttft_s`` is the seconds from the start of the loop to that token.
    """

    ids: tuple[int, ...]
    text: str
    finish: str
    computed_tokens: int
    ttft_s: float
    fired: Fired | None = None


def decode(
    engine: Engine,
    cache: Any,
    feed: Sequence[int],
    how: Decoding,
    *,
    after: int | None = None,
    settled: Callable[[Sequence[int]], None] | None = None,
    first_token: Callable[[], None] | None = None,
) -> Answer:
    """Feed ``feed`` behind the cache and decode an answer.

    ``after`` is the length that the cache must have, so that ``feed`` goes on where it should;
    ``settled`` is called after each forward pass with the ids sampled so far; ``first_token`` once
    the first token is out.

    Raises
    ------
    CacheBusy
        Another request is using the cache, or has moved it on.
    EmptyInput, WindowExceeded
        There is nothing to feed, or no room for it.
    """
    loop = _Loop(engine, how)
    room = engine.max_tokens - cache.length - len(feed)
    with cache.exclusive():
        if after is not None and cache.length != after:
            raise CacheBusy("another request has moved this cache on")
        started, before = time.perf_counter(), engine.computed_tokens()
        logits = engine.forward(cache, feed)
        computed = engine.computed_tokens() - before
        ended = loop.push(logits)
        ttft_s = time.perf_counter() - started
        if first_token is not None:
            first_token()
        while not ended:
            if settled is not None:
                settled(loop.ids)
            if len(loop.ids) > room:
                loop.finish = "length"
                break
            ended = loop.push(engine.forward(cache, loop.ids[-1:]))
        loop.flush()
    return Answer(tuple(loop.ids), "".join(loop.shown), loop.finish, computed, ttft_s, loop.fired)


class _Loop:
    """State of one answer."""

    def __init__(self, engine: Engine, how: Decoding) -> None:
        self.how = how
        self.ids: list[int] = []
        self.shown: list[str] = []
        self.finish = ""
        self.fired: Fired | None = None
        self._sampler = Sampler(how.sampling, engine.device)
        self._stream = TextStream(engine.tokenizer)
        self._stops = StopStrings((*how.stop, *engine.chat.stop_strings))
        self._ends = engine.chat.stop_ids

    def push(self, logits: Any) -> bool:
        """Sample a token from logits ``[vocab]``; whether the answer ends with it."""
        token = self._sampler(logits)
        self.ids.append(token)
        if token in self._ends:
            self.finish = "end"
        else:
            safe, hit = self._stops.push(self._stream.push(token))
            self._show(safe)
            if hit is not None:
                self.finish = "stop"
            elif len(self.ids) >= self.how.max_new_tokens:
                self.finish = "length"
        self._ask()
        return bool(self.finish)

    def _ask(self) -> None:
        if not self.how.hand_off_when:
            return
        progress = Progress("".join(self.shown), tuple(self.ids), bool(self.finish))
        for trigger in self.how.hand_off_when:
            self.fired = trigger(progress)
            if self.fired is not None:
                self.finish = self.finish or "hand-off"
                return

    def _show(self, text: str) -> None:
        if text:
            self.shown.append(text)
            if self.how.on_text is not None:
                self.how.on_text(text)

    def flush(self) -> None:
        """Show what was held back, unless a stop string came."""
        if self.finish == "stop":
            return
        safe, hit = self._stops.push(self._stream.finish())
        self._show(safe)
        if hit is None:
            rest, _ = self._stops.finish()
            self._show(rest)
