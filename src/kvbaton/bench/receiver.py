"""The receiver's process of ``bench ttft``: the take and, on the same ids, its rivals."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from blake3 import blake3

from kvbaton.agent import Agent
from kvbaton.bench import rivals
from kvbaton.bench.memory import peak_extra_bytes
from kvbaton.bench.texts import fitted
from kvbaton.decoding import Decoding, decode
from kvbaton.errors import BatonRefused, InputError
from kvbaton.relay import Relay
from kvbaton.types import JSON, Baton

PATIENCE_S = 3600.0
"""Deadline of takes here: a slow machine is measured, not cut off."""
INSTRUCTION = "Say in one sentence what the text above is about, and for whom it was written. "
MEMORY_TAKES = 3


@dataclass
class _Work:
    """One prepared context: the same for all rivals."""

    baton: Baton
    instruction: str
    ids: tuple[int, ...]
    cached: int
    kept: Any
    source: Any = field(repr=False)
    target: Any = field(repr=False)

    @property
    def new(self) -> tuple[int, ...]:
        """What has no KV yet."""
        return self.ids[self.cached :]


class Receiver:
    """Takes batons and runs the rivals."""

    def __init__(self, engine: Any, relay: Relay) -> None:
        self.engine, self.relay = engine, relay
        self.agent = Agent("receiver", engine, relay)
        self._work: _Work | None = None

    @property
    def work(self) -> _Work:
        """What was prepared."""
        if self._work is None:
            raise InputError("the receiver has prepared no context")
        return self._work

    def prepare(self, baton: str, new_tokens: int) -> JSON:
        """Make the prompt of the receiver, the rivals' own caches, and touched memory to copy to.

        Raises
        ------
        InputError
            The template alone adds more than ``new_tokens``.
        """
        self._work = None
        gc.collect()
        opened = self.relay.open(baton)
        ids, cached = opened.transcript.ids, opened.manifest.cached_tokens

        def computed(text: str) -> int:
            return len(ids) - cached + len(self._suffix(ids, text))

        instruction = fitted(INSTRUCTION, new_tokens, computed)
        source, target = self._memory(self.engine.layout.cache_bytes(cached))
        self._work = _Work(
            baton=opened,
            instruction=instruction,
            ids=(*ids, *self._suffix(ids, instruction)),
            cached=cached,
            kept=self._kept(opened),
            source=source,
            target=target,
        )
        return {"new_tokens": len(self.work.new), "instruction": instruction}

    def _suffix(self, ids: tuple[int, ...], text: str) -> tuple[int, ...]:
        chat = self.engine.chat
        suffix: tuple[int, ...] = chat.suffix(ids, chat.handoff_turn(None, text)).ids
        return suffix

    def _attached(self, opened: Baton, *, room: int = 64) -> Any:
        """An attached cache, outside of any timing; the manifest is not read again."""
        taken = self.relay.attach(
            opened.manifest.segments,
            opened.transcript.ids,
            opened.manifest.cached_tokens,
            room=room,
            deadline_s=PATIENCE_S,
        )
        if taken.cache is None:
            reason = taken.reasons[0]
            raise BatonRefused(reason.sentence, reason_code=reason.code.value, at=reason.at)
        return taken.cache

    def _kept(self, opened: Baton) -> Any:
        """The cache that a prefix cache in this process would keep; None with window layers."""
        if self.engine.layout.window_layers:
            return None
        tensors = rivals.kv_tensors(
            self.engine, self._attached(opened), opened.manifest.cached_tokens
        )
        return rivals.library_cache(self.engine, tensors)

    def _memory(self, size_bytes: int) -> tuple[Any, Any]:
        """Random bytes on the host and, on the engine's device, touched memory to copy them to."""
        source = np.random.default_rng(0).integers(0, 256, size_bytes, dtype=np.uint8)
        if self.engine.device.type == "cpu":
            return source, np.ones_like(source)
        pinned = torch.from_numpy(source).pin_memory()
        return pinned, torch.ones(size_bytes, dtype=torch.uint8, device=self.engine.device)

    # -- the rivals ------------------------------------------------------------------------------

    def text_loop(self) -> JSON:
        """Text, by our own loop."""
        return self.timed(lambda: rivals.text_by_loop(self.engine, self.work.ids))

    def text_generate(self) -> JSON:
        """Text, by ``generate``."""
        return self.timed(lambda: rivals.text_by_generate(self.engine, self.work.ids))

    def handmade(self, path: str, *, mapped: bool) -> JSON:
        """``torch.load`` of what the sender wrote, into the library's cache."""
        work, file = self.work, Path(path)
        return self.timed(lambda: rivals.take_by_hand(self.engine, file, work.new, mapped=mapped))

    def prefix_cache(self) -> JSON:
        """A copy of a cache that this process has kept."""
        work = self.work
        return self.timed(lambda: rivals.take_from_prefix_cache(self.engine, work.kept, work.new))

    def floor(self) -> JSON:
        """One copy of the cache's bytes to the device, and the forward pass over the new ids."""
        copied = self.timed(self._copy)
        cache = self._attached(self.work.baton)
        fed = self.timed(lambda: int(self.engine.forward(cache, self.work.new).argmax()))
        return fed | {
            "seconds": copied["seconds"] + fed["seconds"],
            "memcpy_s": copied["seconds"],
            "forward_s": fed["seconds"],
        }

    def _copy(self) -> int:
        if self.engine.device.type == "cpu":
            np.copyto(self.work.target, self.work.source)
        else:
            self.work.target.copy_(self.work.source)
        return 0

    def hash_speed(self) -> JSON:
        """BLAKE3 over as many bytes, on one thread."""
        data: Any = np.asarray(self.work.source)
        return self.timed(lambda: len(blake3(data).digest()))

    def take(self, baton: str) -> JSON:
        """From a baton's id to the first token: manifest, transcript, instruction, cache."""
        return self.take_by(self.agent, baton)

    def take_by(self, agent: Agent, baton: str) -> JSON:
        """:meth:`take`, by another agent of the same engine."""
        phases: JSON = {}

        def work() -> int:
            turn = agent.take(
                baton,
                self.work.instruction,
                max_new_tokens=1,
                deadline_s=PATIENCE_S,
                strict=True,
            )
            phases.update(turn.receipt.seconds)
            phases["computed_tokens"] = turn.receipt.computed_tokens
            return turn.ids[0]

        done = self.timed(work)
        agent.forget()
        computed = phases.pop("computed_tokens")
        if computed != len(self.work.new):
            raise InputError(f"the take computed {computed} tokens, not {len(self.work.new)}")
        return done | {"phases": phases, "computed_tokens": computed}

    def timed(self, work: Callable[[], int]) -> JSON:
        """What ``work`` returns as the token, and its seconds with those of the device."""
        gc.collect()
        self.engine.wait_for_device()
        started = time.perf_counter()
        token = work()
        self.engine.wait_for_device()
        ended = time.perf_counter()
        return {"seconds": ended - started, "ended_s": ended, "token": token}

    # -- memory and decoding ---------------------------------------------------------------------

    def memory(self, baton: str) -> JSON:
        """Most extra memory of a take, the worst of a few; None where the system does not tell."""
        seen = [
            peak_extra_bytes(lambda: self.take(baton), self.engine.device)
            for _ in range(MEMORY_TAKES)
        ]
        known = [extra for extra in seen if extra is not None]
        return {"peak_extra_bytes": max(known) if known else None}

    def decode(self, tokens: int) -> JSON:
        """Seconds for ``tokens`` tokens after the first, behind an attached cache and by
        ``generate`` behind the library's own."""
        work = self.work
        room = len(work.new) + tokens + 1
        cache = self._attached(work.baton, room=room)
        stamps: list[float] = []
        engine: Any = _Endless(self.engine)
        gc.collect()
        answer = decode(
            engine,
            cache,
            work.new,
            Decoding(max_new_tokens=tokens + 1),
            first_token=lambda: stamps.append(time.perf_counter()),
        )
        ours_s = time.perf_counter() - stamps[0]
        gc.collect()
        theirs_s, count = rivals.decode_by_generate(self.engine, work.kept, work.ids, tokens)
        return {
            "tokens": tokens,
            "baton_s": tokens * ours_s / (len(answer.ids) - 1),
            "generate_s": tokens * theirs_s / count,
        }


class _Endless:
    """An engine whose answers no token and no text ends."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.chat = _EndlessChat()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class _EndlessChat:
    stop_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
