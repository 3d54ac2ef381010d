"""The one ledger that a process knows: what has taken its place is not used for it.

A ledger that was there once is never made anew: its folder may be mounted again.  Another one, or
an old copy, gets no records, which would be lost when the right one is back.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvbaton.errors import LedgerError, LedgerRolledBack, LedgerUnavailable
from kvbaton.lineage.forking import forget_when_forked
from kvbaton.lineage.seen import Seen

if TYPE_CHECKING:
    from kvbaton.lineage.ledger import Ledger


class Known:
    """Opens a ledger, and says whether it is the one that was known.

    Parameters
    ----------
    url, domain
        Which ledger, and which part of it.
    seen_in
        Folder where the most that it has said is kept; None where nobody looks.
    wait_s
        How long a change waits for those of others.
    heard
        Called with the ledger's sequence after each change by this process.
    """

    def __init__(
        self,
        url: str,
        domain: str,
        seen_in: Path | None,
        *,
        wait_s: float,
        heard: Callable[[int], None],
    ) -> None:
        self._url, self._domain, self._seen_in = url, domain, seen_in
        self._wait_s, self._heard = wait_s, heard
        self._lock = threading.Lock()
        self._identity = ""
        self.looked_at: Seen | None = None
        """What was seen of it, once that was needed."""
        forget_when_forked(self)

    def forget(self) -> None:
        """In a forked child: a thread that held a lock is not there."""
        self._lock = threading.Lock()
        self.looked_at = None

    def marks(self) -> Seen | None:
        """What was seen of it; None where nobody looks.

        Raises
        ------
        LedgerError
            It is damaged, of another user, or open to others.
        """
        with self._lock:
            if self.looked_at is None and self._seen_in is not None:
                self.looked_at = Seen(self._seen_in, self._url, self._domain)
            return self.looked_at

    def open(self) -> Ledger:
        """The ledger that was known, or else a new one.

        Raises
        ------
        LedgerRolledBack
            Another one has taken its place.
        LedgerUnavailable
            It is not there any more, or cannot be used now.
        LedgerError
            See ``Ledger``.
        """
        from kvbaton.lineage.ledger import Ledger  # heavy, and seldom needed at once

        seen = self._seen_before()
        known = bool(self._identity) or seen is not None
        try:
            ledger = Ledger(self._url, self._domain, wait_s=self._wait_s, must_exist=known)
        except LedgerUnavailable as error:
            if seen is None or self._identity:
                raise
            gone = f"if it was removed on purpose, remove {seen.path} too"
            hint = f"{error.hint}; {gone}" if error.hint else gone
            raise LedgerUnavailable(error.sentence, at=error.at, hint=hint) from error
        try:
            self._require_same(ledger.identity)
        except BaseException:
            ledger.close()
            raise
        ledger.on_change(self._changed)
        return ledger

    def require_no_older(self, ledger: Ledger) -> None:
        """Refuse a ledger into which nothing is to be written.

        Raises
        ------
        LedgerRolledBack
            It has said more before: it is an old copy.
        LedgerError
            It cannot be used now.
        """
        try:
            seen = self.marks()
            before = None if seen is None else seen.so_far()
        except LedgerError:  # damaged: nobody can say, and records are not to wait for ever
            return
        if seen is not None and before is not None:
            seen.check(before, ledger.sequence(), keep=False)

    def _changed(self, sequence: int) -> None:
        """What this process has written it has seen, too."""
        with contextlib.suppress(LedgerError):  # it is looked at again before anything is used
            seen = self.marks()
            if seen is not None:
                before = replace(seen.so_far(), sequence=0)  # others may have written more since
                seen.check(before, sequence)
        self._heard(sequence)

    def _seen_before(self) -> Seen | None:
        """What was seen of it, if that is anything."""
        with contextlib.suppress(LedgerError):
            seen = self.marks()
            if seen is not None and seen.so_far().sequence > 0:
                return seen
        return None

    def _require_same(self, identity: str) -> None:
        with self._lock:
            self._identity = self._identity or identity
            known = self._identity
        if identity != known:
            raise LedgerRolledBack(
                "another ledger has taken the place of the one that this process has used",
                hint="restore that, or restart if it was replaced on purpose",
            )
