"""What a user has seen of a ledger, so that an older copy of it is not believed.

Whoever can write a ledger's database can put yesterday's in its place: then old heads are current
again, and what was marked stale is fresh.  So the highest sequence, and for each ref the newest
head, are kept in a private file of the user's own, elsewhere than the ledger, and a ledger that
says less is refused.

What was read is compared with what had been seen *before* the reading began; in between others
may have seen more::

    before = seen.so_far()
    found = ledger.freshness(baton, ref, number)
    seen.check(before, found.as_of, ref=ref, number=found.head_sequence, keep=False)
    ...  # the first token
    seen.keep()  # a new head is on the disk from here on
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Self

from kvbaton.errors import LedgerError, LedgerRolledBack
from kvbaton.lineage.marks import Marks, Seat, mapped, read_marks, tells_more

WRITE_EVERY_S = 1.0
"""A sequence is written at most that often; a new head of a ref at once."""
KEEP_WAIT_S = 0.05
"""How long a take waits for other processes that write; the next one tries again."""
CLOSE_WAIT_S = 0.5
ACCEPT_WAIT_S = 5.0
BUSY_S = 5.0
"""How long others may keep this process from writing before it says so."""
_LOOK_S = 0.005
ACCEPT = "if it was restored on purpose: kvbaton ledger accept"


class Seen:
    """What was seen of one trust domain's part of a ledger.  A context manager.

    May be used by several threads and processes at once: they share the file, and it only grows.

    Parameters
    ----------
    folder
        Where the files of all ledgers lie; made with mode 0700.
    url, domain
        Which ledger, and which part of it.  The URL is not kept: it may hold a password.
    now_ms
        Milliseconds since the epoch; only to say how long ago something was.

    Raises
    ------
    LedgerError
        The file is damaged, of another user, or open to others.
    """

    def __init__(
        self,
        folder: Path,
        url: str,
        domain: str,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        name = hashlib.sha256(f"{len(domain)}:{domain}{url}".encode()).hexdigest()[:32]
        self.path = folder / f"{name}.json"
        self._lock_path = folder / f"{name}.lock"
        self._now_ms = now_ms
        self._lock = threading.Lock()  # of what is below; nobody waits for a file while holding it
        self._writing = threading.Lock()
        self._status: tuple[int, ...] | None = None
        self._marks = Marks()
        self._unwritten = self._urgent = False
        self._written_s = -WRITE_EVERY_S
        self._busy_since_s: float | None = None
        with mapped(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.so_far()

    def so_far(self) -> Marks:
        """The most that was seen until now, by any process: to be asked before the ledger is.

        Never waits for other processes, nor for a write by this one.

        Raises
        ------
        LedgerError
            The file is damaged.
        """
        self._refresh()
        with self._lock:
            return self._marks

    def check(
        self,
        before: Marks,
        as_of: int,
        *,
        ref: str = "",
        number: int = 0,
        baton: str = "",
        keep: bool = True,
    ) -> None:
        """Refuse what the ledger says if it has said more before; else remember it.

        Parameters
        ----------
        before
            What :meth:`so_far` gave before the ledger was asked.
        as_of
            The ledger's sequence, as it was read.
        ref, number, baton
            Where a ref stands, and on which baton, where that was read.
        keep
            Write what is new at once; else :meth:`keep` does, and this writes nothing.

        Raises
        ------
        LedgerRolledBack
            The ledger, or the ref, is further back than it was, or another baton has its place.
        LedgerError
            What was seen cannot be kept.
        """
        if as_of < before.sequence:
            raise self._rolled_back(
                f"the ledger stands at {as_of}, and stood at {before.sequence}", before.seen_ms
            )
        if ref:
            self._check_ref(before.heads.get(ref), ref, number, baton)
        with self._lock:
            known = self._marks.heads.get(ref) if ref else None
            moved = bool(ref) and number > 0 and tells_more(known, number, baton)
            if (as_of <= self._marks.sequence and not moved) or before.epoch < self._marks.epoch:
                return
            now_ms = self._now_ms()
            heads = {ref: Seat(number, baton, now_ms)} if moved else {}
            self._marks = self._marks.joined(Marks(as_of, now_ms, heads, before.epoch))
            self._unwritten, self._urgent = True, self._urgent or moved
        if keep:
            self.keep()

    def keep(self) -> bool:
        """Write a new head that was seen; a sequence alone only now and then.

        Returns
        -------
        bool
            False where other processes kept it from writing; the next call tries again.

        Raises
        ------
        LedgerError
            It cannot be written, or others have kept it from that for ``BUSY_S``.
        """
        with self._lock:
            due = self._urgent or time.monotonic() - self._written_s >= WRITE_EVERY_S
            if not self._unwritten or not due:
                return True
        if self._written(KEEP_WAIT_S):
            self._busy_since_s = None
            return True
        now_s = time.monotonic()
        if self._busy_since_s is None:
            self._busy_since_s = now_s
        if now_s - self._busy_since_s >= BUSY_S:
            raise self._busy()
        return False

    def newest(self, ref: str) -> Seat | None:
        """The newest head of a ref that was seen, also where the ledger cannot be reached."""
        return self.so_far().heads.get(ref)

    def accept(self, as_of: int, heads: Mapping[str, tuple[int, str]]) -> Marks:
        """Begin anew from what the ledger says now, although it may be less; what was seen before.

        Parameters
        ----------
        as_of, heads
            The ledger's sequence; number and baton of the head of each ref.

        Raises
        ------
        LedgerError
            It cannot be written, or others keep it from that.
        """
        now_ms = self._now_ms()
        fresh = {ref: Seat(number, baton, now_ms) for ref, (number, baton) in heads.items()}
        with self._alone(ACCEPT_WAIT_S) as alone:
            if not alone:
                raise self._busy()
            self._refresh()
            with self._lock:
                before = self._marks
                self._marks = Marks(as_of, now_ms, MappingProxyType(fresh), before.epoch + 1)
            self._put()
        return before

    def close(self) -> None:
        """Write what is not written yet, if others let it.

        Raises
        ------
        LedgerError
            A new head cannot be written, or others keep it from that: a restart forgets it.
        """
        with self._lock:
            unwritten, urgent = self._unwritten, self._urgent
        if unwritten and not self._written(CLOSE_WAIT_S) and urgent:
            raise self._busy()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    # -- what is refused --------------------------------------------------------------------------

    def _check_ref(self, seen: Seat | None, ref: str, number: int, baton: str) -> None:
        if seen is None:
            return
        if number < seen.number:
            raise self._rolled_back(
                f"{ref} stands at {number}, and stood at {seen.number}", seen.seen_ms, at=ref
            )
        if number == seen.number and baton and seen.baton and baton != seen.baton:
            raise self._rolled_back(
                f"{ref} has another baton as its {number} than the ledger said",
                seen.seen_ms,
                at=ref,
            )

    def _rolled_back(self, what: str, seen_ms: int, at: str = "") -> LedgerRolledBack:
        ago_s = max(0, self._now_ms() - seen_ms) / 1000
        return LedgerRolledBack(
            f"this is an old copy of the ledger: {what} {_age(ago_s)} ago", at=at, hint=ACCEPT
        )

    # -- the file ---------------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Take in what others have written; a look at the file's status is all it mostly costs."""
        try:
            status = _status_of(self.path.lstat())
        except FileNotFoundError:
            return  # nothing yet, or removed: what this process has seen it still knows
        with self._lock:
            if status == self._status:
                return
        theirs = read_marks(self.path)  # it may be newer than its status: then it is read once more
        with self._lock:
            self._marks, self._status = self._marks.joined(theirs), status

    def _written(self, wait_s: float) -> bool:
        """Write all that was seen; False where others kept it from that."""
        with self._alone(wait_s) as alone:
            if alone:
                self._refresh()
                self._put()
            return alone

    @contextlib.contextmanager
    def _alone(self, wait_s: float) -> Iterator[bool]:
        """Only one thread of one process at a time reads, joins and writes; False where others
        did for too long."""
        until_s = time.monotonic() + wait_s
        if not self._writing.acquire(timeout=wait_s):
            yield False
            return
        try:
            with mapped(self._lock_path):
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                descriptor = os.open(self._lock_path, flags, 0o600)
                try:
                    yield _locked(descriptor, until_s)
                finally:
                    # Closing is not enough: a child that was forked just now has it open, too.
                    with contextlib.suppress(OSError):
                        fcntl.flock(descriptor, fcntl.LOCK_UN)
                    os.close(descriptor)
        finally:
            self._writing.release()

    def _busy(self) -> LedgerError:
        return LedgerError(
            "what was seen of the ledger cannot be kept: another process holds it",
            at=str(self._lock_path),
            hint="look for a process that was stopped",
        )

    def _put(self) -> None:
        with self._lock:
            marks = self._marks
        data = json.dumps(marks.to_json(), separators=(",", ":")).encode("ascii")
        aside = self.path.with_name(f".{self.path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(self.path)
        finally:
            aside.unlink(missing_ok=True)
        status = _status_of(self.path.stat())
        with self._lock:
            self._status = status
            self._written_s = time.monotonic()
            if self._marks is marks:  # else somebody has seen more in the meantime
                self._unwritten = self._urgent = False


def _locked(descriptor: int, until_s: float) -> bool:
    """Lock a file for this process, which waits no longer than until then."""
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                return False
            time.sleep(_LOOK_S)
        else:
            return True


def _status_of(found: os.stat_result) -> tuple[int, ...]:
    """What changes whenever a file is replaced."""
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _age(seconds: float) -> str:
    for unit, size, limit in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"
