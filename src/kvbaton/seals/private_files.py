"""Files that only their owner may read: written aside, then put in place whole.

A reader sees the old file or the new one, and two writers that make the same file agree on one.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvbaton.errors import SettingsError

_OTHERS = 0o077
_OTHERS_WRITE = 0o022


def make_folder(path: Path) -> None:
    """Make a folder that only its owner may enter; one that is there stays as it is."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def check_folder(path: Path, what: str) -> None:
    """Refuse a folder in which others can put files.

    Raises
    ------
    SettingsError
        It belongs to another user, or others may write into it.
    OSError
        It is not there.
    """
    info = path.stat()
    _check_owner(info, path, what)
    if info.st_mode & _OTHERS_WRITE:
        raise SettingsError(f"others may write into {what}", at=str(path), hint="chmod 700 it")


def read_private(path: Path, what: str, *, limit_bytes: int) -> tuple[bytes, os.stat_result]:
    """The bytes of a file and the status that it had when they were read.

    Raises
    ------
    SettingsError
        It belongs to another user, others may read it, or it is too large.
    OSError
        It is not there, or cannot be read.
    """
    with path.open("rb") as file:
        info = os.fstat(file.fileno())
        _check_owner(info, path, what)
        if info.st_mode & _OTHERS:
            raise SettingsError(f"others may read {what}", at=str(path), hint="chmod 600 it")
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise SettingsError(f"{what} has more than {limit_bytes} bytes", at=str(path))
    return data, info


def _check_owner(info: os.stat_result, path: Path, what: str) -> None:
    if info.st_uid != os.geteuid():
        raise SettingsError(
            f"{what} belongs to another user", at=str(path), hint="chown it to the user who runs"
        )


def write_once(path: Path, data: bytes) -> bool:
    """Make a file; False, and nothing changed, where there is one already."""
    with _aside(path, data) as aside:
        try:
            os.link(aside, path)
        except FileExistsError:
            return False
    _sync_folder(path.parent)
    return True


def write_over(path: Path, data: bytes, *, after_ns: int) -> None:
    """Make or replace a file; it is modified after ``after_ns``, however coarse the clock is.

    Who watches a file by its status would else miss a change of the same length.
    """
    with _aside(path, data) as aside:
        now_ns = aside.stat().st_mtime_ns
        if now_ns <= after_ns:
            os.utime(aside, ns=(now_ns, after_ns + 1))
        aside.replace(path)
    _sync_folder(path.parent)


@contextmanager
def _aside(path: Path, data: bytes) -> Iterator[Path]:
    """A file beside another with these bytes, on the disk; gone at the end if it is still there."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield aside
    finally:
        aside.unlink(missing_ok=True)


def _sync_folder(path: Path) -> None:
    """Make a new name last; a file system that cannot does so in its own time."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
