"""A process's way to the ledger: what is read on the way to a token has a time limit, what is
written waits in a spool, and neither an outage nor an old copy stops an answer."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kvbaton.errors import KvbatonError, LedgerError, LedgerUnavailable, UnknownRef
from kvbaton.lineage.forking import forget_when_forked, leave_alone
from kvbaton.lineage.handle import Handle
from kvbaton.lineage.known import Known
from kvbaton.lineage.recorder import RETRY_S, Complain, Recorder
from kvbaton.lineage.records import Freshness, Head, Node, Standing
from kvbaton.lineage.spool import SUFFIX

if TYPE_CHECKING:
    from kvbaton.lineage.ledger import Ledger
    from kvbaton.lineage.watching import Watch

READ_S = 0.5
"""How long a take waits for the ledger."""
OPEN_S = 5.0
"""How long the first one does, where the caller names no limit: the database has to be opened."""
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
        self.url, self.domain, self.folder = url, domain, folder
        self._complain, self._retry_s = complain, retry_s
        self._read_s, self._wait_s = read_s, wait_s
        self._lock, self._watching = threading.Lock(), threading.Lock()
        self._known = Known(url, domain, seen, wait_s=wait_s, heard=self._nudge)
        self._handle, self._watched = Handle(self._known.open), Handle(self._known.open)
        self._recorder: Recorder | None = None
        self._watch: Watch | None = None
        self._failure: KvbatonError | None = None
        self._again_at = 0.0
        self._is_new = True
        self._closed = False
        self._own: dict[str, tuple[str, ...]] = {}
        """What this process has recorded of late, with its parents: it may not be in the ledger
        yet."""
        forget_when_forked(self)

    # -- reading ----------------------------------------------------------------------------------

    @property
    def failure(self) -> KvbatonError | None:
        """Why the ledger could not be used the last time, if it could not, or why it refused a
        record of late."""
        recorder = self._recorder
        of_recorder = None if recorder is None else recorder.failure or recorder.refusal
        return self._failure or of_recorder

    def freshness(
        self, baton: str, ref: str = "", ref_sequence: int = 0, *, limit_s: float | None = None
    ) -> Freshness:
        """Whether a baton's context is the current one; unknown where the ledger does not say so
        in time, and ``failure`` says why.  Never raises.

        Parameters
        ----------
        baton, ref, ref_sequence
            See ``Ledger.freshness``.
        limit_s
            How long the caller can wait at most; None leaves it to the keeper.
        """
        found = _QUIET if self._is_quiet() else self._asked(baton, ref, ref_sequence, limit_s)
        if found.standing is Standing.UNKNOWN and not found.as_of:
            return self._as_seen(ref, ref_sequence)
        return found

    def _is_quiet(self) -> bool:
        return self._closed or time.monotonic() < self._again_at

    def _asked(self, baton: str, ref: str, ref_sequence: int, limit_s: float | None) -> Freshness:
        def look(ledger: Ledger) -> Freshness:
            found = ledger.freshness(baton, ref, ref_sequence)
            if found.standing is not Standing.UNKNOWN or ref or baton not in self._own:
                return found
            return self._by_ancestors(ledger, baton, found)

        patience_s = OPEN_S if self._is_new else self._read_s
        try:
            self._is_new = False  # who waits for a first opening in vain does so once
            seen = self._known.marks()
            before = None if seen is None else seen.so_far()
            found = self._handle.in_time(
                patience_s if limit_s is None else min(limit_s, patience_s), look
            )
            if seen is not None and before is not None:
                seen.check(before, found.as_of, ref=ref, number=found.head_sequence, keep=False)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not worth an answer
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
        with contextlib.suppress(Exception):
            seen = self._known.marks() if ref else None
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
        if self._known.looked_at is not None:
            self._known.looked_at.keep()

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

        seen = self._known.marks()
        before = None if seen is None else seen.so_far()
        try:
            head, node = self._handle.in_time(OPEN_S, look)
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
        if self._is_quiet():
            return None
        try:
            return self._handle.in_time(
                self._read_s, lambda ledger: ledger.moves(ref, since_ms=since_ms)
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not worth an answer
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
        return self._handle.use(OPEN_S, work)

    def watch(self) -> Watch:
        """The process's one watch of the ledger, begun when it is first asked for.

        Raises
        ------
        LedgerUnavailable
            The keeper was closed.
        """
        from kvbaton.lineage.watching import Watch

        with self._watching:  # a ledger that hangs while it is opened keeps nobody from recording
            if self._watch is None and not self._closed:
                taken = partial(self._watched.taken, OPEN_S)
                self._watch = Watch(taken, complain=self._complain_of)
            watch, closed = self._watch, self._closed
        if watch is None or closed:  # perhaps just now
            if watch is not None:
                watch.close()
            raise LedgerUnavailable("the ledger was closed")
        return watch

    def warm(self) -> None:
        """Open the ledger beside other work; what goes wrong is found out when it is needed."""
        if not self._is_quiet():
            with contextlib.suppress(Exception):
                self._handle.begin()

    # -- writing ----------------------------------------------------------------------------------

    def put(self, node: Node, *, once: str = "") -> None:
        """Record a node soon; see ``Recorder.put``.

        Raises
        ------
        InputError
            It cannot be recorded anywhere.
        LedgerUnavailable
            It cannot be kept.
        """
        with self._lock:
            recorder = self._recording()
            self._own.setdefault(node.id, node.parents)
            if len(self._own) > _MOST_OWN:
                del self._own[next(iter(self._own))]
        recorder.put(node, once=once)

    def move(self, ref: str, baton: Node, *, expected: int) -> Head:
        """Move a ref, behind everything that was recorded before; see ``Ledger.move``.

        That it has moved, and cannot be remembered, is a complaint and no error: what was seen is
        compared, and written, before it is moved.

        Raises
        ------
        RefConflict
            The ref stands elsewhere; nothing was changed.
        LedgerError
            The ledger cannot be used now; nothing was changed.
        """
        self.flush(self._wait_s)
        self._handle.use(OPEN_S, self._known.require_no_older)
        self.stands(ref)  # an old copy, or a full disk, is found out before anything is changed
        seen = self._known.marks()
        before = None if seen is None else seen.so_far()
        head = self._handle.use(OPEN_S, lambda ledger: ledger.move(ref, baton, expected=expected))
        if seen is not None and before is not None:
            try:
                seen.check(before, head.as_of, ref=ref, number=head.sequence, baton=head.baton)
            except KvbatonError as error:
                self._failure = error
                self._complain_of(error)
        return head

    def flush(self, timeout_s: float) -> bool:
        """Wait until the ledger has all records, also those that dead processes have left; False
        where it cannot be used, or time is up."""
        with self._lock:
            recorder = self._recorder
            if recorder is None and not self._closed and any(self.folder.glob(f"*{SUFFIX}")):
                try:
                    recorder = self._recording()
                except LedgerUnavailable as error:
                    self._failure = error
                    return False
        return recorder is None or recorder.flush(timeout_s)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Write what is left and let go of the database; what cannot be written stays for the
        next process.  Returns whether the ledger has all of it."""
        with self._lock:
            self._closed = True
            recorder, self._recorder = self._recorder, None
            watch = self._watch
        if watch is not None:
            watch.close()
        done = recorder is None or recorder.close(timeout_s)
        self._handle.close()
        self._watched.close()
        if self._known.looked_at is not None:
            with contextlib.suppress(KvbatonError):  # it only saves looking again
                self._known.looked_at.close()
        return done

    def __enter__(self) -> LedgerKeeper:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def forget(self) -> None:
        """In a forked child: all that is open is the parent's; what the child needs it opens."""
        leave_alone(self._watch)
        self._lock, self._watching = threading.Lock(), threading.Lock()
        self._recorder = self._watch = self._failure = None
        self._again_at = 0.0

    # -- inside -----------------------------------------------------------------------------------

    def _recording(self) -> Recorder:
        """The process's recorder; the lock is held."""
        if self._closed:
            raise LedgerUnavailable("the ledger was closed")
        if self._recorder is None:
            self._recorder = Recorder(
                self._known.open,
                self.folder,
                complain=self._complain,
                retry_s=self._retry_s,
                check=self._known.require_no_older,
            )
        return self._recorder

    def _nudge(self, sequence: int) -> None:
        """Who watches need not wait for what this process has changed."""
        watch = self._watch
        if watch is not None:
            watch.nudge(sequence)

    def _note(self, error: Exception) -> None:
        if not isinstance(error, KvbatonError):
            error = LedgerError(f"the ledger failed: {type(error).__name__}: {error}")
        self._failure, self._again_at = error, time.monotonic() + self._retry_s

    def _complain_of(self, error: KvbatonError) -> None:
        with contextlib.suppress(Exception):  # that nobody listens is no reason to stop
            self._complain(error)
