"""Watching a ledger: whoever holds something hears soon that it is stale, in every process.

A thread asks the ledger for its sequence, one row, some times a second, and reads the log only
when that has moved.  :meth:`Watch.nudge` makes it ask at once.  Changes by a ledger of this process
nudge it (``ledger.on_change(watch.nudge)``), and so can whatever else learns of a change earlier:
that is where a push channel, such as PostgreSQL's ``LISTEN``, fits in.  A nudge that was lost is
made up for by the next look, so a channel need not be reliable, and nothing else changes with it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Self, TypeVar

from kvbaton.errors import InputError, KvbatonError, LedgerError, LedgerRolledBack
from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.records import Event, Node

EVERY_S = 0.2
MIN_EVERY_S = 0.01
CLOSE_S = 1.0
_BATCH = 1000

Told = Callable[[Sequence[Event]], None]
StaleTold = Callable[[Node], None]
T = TypeVar("T")


class Watch:
    """Calls back with what is new in a ledger.  A context manager.

    Callbacks run in the watch's own thread, one at a time.  One that raises is complained of, and
    the others are told all the same; one that takes long keeps the others waiting.

    Parameters
    ----------
    open_ledger
        Opens the ledger; called by the watch's thread, again after each failure.
    told
        Gets new events, oldest first, each once.
    since
        The sequence behind which events are new; None for the one at the beginning.
    every_s
        How long it waits between two looks.
    complain
        Is told, once per outage, why the ledger cannot be read, that it was rolled back, and of
        every callback that raised.

    Raises
    ------
    InputError
        ``every_s`` is too short.
    """

    def __init__(
        self,
        open_ledger: Callable[[], Ledger],
        told: Told = lambda events: None,
        *,
        since: int | None = None,
        every_s: float = EVERY_S,
        complain: Callable[[KvbatonError], None] = lambda error: None,
    ) -> None:
        if not every_s >= MIN_EVERY_S:
            raise InputError(f"every_s must be at least {MIN_EVERY_S}, not {every_s}")
        self._open_ledger, self._told, self._complain = open_ledger, told, complain
        self._every_s, self._since = every_s, since
        self._held: dict[str, list[StaleTold]] = {}
        self._changed = threading.Condition()
        self._nudged = self._closing = False
        self._due = False  # to ask who of the holders is stale; until that has been found out
        self._failed: KvbatonError | None = None
        self._ledger: Ledger | None = None
        self._look()  # what happens from here on is new
        self._thread = threading.Thread(target=self._work, name="kvbaton-watch", daemon=True)
        self._thread.start()

    @property
    def since(self) -> int | None:
        """Sequence of the last change that it knows of; None before it has reached the ledger."""
        return self._since

    @property
    def failure(self) -> KvbatonError | None:
        """Why the ledger cannot be read, if it cannot."""
        return self._failed

    def nudge(self, sequence: int = 0) -> None:
        """Look now: there may be something new.  May be called by anybody, at any time."""
        del sequence  # as `Ledger.on_change` gives it; the ledger itself says what is new
        with self._changed:
            self._nudged = True
            self._changed.notify_all()

    def hold(self, name: str, told: StaleTold) -> Callable[[], None]:
        """Be told, once, when a node becomes stale, or that it is already.

        Parameters
        ----------
        name
            Id of a baton, an artefact or an answer; it need not be recorded yet.
        told
            Gets the node with its mark.

        Returns
        -------
        callable
            Lets go of it: nothing is told any more.
        """
        with self._changed:
            self._held.setdefault(name, []).append(told)
            self._due = True
        self.nudge()
        return lambda: self._let_go(name, told)

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        """End; waits for a callback that is running, unless it is the one that calls.

        Parameters
        ----------
        timeout_s
            How long it waits.  Behind that the callback is left alone, and nothing more is told.

        Returns
        -------
        bool
            Whether nothing is running any more.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    # -- the thread -------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while self._wait():
                self._look()
        finally:
            if self._ledger is not None:
                self._ledger.close()

    def _wait(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._nudged or self._closing, self._every_s)
            self._nudged = False
            return not self._closing

    def _look(self) -> None:
        try:
            if self._ledger is None:
                self._ledger = self._open_ledger()
            self._catch_up(self._ledger)
        except KvbatonError as error:
            self._give_up(error)
        except Exception as error:  # noqa: BLE001 - of the database's driver: the next look may do
            self._give_up(LedgerError(f"the ledger cannot be read: {_told_of(error)}"))
        else:
            self._failed = None

    def _give_up(self, error: KvbatonError) -> None:
        """Leave the ledger alone until the next look, which opens it anew."""
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            ledger.close()
        news, self._failed = self._failed is None, error
        if news:
            self._say(error)

    def _say(self, error: KvbatonError) -> None:
        with contextlib.suppress(Exception):  # who complains of complaints?
            self._complain(error)

    def _call(self, told: Callable[[T], None], what: T) -> None:
        """Tell somebody; whatever that raises is its own affair, and ends nothing."""
        try:
            told(what)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - others are to be told, too
            self._say(LedgerError(f"a callback of the ledger's watch failed: {_told_of(error)}"))

    def _catch_up(self, ledger: Ledger) -> None:
        stands = ledger.sequence()
        if self._since is None:
            self._since = stands
        elif stands < self._since:
            gone, self._since, self._due = self._since, stands, True
            self._say(
                LedgerRolledBack(
                    f"the ledger stands at {stands}, and stood at {gone}: an old copy, or a new "
                    "ledger, has taken its place"
                )
            )
        if stands > self._since:
            self._due = True
        while self._since < stands and not self._closing:
            events = ledger.log(since=self._since, limit=_BATCH)
            if not events:
                break
            self._since = events[-1].sequence
            self._call(self._told, events)
        if self._due:
            self._tell_holders(ledger)

    def _tell_holders(self, ledger: Ledger) -> None:
        """Whoever holds something that is marked: a mark is as old as any event that made it."""
        with self._changed:  # who comes while the ledger is asked makes it due again
            self._due, names = False, list(self._held)
        try:
            marked = ledger.stale_among(names)
        except BaseException:
            self._due = True
            raise
        for node in marked:
            with self._changed:
                several = [] if self._closing else self._held.pop(node.id, [])
            for told in several:
                if not self._closing:
                    self._call(told, node)

    def _let_go(self, name: str, told: StaleTold) -> None:
        with self._changed:
            several = self._held.get(name, [])
            if told in several:
                several.remove(told)
            if not several:
                self._held.pop(name, None)


def _told_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]
