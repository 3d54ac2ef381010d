"""The decode loop: feed, sample, show, stop; one forward pass per token."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvbaton.engines.base import Engine
from kvbaton.engines.transformers.sampling import Sampler, Sampling
from kvbaton.engines.transformers.stream import StopStrings, TextStream
from kvbaton.errors import CacheBusy, InputError
from kvbaton.triggers import Fired, Progress, Trigger
from kvbaton.types import Reason


class TokenWatch(Protocol):
    """Looks at the first tokens of an answer, which are held back until it is done."""

    @property
    def done(self) -> bool:
        """Whether it has seen enough."""
        ...

    def attached(self) -> AbstractContextManager[object]:
        """While this is open, forward passes of this thread are observed."""
        ...

    def push(self, logits: Any) -> Reason | None:
        """Look at the logits ``[vocab]`` of the next token; why they are odd, or None."""
        ...

    def finish(self) -> Reason | None:
        """Judge an answer that ended before ``done``."""
        ...


@dataclass(frozen=True, slots=True)
class Decoding:
    """How to decode an answer.

    ``stop`` are strings that end it; ``on_text`` is called with each piece of text as soon as it
    can no longer become part of a stop string; ``hand_off_when`` are triggers.  ``ignore_eos`` goes
    on past the tokens that end a turn, so that answers have equal lengths where they are timed.
    """

    max_new_tokens: int = 256
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    on_text: Callable[[str], None] | None = None
    hand_off_when: tuple[Trigger, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise InputError("max_new_tokens must be at least 1")


@dataclass(frozen=True, slots=True)
class Answer:
    """What was decoded.

    ``ids`` are all sampled tokens; the last one was never fed.  ``text`` is cut before a stop
    string and holds no special tokens.  ``finish`` is ``end``, ``stop``, ``length``,
    ``hand-off`` or ``alarm``; ``computed_tokens`` counts positions run through the model before
    the first token, ``ttft_s`` is the seconds from the start of the loop to that token, and
    ``shown_s`` those until it could be shown: later than ``ttft_s`` where it was held back.
    ``alarm`` is why the watch stopped the answer; then there are neither ids nor text, and nothing
    was shown.
    """

    ids: tuple[int, ...]
    text: str
    finish: str
    computed_tokens: int
    ttft_s: float
    fired: Fired | None = None
    shown_s: float = 0.0
    alarm: Reason | None = None


def decode(
    engine: Engine,
    cache: Any,
    feed: Sequence[int],
    how: Decoding,
    *,
    after: int | None = None,
    settled: Callable[[Sequence[int]], None] | None = None,
    first_token: Callable[[], None] | None = None,
    watch: TokenWatch | None = None,
) -> Answer:
    """Feed ``feed`` behind the cache and decode an answer.

    ``after`` is the length that the cache must have, so that ``feed`` goes on where it should;
    ``settled`` is called after each forward pass with the ids sampled so far; ``first_token`` once
    the first token is out.  ``watch`` looks at the first tokens: until it is done nothing is shown
    or settled, and where it raises an alarm nothing ever is.

    Raises
    ------
    CacheBusy
        Another request is using the cache, or has moved it on.
    EmptyInput, WindowExceeded
        There is nothing to feed, or no room for it.
    """
    loop = _Loop(engine, how, watch)
    room = engine.max_tokens - cache.length - len(feed)
    with cache.exclusive(), watch.attached() if watch is not None else nullcontext():
        if after is not None and cache.length != after:
            raise CacheBusy("another request has moved this cache on")
        before = engine.computed_tokens()
        logits = engine.forward(cache, feed)
        computed = engine.computed_tokens() - before
        ended = loop.push(logits)
        ttft_s = loop.elapsed()
        if first_token is not None and loop.alarm is None:
            first_token()
        while not ended:
            if settled is not None and not loop.holding:
                settled(loop.ids)
            if len(loop.ids) > room:
                loop.finish = "length"
                break
            ended = loop.push(engine.forward(cache, loop.ids[-1:]))
        loop.conclude()
    return loop.answer(computed, ttft_s)


class _Loop:
    """State of one answer."""

    def __init__(self, engine: Engine, how: Decoding, watch: TokenWatch | None) -> None:
        self.how = how
        self.ids: list[int] = []
        self.shown: list[str] = []
        self.finish = ""
        self.fired: Fired | None = None
        self.alarm: Reason | None = None
        self.holding = watch is not None
        self._watch = watch
        self._told = 0
        self._started, self._shown_s = time.perf_counter(), 0.0
        self._sampler = Sampler(how.sampling, engine.device)
        self._stream = TextStream(engine.tokenizer)
        self._stops = StopStrings((*how.stop, *engine.chat.stop_strings))
        self._ends = frozenset() if how.ignore_eos else frozenset(engine.chat.stop_ids)

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._started

    def push(self, logits: Any) -> bool:
        """Sample a token from logits ``[vocab]``; whether the answer ends with it."""
        if self._watch is not None and self.holding:
            self.alarm = self._watch.push(logits)
            if self.alarm is not None:
                return True
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
        if self._watch is None or self._watch.done:
            self._release()
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
            self._tell()

    def _tell(self) -> None:
        """Pass on what is to be shown, unless the watch holds it back."""
        if self.holding or self.how.on_text is None:
            return
        while self._told < len(self.shown):
            self._told += 1
            self.how.on_text(self.shown[self._told - 1])

    def _release(self) -> None:
        """Hold nothing back from now on."""
        self.holding = False
        self._shown_s = self._shown_s or self.elapsed()
        self._tell()

    def conclude(self) -> None:
        """End the answer: judge it if it was short, and show what waited for more text."""
        if self._watch is not None and self.holding:
            self.alarm = self.alarm or self._watch.finish()
        if self.alarm is not None:
            return
        self._release()
        if self.finish == "stop":
            return
        safe, hit = self._stops.push(self._stream.finish())
        self._show(safe)
        if hit is None:
            rest, _ = self._stops.finish()
            self._show(rest)

    def answer(self, computed_tokens: int, ttft_s: float) -> Answer:
        """What was decoded, or why it was stopped."""
        if self.alarm is not None:
            return Answer((), "", "alarm", computed_tokens, ttft_s, None, 0.0, self.alarm)
        text = "".join(self.shown)
        return Answer(
            tuple(self.ids), text, self.finish, computed_tokens, ttft_s, self.fired, self._shown_s
        )
