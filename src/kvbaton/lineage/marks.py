"""The most that a ledger has said, and the private file that keeps it."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kvbaton.errors import LedgerError

MAX_BYTES = 64 << 20
FORMAT = 1
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Nobody waits for the other end of a pipe that lies in the file's place."""


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


def _more(known: Seat | None, seat: Seat) -> Seat:
    if known is None or seat.number > known.number:
        return seat
    if seat.number == known.number and seat.baton and not known.baton:
        return Seat(seat.number, seat.baton, known.seen_ms)
    return known


def tells_more(known: Seat | None, number: int, baton: str) -> bool:
    """Whether a head is newer than the one that is known, or names the baton of the same."""
    if known is None or number > known.number:
        return True
    return number == known.number and bool(baton) and not known.baton


def read_marks(path: Path) -> Marks:
    """What the file holds.

    Raises
    ------
    LedgerError
        It is damaged, of another user, or open to others.
    """
    with mapped(path):
        descriptor = os.open(path, _FLAGS)
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


@contextlib.contextmanager
def mapped(path: Path) -> Iterator[None]:
    """Errors of files as the ledger's."""
    try:
        yield
    except OSError as error:
        raise LedgerError(
            f"what was seen of the ledger cannot be kept: {error.strerror or error}", at=str(path)
        ) from error
