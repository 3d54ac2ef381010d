"""The trust file: which public keys are known, what each may sign and for whom.

It is canonical JSON, 0600, and read strictly: a file that is damaged, or that others may read, is
an error and trusts nobody.  Readers look at its status each time, so a revocation reaches running
processes at once.  Writers take a lock, write aside and rename.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvbaton.errors import InputError, KvbatonError, SettingsError
from kvbaton.seals.base import KeyStatus, Requirements, TrustedKey
from kvbaton.seals.private_files import make_folder, read_private, write_over
from kvbaton.seals.trust_document import (
    MAX_TRUST_BYTES,
    TrustEntry,
    encode_trust,
    parse_trust,
)

_LOCK_S = 10.0
_WHAT = "the trust file"
_SHORT = 4
"""Digits that an abbreviated key id has at least."""

_Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _Held:
    """What the file said when its status was ``stamp``; ``keys`` are the newest first."""

    stamp: _Stamp | None
    entries: tuple[TrustEntry, ...]
    domains: Mapping[str, Requirements]
    keys: tuple[TrustedKey, ...] = field(init=False)
    found: Mapping[str, TrustedKey] = field(init=False)

    def __post_init__(self) -> None:
        order = sorted(
            range(len(self.entries)), key=lambda i: (self.entries[i].added_ms, i), reverse=True
        )
        object.__setattr__(self, "keys", tuple(self.entries[i].key for i in order))
        object.__setattr__(self, "found", {key.keyid: key for key in self.keys})


_NOTHING = _Held(None, (), {})


class TrustFile:
    """Known keys in a file; one that is not there knows nobody.

    Every method that asks raises ``SettingsError``, with the file and the place in it, where the
    file is damaged, belongs to another user or may be read by others.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._name = os.fspath(path)
        self._held = _NOTHING

    def find(self, keyid: str) -> TrustedKey | None:
        """See :meth:`Trust.find`."""
        return self._now().found.get(keyid)

    def keys(self) -> tuple[TrustedKey, ...]:
        """All keys, the newest first; the same tuple as long as the file stays as it is."""
        return self._now().keys

    def requirements(self, domain: str) -> Requirements:
        """See :meth:`Trust.requirements`."""
        return self._now().domains.get(domain, _NO_REQUIREMENTS)

    def entries(self) -> tuple[TrustEntry, ...]:
        """All keys as they were added, with their times and notes."""
        return self._now().entries

    def domains(self) -> Mapping[str, Requirements]:
        """Domains that ask, or once asked, for anything."""
        return self._now().domains

    def resolve(self, short: str) -> TrustedKey:
        """The key whose id begins with these digits.

        Raises
        ------
        InputError
            No key's does, or those of several do.
        """
        matching = [key for key in self.keys() if len(short) >= _SHORT and _begins(key, short)]
        if not matching:
            raise InputError("no known key has this id", at=short, hint="kvbaton keys list")
        if len(matching) > 1:
            raise InputError(
                f"{len(matching)} keys have an id that begins so", at=short, hint="give more of it"
            )
        return matching[0]

    def add(self, key: TrustedKey, *, note: str = "") -> TrustedKey:
        """Trust a key; one that is known gets the grants and purposes besides its own.

        Raises
        ------
        InputError
            The key was revoked, or a grant is none.
        """
        with self.editing() as edit:
            return edit.add(key, note=note)

    def revoke(self, keyid: str) -> TrustedKey:
        """Void a key and all that it has signed, for good.

        Raises
        ------
        InputError
            The key is not known.
        """
        with self.editing() as edit:
            return edit.set_status(keyid, KeyStatus.REVOKED)

    def retire(self, keyid: str) -> TrustedKey:
        """Let a key sign no more; what it has signed stays good.

        Raises
        ------
        InputError
            The key is not known, or was revoked.
        """
        with self.editing() as edit:
            return edit.set_status(keyid, KeyStatus.RETIRED)

    def require(
        self, domain: str, *, tickets: bool | None = None, encryption: bool | None = None
    ) -> Requirements:
        """Set what a domain asks for; None leaves it as it is."""
        with self.editing() as edit:
            now = edit.domains.get(domain, _NO_REQUIREMENTS)
            wanted = Requirements(
                tickets=now.tickets if tickets is None else tickets,
                encryption=now.encryption if encryption is None else encryption,
            )
            edit.require(domain, wanted)
        return wanted

    @contextmanager
    def editing(self) -> Iterator[TrustEdit]:
        """What the file says now, to be changed: nobody else writes meanwhile.

        It is written at the end if it was changed and nothing was raised.

        Raises
        ------
        SettingsError
            The file cannot be read or written, or somebody else holds its lock.
        """
        with _mapped(self.path), self._locked():
            held = self._now()
            edit = TrustEdit(held.entries, held.domains)
            yield edit
            if edit.changed:
                self._write(edit, held)

    def _now(self) -> _Held:
        held = self._held
        try:
            info = os.stat(self._name)  # noqa: PTH116 - asked in every take: half the time of a Path
        except FileNotFoundError:
            return _NOTHING
        except OSError as error:
            raise _unusable(self.path, error) from error
        if held.stamp != _stamp(info):
            self._held = held = self._read()
        return held

    def _read(self) -> _Held:
        try:
            data, info = read_private(self.path, _WHAT, limit_bytes=MAX_TRUST_BYTES)
        except FileNotFoundError:
            return _NOTHING
        except OSError as error:
            raise _unusable(self.path, error) from error
        try:
            entries, domains = parse_trust(data)
        except KvbatonError as error:
            raise SettingsError(
                f"the trust file is damaged, so nobody is trusted: {error.sentence}",
                at=f"{self.path}: {error.at or '$'}",
                hint=error.hint or "mend it or restore it from a copy; it is not guessed at",
            ) from error
        return _Held(_stamp(info), entries, domains)

    def _write(self, edit: TrustEdit, held: _Held) -> None:
        data = encode_trust(edit.entries, edit.domains)
        write_over(self.path, data, after_ns=held.stamp[0] if held.stamp else 0)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        from filelock import FileLock, Timeout  # slow to import, and most processes only read

        make_folder(self.path.parent)
        lock = FileLock(self.path.with_name(f".{self.path.name}.lock"), _LOCK_S, mode=0o600)
        try:
            lock.acquire()
        except Timeout as error:
            raise SettingsError(
                f"somebody has been changing the trust file for {_LOCK_S:.0f} s", at=str(self.path)
            ) from error
        try:
            yield
        finally:
            lock.release()


class TrustEdit:
    """The entries and domains of a trust file that is being changed."""

    def __init__(self, entries: Sequence[TrustEntry], domains: Mapping[str, Requirements]) -> None:
        self.entries = list(entries)
        self.domains = dict(domains)
        self.changed = False

    def find(self, keyid: str) -> TrustedKey | None:
        """The key with this id."""
        return next((e.key for e in self.entries if e.key.keyid == keyid), None)

    def add(self, key: TrustedKey, *, note: str = "") -> TrustedKey:
        """See :meth:`TrustFile.add`."""
        known = self.find(key.keyid)
        if known is None:
            self.entries.append(TrustEntry(key, time.time_ns() // 1_000_000, note))
            self.changed = True
            return key
        if known.status is KeyStatus.REVOKED:
            raise InputError(
                "this key was revoked, and stays so",
                at=key.keyid,
                hint="its holder makes a new one: kvbaton keys generate",
            )
        grants = tuple(dict.fromkeys(known.grants + key.grants))
        wider = replace(known, grants=grants, purposes=known.purposes | key.purposes)
        self._put(wider, note=note or None)
        return wider

    def set_status(self, keyid: str, status: KeyStatus) -> TrustedKey:
        """Revoke or retire a key."""
        known = self.find(keyid)
        if known is None:
            raise InputError("no known key has this id", at=keyid, hint="kvbaton keys list")
        if known.status is KeyStatus.REVOKED and status is not KeyStatus.REVOKED:
            raise InputError("this key was revoked, and stays so", at=keyid)
        changed = replace(known, status=status)
        self._put(changed)
        return changed

    def require(self, domain: str, wanted: Requirements) -> None:
        """Set what a domain asks for."""
        self.changed = self.changed or self.domains.get(domain) != wanted
        self.domains[domain] = wanted

    def _put(self, key: TrustedKey, *, note: str | None = None) -> None:
        for index, entry in enumerate(self.entries):
            if entry.key.keyid == key.keyid:
                said = entry.note if note is None else note
                self.entries[index] = replace(entry, key=key, note=said)
                self.changed = self.changed or self.entries[index] != entry


_NO_REQUIREMENTS = Requirements()


def _stamp(info: os.stat_result) -> _Stamp:
    return info.st_mtime_ns, info.st_size, info.st_ino


def _begins(key: TrustedKey, short: str) -> bool:
    return key.keyid.startswith(short.lower())


def _unusable(path: Path, error: OSError) -> SettingsError:
    return SettingsError(
        f"the trust file cannot be used: {error.strerror or error}", at=str(error.filename or path)
    )


@contextmanager
def _mapped(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unusable(path, error) from error
