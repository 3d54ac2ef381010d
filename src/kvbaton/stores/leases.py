"""Leases: while somebody needs objects, neither a full store nor a collection removes them.

::

    with store.lease(keys, owner="coder") as lease:
        lease.extend([key])  # before the put, so that what is there already stays
        store.put(key, parts)
        lease.confirm()  # before anything refers to them: nothing was removed

**When a lease ends.**  It is released; or its owner is dead, which a store that spans processes
sees by the file lock that the kernel takes from a dead process; or its owner stood still: the
beats of a lease are counted, and a count that has not changed for the lease's time to live ends it.
That time passes on the observer's own clock, one that counts from the start of the machine and is
never set.  The time of a beat is compared only by who is known to read the very same clock.

That clock stands while a machine sleeps: the owner could not beat then either.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from kvbaton.errors import InputError, StoreError, Unsupported
from kvbaton.stores.lease_heart import HEART

if TYPE_CHECKING:
    from kvbaton.stores.base import Key

DEFAULT_TTL_S = 30.0
MIN_TTL_S = 0.05
MAX_TTL_S = 3600.0
"""No lease outlives its owner's last beat, or its release, by more than this."""

MAX_KEYS = 1 << 16
MAX_OWNER_CHARS = 200
MAX_MARKS_BYTES = 1 << 28
"""Of what a collection remembers: two million objects."""
_BEATS_PER_TTL = 3


class LeaseState(StrEnum):
    """What a lease is, as far as an observer can tell."""

    HELD = "held"
    LINGERING = "lingering"
    """Released; its objects stay for a while yet."""
    DEAD = "dead"
    """It protects nothing; the next who looks for room removes it."""


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """A lease as others see it; ``name`` is random, ``beats`` are those counted so far."""

    name: str
    owner: str
    ttl_s: float
    beats: int
    state: LeaseState
    keys: frozenset[Key]


class Removal(StrEnum):
    """What became of an object that nobody was to need any more."""

    DELETED = "deleted"
    ABSENT = "absent"
    LEASED = "leased"
    USED = "used"
    """It was used, or put again, since it was listed; it stays."""


@dataclass(frozen=True, slots=True)
class Debris:
    """What owners and writers that died have left: temporaries with their bytes, and leases."""

    temporaries: int = 0
    size_bytes: int = 0
    leases: int = 0


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """Who leases, and for how long after a last beat.

    Raises
    ------
    InputError
        The time to live or the owner's name is out of bounds.
    """

    owner: str
    ttl_s: float = DEFAULT_TTL_S

    def __post_init__(self) -> None:
        check_seconds("ttl_s", self.ttl_s, least=MIN_TTL_S)
        if not 0 < len(self.owner) <= MAX_OWNER_CHARS or not self.owner.isprintable():
            raise InputError(
                f"a lease's owner needs 1 to {MAX_OWNER_CHARS} printable characters",
                at="$.owner",
            )


def check_seconds(name: str, value: float, *, least: float) -> None:
    """Refuse a time for which no lease may last.

    Raises
    ------
    InputError
        It is not a number from ``least`` to ``MAX_TTL_S``.
    """
    if not (math.isfinite(value) and least <= value <= MAX_TTL_S):
        raise InputError(f"{name} must be from {least} to {MAX_TTL_S:.0f} s, not {value}")


def checked_keys(keys: Iterable[Key]) -> tuple[Key, ...]:
    """What is to be leased, each once.

    Raises
    ------
    InputError
        These are too many for one lease.
    """
    wanted = tuple(dict.fromkeys(keys))
    _require_few(len(wanted))
    return wanted


def _require_few(count: int) -> None:
    if count > MAX_KEYS:
        raise InputError(f"a lease protects at most {MAX_KEYS} objects")


class Holding(Protocol):
    """A lease as a store keeps it, safe for several threads."""

    def add(self, keys: Iterable[Key]) -> bool:
        """Protect further objects; False when the lease was lost.  Under the store's lock, so that
        nothing is removed between the look and the entry."""
        ...

    def beat(self) -> bool:
        """Count one more beat; False when the lease was lost.  Waits for nobody."""
        ...

    def confirm(self) -> bool:
        """A beat under the store's lock, so that nobody is just about to end it."""
        ...

    def linger(self, after_s: float) -> None:
        """Give it up, and let its objects stay for that long."""
        ...

    def drop(self) -> None:
        """End it at once, if it has not ended.  Raises nothing, and takes no lock that is held
        while objects are made: it may be called wherever Python frees memory."""
        ...


class Lease:
    """Objects that stay in a store while this is held.  A context manager; made by
    :meth:`Store.lease`.

    It lasts as long as this process beats, which it does by itself unless it was made with
    ``beats=False``.  A lease that is dropped without being released ends with the object.  In a
    forked child it is inert: the lease is its parent's.
    """

    def __init__(
        self, terms: LeaseTerms, holding: Holding, keys: Iterable[Key], *, beats: bool
    ) -> None:
        self.owner, self.ttl_s = terms.owner, terms.ttl_s
        self._holding, self._process = holding, os.getpid()
        self._keys = set(keys)
        self._lock = threading.Lock()
        self._released = self._lost = False
        self._trouble: StoreError | None = None
        self._ending = weakref.finalize(self, _end, holding, self._process)
        if beats:
            HEART.add(self, every_s=terms.ttl_s / _BEATS_PER_TTL)

    @property
    def keys(self) -> frozenset[Key]:
        """The objects that it protects, there or not."""
        return frozenset(self._keys)

    @property
    def released(self) -> bool:
        """Whether it was given up here."""
        return self._released

    def extend(self, keys: Iterable[Key]) -> None:
        """Protect further objects too, whether they are in the store yet or not.

        An object that is in the store when this returns stays there; one that is put later stays
        from then on.

        Raises
        ------
        InputError
            It was released, or these are too many.
        StoreError
            It was lost before: see :meth:`confirm`; or it could not be written down.
        """
        self._require_own()
        with self._lock:
            new = [key for key in dict.fromkeys(keys) if key not in self._keys]
            _require_few(len(self._keys) + len(new))
            self._require_held(alive=self._holding.add(new) if new else self._holding.confirm())
            self._keys.update(new)

    def heartbeat(self) -> bool:
        """Say that the owner lives; False when it comes too late and the lease was lost, or when
        it was released.

        Raises
        ------
        StoreError
            It could not be written down.
        """
        if self._released or self._lost or self._is_foreign():
            return False
        alive = self._holding.beat()
        self._lost |= not alive
        return alive

    def confirm(self) -> None:
        """See that nothing that was leased has been removed since, except by who deletes without
        asking (:meth:`Store.delete`).

        Raises
        ------
        InputError
            It was released.
        StoreError
            It was lost: its owner stood still for longer than the time to live, or beats could
            not be written; whatever it protected may be gone.
        """
        self._require_own()
        with self._lock:
            self._require_held(alive=self._holding.confirm())

    def release(self, *, after_s: float = 0.0) -> None:
        """Give it up; may be called again, and does nothing then.

        Parameters
        ----------
        after_s
            Its objects stay for so many seconds more.  Where every reader releases like that, they
            stay for that long after the last one.

        Raises
        ------
        InputError
            ``after_s`` is out of bounds; the lease is still held.
        StoreError
            The delay could not be written down; the lease ended at once.
        """
        check_seconds("after_s", after_s, least=0.0)
        if self._is_foreign():
            return
        with self._lock:
            if self._released:
                return
            self._released = True
            HEART.remove(self)
            try:
                if after_s > 0 and not self._lost:
                    self._holding.linger(after_s)
            finally:
                # What lingers has been let go of, so this ends everything else.
                self._ending()

    def pulse(self) -> bool:
        """A beat of the thread that beats for all leases: what goes wrong is told to who asks."""
        try:
            alive = self.heartbeat()
        except StoreError as error:
            self._trouble = error
            return True  # the next beat may succeed in time
        self._trouble = None
        return alive

    def _is_foreign(self) -> bool:
        return os.getpid() != self._process

    def _require_own(self) -> None:
        if self._released:
            raise InputError("the lease was released")
        if self._is_foreign():
            raise InputError("the lease is the parent process's", hint="take one in this process")

    def _require_held(self, *, alive: bool) -> None:
        self._lost |= not alive
        if self._lost:
            sentence = "the lease was lost: what it protected may be gone"
            raise StoreError(sentence, at=self.owner) from self._trouble

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def _end(holding: Holding, process: int) -> None:
    if os.getpid() == process:
        holding.drop()


def cannot_lease(url: str) -> Unsupported:
    """The refusal of a store in which looking and removing are two steps."""
    return Unsupported(
        "the store cannot keep objects from being removed while somebody needs them",
        at=url,
        hint="a dir:// store can",
    )
