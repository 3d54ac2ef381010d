"""Records on their way to the ledger, in a file beside it, so that a killed process loses none.

One private file per process, held by a lock of the kernel for as long as the process lives.  What
a dead process has left is adopted by whoever comes next.  A record is appended before anything
else is done with it: one write, without a sync, so it outlives the process, though not the
machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvbaton.errors import InputError, LedgerUnavailable
from kvbaton.lineage.records import Entry, Node, NodeKind

SUFFIX = ".jsonl"
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class Spool:
    """The file of this process.

    Parameters
    ----------
    folder
        Of all spools of one ledger and domain; made with mode 0700.

    Raises
    ------
    LedgerUnavailable
        The file cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with _mapped(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            new = folder / f"{os.getpid()}-{secrets.token_hex(8)}.new"
            self._descriptor = os.open(new, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
            # Locked under a name that nobody looks for: nobody adopts it in between.
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.path = new.with_suffix(SUFFIX)
            new.rename(self.path)

    def append(self, entry: Entry) -> None:
        """Write a record behind the others.

        Raises
        ------
        LedgerUnavailable
            It cannot be written.
        """
        line = line_of(entry)
        with _mapped(self.path):
            written = os.write(self._descriptor, line)
            if written != len(line):  # the disk is full: no torn line may stand before others
                os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - written)
                raise LedgerUnavailable("no room for a record", at=str(self.path))

    def read(self) -> list[Entry]:
        """All records in it."""
        with _mapped(self.path):
            return read_entries(_content(self._descriptor)).entries

    def clear(self) -> None:
        """Forget what it holds: the ledger has it."""
        with _mapped(self.path):
            os.ftruncate(self._descriptor, 0)

    def close(self) -> None:
        """Let go of the file; it is removed where nothing is in it, and left for others else."""
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        with contextlib.suppress(OSError):
            if os.fstat(descriptor).st_size == 0:
                self.path.unlink(missing_ok=True)
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Left:
    """What a spool holds; ``torn`` lines could not be read."""

    entries: list[Entry]
    torn: int = 0


@contextlib.contextmanager
def adopted(folder: Path) -> Iterator[tuple[Left, Sequence[Path]]]:
    """Records that dead processes have left, locked against others who look for them.

    The files are removed behind the block, unless something was raised in it.

    Raises
    ------
    LedgerUnavailable
        They cannot be read.
    """
    with contextlib.ExitStack() as held, _mapped(folder):
        paths, entries, torn = [], [], 0
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            descriptor = _locked(path)
            if descriptor is None:
                continue
            held.callback(os.close, descriptor)
            left = read_entries(_content(descriptor))
            paths.append(path)
            entries += left.entries
            torn += left.torn
        yield Left(entries, torn), paths
        for path in paths:
            path.unlink(missing_ok=True)


def _locked(path: Path) -> int | None:
    """A spool whose owner is dead; None for one that is in use, or was adopted just now."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.stat().st_ino == os.fstat(descriptor).st_ino:
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


def _content(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0)


def line_of(entry: Entry) -> bytes:
    """A record as a line of JSON."""
    node = entry.node.to_json()
    del node["sequence"], node["stale"]
    whole = {"node": node, "once": entry.once}
    return json.dumps(whole, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def read_entries(content: bytes) -> Left:
    """Records of a spool; a line that was torn by a crash, or is no record, is counted."""
    entries, torn = [], 0
    for line in content.splitlines(keepends=True):
        try:
            entries.append(_entry_of(json.loads(line)))
        except (ValueError, KeyError, TypeError, InputError):
            torn += 1
    return Left(entries, torn)


def _entry_of(value: Any) -> Entry:
    node = dict(value["node"])
    node["kind"] = NodeKind(node["kind"])
    node["parents"] = tuple(node["parents"])
    return Entry(Node(**node), str(value["once"]))


@contextlib.contextmanager
def _mapped(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LedgerUnavailable(
            f"records cannot be kept: {error.strerror or error}", at=str(path)
        ) from error
