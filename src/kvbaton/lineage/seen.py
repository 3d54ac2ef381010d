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
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from kvbaton.errors import LedgerError, LedgerRolledBack

WRITE_EVERY_S = 1.0
"""A sequence is written at most that often; a new head of a ref at once."""
MAX_BYTES = 64 << 20
FORMAT = 1
ACCEPT = "if it was restored on purpose: kvbaton ledger accept"


@dataclass(frozen=True, slots=True)
class Seat:
    """A head of a ref: its number, its baton's id (empty where that was not read), and when it was
    first seen here, in milliseconds since the epoch."""

    number: int
    baton: str
    seen_ms: int


@dataclass(frozen=True, slots=True)
class Marks:
    """The most that a ledger has said: its sequence, when that was first seen, and heads by ref;
    ``epoch`` counts how often somebody has begun anew."""

    sequence: int = 0
    seen_ms: int = 0
    heads: Mapping[str, Seat] = field(default_factory=lambda: MappingProxyType({}))
    epoch: int = 0

    def joined(self, other: Marks) -> Marks:
        """The most of both, of one head that which names its baton; of two epochs the later."""
        if self.epoch != other.epoch:
            return max(self, other, key=lambda marks: marks.epoch)
        heads = dict(self.heads)
        for ref, seat in other.heads.items():
            heads[ref] = _more(heads.get(ref), seat)
        most = self if self.sequence >= other.sequence else other
        return Marks(most.sequence, most.seen_ms, MappingProxyType(heads), self.epoch)

    def to_json(self) -> dict[str, Any]:
        """What the file holds; ``heads`` are ``{ref: [number, baton, seen_ms]}``."""
        heads = {ref: [s.number, s.baton, s.seen_ms] for ref, s in sorted(self.heads.items())}
        return {
            "format": FORMAT,
            "epoch": self.epoch,
            "sequence": self.sequence,
            "seen_ms": self.seen_ms,
            "heads": heads,
        }


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
        self._lock = threading.Lock()
        self._status: tuple[int, ...] | None = None
        self._marks = Marks()
        self._unwritten = self._urgent = False
        self._written_s = -WRITE_EVERY_S
        with _mapped(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.so_far()

    def so_far(self) -> Marks:
        """The most that was seen until now, by any process: to be asked before the ledger is.

        Raises
        ------
        LedgerError
            The file is damaged.
        """
        with self._lock:
            self._refresh()
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
            moved = bool(ref) and number > 0 and _tells_more(known, number, baton)
            if (as_of <= self._marks.sequence and not moved) or before.epoch < self._marks.epoch:
                return
            now_ms = self._now_ms()
            heads = {ref: Seat(number, baton, now_ms)} if moved else {}
            self._marks = self._marks.joined(Marks(as_of, now_ms, heads, before.epoch))
            self._unwritten, self._urgent = True, self._urgent or moved
        if keep:
            self.keep()

    def keep(self) -> None:
        """Write a new head that was seen; a sequence alone only now and then.

        Raises
        ------
        LedgerError
            It cannot be written.
        """
        with self._lock:
            due = self._urgent or time.monotonic() - self._written_s >= WRITE_EVERY_S
            if self._unwritten and due:
                self._write()

    def newest(self, ref: str) -> Seat | None:
        """The newest head of a ref that was seen, also where the ledger cannot be reached."""
        return self.so_far().heads.get(ref)

    def accept(self, as_of: int, heads: Mapping[str, tuple[int, str]]) -> Marks:
        """Begin anew from what the ledger says now, although it may be less; what was seen before.

        Parameters
        ----------
        as_of, heads
            The ledger's sequence; number and baton of the head of each ref.
        """
        now_ms = self._now_ms()
        fresh = {ref: Seat(number, baton, now_ms) for ref, (number, baton) in heads.items()}
        with self._lock, self._alone():
            self._refresh()
            before = self._marks
            self._marks = Marks(as_of, now_ms, MappingProxyType(fresh), before.epoch + 1)
            self._put()
        return before

    def close(self) -> None:
        """Write what is not written yet."""
        with self._lock:
            if self._unwritten:
                self._write()

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
        if status != self._status:
            self._marks, self._status = self._marks.joined(_read(self.path)), status

    def _write(self) -> None:
        with self._alone():
            self._refresh()
            self._put()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Only one process at a time reads, joins and writes."""
        with _mapped(self._lock_path):
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self._lock_path, flags, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield
            finally:
                os.close(descriptor)

    def _put(self) -> None:
        data = json.dumps(self._marks.to_json(), separators=(",", ":")).encode("ascii")
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
        self._status = _status_of(self.path.stat())
        self._unwritten = self._urgent = False
        self._written_s = time.monotonic()


def _status_of(found: os.stat_result) -> tuple[int, ...]:
    """What changes whenever a file is replaced."""
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _more(known: Seat | None, seat: Seat) -> Seat:
    if known is None or seat.number > known.number:
        return seat
    if seat.number == known.number and seat.baton and not known.baton:
        return Seat(seat.number, seat.baton, known.seen_ms)
    return known


def _tells_more(known: Seat | None, number: int, baton: str) -> bool:
    if known is None or number > known.number:
        return True
    return number == known.number and bool(baton) and not known.baton


def _read(path: Path) -> Marks:
    with _mapped(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise LedgerError("a foreign file is in the place of what was seen", at=str(path))
            if stat.S_IMODE(found.st_mode) & 0o077:
                raise LedgerError(
                    "others may change what was seen of the ledger", at=str(path), hint="chmod 600"
                )
            data = file.read(MAX_BYTES + 1)
    try:
        return _parsed(data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LedgerError(
            "what was seen of the ledger cannot be read: an old copy would not be noticed",
            at=str(path),
            hint="look at the ledger, then remove this file",
        ) from error


def _parsed(data: bytes) -> Marks:
    if len(data) > MAX_BYTES:
        raise ValueError("too large")
    value = json.loads(data)
    if value["format"] != FORMAT:
        raise ValueError("another format")
    heads = {
        str(ref): Seat(_count(number), str(baton), _count(seen_ms))
        for ref, (number, baton, seen_ms) in value["heads"].items()
    }
    sequence, seen_ms, epoch = (_count(value[name]) for name in ("sequence", "seen_ms", "epoch"))
    return Marks(sequence, seen_ms, MappingProxyType(heads), epoch)


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("no count")
    return value


def _age(seconds: float) -> str:
    for unit, size, limit in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


@contextlib.contextmanager
def _mapped(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LedgerError(
            f"what was seen of the ledger cannot be kept: {error.strerror or error}", at=str(path)
        ) from error
