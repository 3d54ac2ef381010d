"""How many bytes a directory store holds, known without a scan, and what gives way.

The file ``usage`` in the store carries the count and is the store's lock: whoever makes, names or
removes a file holds it (``flock``) for that moment, never while bytes are written.  Room is set
aside before it is used and given back after it is free, so a process that dies in between leaves
the count too high, never too low; the next scan puts it right.  A scan happens only when something
must be evicted, when what was left behind is swept up, or when the machine was restarted (the count
is not synced to disk).
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvbaton.errors import StoreFull
from kvbaton.stores.base import Key, Kind
from kvbaton.stores.directory_files import (
    TEMPORARY,
    Found,
    folder,
    objects,
    regular,
    shard,
    temporary_sizes,
)
from kvbaton.stores.eviction import may_be_evicted, rank_of
from kvbaton.stores.lease_clock import boot_token

_RECORD = re.compile(rb"([0-9a-f-]+) (\d{20})\n")


class Usage:
    """The count, while its lock is held."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, *, of_this_boot: bool = False) -> int | None:
        """Bytes held, or None where the count is absent or damaged (or of an earlier boot)."""
        match = _RECORD.fullmatch(os.pread(self._descriptor, 256, 0))
        if match is None or (of_this_boot and match.group(1).decode() != boot_token()):
            return None
        return int(match.group(2))

    def close_to_others(self) -> None:
        """Give the file mode 0600, whatever the umask made of it."""
        os.fchmod(self._descriptor, 0o600)

    def write(self, used_bytes: int) -> None:
        """Replace the count; a write that fails half way leaves none, not a wrong one."""
        record = f"{boot_token()} {max(0, used_bytes):020d}\n".encode()
        try:
            if os.pwrite(self._descriptor, record, 0) != len(record):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        except OSError:
            os.ftruncate(self._descriptor, 0)
            raise


class Account:
    """Counts and evicts for one store; one per open store, in agreement through ``usage``.

    Parameters
    ----------
    root
        The store's directory.
    max_bytes
        Size limit, or None.
    leased
        What may not be evicted now, asked for under the lock.
    """

    def __init__(
        self, root: str, max_bytes: int | None, leased: Callable[[], frozenset[Key]]
    ) -> None:
        self._root = root
        self._max_bytes = max_bytes
        self._leased = leased
        self._candidates: deque[Found] = deque()

    @contextmanager
    def locked(self) -> Iterator[Usage]:
        """The count, with the store's lock held against other threads and processes."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(f"{self._root}/usage", flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            try:
                yield Usage(descriptor)
            finally:
                # Closing is not enough: a process forked meanwhile shares the descriptor.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)

    def used(self, usage: Usage) -> int:
        """Bytes held and set aside."""
        known = usage.read()
        return self._scan()[0] if known is None else known

    def recount(self, usage: Usage) -> None:
        """Count afresh where the count is absent, damaged or of an earlier boot."""
        if usage.read(of_this_boot=True) is None:
            usage.close_to_others()
            self.count(usage)

    def count(self, usage: Usage) -> None:
        """Count afresh."""
        usage.write(self._scan()[0])

    def remove(self, usage: Usage, name: str, *, size_bytes: int, inside: int) -> None:
        """Remove a file and what was counted for it."""
        used = self.used(usage)  # first, so that nothing but the writing can fail once it is gone
        os.unlink(name, dir_fd=inside)
        usage.write(used - size_bytes)

    def make_room(self, used_bytes: int, size_bytes: int) -> int:
        """Evict until ``size_bytes`` more fit under the limit; returns the bytes then held.

        Raises
        ------
        StoreFull
            Everything that could give way has, and it does not fit.
        """
        if self._max_bytes is None:
            return used_bytes
        scanned, leased = False, None
        while used_bytes + size_bytes > self._max_bytes:
            if not scanned and not self._may_go_unseen():
                used_bytes, self._candidates = self._scan()
                scanned = True
            elif self._candidates:
                leased = self._leased() if leased is None else leased
                candidate = self._candidates.popleft()
                if candidate.key not in leased:
                    used_bytes -= self._evict(candidate)
            else:
                raise StoreFull(
                    f"{size_bytes} bytes are needed, of the {self._max_bytes} that the store may "
                    f"hold {used_bytes} are being written or may not be evicted"
                )
        return used_bytes

    def _may_go_unseen(self) -> bool:
        """Whether the next candidate of an earlier scan is still next.  What came since then is
        younger, but it may be of a kind that gives way before the kinds of a higher rank."""
        return bool(self._candidates) and rank_of(self._candidates[0].key) == 0

    def _scan(self) -> tuple[int, deque[Found]]:
        """Bytes held and set aside, and what may be evicted in the order in which it gives way."""
        with folder(f"{self._root}/{TEMPORARY}") as temporary:
            used = sum(size for _, size in temporary_sizes(inside=temporary))
        found = [item for kind in Kind for item in objects(self._root, kind)]
        going = [item for item in found if may_be_evicted(item.key)]
        going.sort(key=lambda f: (rank_of(f.key), f.used_ns, f.key.name))
        return used + sum(f.size_bytes for f in found), deque(going)

    def _evict(self, candidate: Found) -> int:
        """Remove an object unless it is gone or was used since the scan; returns bytes freed."""
        name = candidate.key.name
        try:
            with shard(self._root, candidate.key) as inside:
                status = regular(name, inside=inside)
                if status is None or status.st_mtime_ns != candidate.used_ns:
                    return 0
                os.unlink(name, dir_fd=inside)
        except FileNotFoundError:
            return 0  # the folder went away
        return status.st_size
