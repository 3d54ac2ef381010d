"""The sender's process of ``bench ttft``: computes a context and hands it off, again and again."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

from kvbaton.agent import Agent
from kvbaton.bench import rivals
from kvbaton.bench.texts import fitted, real_texts
from kvbaton.conversation import Turn
from kvbaton.errors import InputError
from kvbaton.relay import Relay
from kvbaton.stores import Kind
from kvbaton.types import JSON


class Sender:
    """Keeps one turn, whose context has exactly the wanted number of tokens."""

    def __init__(self, engine: Any, relay: Relay) -> None:
        self.engine, self.relay = engine, relay
        self.agent = Agent("sender", engine, relay)
        self._turn: Turn | None = None
        self._tensors: rivals.Tensors = []

    @property
    def turn(self) -> Turn:
        """The turn that is handed off."""
        if self._turn is None:
            raise InputError("the sender has prepared no context")
        return self._turn

    def prepare(self, tokens: int) -> JSON:
        """Compute a context of ``tokens`` cached tokens and one pending one, of real text."""
        self._clear()
        self.agent.forget()
        text = "\n\n".join(one.text for one in real_texts())
        self._turn = self.agent.run(fitted(text, tokens, self._prompt_tokens), max_new_tokens=1)
        layout, cache = self.engine.layout, self._turn.conversation.cache
        by_hand = not layout.window_layers
        self._tensors = rivals.kv_tensors(self.engine, cache, tokens) if by_hand else []
        return {
            "tokens": self._turn.cached,
            "kv_bytes": layout.cache_bytes(tokens),
            "by_hand": by_hand,
        }

    def _prompt_tokens(self, text: str) -> int:
        return len(self.engine.chat.render([{"role": "user", "content": text}]).ids)

    def hand_off(self, *, keep: bool) -> JSON:
        """Hand off; ``keep`` leaves what the store holds, else the store is emptied before."""
        if not keep:
            self._clear()
        gc.collect()
        started_s = time.perf_counter()
        baton = self.agent.hand_off(self.turn)
        return {
            "baton": baton.id,
            "started_s": started_s,
            "seconds": time.perf_counter() - started_s,
            "phases": dict(baton.seconds),
            "bytes_written": baton.bytes_written,
            "stored_bytes": self._stored_bytes(),
        }

    def save(self, path: str) -> JSON:
        """Write what a user would write by hand."""
        file = Path(path)
        file.unlink(missing_ok=True)
        started_s = time.perf_counter()
        rivals.save_by_hand(file, self.turn.conversation.ids[: self.turn.tokens], self._tensors)
        return {
            "started_s": started_s,
            "seconds": time.perf_counter() - started_s,
            "size_bytes": file.stat().st_size,
        }

    def grow(self, tokens: int) -> JSON:
        """Go on for exactly ``tokens`` more tokens and hand off: what had to be written.

        The turn that was prepared stays what it was.
        """
        before, ids = self.turn.cached, self.turn.conversation.ids

        def added(text: str) -> int:
            suffix = self.engine.chat.suffix(ids, [{"role": "user", "content": text}])
            return len(ids) + len(suffix.ids) - before

        text = real_texts()[-1].text
        grown = self.agent.run(fitted(text, tokens, added), max_new_tokens=1)
        held = self._stored_bytes()
        baton = self.agent.hand_off(grown)
        return {
            "tokens": grown.cached - before,
            "bytes_written": baton.bytes_written,
            "stored_bytes": self._stored_bytes() - held,
            "limit_bytes": self._limit_bytes(grown.cached, before),
        }

    def _limit_bytes(self, grown: int, before: int) -> int:
        """KV of the new tokens and of one segment; the headers of the segments are not counted."""
        layout = self.engine.layout
        return layout.cache_bytes(grown - before + self.relay.segment_tokens)

    def _stored_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.relay.store.list(Kind.SEGMENT))

    def _clear(self) -> None:
        for kind in Kind:
            for entry in list(self.relay.store.list(kind)):
                self.relay.store.delete(entry.key)
