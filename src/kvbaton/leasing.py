"""What a hand-off and a take lease, so that nothing of theirs is evicted or collected meanwhile.

A hand-off leases each object before it looks whether the store has it, and makes sure that nothing
was removed before its manifest can be seen.  A take leases its segments before it opens the first.
Stores that cannot lease (those of fsspec) go on without: there a take may find a segment gone, and
prefills the ids.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, Self

from kvbaton.errors import FormatError, NotFound, StoreError, StoreTimeout, Unsupported
from kvbaton.opening import EXAMINER, Opening
from kvbaton.stores import Key, Kind, LeaseState, Store
from kvbaton.stores.leases import DEFAULT_TTL_S, MAX_OWNER_CHARS, Lease
from kvbaton.types import Baton, BatonRef, SegmentRef

if TYPE_CHECKING:
    from types import TracebackType

HOLD_DEADLINE_S = 30.0


class Loan:
    """The lease of one hand-off or take, which grows as it goes on.  A context manager.

    Safe for the thread that works and the one that gives it up.

    Parameters
    ----------
    owner
        Who leases, for those who look.
    required
        Whether a lease that cannot be written down is an error.  What a take has opened can be
        read to its end, so a take on a full disk goes on without.
    ttl_s
        See :meth:`Store.lease`.
    """

    def __init__(self, owner: str, *, required: bool, ttl_s: float = DEFAULT_TTL_S) -> None:
        self._owner, self._required, self._ttl_s = _shown(owner), required, ttl_s
        self._lock = threading.Lock()
        self._leases: dict[str, Lease] = {}
        self._without: set[str] = set()
        self._over = False

    def lease(self, store: Store, keys: Iterable[Key]) -> None:
        """Keep objects of a store, there or not, until the end.

        Raises
        ------
        StoreTimeout
            It was given up meanwhile.
        StoreError
            It was lost, or could not be written down.
        """
        if store.url in self._without:
            return
        try:
            held = self._leases.get(store.url)
            if held is not None:
                held.extend(keys)
            else:
                self._keep(store.url, store.lease(keys, owner=self._owner, ttl_s=self._ttl_s))
        except Unsupported:
            self._without.add(store.url)
        except StoreError:
            if self._required or self._over:
                raise
            self._without.add(store.url)

    def _keep(self, url: str, lease: Lease) -> None:
        with self._lock:
            if not self._over:
                self._leases[url] = lease
                return
        lease.release()
        raise StoreTimeout("the take was abandoned")

    def confirm(self) -> None:
        """See that nothing that was leased has been removed since.

        Raises
        ------
        StoreError
            A lease was lost: this process stood still for too long.
        """
        for lease in list(self._leases.values()):
            lease.confirm()

    def close(self) -> None:
        """Give everything up; may be called again."""
        with self._lock:
            self._over = True
            leases = list(self._leases.values())
        for lease in leases:
            lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def handing_off(sender: str) -> Loan:
    """The loan of a hand-off."""
    return Loan(f"hand-off of {sender}, process {os.getpid()}", required=True)


def taking() -> Loan:
    """The loan of a take."""
    return Loan(f"take, process {os.getpid()}", required=False)


class Receiver(Protocol):
    """Who takes batons, such as an :class:`Agent`."""

    @property
    def name(self) -> str:
        """Its name, for those who look at leases."""
        ...

    @property
    def relay(self) -> Opens:
        """By which it opens batons."""
        ...


class Opens(Protocol):
    """What of a relay is needed to hold a baton."""

    @property
    def opening(self) -> Opening:
        """Opens batons of its trust domain."""
        ...


def hold(
    receiver: Receiver,
    baton: Baton | BatonRef | str,
    *,
    ttl_s: float = DEFAULT_TTL_S,
    deadline_s: float = HOLD_DEADLINE_S,
) -> Lease:
    """Keep all that a take of a baton needs while the receiver waits for its turn.

    ::

        with kb.hold(coder, baton):
            queue.wait()
            result = coder.take(baton, "Write the code.")

    A thread of this process beats for it, however long that takes; it ends with the process.

    Parameters
    ----------
    ttl_s
        For how long the process may stand still.
    deadline_s
        For reading the manifest; it is verified, and no ticket is needed or spent.

    Raises
    ------
    NotTrusted, BatonUnavailable
        The baton cannot be taken anyway.
    Unsupported
        The store cannot lease.
    StoreError
        The lease could not be written down.
    """
    opening = receiver.relay.opening
    opened = opening.open(baton, deadline_s=deadline_s, bearer=EXAMINER)
    listing = opened.manifest
    keys = [Key(Kind.BATON, opened.id), Key(Kind.TRANSCRIPT, listing.transcript)]
    return opening.store_of(opened.ref.store).lease(
        keys + segments_of(listing.segments),
        owner=_shown(f"{receiver.name} waits, process {os.getpid()}"),
        ttl_s=ttl_s,
    )


def segments_of(refs: Sequence[SegmentRef]) -> list[Key]:
    """Names of segments."""
    return [Key(Kind.SEGMENT, ref.address) for ref in refs]


def leased_keys(store: Store) -> dict[Key, str]:
    """What living leases keep, and who they are; nothing where the store cannot lease."""
    try:
        living = [one for one in store.leases() if one.state is not LeaseState.DEAD]
    except Unsupported:
        return {}
    return {key: one.owner for one in living for key in one.keys}


def in_use(store: Store, key: Key) -> bool:
    """Whether the store holds an object, which is young from then on: a collection that has listed
    it before leaves it alone.

    Raises
    ------
    StoreError
        The store cannot tell.
    """
    try:
        store.open(key).close()
    except (NotFound, FormatError):
        return False
    return True


def _shown(owner: str) -> str:
    """A name that anybody may have chosen, as it may stand in a listing."""
    printable = "".join(c if c.isprintable() else "?" for c in owner)
    return printable[:MAX_OWNER_CHARS] or "?"


class _NoLoan(Loan):
    """Leases nothing: what is stored while a sender decodes belongs to no baton yet."""

    def __init__(self) -> None:
        super().__init__("nobody", required=False)

    def lease(self, store: Store, keys: Iterable[Key]) -> None:
        """Nothing."""
        del store, keys


UNLEASED: Loan = _NoLoan()
