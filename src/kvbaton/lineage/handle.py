"""A ledger that threads of a process share: one of them opens it, the others wait for that, and
nobody longer than he can."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import TYPE_CHECKING, Any, TypeVar

from kvbaton.clock import begun
from kvbaton.errors import LedgerUnavailable
from kvbaton.lineage.forking import forget_when_forked, leave_alone

if TYPE_CHECKING:
    from kvbaton.lineage.ledger import Ledger

GIVE_UP_S = 60.0
"""How long a thread that hangs in the database is waited for before another one may try: a dead
host costs one thread a minute, not one for every take."""
AGAIN_S = 1.0
"""How old a failure may be that nobody has heard of yet."""

T = TypeVar("T")


class Handle:
    """Opens a ledger when it is needed, and anew when it was lost.

    Parameters
    ----------
    open_ledger
        Opens it; called by a thread of its own, by one at a time.
    """

    def __init__(self, open_ledger: Callable[[], Ledger]) -> None:
        self._open_ledger = open_ledger
        self._begin()
        self._closed = False
        forget_when_forked(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._ledger: Ledger | None = None
        self._opening: Future[Ledger] | None = None
        self._since_s = 0.0
        self._stuck: Future[Any] | None = None
        self._stuck_s = 0.0

    def begin(self) -> None:
        """Open it beside other work, unless it is open, or that has begun.

        Raises
        ------
        LedgerUnavailable
            The handle was closed.
        """
        with self._lock:
            if self._closed:
                raise LedgerUnavailable("the ledger was closed")
            if self._ledger is not None:
                return
            opening, age_s = self._opening, time.monotonic() - self._since_s
            hangs = opening is not None and not opening.done() and age_s >= GIVE_UP_S
            # Nobody has needed it meanwhile: it may be there now.
            failed = opening is not None and opening.done() and opening.exception() is not None
            if opening is None or hangs or (failed and age_s >= AGAIN_S):
                if opening is not None:
                    _close_later(opening)
                self._opening, self._since_s = begun(self._open_ledger), time.monotonic()

    def opened(self, limit_s: float) -> Ledger:
        """The ledger; all who need it wait for one opening.

        Raises
        ------
        LedgerUnavailable
            It could not be opened in time, or the handle was closed.
        LedgerError
            It cannot be used.
        """
        self.begin()
        with self._lock:
            if self._ledger is not None:
                return self._ledger
            opening = self._opening
        if opening is None:  # it was let go of in between
            raise LedgerUnavailable("the ledger was let go of")
        wait_for([opening], limit_s)
        if not opening.done():
            raise LedgerUnavailable(f"the ledger could not be opened within {limit_s:.3g} s")
        with self._lock:
            if self._opening is opening:
                self._opening = None
                if opening.exception() is None:
                    self._ledger = opening.result()
        return opening.result()

    def taken(self, limit_s: float) -> Ledger:
        """The ledger, for one who closes it himself; the next who asks gets another."""
        ledger = self.opened(limit_s)
        with self._lock:
            if self._ledger is ledger:
                self._ledger = None
        return ledger

    def in_time(self, limit_s: float, work: Callable[[Ledger], T]) -> T:
        """What ``work`` finds in the ledger; whatever it waits for, it is left alone then.

        Raises
        ------
        LedgerUnavailable
            Time is up, or an earlier question still waits for its answer.
        Exception
            Whatever ``work`` raises.
        """
        until_s = time.monotonic() + limit_s
        ledger = self.opened(limit_s)
        stuck = self._stuck
        if stuck is not None and time.monotonic() - self._stuck_s < GIVE_UP_S:
            wait_for([stuck], max(0.0, until_s - time.monotonic()))
            if not stuck.done():
                raise LedgerUnavailable("the ledger still owes an earlier answer")
        asked = begun(lambda: work(ledger))
        wait_for([asked], max(0.0, until_s - time.monotonic()))
        if not asked.done():
            self._stuck, self._stuck_s = asked, time.monotonic()
            raise LedgerUnavailable(f"the ledger did not answer within {limit_s:.3g} s")
        self._stuck = None
        return self._kept_if_usable(ledger, asked.result)

    def use(self, limit_s: float, work: Callable[[Ledger], T]) -> T:
        """What ``work`` finds in the ledger, or does to it, however long that takes.

        Raises
        ------
        LedgerUnavailable
            It could not be opened in time, or not be used.
        Exception
            Whatever ``work`` raises.
        """
        ledger = self.opened(limit_s)
        return self._kept_if_usable(ledger, lambda: work(ledger))

    def close(self) -> None:
        """Let go of the ledger for good, also of one that is still being opened."""
        with self._lock:
            self._closed = True
            ledger, self._ledger = self._ledger, None
            opening, self._opening = self._opening, None
        if opening is not None:
            _close_later(opening)
        if ledger is not None:
            ledger.close()

    def forget(self) -> None:
        """In a forked child: the connection, and the thread that was opening one, are the
        parent's."""
        leave_alone(self._ledger, self._opening, self._stuck)
        self._begin()

    def _kept_if_usable(self, ledger: Ledger, work: Callable[[], T]) -> T:
        """A file that was deleted or replaced is opened anew the next time."""
        try:
            return work()
        except LedgerUnavailable:
            with self._lock:
                mine = self._ledger is ledger
                if mine:
                    self._ledger = None
            if mine:
                ledger.close()
            raise


def _close_later(opening: Future[Ledger]) -> None:
    def close(done: Future[Ledger]) -> None:
        with contextlib.suppress(BaseException):  # it may not have been opened
            done.result().close()

    opening.add_done_callback(close)
