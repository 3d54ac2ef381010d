"""Files of a directory store: private, never behind a symbolic link, whole or absent.

Folders are opened one below the other by descriptor (``O_NOFOLLOW``), so a link that somebody
plants in the place of a folder or of an object is refused, not followed.  Modes are set on what
was made, so the umask does not matter.  Temporary files are locked by their writer: a lock that
can be taken shows that the writer is dead, whatever the machine, process or container it was.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kvbaton.errors import NotFound, StoreError, StoreFull, StoreTimeout
from kvbaton.stores.base import Key, Kind

SHARD_DIGITS = 2
TEMPORARY = "tmp"

MAKE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TEMPORARY_NAME = re.compile(r"([0-9]+)-[0-9a-f]{24}")
_PARTS_PER_WRITE = min(os.sysconf("SC_IOV_MAX"), 1024)
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True, slots=True)
class Found:
    """An object as the disk shows it; ``used_ns`` is its last use, nanoseconds since the epoch."""

    key: Key
    size_bytes: int
    used_ns: int


@dataclass(slots=True)
class Temporary:
    """A private file that its writer holds open and locked; ``size_bytes`` is what it will have."""

    name: str
    descriptor: int
    size_bytes: int
    published: bool = False
    closed: bool = False

    def close(self) -> None:
        """Close the file, once.  Network file systems report late write errors here, so it is
        closed before it is published (under the store's lock, because its own lock goes with it).
        """
        if not self.closed:
            self.closed = True
            os.close(self.descriptor)


@contextmanager
def translated(what: str, *, absent: type[StoreError] = NotFound) -> Iterator[None]:
    """Turn every ``OSError`` of the block into a store error that names no path.

    ``absent`` is the error for a file that is not there.
    """
    try:
        yield
    except OSError as error:
        raise store_error(what, error, absent=absent) from error


def store_error(what: str, error: OSError, *, absent: type[StoreError] = NotFound) -> StoreError:
    """The store error for an ``OSError``; it names no path."""
    reason = os.strerror(error.errno) if error.errno else type(error).__name__
    sentence = f"{what}: {reason}"
    if error.errno in _NO_ROOM:
        return StoreFull(sentence)
    if error.errno == errno.ENOENT:
        return absent(sentence)
    if error.errno == errno.ETIMEDOUT:
        return StoreTimeout(sentence)
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return StoreError(f"{what}: a symbolic link or foreign file is in its place")
    return StoreError(sentence)


@contextmanager
def folder(name: str, *, inside: int | None = None) -> Iterator[int]:
    """Descriptor of a folder that is no symbolic link."""
    descriptor = os.open(name, _FOLDER, dir_fd=inside)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def make_private_folder(name: str, *, inside: int | None = None) -> bool:
    """Make a folder of mode 0700; False where there is one."""
    try:
        os.mkdir(name, 0o700, dir_fd=inside)
    except FileExistsError:
        return False
    os.chmod(name, 0o700, dir_fd=inside)  # the umask may have taken bits away
    return True


def claim_folder(name: str, *, inside: int) -> None:
    """Make or take over a folder, and see that it is ours and closed to others."""
    make_private_folder(name, inside=inside)
    with folder(name, inside=inside) as descriptor:
        status = os.fstat(descriptor)
        if os.geteuid() not in (0, status.st_uid):
            raise PermissionError(errno.EPERM, "the folder belongs to somebody else")
        if stat.S_IMODE(status.st_mode) != 0o700:
            os.fchmod(descriptor, 0o700)


@contextmanager
def shard(root: str, key: Key, *, make: bool = False, sync: bool = False) -> Iterator[int]:
    """Descriptor of the folder in which an object lies; ``make`` makes it where it is absent."""
    name = key.name[:SHARD_DIGITS]
    with folder(f"{root}/{key.kind.value}") as above:
        if make and make_private_folder(name, inside=above) and sync:
            os.fsync(above)
        with folder(name, inside=above) as descriptor:
            yield descriptor


def regular(name: str, *, inside: int) -> os.stat_result | None:
    """Status of a regular file, None where there is nothing.

    Raises
    ------
    OSError
        ``ELOOP``: something else stands in its place.
    """
    try:
        status = os.stat(name, dir_fd=inside, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return status


def objects(root: str, kind: Kind) -> Iterator[Found]:
    """Every object of a kind, in no order; what is not an object is passed over."""
    with folder(f"{root}/{kind.value}") as above:
        for name in names_in(above):
            if len(name) == SHARD_DIGITS:
                yield from _objects_of_shard(name, kind, inside=above)


def names_in(descriptor: int) -> list[str]:
    """Names in an open folder, in no order."""
    with os.scandir(descriptor) as entries:
        return [entry.name for entry in entries]


def _objects_of_shard(name: str, kind: Kind, *, inside: int) -> Iterator[Found]:
    try:
        with folder(name, inside=inside) as descriptor, os.scandir(descriptor) as entries:
            for entry in entries:
                if not (Key.is_name(entry.name) and entry.name.startswith(name)):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # deleted since the folder was read
                if stat.S_ISREG(status.st_mode):
                    yield Found(Key(kind, entry.name), status.st_size, status.st_mtime_ns)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise  # anything but a foreign file or link in the place of a folder


def write_all(descriptor: int, views: Sequence[memoryview]) -> None:
    """Write the views one after another without joining them; short writes are taken up."""
    pending = list(reversed(views))
    while pending:
        written = os.writev(descriptor, pending[: -_PARTS_PER_WRITE - 1 : -1])
        if written <= 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        while written:
            view = pending.pop()
            if written < view.nbytes:
                pending.append(view[written:])
                break
            written -= view.nbytes


def read_all(descriptor: int, offset: int, view: memoryview) -> int:
    """Fill the view from ``offset`` on, taking up short reads; returns the bytes read."""
    done = 0
    while done < view.nbytes:
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if count == 0:
            break
        done += count
    return done


def make_temporary(size_bytes: int, *, inside: int) -> Temporary:
    """Make and lock a private file whose name carries the size that it is going to have."""
    name = f"{size_bytes}-{secrets.token_hex(12)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o600, dir_fd=inside)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.fchmod(descriptor, 0o600)
    except BaseException:
        os.close(descriptor)
        os.unlink(name, dir_fd=inside)
        raise
    return Temporary(name, descriptor, size_bytes)


def temporary_sizes(*, inside: int) -> Iterator[tuple[str, int]]:
    """Name and final size of every temporary file."""
    for name in names_in(inside):
        match = _TEMPORARY_NAME.fullmatch(name)
        if match is not None:
            yield name, int(match.group(1))


def reclaim(*, inside: int) -> int:
    """Remove the temporary files of dead writers; returns the bytes that were set aside for them.

    The caller holds the store's lock, so no file is seen between its making and its locking.
    """
    freed = 0
    for name, size_bytes in abandoned(inside=inside):
        os.unlink(name, dir_fd=inside)
        freed += size_bytes
    return freed


def abandoned(*, inside: int) -> Iterator[tuple[str, int]]:
    """Name and final size of the temporary files of dead writers; under the store's lock."""
    for name, size_bytes in temporary_sizes(inside=inside):
        if _is_abandoned(name, inside=inside):
            yield name, size_bytes


def _is_abandoned(name: str, *, inside: int) -> bool:
    descriptor = os.open(name, READ, dir_fd=inside)
    try:
        return not is_locked(descriptor)
    finally:
        os.close(descriptor)


def is_locked(descriptor: int) -> bool:
    """Whether somebody else has locked the file; if nobody has, it is locked until closed."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def read_small(name: str, *, limit_bytes: int, inside: int) -> bytes:
    """The first bytes of a small file, none where there is no file."""
    try:
        descriptor = os.open(name, READ, dir_fd=inside)
    except FileNotFoundError:
        return b""
    try:
        return read_open(descriptor, limit_bytes=limit_bytes)
    finally:
        os.close(descriptor)


def read_open(descriptor: int, *, limit_bytes: int) -> bytes:
    """The first bytes of an open file."""
    data = bytearray(min(os.fstat(descriptor).st_size, limit_bytes))
    return bytes(data[: read_all(descriptor, 0, memoryview(data))])


def replace_small(name: str, data: bytes, *, inside: int) -> None:
    """Write a small private file anew.  Who dies in between leaves it absent or cut short, so it
    must show its own end."""
    unlink_if_there(name, inside=inside)
    descriptor = os.open(name, MAKE, 0o600, dir_fd=inside)
    try:
        os.fchmod(descriptor, 0o600)
        write_all(descriptor, [memoryview(data)] if data else [])
    finally:
        os.close(descriptor)


def unlink_if_there(name: str, *, inside: int) -> None:
    """Remove a file that may be gone."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=inside)
