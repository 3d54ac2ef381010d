"""``dir:///path``: a store in a directory, on a disk or in shared memory.

Layout: ``segments/ab/<64 hex>`` and likewise ``batons``, ``transcripts``, ``prefixes``, ``spent``;
``tmp`` for what is being written; ``leases`` for what may not be removed now; ``marks`` for what a
collection remembers; ``usage`` for the count of bytes and the lock.  Folders are 0700, files 0600.

An object is written to a private temporary file and renamed into place, so it is there whole or
not at all.  A writer that is killed leaves a temporary file without a lock; the next writer
removes it.

**What is synced.**  Batons, transcripts and spent claims are synced to disk before they become
visible and their names before ``put`` returns: nothing can replace the context, and what was used
once may not be used again after a power failure.  Segments and
prefix records are not: a power failure may lose or truncate them, which a digest shows and a
prefill repairs, and a truncated segment is replaced by the next put of its address.  The price of
``sync=all`` is one disk flush per segment on the way of the hand-off, tens of milliseconds on
ordinary disks; on shared memory it is free, and useless.  A killed process loses nothing in
either case: the kernel has the bytes.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, cast

from kvbaton.errors import InputError, StoreError, StoreFull
from kvbaton.stores.base import (
    Entry,
    Key,
    Kind,
    Reader,
    Store,
    byte_views,
    claim_by_put,
)
from kvbaton.stores.directory_account import Account, Usage
from kvbaton.stores.directory_files import (
    TEMPORARY,
    Temporary,
    abandoned,
    claim_folder,
    folder,
    make_private_folder,
    make_temporary,
    objects,
    read_small,
    reclaim,
    regular,
    replace_small,
    shard,
    translated,
    write_all,
)
from kvbaton.stores.directory_reader import DirectoryReader
from kvbaton.stores.lease_clock import SteadyClock, waking_clock
from kvbaton.stores.lease_files import LEASES, FileHolding, LeaseFolder
from kvbaton.stores.leases import (
    DEFAULT_TTL_S,
    MAX_MARKS_BYTES,
    Debris,
    Lease,
    LeaseInfo,
    LeaseTerms,
    Removal,
    checked_keys,
)
from kvbaton.stores.urls import StoreURL

Sync = Literal["batons", "all"]
_MARKS = "marks"
_AT_ONCE = 64
"""Objects that a collection looks at before it lets others have the store's lock."""

_SYNCED: dict[str, frozenset[Kind]] = {
    "batons": frozenset({Kind.BATON, Kind.TRANSCRIPT, Kind.SPENT}),
    "all": frozenset(Kind),
}


class DirectoryStore(Store):
    """Objects as files; safe for several threads and processes at once.

    Parameters
    ----------
    path
        The directory; made, with mode 0700, where it does not exist.
    max_bytes
        Size limit.  When a put would pass it, the objects that were not used for longest give
        way, segments and prefix records before batons and transcripts; spent claims never do.
    sync
        What is flushed to disk before it becomes visible; see the module.
    clock
        By which leases age, for tests; by default the time for which the machine has been awake.

    Raises
    ------
    StoreError
        The directory cannot be made or used, or its folders belong to somebody else.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_bytes: int | None = None,
        sync: Sync = "batons",
        clock: SteadyClock | None = None,
    ) -> None:
        if max_bytes is not None and max_bytes <= 0:
            raise InputError(f"max_bytes must be positive, not {max_bytes}")
        if sync not in _SYNCED:
            raise InputError(f"sync is not {sync!r}", hint='it is "batons" or "all"')
        self._root = str(Path(path).absolute())
        self._max_bytes = max_bytes
        self._synced = _SYNCED[sync]
        self._clock = clock or waking_clock()
        self._leases = LeaseFolder(self._root, self._clock)
        self._account = Account(self._root, max_bytes, self._leases.protected)
        options = [] if max_bytes is None else [("max_bytes", str(max_bytes))]
        options += [] if sync == "batons" else [("sync", sync)]
        self.url = str(StoreURL("dir", self._root, tuple(options)))
        with translated("the store's directory cannot be used", absent=StoreError):
            self._prepare()

    @classmethod
    def from_url(cls, url: StoreURL) -> DirectoryStore:
        """``dir:///absolute/path?max_bytes=2GB&sync=all``."""
        url.allow_options("max_bytes", "sync")
        if not url.location.startswith("/"):
            raise InputError("dir:// needs an absolute path", hint="write dir:///path")
        sync = cast("Sync", url.option("sync") or "batons")
        return cls(url.location, max_bytes=url.size_option("max_bytes"), sync=sync)

    def _prepare(self) -> None:
        Path(self._root).parent.mkdir(parents=True, exist_ok=True)
        make_private_folder(self._root)
        root = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in (*(kind.value for kind in Kind), TEMPORARY, LEASES):
                claim_folder(name, inside=root)
        finally:
            os.close(root)
        with self._account.locked() as usage:
            self._account.recount(usage)

    def put(self, key: Key, parts: Sequence[memoryview | bytes]) -> int:
        """See :meth:`Store.put`; the parts are written as they are, without being joined."""
        views = byte_views(parts)
        size_bytes = sum(view.nbytes for view in views)
        with translated(f"{key} could not be stored", absent=StoreError):
            if self._renew(key, size_bytes):
                return 0
            with self._temporary(size_bytes) as temporary:
                write_all(temporary.descriptor, views)
                if key.kind in self._synced:
                    os.fsync(temporary.descriptor)
                self._publish(key, temporary)
                return size_bytes if temporary.published else 0

    def open(self, key: Key) -> Reader:
        """See :meth:`Store.open`; counts as a use.  The reader outlives a deletion."""
        return self._open(key, use=True)

    def look(self, key: Key) -> Reader:
        """See :meth:`Store.look`."""
        return self._open(key, use=False)

    def _open(self, key: Key, *, use: bool) -> Reader:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with translated(f"{key} cannot be opened"):
            with shard(self._root, key) as inside:
                descriptor = os.open(key.name, flags, dir_fd=inside)
            return DirectoryReader(key, descriptor, use=use)

    def delete(self, key: Key) -> bool:
        """See :meth:`Store.delete`; open readers keep their bytes."""
        with translated(f"{key} cannot be deleted"), self._account.locked() as usage:
            try:
                with shard(self._root, key) as inside:
                    status = os.stat(key.name, dir_fd=inside, follow_symlinks=False)
                    counted = status.st_size if stat.S_ISREG(status.st_mode) else 0
                    self._account.remove(usage, key.name, size_bytes=counted, inside=inside)
            except FileNotFoundError:
                return False
            return True

    def claim(self, key: Key, data: bytes) -> bool:
        """See :meth:`Store.claim`; decided under the store's lock, and synced."""
        return claim_by_put(self, key, data)

    def exists(self, key: Key) -> bool:
        """See :meth:`Store.exists`; does not count as a use."""
        with translated(f"{key} cannot be looked up"):
            try:
                with shard(self._root, key) as inside:
                    return regular(key.name, inside=inside) is not None
            except FileNotFoundError:
                return False

    def list(self, kind: Kind) -> Iterator[Entry]:
        """See :meth:`Store.list`; a snapshot."""
        with translated(f"{kind.value} cannot be listed"):
            found = sorted(objects(self._root, kind), key=lambda f: (f.used_ns, f.key.name))
        return (Entry(f.key, f.size_bytes, f.used_ns / 1e9) for f in found)

    # -- leases and collection --------------------------------------------------------------------

    def lease(
        self,
        keys: Iterable[Key] = (),
        *,
        owner: str,
        ttl_s: float = DEFAULT_TTL_S,
        beats: bool = True,
    ) -> Lease:
        """See :meth:`Store.lease`; a file that its owner holds locked."""
        terms, wanted = LeaseTerms(owner, ttl_s), checked_keys(keys)
        holding = FileHolding(
            self._root, terms, wanted, locked=self._account.locked, clock=self._clock
        )
        return Lease(terms, holding, wanted, beats=beats)

    def leases(self) -> builtins.list[LeaseInfo]:
        """See :meth:`Store.leases`."""
        with translated("the leases cannot be read", absent=StoreError), self._account.locked():
            return self._leases.listed()

    def remove_unused(self, entries: Sequence[Entry]) -> builtins.list[Removal]:
        """See :meth:`Store.remove_unused`; a few at a time under the store's lock."""
        found: builtins.list[Removal] = []
        with translated("what is unused cannot be removed", absent=StoreError):
            for first in range(0, len(entries), _AT_ONCE):
                with self._account.locked() as usage:
                    leased = self._leases.protected()
                    some = entries[first : first + _AT_ONCE]
                    found += [self._remove_unused(usage, entry, leased) for entry in some]
        return found

    def _remove_unused(self, usage: Usage, entry: Entry, leased: frozenset[Key]) -> Removal:
        name = entry.key.name
        if entry.key in leased:
            return Removal.LEASED
        try:
            with shard(self._root, entry.key) as inside:
                status = regular(name, inside=inside)
                if status is None:
                    return Removal.ABSENT
                if status.st_mtime_ns / 1e9 != entry.modified_s:
                    return Removal.USED
                self._account.remove(usage, name, size_bytes=status.st_size, inside=inside)
        except FileNotFoundError:
            return Removal.ABSENT  # the folder went away
        return Removal.DELETED

    def sweep(self) -> Debris:
        """See :meth:`Store.sweep`; what is being written by others stays.  Counts the bytes afresh:
        who died between a removal and the count has left it too high."""
        with self._left_behind() as (usage, inside, found):
            reclaim(inside=inside)
            self._leases.protected()
            self._account.count(usage)
        return found

    def debris(self) -> Debris:
        """See :meth:`Store.debris`."""
        with self._left_behind() as (_, _, found):
            return found

    @contextmanager
    def _left_behind(self) -> Iterator[tuple[Usage, int, Debris]]:
        with (
            translated("what was left behind cannot be removed", absent=StoreError),
            folder(f"{self._root}/{TEMPORARY}") as inside,
            self._account.locked() as usage,
        ):
            sizes = [size_bytes for _, size_bytes in abandoned(inside=inside)]
            yield usage, inside, Debris(len(sizes), sum(sizes), self._leases.dead())

    def read_marks(self) -> bytes:
        """See :meth:`Store.read_marks`."""
        with self._marked_in() as root:
            return read_small(_MARKS, limit_bytes=MAX_MARKS_BYTES, inside=root)

    def write_marks(self, data: bytes) -> None:
        """See :meth:`Store.write_marks`."""
        with self._marked_in() as root:
            replace_small(_MARKS, data, inside=root)

    @contextmanager
    def _marked_in(self) -> Iterator[int]:
        with translated("the marks of a collection cannot be used", absent=StoreError):
            descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                with self._account.locked():
                    yield descriptor
            finally:
                os.close(descriptor)

    # -- size -------------------------------------------------------------------------------------

    def used_bytes(self) -> int:
        """Bytes of all objects, and what is set aside for those being written."""
        with translated("the store's size cannot be read"), self._account.locked() as usage:
            return self._account.used(usage)

    def free_bytes(self) -> int | None:
        """See :meth:`Store.free_bytes`; None on file systems without a size."""
        with translated("the free space cannot be read"):
            free = self._disk_free_bytes()
        if self._max_bytes is None:
            return free
        left = max(0, self._max_bytes - self.used_bytes())
        return left if free is None else min(left, free)

    def _disk_free_bytes(self) -> int | None:
        status = os.statvfs(self._root)
        return status.f_bavail * status.f_frsize if status.f_blocks else None

    def _renew(self, key: Key, size_bytes: int) -> bool:
        """Renew the age of an object that is there.  Under the lock: it cannot be evicted between
        our seeing it and its being young again."""
        if not self.exists(key):
            return False
        with self._account.locked(), shard(self._root, key) as inside:
            return self._renew_locked(key, size_bytes, inside=inside)

    def _renew_locked(self, key: Key, size_bytes: int, *, inside: int) -> bool:
        status = regular(key.name, inside=inside)
        if status is None or _is_torn(key, status.st_size, size_bytes):
            return False
        now_ns = time.time_ns()
        os.utime(key.name, ns=(now_ns, now_ns), dir_fd=inside, follow_symlinks=False)
        return True

    @contextmanager
    def _temporary(self, size_bytes: int) -> Iterator[Temporary]:
        """A temporary file with room set aside for it; gone again unless it was published."""
        with folder(f"{self._root}/{TEMPORARY}") as inside:
            temporary = self._set_aside(size_bytes, inside=inside)
            try:
                yield temporary
            finally:
                temporary.close()
                if not temporary.published:
                    self._discard(temporary, inside=inside)

    def _discard(self, temporary: Temporary, *, inside: int) -> None:
        # Closed and so unlocked, it may already have been reclaimed like a dead writer's.
        with contextlib.suppress(FileNotFoundError), self._account.locked() as usage:
            size_bytes = temporary.size_bytes
            self._account.remove(usage, temporary.name, size_bytes=size_bytes, inside=inside)

    def _set_aside(self, size_bytes: int, *, inside: int) -> Temporary:
        if self._max_bytes is not None and size_bytes > self._max_bytes:
            raise StoreFull(f"{size_bytes} bytes are needed, the store may hold {self._max_bytes}")
        with self._account.locked() as usage:
            used = self._account.used(usage) - reclaim(inside=inside)
            used = self._account.make_room(used, size_bytes)
            free = self._disk_free_bytes()
            if free is not None and size_bytes > free:
                usage.write(used)
                raise StoreFull(f"{size_bytes} bytes are needed, {free} are free")
            usage.write(used + size_bytes)
            try:
                return make_temporary(size_bytes, inside=inside)
            except BaseException:
                usage.write(used)
                raise

    def _publish(self, key: Key, temporary: Temporary) -> None:
        """Rename into place, unless another writer was faster.  All writers rename under the lock,
        so nobody's object is replaced."""
        sync = key.kind in self._synced
        now_ns = time.time_ns()
        os.utime(temporary.descriptor, ns=(now_ns, now_ns))
        with (
            self._account.locked() as usage,
            folder(f"{self._root}/{TEMPORARY}") as source,
            shard(self._root, key, make=True, sync=sync) as inside,
        ):
            if self._renew_locked(key, temporary.size_bytes, inside=inside):
                return
            self._remove_torn(key, usage, inside=inside)
            temporary.close()
            os.rename(temporary.name, key.name, src_dir_fd=source, dst_dir_fd=inside)
            temporary.published = True
            if sync:
                self._sync_name(key, temporary, inside=inside)

    def _remove_torn(self, key: Key, usage: Usage, *, inside: int) -> None:
        torn = regular(key.name, inside=inside)
        if torn is not None:
            self._account.remove(usage, key.name, size_bytes=torn.st_size, inside=inside)

    def _sync_name(self, key: Key, temporary: Temporary, *, inside: int) -> None:
        try:
            os.fsync(inside)
        except OSError:
            # The name may not last, so it must not be seen: back to a temporary, then away.
            with folder(f"{self._root}/{TEMPORARY}") as target:
                os.rename(key.name, temporary.name, src_dir_fd=inside, dst_dir_fd=target)
            temporary.published = False
            raise


def _is_torn(key: Key, held_bytes: int, size_bytes: int) -> bool:
    """Whether a power failure cut a segment short: its address fixes its size."""
    return key.kind is Kind.SEGMENT and held_bytes != size_bytes
