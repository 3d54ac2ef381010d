"""A process's way to the ledger: what is read on the way to a token has a time limit, what is
written waits in a spool, and neither an outage nor an old copy stops an answer."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kvbaton.clock import within
from kvbaton.errors import KvbatonError, LedgerUnavailable, UnknownRef
from kvbaton.lineage.recorder import RETRY_S, Complain, Recorder
from kvbaton.lineage.records import Freshness, Head, Node, Standing
from kvbaton.lineage.seen import Seen

if TYPE_CHECKING:
    from kvbaton.lineage.ledger import Ledger
    from kvbaton.lineage.watching import Watch

READ_S = 0.5
"""How long a take waits for the ledger."""
OPEN_S = 5.0
"""How long the first one does: the database has to be opened."""
_QUIET = Freshness(Standing.UNKNOWN)
_MOST_OWN = 10_000

T = TypeVar("T")


class LedgerKeeper:
    """One trust domain's part of a ledger, for all agents of a process.  A context manager.

    Nothing is opened before it is needed; ``warm`` opens it ahead of time, beside other work.

    Parameters
    ----------
    url
        The ledger's; see ``Ledger``.
    domain
        The trust domain.
    folder
        Where records wait, private to the user.
    seen
        Folder where the most that the ledger has said is kept, so that an old copy of it is
        noticed; None where nobody looks.
    complain
        Is told, once per outage, why records wait, and of every record that was refused.
    read_s
        How long a take waits for the ledger.
    wait_s
        How long a change waits for those of others.
    retry_s
        How long a ledger that could not be used is left alone.
    """

    def __init__(
        self,
        url: str,
        domain: str,
        folder: Path,
        *,
        seen: Path | None = None,
        complain: Complain = lambda error: None,
        read_s: float = READ_S,
        wait_s: float = OPEN_S,
        retry_s: float = RETRY_S,
    ) -> None:
        self.url, self.domain, self.folder, self._seen_in = url, domain, folder, seen
        self._complain, self._retry_s = complain, retry_s
        self._read_s, self._wait_s = read_s, wait_s
        self._lock, self._opening = threading.Lock(), threading.Lock()
        self._recorder: Recorder | None = None
        self._ledger: Ledger | None = None
        self._seen: Seen | None = None
        self._watch: Watch | None = None
        self._failure: KvbatonError | None = None
        self._again_at = 0.0
        self._closed = False
        self._own: dict[str, tuple[str, ...]] = {}
        """What this process has recorded of late, with its parents: it may not be in the ledger
        yet."""

    # -- reading ----------------------------------------------------------------------------------

    @property
    def failure(self) -> KvbatonError | None:
        """Why the ledger could not be used the last time, if it could not."""
        return self._failure or (None if self._recorder is None else self._recorder.failure)

    def freshness(self, baton: str, ref: str = "", ref_sequence: int = 0) -> Freshness:
        """Whether a baton's context is the current one; unknown where the ledger does not say so
        in time, and ``failure`` says why.  Never raises.

        Parameters
        ----------
        baton, ref, ref_sequence
            See ``Ledger.freshness``.
        """
        quiet = self._closed or time.monotonic() < self._again_at
        found = _QUIET if quiet else self._asked(baton, ref, ref_sequence)
        if found.standing is Standing.UNKNOWN and not found.as_of:
            return self._as_seen(ref, ref_sequence)
        return found

    def _asked(self, baton: str, ref: str, ref_sequence: int) -> Freshness:
        def look(ledger: Ledger) -> Freshness:
            found = ledger.freshness(baton, ref, ref_sequence)
            if found.standing is not Standing.UNKNOWN or ref or baton not in self._own:
                return found
            return self._by_ancestors(ledger, baton, found)

        limit_s = OPEN_S if self._ledger is None else self._read_s
        try:
            seen = self._marks()
            before = None if seen is None else seen.so_far()
            found = self._in_time(limit_s, look)
            if seen is not None and before is not None:
                seen.check(before, found.as_of, ref=ref, number=found.head_sequence, keep=False)
        except KvbatonError as error:
            self._note(error)
            return _QUIET
        self._failure = None
        return found

    def _by_ancestors(self, ledger: Ledger, baton: str, unknown: Freshness) -> Freshness:
        """What the ledger will say of a baton that it does not have yet: it is stale where
        anything that it was made from is."""
        with self._lock:
            line, going = {baton}, [baton]
            while going:
                new = set(self._own.get(going.pop(), ())) - line
                line |= new
                going += new
        for marked in ledger.stale_among(line):
            if marked.stale is not None:
                return replace(unknown, standing=Standing.STALE, why=marked.stale.why)
        return replace(unknown, standing=Standing.CURRENT)

    def _as_seen(self, ref: str, ref_sequence: int) -> Freshness:
        """What is known without the ledger: that a ref has moved on is never taken back."""
        quiet = Freshness(Standing.UNKNOWN, ref, ref_sequence)
        with contextlib.suppress(KvbatonError):
            seen = self._marks() if ref else None
            seat = None if seen is None else seen.newest(ref)
            if seat is not None and seat.number > ref_sequence:
                return replace(
                    quiet,
                    standing=Standing.STALE,
                    head_sequence=seat.number,
                    why=f"{ref} was seen to move on from {ref_sequence} to {seat.number}",
                )
        return quiet

    def keep_seen(self) -> None:
        """Put on the disk what was seen; behind the first token.

        Raises
        ------
        LedgerError
            It cannot be kept.
        """
        if self._seen is not None:
            self._seen.keep()

    def head(self, ref: str) -> tuple[Head, Node]:
        """Where a ref stands, and the baton there.

        Raises
        ------
        UnknownRef
            It has not been moved yet.
        LedgerRolledBack
            The ledger is an old copy: it has said more before.
        LedgerError
            The ledger cannot be used now.
        """

        def look(ledger: Ledger) -> tuple[Head, Node]:
            head = ledger.head(ref)
            return head, ledger.node(head.baton)

        seen = self._marks()
        before = None if seen is None else seen.so_far()
        try:
            head, node = self._in_time(OPEN_S, look)
        except UnknownRef:
            if seen is not None and before is not None:  # it may have been known before
                seen.check(before, before.sequence, ref=ref, number=0)
            raise
        if seen is not None and before is not None:
            seen.check(before, head.as_of, ref=ref, number=head.sequence, baton=head.baton)
        return head, node

    def stands(self, ref: str) -> int:
        """Which of its heads a ref stands at; 0 where it has not been moved yet.

        Raises
        ------
        LedgerError
            The ledger cannot be used now.
        """
        try:
            return self.head(ref)[0].sequence
        except UnknownRef:
            return 0

    def moves(self, ref: str, *, since_ms: int) -> int | None:
        """How often a ref has been moved since a time, by the clocks of those who did it; None
        where the ledger does not say so in time."""
        try:
            return self._in_time(self._read_s, lambda ledger: ledger.moves(ref, since_ms=since_ms))
        except KvbatonError as error:
            self._note(error)
            return None

    def ask(self, work: Callable[[Ledger], T]) -> T:
        """What ``work`` finds in the ledger, or does to it.

        Raises
        ------
        LedgerError
            The ledger cannot be used now.
        KvbatonError
            Whatever ``work`` raises.
        """
        return work(self._opened())

    def watch(self) -> Watch:
        """The process's one watch of the ledger, begun when it is first asked for.

        Raises
        ------
        LedgerUnavailable
            The keeper was closed.
        """
        from kvbaton.lineage.watching import Watch

        with self._lock:
            if self._closed:
                raise LedgerUnavailable("the ledger was closed")
            if self._watch is None:
                self._watch = Watch(self._new, complain=self._complain)
            return self._watch

    def warm(self) -> None:
        """Open the ledger beside other work; what goes wrong is found out when it is needed."""

        def open_it() -> None:
            try:
                self._opened()
            except KvbatonError as error:
                self._note(error)

        if self._ledger is None and not self._closed:
            threading.Thread(target=open_it, name="kvbaton-ledger", daemon=True).start()

    # -- writing ----------------------------------------------------------------------------------

    def put(self, node: Node, *, once: str = "") -> None:
        """Record a node soon; see ``Recorder.put``.

        Raises
        ------
        LedgerUnavailable
            It cannot be kept.
        """
        with self._lock:
            if self._closed:
                raise LedgerUnavailable("the ledger was closed")
            if self._recorder is None:
                self._recorder = Recorder(
                    self._new, self.folder, complain=self._complain, retry_s=self._retry_s
                )
            recorder = self._recorder
            self._own.setdefault(node.id, node.parents)
            if len(self._own) > _MOST_OWN:
                del self._own[next(iter(self._own))]
        recorder.put(node, once=once)

    def move(self, ref: str, baton: Node, *, expected: int) -> Head:
        """Move a ref, behind everything that was recorded before; see ``Ledger.move``.

        Raises
        ------
        RefConflict
            The ref stands elsewhere; nothing was changed.
        LedgerError
            The ledger cannot be used now; nothing was changed.
        """
        self.flush(self._wait_s)
        seen = self._marks()
        before = None if seen is None else seen.so_far()
        head = self._opened().move(ref, baton, expected=expected)
        if seen is not None and before is not None:
            seen.check(before, head.as_of, ref=ref, number=head.sequence, baton=head.baton)
        return head

    def flush(self, timeout_s: float) -> bool:
        """Wait until the ledger has all records; False where it cannot be used, or time is up."""
        with self._lock:
            recorder = self._recorder
        return recorder is None or recorder.flush(timeout_s)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Write what is left and let go of the database; what cannot be written stays for the
        next process.  Returns whether the ledger has all of it."""
        with self._lock:
            self._closed = True
            recorder, self._recorder = self._recorder, None
            watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        done = recorder is None or recorder.close(timeout_s)
        with self._opening:
            ledger, self._ledger = self._ledger, None
        if ledger is not None:
            ledger.close()
        if self._seen is not None:
            with contextlib.suppress(KvbatonError):  # it only saves looking again
                self._seen.close()
        return done

    def __enter__(self) -> LedgerKeeper:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    # -- inside -----------------------------------------------------------------------------------

    def _new(self) -> Ledger:
        from kvbaton.lineage.ledger import Ledger  # heavy, and seldom needed at once

        ledger = Ledger(self.url, self.domain, wait_s=self._wait_s)
        ledger.on_change(self._nudge)
        return ledger

    def _nudge(self, sequence: int) -> None:
        """Who watches need not wait for what this process has changed."""
        watch = self._watch
        if watch is not None:
            watch.nudge(sequence)

    def _marks(self) -> Seen | None:
        if self._seen is None and self._seen_in is not None:
            self._seen = Seen(self._seen_in, self.url, self.domain)
        return self._seen

    def _opened(self) -> Ledger:
        with self._opening:
            if self._closed:
                raise LedgerUnavailable("the ledger was closed")
            if self._ledger is None:
                self._ledger = self._new()
            return self._ledger

    def _in_time(self, limit_s: float, work: Callable[[Ledger], T]) -> T:
        try:
            return within(limit_s, lambda: work(self._opened()))
        except FutureTimeout:
            raise LedgerUnavailable(f"the ledger did not answer within {limit_s:g} s") from None
        except LedgerUnavailable:
            self._let_go()
            raise

    def _note(self, error: KvbatonError) -> None:
        self._failure, self._again_at = error, time.monotonic() + self._retry_s

    def _let_go(self) -> None:
        """A file that was deleted or replaced is opened anew the next time."""
        with self._opening:
            ledger, self._ledger = self._ledger, None
        if ledger is not None:
            ledger.close()
