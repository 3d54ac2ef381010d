"""Storing full segments while the sender still decodes.

Settled positions never change, so a thread can export, encode, hash and put them beside the
decode loop; when the turn ends only the tail is left to do.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

from kvbaton.backing import Inherited, Source
from kvbaton.clock import Clock
from kvbaton.errors import KvbatonError
from kvbaton.relay import Relay
from kvbaton.shipping import Packing
from kvbaton.types import SegmentRef, TokenRun

_open: WeakSet[Outbox] = WeakSet()
END_S = 30.0
"""How long an ending process waits for segments that are under way."""


@atexit.register
def _finish_all() -> None:
    """A thread inside a library when the interpreter is taken apart would abort the process."""
    for outbox in list(_open):
        outbox.close()
    for outbox in list(_open):
        outbox.join(END_S)


class Outbox:
    """Ships the full segments of one growing cache, but for those that are ``held``.

    ``inherited`` are the positions of the cache that are not exact; ``sender`` is in whose name
    they are stored.

    A store that fails ends the streaming, not the turn: the hand-off tries again and raises.
    """

    def __init__(
        self,
        relay: Relay,
        cache: Any,
        held: Sequence[SegmentRef] = (),
        inherited: Sequence[Inherited] = (),
        *,
        sender: str = "",
    ) -> None:
        self._packing = Packing(sender=sender)
        self._relay, self._cache = relay, cache
        self._held, self._inherited = tuple(held), tuple(inherited)
        self._refs: list[SegmentRef] = []
        self._done = 0
        self._fixed = max(
            (ref.run.stop for ref in held if ref.moved or ref.fidelity.compressed), default=0
        )
        self._wanted: tuple[int, tuple[int, ...]] = (0, ())
        self._wake = threading.Condition()
        self._closed = not relay.engine.layout.full_layers
        self._failure: KvbatonError | None = None
        self._thread: threading.Thread | None = None
        self.bytes_written = 0

    def offer(self, cached: int, ids: Callable[[], Sequence[int]]) -> None:
        """Say that the first ``cached`` positions are settled; returns at once.

        ``ids`` gives the ids of the sequence; it is asked only when a segment became full.
        """
        full = cached - cached % self._relay.segment_tokens
        if self._closed or full <= max(self._done, self._wanted[0]) or full < self._fixed:
            return
        with self._wake:
            self._wanted = (full, tuple(ids()[:full]))
            self._wake.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="kvbaton-outbox", daemon=True)
            _open.add(self)
            self._thread.start()

    def _work(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._closed or self._wanted[0] > self._done)
                stop, ids = self._wanted
                if self._done >= stop:
                    return
            try:
                source = Source(self._cache, stop, ids, held=self._held, inherited=self._inherited)
                run = TokenRun(self._done, stop - self._done)
                for ref, written in self._relay.shipper.ship_run(
                    source, run, Clock(), self._packing
                ):
                    if ref not in self._held:
                        self._refs.append(ref)
                    self.bytes_written += written
                self._done = stop
            except KvbatonError as error:
                self._failure = error
                return

    def finish(self) -> tuple[SegmentRef, ...]:
        """Wait for what was offered; the segments that were stored."""
        self.close()
        if self._thread is not None:
            self._thread.join()
        return tuple(self._refs)

    def join(self, timeout_s: float) -> None:
        """Wait for what is under way."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def close(self) -> None:
        """Take no more offers; what is under way goes on."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()

    @property
    def failure(self) -> KvbatonError | None:
        """Why streaming ended early, if it did."""
        return self._failure
