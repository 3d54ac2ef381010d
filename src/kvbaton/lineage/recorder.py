"""Recording beside the work: nothing of the ledger's database is on the way to a token.

A record is appended to the process's spool (microseconds) and written to the ledger in batches by
a thread.  While the ledger is locked, gone or unreachable, records stay in the spool; afterwards
each is written exactly once, by this process or by another one.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kvbaton.errors import KvbatonError, LedgerUnavailable, LineageCycle
from kvbaton.lineage.records import Entry, Node
from kvbaton.lineage.spool import Spool, adopted

if TYPE_CHECKING:
    from kvbaton.lineage.ledger import Ledger

RETRY_S = 1.0
"""How long a ledger that could not be used is left alone."""
GATHER_S = 0.05
"""How long a first record waits for others, so that one transaction writes them all."""
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
    """

    def __init__(
        self,
        open_ledger: Callable[[], Ledger],
        folder: Path,
        *,
        complain: Complain = lambda error: None,
        retry_s: float = RETRY_S,
    ) -> None:
        self._open_ledger, self._folder, self._complain = open_ledger, folder, complain
        self._retry_s = retry_s
        self._spool = Spool(folder)
        self._waiting: deque[Entry] = deque()
        self._overflowed = False
        self._changed = threading.Condition()
        self._closing = self._urgent = self._gathering = False
        self._busy = True  # with what dead processes have left
        self._failed: KvbatonError | None = None
        self._ledger: Ledger | None = None
        self._thread = threading.Thread(target=self._work, name="kvbaton-recorder", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> KvbatonError | None:
        """Why records are waiting, if they are."""
        return self._failed

    def put(self, node: Node, *, once: str = "") -> None:
        """Record a node soon; it is safe from the death of this process when this returns.

        Raises
        ------
        LedgerUnavailable
            It cannot be kept: the disk is full, or the recorder is closed.
        """
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
        """Wait until the ledger has all records; False where it cannot be used, or time is up."""
        with self._changed:
            self._urgent = True
            self._changed.notify_all()
            self._changed.wait_for(self._settled, timeout_s)
            return not self._pending()

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

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    # -- the thread -------------------------------------------------------------------------------

    def _pending(self) -> bool:
        return bool(self._waiting) or self._overflowed or self._busy

    def _settled(self) -> bool:
        return not self._pending() or (self._failed is not None and not self._urgent)

    def _work(self) -> None:
        self._try(self._adopt)
        while True:
            with self._changed:
                patience_s = None if self._failed is None else self._retry_s
                self._changed.wait_for(self._has_work, patience_s)
                self._gather()
                if self._closing:
                    break
                self._urgent = False
                batch = [self._waiting[i] for i in range(min(_BATCH, len(self._waiting)))]
                self._busy = True
            self._try(partial(self._catch_up, batch))
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
        failed: KvbatonError | None = None
        try:
            work()
        except KvbatonError as error:
            failed = error
        with self._changed:
            news = failed is not None and self._failed is None
            self._failed, self._busy = failed, False
            self._changed.notify_all()
        if failed is not None and news:
            self._complain(failed)

    def _opened(self) -> Ledger:
        if self._failed is not None and self._ledger is not None:
            self._ledger.close()
            self._ledger = None
        if self._ledger is None:
            self._ledger = self._open_ledger()
        return self._ledger

    def _adopt(self) -> None:
        """Write what dead processes have left."""
        with adopted(self._folder) as (left, _):
            if left.entries:
                self._record(self._opened(), left.entries)

    def _catch_up(self, batch: list[Entry]) -> None:
        """Write a batch; behind an outage also what others may have left meanwhile."""
        if self._failed is not None:
            self._adopt()
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

    def _record(self, ledger: Ledger, entries: list[Entry]) -> None:
        """Write a batch; a record that is refused for good does not keep back the others."""
        try:
            ledger.record(entries)
        except LineageCycle as error:
            if len(entries) == 1:
                self._complain(error)
                return
            half = len(entries) // 2
            self._record(ledger, entries[:half])
            self._record(ledger, entries[half:])
