"""Leases of a memory store."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from threading import Lock

from kvbaton.stores.base import Key
from kvbaton.stores.lease_clock import SteadyClock
from kvbaton.stores.leases import LeaseInfo, LeaseState, LeaseTerms


class MemoryHolding:
    """A lease as the objects' shelf has it; changed under the shelf's lock.

    Only its end goes without: it may come wherever Python frees memory, also in the middle of
    what holds that lock.
    """

    def __init__(
        self, terms: LeaseTerms, keys: Iterable[Key], *, lock: Lock, clock: SteadyClock
    ) -> None:
        self._terms, self._lock, self._clock = terms, lock, clock
        self._name, self._beats = secrets.token_hex(12), 0
        self._at_s, self._lingers_s = clock.now_s(), 0.0
        self._held, self.ended = True, False
        self.keys = set(keys)

    def add(self, keys: Iterable[Key]) -> bool:
        """See :meth:`Holding.add`."""
        with self._lock:
            if self.ended:
                return False
            self.keys.update(keys)
            return True

    def beat(self) -> bool:
        """See :meth:`Holding.beat`."""
        with self._lock:
            if self.ended:
                return False
            self._beats, self._at_s = self._beats + 1, self._clock.now_s()
            return True

    def confirm(self) -> bool:
        """See :meth:`Holding.confirm`."""
        return self.beat()

    def linger(self, after_s: float) -> None:
        """See :meth:`Holding.linger`."""
        with self._lock:
            self._held, self._lingers_s, self._at_s = False, after_s, self._clock.now_s()

    def drop(self) -> None:
        """See :meth:`Holding.drop`; what lingers has been given up before."""
        self.ended |= self._held

    def state(self) -> LeaseState:
        """What it is now, by this process's clock."""
        last_s = self._terms.ttl_s if self._held else self._lingers_s
        if self.ended or self._clock.now_s() - self._at_s > last_s:
            return LeaseState.DEAD
        return LeaseState.HELD if self._held else LeaseState.LINGERING

    def info(self) -> LeaseInfo:
        """As others see it."""
        ttl_s = self._terms.ttl_s if self._held else self._lingers_s
        return LeaseInfo(
            self._name, self._terms.owner, ttl_s, self._beats, self.state(), frozenset(self.keys)
        )
