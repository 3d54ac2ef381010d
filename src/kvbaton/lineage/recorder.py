"""Recording beside the work: nothing of the ledger's database is on the way to a token.

A record is appended to the process's spool (microseconds) and written to the ledger in batches by
a thread.  While the ledger is locked, gone or unreachable, records stay in the spool; afterwards
each is written exactly once, by this process or by another one.  A record that the ledger refuses
is set aside with the reason, and keeps back no other one.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kvbaton.errors import (
    InputError,
    KvbatonError,
    LedgerError,
    LedgerUnavailable,
    LineageCycle,
)
from kvbaton.lineage.forking import forget_when_forked, leave_alone
from kvbaton.lineage.records import Entry, Node
from kvbaton.lineage.spool import Spool, adopted, set_aside

if TYPE_CHECKING:
    from kvbaton.lineage.ledger import Ledger

RETRY_S = 1.0
"""How long a ledger that could not be used is left alone."""
GATHER_S = 0.05
"""How long a first record waits for others, so that one transaction writes them all."""
ADOPT_S = 2.0
"""How often somebody looks for what dead processes have left."""
TOLD_S = 600.0
"""How long a refused record is told of."""
MAX_ONCE = 64
_MOST_IN_MEMORY = 10_000
_BATCH = 1000

Complain = Callable[[KvbatonError], None]


class Recorder:
    """Writes records to a ledger in the background.  A context manager.

    Parameters
    ----------
    open_ledger
        Opens the ledger; called by the recorder's thread, again after each failure.
    folder
        Where records wait.
    complain
        Is told, once per outage, why the ledger cannot be used, and of every record that it
        refuses.
    retry_s
        How long a ledger that could not be used is left alone.
    check
        Raises a ``LedgerError`` for a ledger into which nothing is to be written; called before
        each batch.
    """

    def __init__(
        self,
        open_ledger: Callable[[], Ledger],
        folder: Path,
        *,
        complain: Complain = lambda error: None,
        retry_s: float = RETRY_S,
        check: Callable[[Ledger], None] = lambda ledger: None,
    ) -> None:
        self._open_ledger, self._folder, self._told = open_ledger, folder, complain
        self._retry_s, self._check = retry_s, check
        self._spool = Spool(folder)
        self._waiting: deque[Entry] = deque()
        self._overflowed = False
        self._changed = threading.Condition()
        self._closing = self._gathering = self._forgotten = False
        self._asked = self._begun = self._done = 0
        """How many flushes there were, how many before the last try, and before one that ended."""
        self._busy = True  # with what dead processes have left
        self._failed: KvbatonError | None = None
        self._refused: KvbatonError | None = None
        self._refused_s = self._adopted_s = 0.0
        self._kept: set[tuple[str, int]] = set()
        """Spools in which only newer programs can read."""
        self._ledger: Ledger | None = None
        forget_when_forked(self)
        self._thread = threading.Thread(target=self._work, name="kvbaton-recorder", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> KvbatonError | None:
        """Why records are waiting, if they are."""
        return self._failed

    @property
    def refusal(self) -> KvbatonError | None:
        """The record that was refused last, for some minutes."""
        recent = time.monotonic() - self._refused_s < TOLD_S
        return self._refused if recent else None

    def put(self, node: Node, *, once: str = "") -> None:
        """Record a node soon; it is safe from the death of this process when this returns.

        Raises
        ------
        InputError
            Its facts are no JSON, or ``once`` is too long.
        LedgerUnavailable
            It cannot be kept: the disk is full, or the recorder is closed.
        """
        if len(once) > MAX_ONCE or not once.isascii():
            raise InputError(f"a record's name has at most {MAX_ONCE} ASCII characters")
        entry = Entry(node, once or uuid.uuid4().hex)
        with self._changed:
            if self._closing:
                raise LedgerUnavailable("the recorder is closed")
            self._spool.append(entry)
            if len(self._waiting) < _MOST_IN_MEMORY:
                self._waiting.append(entry)
            else:
                self._overflowed = True  # it is read from the spool when the others are written
            if not self._gathering or len(self._waiting) >= _BATCH:
                self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until the ledger has all records, also those that dead processes have left; False
        where it cannot be used, or time is up."""
        with self._changed:
            if self._forgotten:
                return True
            if not self._closing:
                self._asked += 1
            mine = self._asked
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._settled(mine), timeout_s)
            return self._done >= mine and not self._pending() and self._failed is None

    def close(self, timeout_s: float = 5.0) -> bool:
        """Write what is left and end; what cannot be written stays for the next process.

        Returns whether the ledger has all of it.
        """
        done = self.flush(timeout_s)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        with self._changed:
            self._spool.close()
        return done

    def forget(self) -> None:
        """In a forked child: thread, spool, records and connection are the parent's."""
        leave_alone(self._ledger)
        self._ledger = None
        self._changed = threading.Condition()
        self._waiting = deque()
        self._closing = self._forgotten = True
        self._overflowed = self._busy = False

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    # -- the thread -------------------------------------------------------------------------------

    def _pending(self) -> bool:
        return bool(self._waiting) or self._overflowed or self._busy

    @property
    def _urgent(self) -> bool:
        return self._asked > self._begun

    def _settled(self, asked: int) -> bool:
        """Whether a try that began behind a flush is over, and there is nothing left to try."""
        return self._done >= asked and (not self._pending() or self._failed is not None)

    def _work(self) -> None:
        self._try(self._adopt)
        while True:
            with self._changed:
                patience_s = ADOPT_S if self._failed is None else self._retry_s
                self._changed.wait_for(self._has_work, patience_s)
                if self._waiting or self._failed is not None:
                    self._gather()
                if self._closing:
                    break
                due = time.monotonic() - self._adopted_s >= ADOPT_S
                adopt = self._urgent or self._failed is not None or due
                self._begun = self._asked
                batch = [self._waiting[i] for i in range(min(_BATCH, len(self._waiting)))]
                self._busy = True
            self._try(partial(self._catch_up, batch, adopt=adopt))
        if self._ledger is not None:
            self._ledger.close()

    def _gather(self) -> None:
        """Let others come to the records that wait, unless somebody waits for these."""
        self._gathering = True
        self._changed.wait_for(
            lambda: self._closing or self._urgent or len(self._waiting) >= _BATCH, GATHER_S
        )
        self._gathering = False

    def _has_work(self) -> bool:
        if self._closing or self._urgent:
            return True
        return self._failed is None and (bool(self._waiting) or self._overflowed)

    def _try(self, work: Callable[[], None]) -> None:
        """Whatever goes wrong, the thread stays, and the records do."""
        failed: KvbatonError | None = None
        try:
            work()
        except KvbatonError as error:
            failed = error
        except Exception as error:  # noqa: BLE001 - of the database's driver, and worth a warning
            failed = LedgerError(f"records cannot be written: {type(error).__name__}: {error}")
        with self._changed:
            news = failed is not None and self._failed is None
            self._failed, self._busy, self._done = failed, False, self._begun
            self._changed.notify_all()
        if failed is not None and news:
            self._complain(failed)

    def _complain(self, error: KvbatonError) -> None:
        with contextlib.suppress(Exception):  # that nobody listens is no reason to stop
            self._told(error)

    def _opened(self) -> Ledger:
        if self._failed is not None and self._ledger is not None:
            ledger, self._ledger = self._ledger, None
            ledger.close()
        if self._ledger is None:
            self._ledger = self._open_ledger()
        self._check(self._ledger)
        return self._ledger

    def _adopt(self) -> None:
        """Write what dead processes have left."""
        with adopted(self._folder, self._kept) as (left, paths):
            for first in range(0, len(left.entries), _BATCH):
                self._record(self._opened(), left.entries[first : first + _BATCH])
            for line in left.odd:
                why = LedgerError("a line that is no record was left", at=str(self._folder))
                self._set_aside(line, why)
        if left.newer:
            self._kept.update((path.name, path.stat().st_size) for path in paths if path.exists())
            self._complain(
                LedgerError(
                    f"{len(left.newer)} records that a newer program has left stay where they are",
                    at=str(self._folder),
                    hint="a newer program writes them",
                )
            )
        self._adopted_s = time.monotonic()

    def _catch_up(self, batch: list[Entry], *, adopt: bool) -> None:
        """Write a batch, and now and then what others may have left meanwhile."""
        if adopt:
            self._adopt()
        if batch or self._overflowed:
            self._write(batch)

    def _write(self, batch: list[Entry]) -> None:
        self._record(self._opened(), batch)
        with self._changed:
            for _ in batch:
                self._waiting.popleft()
            if self._waiting:
                return
            if self._overflowed:
                self._waiting.extend(self._spool.read())  # what was written is not written again
                self._overflowed = False
            else:
                self._spool.clear()

    # -- what is refused --------------------------------------------------------------------------

    def _record(self, ledger: Ledger, entries: list[Entry]) -> None:
        """Write a batch; a record that is refused for good does not keep back the others."""
        refused: list[tuple[Entry, Exception]] = []
        written = self._split(ledger, entries, refused)
        for _, error in refused:
            # Where nothing at all could be written, only what is certainly the record's own fault
            # counts as such: a fault of the ledger's would else set all records aside.
            if not written and not _is_of_record(error):
                raise error
        for entry, error in refused:
            self._set_aside(entry, error)

    def _split(
        self, ledger: Ledger, entries: list[Entry], refused: list[tuple[Entry, Exception]]
    ) -> bool:
        """Whether anything was written; ever smaller parts of a batch find those that cannot be."""
        try:
            ledger.record(entries)
        except Exception as error:
            if _is_of_ledger(error):
                raise
            if len(entries) == 1:
                refused.append((entries[0], error))
                return False
            half = len(entries) // 2
            first = self._split(ledger, entries[:half], refused)
            return self._split(ledger, entries[half:], refused) or first
        return bool(entries)

    def _set_aside(self, record: Entry | bytes, error: Exception) -> None:
        why = error.sentence if isinstance(error, KvbatonError) else f"{error!r:.500}"
        path = set_aside(self._folder, record, why)
        if isinstance(record, Entry):
            kind = LineageCycle if isinstance(error, LineageCycle) else LedgerError
            told = kind(
                f"the ledger refuses a record: {why}", at=record.node.id, hint=f"it is in {path}"
            )
        else:
            told = LedgerError(why, hint=f"it is in {path}")
        self._refused, self._refused_s = told, time.monotonic()
        self._complain(told)


def _is_of_ledger(error: Exception) -> bool:
    """Whether the ledger cannot be used, so that all records have to wait."""
    is_one = isinstance(error, LedgerError) and not isinstance(error, LineageCycle)
    return is_one and not _is_of_data(error.__cause__)


def _is_of_record(error: Exception) -> bool:
    """Whether no ledger at all would take the record."""
    own = (LineageCycle, InputError, ValueError, TypeError, ArithmeticError, RecursionError)
    return isinstance(error, own) or _is_of_data(error.__cause__)


def _is_of_data(cause: BaseException | None) -> bool:
    """Whether a database refused what it was to hold, and not to be used."""
    from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, StatementError

    if isinstance(cause, DBAPIError):
        return isinstance(cause, DataError | IntegrityError)
    return isinstance(cause, StatementError)
