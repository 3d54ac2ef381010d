"""One thread per process that beats for all its leases; it ends some time after the last one."""

from __future__ import annotations

import os
import threading
import time
import weakref
from dataclasses import dataclass
from typing import Protocol

IDLE_S = 60.0
"""How long the thread stays when there is nothing to do: most leases end long before their first
beat, and beginning a thread takes longer than all the rest of a lease."""


class Beating(Protocol):
    """What has to be told now and then that its owner lives."""

    def pulse(self) -> bool:
        """Beat; False when there is nothing left to beat for.  Raises nothing."""
        ...


@dataclass(slots=True)
class _Turn:
    """Whose turn comes when, on this process's monotonic clock."""

    beating: weakref.ref[Beating]
    every_s: float
    due_s: float


class Heart:
    """Beats for whatever is added, until it is removed or nobody else holds it any more."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._turns: dict[int, _Turn] = {}
        self._thread: threading.Thread | None = None
        self._wakes_s = 0.0

    def forget_all(self) -> None:
        """In a forked child: its parent's leases are not its own, and no thread came along."""
        self._begin()

    @property
    def running(self) -> bool:
        """Whether the thread is there."""
        with self._changed:
            return self._thread is not None

    def add(self, beating: Beating, *, every_s: float) -> None:
        """Beat every ``every_s`` seconds; only a weak reference is kept."""
        turn = _Turn(weakref.ref(beating), every_s, time.monotonic() + every_s)
        with self._changed:
            self._turns[id(beating)] = turn
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="kvbaton-leases", daemon=True
                )
                self._thread.start()
            elif turn.due_s < self._wakes_s:
                self._changed.notify()

    def remove(self, beating: Beating) -> None:
        """Stop beating for it, if that has not happened."""
        with self._changed:
            turn = self._turns.get(id(beating))
            if turn is not None and turn.beating() is beating:
                del self._turns[id(beating)]

    def _run(self) -> None:
        while (due := self._wait()) is not None:
            for turn in due:
                beating = turn.beating()
                if beating is not None and not beating.pulse():
                    self.remove(beating)
                del beating  # nothing here keeps a lease that everybody else has dropped

    def _wait(self) -> list[_Turn] | None:
        """Those whose turn has come, each put down for its next; None, and the thread is over,
        when there was nobody for a while."""
        with self._changed:
            idle_since_s = time.monotonic()
            while True:
                self._turns = {n: t for n, t in self._turns.items() if t.beating() is not None}
                now_s = time.monotonic()
                due = [turn for turn in self._turns.values() if turn.due_s <= now_s]
                if due:
                    for turn in due:
                        turn.due_s = now_s + turn.every_s
                    return due
                if self._turns:
                    idle_since_s = now_s
                elif now_s - idle_since_s >= IDLE_S:
                    self._thread = None
                    return None
                next_s = min((t.due_s for t in self._turns.values()), default=now_s + IDLE_S)
                self._wakes_s = next_s
                self._changed.wait(next_s - now_s)


HEART = Heart()
"""This process's."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=HEART.forget_all)
