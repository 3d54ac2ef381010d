"""Records on their way to the ledger, in a file beside it, so that a killed process loses none.

One private file per process, held by a lock of the kernel for as long as the process lives.  What
a dead process has left is adopted by whoever comes next.  A record is appended before anything
else is done with it: one write, without a sync, so it outlives the process, though not the
machine.  What cannot be in the ledger is set aside in one more file, and what a newer program has
left is left for such a one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvbaton.errors import InputError, LedgerUnavailable
from kvbaton.lineage.forking import forget_when_forked
from kvbaton.lineage.records import Entry, Node, NodeKind

SUFFIX = ".jsonl"
REFUSED = "records.refused"
"""Where those are that no ledger takes, each with the reason."""
FORMAT = 1
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
        forget_when_forked(self)

    def append(self, entry: Entry) -> None:
        """Write a record behind the others.

        Raises
        ------
        InputError
            Its facts are no JSON.
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

    def forget(self) -> None:
        """In a forked child: the file is the parent's, and stays locked by it."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Left:
    """What a spool holds.

    Parameters
    ----------
    entries
        Its records.
    torn
        How many lines a crash has cut off; nobody was told that they were kept.
    odd
        Lines that are no records, although they are whole.
    newer
        Lines that only a newer program understands.
    """

    entries: list[Entry]
    torn: int = 0
    odd: tuple[bytes, ...] = ()
    newer: tuple[bytes, ...] = ()


class _Held:
    """Spools of dead processes that this one has locked just now."""

    def __init__(self) -> None:
        self.descriptors: set[int] = set()
        forget_when_forked(self)

    def close(self, descriptor: int) -> None:
        """Let go of one."""
        self.descriptors.discard(descriptor)
        os.close(descriptor)

    def forget(self) -> None:
        """In a forked child, which would keep them locked when its parent has let go of them."""
        for descriptor in self.descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self.descriptors.clear()


_HELD = _Held()


@contextlib.contextmanager
def adopted(
    folder: Path, known: Collection[tuple[str, int]] = ()
) -> Iterator[tuple[Left, Sequence[Path]]]:
    """Records that dead processes have left, locked against others who look for them.

    Behind the block, unless something was raised in it, the files are removed, but for lines of
    newer programs.

    Parameters
    ----------
    known
        Name and size of files in which there is nothing but such lines: they are passed over.

    Raises
    ------
    LedgerUnavailable
        They cannot be read, or not be removed.
    """
    with contextlib.ExitStack() as held, _mapped(folder):
        found: dict[Path, Left] = {}
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            if known and _name_and_size(path) in known:
                continue
            descriptor = _locked(path)
            if descriptor is None:
                continue
            held.callback(_HELD.close, descriptor)
            found[path] = read_entries(_content(descriptor))
        yield _joined(found.values()), list(found)
        for path, left in found.items():
            if not left.newer:
                path.unlink(missing_ok=True)
            elif left.entries or left.odd or left.torn:
                _replace(path, b"".join(left.newer))


def set_aside(folder: Path, record: Entry | bytes, why: str) -> Path:
    """Write what no ledger takes behind the others of its kind, with the reason; where that is.

    Raises
    ------
    LedgerUnavailable
        It cannot be written.
    """
    if isinstance(record, Entry):
        line = json.loads(line_of(record)) | {"why": why}
    else:
        line = {"line": record.decode("utf-8", "backslashreplace"), "why": why}
    path = folder / REFUSED
    data = json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n"
    with _mapped(path):
        descriptor = os.open(path, _FLAGS | os.O_CREAT, 0o600)
        try:
            if os.write(descriptor, data) != len(data):
                raise LedgerUnavailable("no room for a refused record", at=str(path))
        finally:
            os.close(descriptor)
    return path


def _joined(several: Collection[Left]) -> Left:
    return Left(
        [entry for left in several for entry in left.entries],
        sum(left.torn for left in several),
        tuple(line for left in several for line in left.odd),
        tuple(line for left in several for line in left.newer),
    )


def _replace(path: Path, content: bytes) -> None:
    new = path.with_suffix(".new")
    descriptor = os.open(new, _FLAGS | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _name_and_size(path: Path) -> tuple[str, int]:
    try:
        return path.name, path.lstat().st_size
    except FileNotFoundError:
        return path.name, -1


def _locked(path: Path) -> int | None:
    """A spool whose owner is dead; None for one that is in use, or was adopted just now."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.stat().st_ino == os.fstat(descriptor).st_ino:
            _HELD.descriptors.add(descriptor)
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


def _content(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0)


def line_of(entry: Entry) -> bytes:
    """A record as a line of JSON.

    Raises
    ------
    InputError
        Its facts are no JSON.
    """
    node = entry.node.to_json()
    del node["sequence"], node["stale"]
    whole = {"format": FORMAT, "node": node, "once": entry.once}
    try:
        line = json.dumps(whole, separators=(",", ":"), allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"the facts of a record are no JSON: {error}", at=entry.node.id) from error
    return line.encode("ascii") + b"\n"


def read_entries(content: bytes) -> Left:
    """Records of a spool, and whatever else its lines are."""
    entries: list[Entry] = []
    odd, newer = [], []
    torn = 0
    for line in content.splitlines(keepends=True):
        try:
            value = json.loads(line)
            if _is_newer(value):
                newer.append(line.rstrip(b"\r\n") + b"\n")
            else:
                entries.append(_entry_of(value))
        except (ValueError, KeyError, TypeError, RecursionError, InputError):
            if line.endswith(b"\n"):
                odd.append(line)
            else:
                torn += 1
    return Left(entries, torn, tuple(odd), tuple(newer))


def _is_newer(value: Any) -> bool:
    """Whether a line has a format, or a part, that was unknown when this program was made."""
    if not isinstance(value, dict) or type(value.get("format", FORMAT)) is not int:
        return False
    if value.get("format", FORMAT) > FORMAT:
        return True
    node = value.get("node")
    if not isinstance(node, dict):
        return False
    known = {"format", "node", "once"}
    new_kind = isinstance(node.get("kind"), str) and node["kind"] not in set(NodeKind)
    return bool(set(value) - known or set(node) - _FIELDS or new_kind)


_FIELDS = frozenset(Node.__dataclass_fields__) - {"sequence", "stale"}


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
