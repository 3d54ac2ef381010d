"""A store for one run: in shared memory where there is room, and gone when the run ends."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from kvbaton.stores import Store, open_store

SHARED_MEMORY = Path("/dev/shm")
_PREFIX = "kvbaton-run-"
_LOCK = "lock"
_YOUNG_S = 60.0
"""A folder without a lock that is younger than this may be about to get one."""


@contextmanager
def scratch_store(needed_bytes: int, *, shared_memory: Path = SHARED_MEMORY) -> Iterator[Store]:
    """A directory store that exists inside of the block only.

    Those of runs that were killed are removed, too.

    Parameters
    ----------
    needed_bytes
        Room that the run may need; with less than that in shared memory it is on the disk.
    shared_memory
        A file system in memory.
    """
    parent = _roomy(shared_memory, needed_bytes)
    _reclaim(parent)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    try:
        with FileLock(folder / _LOCK), open_store(f"dir://{folder / 'store'}") as store:
            yield store
    finally:
        _remove(folder)


def _roomy(shared_memory: Path, needed_bytes: int) -> Path:
    with contextlib.suppress(OSError):  # there is none, or it is not for us
        if shutil.disk_usage(shared_memory).free >= needed_bytes:
            with tempfile.TemporaryFile(dir=shared_memory):
                return shared_memory
    return Path(tempfile.gettempdir())


def _reclaim(parent: Path) -> None:
    """Remove the folders of dead runs: old ones whose lock is free."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, Timeout):
            if time.time() - folder.stat().st_mtime > _YOUNG_S:
                with FileLock(folder / _LOCK, timeout=0):
                    _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a folder, also while an abandoned writer still writes into it.

    Under its new name no writer finds it; one that already is inside may make the removal fail,
    and is done soon.
    """
    gone = folder.with_name(f"{folder.name}.gone")
    with contextlib.suppress(FileNotFoundError):
        folder.rename(gone)
    for _ in range(100):
        shutil.rmtree(gone, ignore_errors=True)
        if not gone.exists():
            return
        time.sleep(0.01)
