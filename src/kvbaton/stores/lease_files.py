"""Leases of a directory store: one file each in ``leases``, as ``docs/spec/leases.md`` says.

The owner holds its file open and locked (``flock``) for its life, so that a lock which can be
taken shows a dead owner at once, whatever the process or container it was.  Files are made,
extended, judged and removed under the store's lock; only beats and releases go without it.
Nothing is synced: after a restart of the machine no owner lives.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from kvbaton.errors import StoreError
from kvbaton.stores.base import Key, Kind
from kvbaton.stores.directory_files import (
    MAKE,
    READ,
    folder,
    is_locked,
    names_in,
    read_open,
    read_small,
    regular,
    replace_small,
    translated,
    unlink_if_there,
    write_all,
)
from kvbaton.stores.lease_clock import SteadyClock
from kvbaton.stores.leases import MAX_KEYS, MAX_TTL_S, LeaseInfo, LeaseState, LeaseTerms

LEASES = "leases"
_KINDS = frozenset(kind.value for kind in Kind)
_NAME = re.compile(r"[0-9a-f]{24}")
_SEEN_NAME = re.compile(r"([0-9a-f]{24})~[0-9a-z-]{1,80}")
_HEADER = re.compile(
    rb"kvbaton-lease 1 (held|left) ttl_ms=(\d{10}) beats=(\d{16}) at_ms=(\d{16}) "
    rb"clock=([0-9a-z-]{1,80})\n"
)
_SEEN = re.compile(rb"beats=(\d{16}) at_ms=(\d{16})\n")
_MAX_FILE_BYTES = 1 << 23
"""More than ``MAX_KEYS`` lines with a long owner; what lies beyond is not read."""

Locked = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class _Beat:
    """The first line of a lease file."""

    held: bool
    ttl_ms: int
    beats: int
    at_ms: int
    clock: str

    def encode(self) -> bytes:
        word = "held" if self.held else "left"
        line = (
            f"kvbaton-lease 1 {word} ttl_ms={self.ttl_ms:010d} beats={self.beats:016d} "
            f"at_ms={self.at_ms:016d} clock={self.clock}\n"
        )
        return line.encode("ascii")

    @classmethod
    def parse(cls, data: bytes) -> _Beat | None:
        match = _HEADER.match(data)
        if match is None:
            return None
        word, ttl_ms, beats, at_ms, clock = match.groups()
        return cls(word == b"held", int(ttl_ms), int(beats), int(at_ms), clock.decode())


_UNKNOWN = _Beat(held=True, ttl_ms=int(MAX_TTL_S * 1000), beats=0, at_ms=0, clock="")
"""What is believed of a first line that says nothing: the longest time to live."""


def _now_ms(clock: SteadyClock) -> int:
    return max(0, int(clock.now_s() * 1000))


class FileHolding:
    """A lease file as its owner has it: open, locked, and beaten by counting in its first line."""

    def __init__(
        self,
        root: str,
        terms: LeaseTerms,
        keys: Iterable[Key],
        *,
        locked: Locked,
        clock: SteadyClock,
    ) -> None:
        self._root, self._locked, self._clock = root, locked, clock
        self._ttl_ms, self._beats = int(terms.ttl_s * 1000), 0
        self._name = secrets.token_hex(12)
        self._mutex = threading.Lock()
        self._descriptor: int | None = None
        with translated("the lease could not be made", absent=StoreError), locked():
            self._make(terms.owner, keys)

    def _make(self, owner: str, keys: Iterable[Key]) -> None:
        text = self._line(held=True, ttl_ms=self._ttl_ms) + json.dumps(owner).encode() + b"\n"
        with folder(f"{self._root}/{LEASES}") as inside:
            self._descriptor = os.open(self._name, MAKE, 0o600, dir_fd=inside)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.fchmod(self._descriptor, 0o600)
                write_all(self._descriptor, [memoryview(text + _lines(keys))])
            except BaseException:
                self.drop()
                raise

    def _line(self, *, held: bool, ttl_ms: int) -> bytes:
        at_ms = _now_ms(self._clock)
        return _Beat(held, ttl_ms, self._beats, at_ms, self._clock.name).encode()

    def add(self, keys: Iterable[Key]) -> bool:
        """Append lines; those of a write that fails half way are taken back."""
        with (
            translated("the lease could not be extended", absent=StoreError),
            self._locked(),
            self._mutex,
        ):
            if not self._exists() or self._descriptor is None:
                return False
            end = os.fstat(self._descriptor).st_size
            try:
                os.lseek(self._descriptor, end, os.SEEK_SET)
                write_all(self._descriptor, [memoryview(_lines(keys))])
            except BaseException:
                os.ftruncate(self._descriptor, end)
                raise
            return True

    def beat(self) -> bool:
        """Count in the first line, in place."""
        with translated("the lease could not be renewed", absent=StoreError), self._mutex:
            if not self._exists():
                return False
            self._beats += 1
            self._rewrite(self._line(held=True, ttl_ms=self._ttl_ms))
            return True

    def confirm(self) -> bool:
        """See :meth:`Holding.confirm`."""
        with translated("the lease could not be renewed", absent=StoreError), self._locked():
            return self.beat()

    def linger(self, after_s: float) -> None:
        """Say so in the first line, then let go of the lock."""
        with (
            translated("the delay of a release could not be written", absent=StoreError),
            self._mutex,
        ):
            if not self._exists() or self._descriptor is None:
                return
            self._beats += 1
            self._rewrite(self._line(held=False, ttl_ms=max(1, int(after_s * 1000))))
            self._close(self._descriptor)

    def drop(self) -> None:
        """Remove the file, then let go of it.  A file that cannot be removed is that of a dead
        owner from then on."""
        with self._mutex:
            if self._descriptor is None:
                return
            try:
                with contextlib.suppress(OSError), folder(f"{self._root}/{LEASES}") as inside:
                    os.unlink(self._name, dir_fd=inside)
            finally:
                self._close(self._descriptor)

    def _exists(self) -> bool:
        """Whether nobody has ended it: who does removes the file."""
        return self._descriptor is not None and os.fstat(self._descriptor).st_nlink > 0

    def _rewrite(self, line: bytes) -> None:
        if self._descriptor is None or os.pwrite(self._descriptor, line, 0) != len(line):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _close(self, descriptor: int) -> None:
        self._descriptor = None
        with contextlib.suppress(OSError):
            # Closing is not enough: a process forked meanwhile shares the descriptor.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _lines(keys: Iterable[Key]) -> bytes:
    return "".join(f"{key}\n" for key in keys).encode("ascii")


@dataclass(frozen=True, slots=True)
class _Found:
    """A lease file as an observer reads it."""

    name: str
    locked: bool
    beat: _Beat | None
    owner: str
    keys: frozenset[Key]


class LeaseFolder:
    """Reads and judges the leases of a directory store.  The caller holds the store's lock."""

    def __init__(self, root: str, clock: SteadyClock) -> None:
        self._root, self._clock = root, clock

    def protected(self) -> frozenset[Key]:
        """What living leases protect.  Dead ones are removed before this returns, so that an owner
        that comes back finds out before it relies on them."""
        keys: set[Key] = set()
        for found, state in self._judged(reap=True):
            if state is not LeaseState.DEAD:
                keys |= found.keys
        return frozenset(keys)

    def listed(self) -> list[LeaseInfo]:
        """All leases; nothing is changed."""
        return [_info(found, state) for found, state in self._judged(reap=False)]

    def dead(self) -> int:
        """How many of them protect nothing any more; nothing is changed."""
        return sum(info.state is LeaseState.DEAD for info in self.listed())

    def _judged(self, *, reap: bool) -> Iterator[tuple[_Found, LeaseState]]:
        with folder(f"{self._root}/{LEASES}") as inside:
            names = names_in(inside)
            there = {name for name in names if _NAME.fullmatch(name)}
            for name in sorted(there):
                found = _read(name, inside=inside)
                if found is None:
                    continue
                state = self._state(found, note=reap, inside=inside)
                if reap and state is LeaseState.DEAD:
                    unlink_if_there(name, inside=inside)
                    there.discard(name)
                yield found, state
            if reap:
                _remove_orphaned_notes(names, there, inside=inside)

    def _state(self, found: _Found, *, note: bool, inside: int) -> LeaseState:
        held = found.beat is None or found.beat.held
        if held and not found.locked:
            return LeaseState.DEAD
        if self._stood_still(found, note=note, inside=inside):
            return LeaseState.DEAD
        return LeaseState.HELD if held else LeaseState.LINGERING

    def _stood_still(self, found: _Found, *, note: bool, inside: int) -> bool:
        """Whether its count has not changed for longer than it may, on this observer's clock."""
        now_ms, beat = _now_ms(self._clock), found.beat or _UNKNOWN
        ttl_ms = min(beat.ttl_ms, int(MAX_TTL_S * 1000))
        if beat.clock == self._clock.name and beat.at_ms <= now_ms:
            return now_ms - beat.at_ms > ttl_ms
        since_ms = self._first_seen(found.name, beat, now_ms, note=note, inside=inside)
        return now_ms - since_ms > ttl_ms

    def _first_seen(self, name: str, beat: _Beat, now_ms: int, *, note: bool, inside: int) -> int:
        """When somebody with this clock first saw the count that it has now: noted in a file beside
        the lease, so that observers that do not live for long can tell too."""
        path = f"{name}~{self._clock.name}"
        match = _SEEN.fullmatch(read_small(path, limit_bytes=256, inside=inside))
        if match is not None and int(match[1]) == beat.beats and int(match[2]) <= now_ms:
            return int(match[2])
        if note:
            replace_small(
                path, f"beats={beat.beats:016d} at_ms={now_ms:016d}\n".encode(), inside=inside
            )
        return now_ms


def _info(found: _Found, state: LeaseState) -> LeaseInfo:
    beat = found.beat or _UNKNOWN
    return LeaseInfo(found.name, found.owner, beat.ttl_ms / 1000, beat.beats, state, found.keys)


def _read(name: str, *, inside: int) -> _Found | None:
    """A lease file, None where it is gone or no file."""
    try:
        descriptor = os.open(name, READ, dir_fd=inside)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
            return None
        raise
    try:
        if regular(name, inside=inside) is None:
            return None  # released since
        locked = is_locked(descriptor)
        lines = read_open(descriptor, limit_bytes=_MAX_FILE_BYTES).split(b"\n")[:-1]
    finally:
        os.close(descriptor)
    beat = _Beat.parse(lines[0] + b"\n") if lines else None
    return _Found(name, locked, beat, _owner_of(lines), frozenset(_keys_of(lines)))


def _owner_of(lines: list[bytes]) -> str:
    try:
        owner = json.loads(lines[1]) if len(lines) > 1 else ""
    except ValueError:
        return ""
    return owner if isinstance(owner, str) and owner.isprintable() else ""


def _keys_of(lines: list[bytes]) -> Iterator[Key]:
    """Keys in whole lines; a line that is none was cut by the death of its owner, or is of a kind
    that this version does not know and so does not remove."""
    for line in lines[2 : 2 + MAX_KEYS]:
        kind, _, name = line.decode("ascii", "replace").partition("/")
        if kind in _KINDS and Key.is_name(name):
            yield Key(Kind(kind), name)


def _remove_orphaned_notes(names: list[str], there: set[str], *, inside: int) -> None:
    for name in names:
        match = _SEEN_NAME.fullmatch(name)
        if match is not None and match[1] not in there:
            unlink_if_there(name, inside=inside)
