"""Private keys in a folder: one file each, named by the key's id, readable by the owner only.

Which of them sign, and for whom, is what the trust file says of their public halves.

A passphrase is stretched by scrypt before a scheme sees it, whatever the scheme's own file format
does: that of OpenSSL makes 2,048 rounds of PBKDF2, so guesses at it pass by the million.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from kvbaton.errors import InputError, SettingsError
from kvbaton.seals.base import (
    ANYBODY,
    Grant,
    KeyStatus,
    Purpose,
    Signer,
    TrustedKey,
    key_id,
)
from kvbaton.seals.private_files import check_folder, make_folder, read_private, write_once
from kvbaton.seals.schemes import DEFAULT_SCHEME, seal_scheme
from kvbaton.seals.trust import TrustEdit, TrustFile

Passphrase = bytes | Callable[[], bytes]
"""What encrypts private keys; a callable is asked when a key first needs it."""

_MAX_KEY_BYTES = 256 << 10
_MAX_PASSPHRASE_BYTES = 1000
_WHAT = "this private key"
_SCRYPT_N, _SCRYPT_R, _SCRYPT_P = 1 << 15, 8, 3
"""32 MiB and some tenths of a second for each guess (OWASP, password storage, 2024)."""
_Found = tuple[tuple[TrustedKey, ...], dict[tuple[str, str, Purpose], Signer]]


class KeyRing:
    """The private keys of a folder.

    Parameters
    ----------
    folder
        Where they lie; made with the first key.
    trust
        Says of each what it may sign, for whom, and whether it still may.
    passphrase
        Decrypts keys that need it, and encrypts new ones; None where keys are not encrypted.
    """

    def __init__(
        self, folder: Path, trust: TrustFile, passphrase: Passphrase | None = None
    ) -> None:
        self.folder = folder
        self.trust = trust
        self._passphrase = passphrase
        self._loaded: dict[str, Signer] = {}
        self._found: _Found = ((), {})

    def signer(self, sender: str, domain: str, purpose: Purpose = Purpose.BATON) -> Signer:
        """The newest trusted key of the sender's own, or else one that speaks for all.

        Raises
        ------
        SettingsError
            There is none, its file cannot be used, or the trust file cannot.
        """
        keys = self.trust.keys()
        known, found = self._found
        if known is not keys:
            found = {}
            self._found = (keys, found)
        asked = (sender, domain, purpose)
        signer = found.get(asked)
        if signer is None:
            signer = found[asked] = self._load(self._choose(keys, *asked))
        return signer

    def has(self, keyid: str) -> bool:
        """Whether a private key lies here."""
        return self._path(keyid).exists()

    def generate(
        self,
        grants: Iterable[Grant],
        *,
        purposes: Iterable[Purpose] = tuple(Purpose),
        scheme: str = DEFAULT_SCHEME,
        note: str = "",
    ) -> TrustedKey:
        """Make a key that signs for these senders, and trust it.

        Raises
        ------
        SettingsError
            The key or the trust file cannot be written.
        InputError
            There is no such scheme, or a grant is none.
        """
        with self.trust.editing() as edit:
            return edit.add(self._make(tuple(grants), purposes, scheme), note=note)

    def rotate(self, keyid: str) -> TrustedKey:
        """Put a new key in a key's place: same senders, purposes and scheme.

        The old one is retired: what it has signed stays good.

        Raises
        ------
        InputError
            The key is not known, or signs no more.
        SettingsError
            Its private half is not here or cannot be used.
        """
        with self.trust.editing() as edit:
            old = edit.find(keyid)
            if old is None:
                raise InputError("no known key has this id", at=keyid, hint="kvbaton keys list")
            if old.status is not KeyStatus.TRUSTED:
                raise InputError(f"this key is {old.status.value} already", at=keyid)
            self._load(old)  # a passphrase that is needed is there, so the new key has one, too
            edit.set_status(keyid, KeyStatus.RETIRED)
            new = self._make(old.grants, old.purposes, old.scheme.name)
            return edit.add(new, note=_note_of(edit, keyid))

    def ready(self, domain: str) -> None:
        """On first use make a key that signs for everybody in a domain.

        A domain that has, or had, a key of this folder gets none: a revoked key is replaced by
        its owner, not by itself.

        Raises
        ------
        SettingsError
            The keys or the trust file cannot be used.
        """
        if self._has_key_of(domain, self.trust.keys()):
            return
        with self.trust.editing() as edit:  # another process may have been first, or be at it
            if self._has_key_of(domain, (entry.key for entry in edit.entries)):
                return
            if not self.trust.path.exists() and any(self.folder.glob("*.pem")):
                raise SettingsError(
                    "there are private keys, but the trust file that says what they may do is gone",
                    at=str(self.trust.path),
                    hint=f"restore it from a copy; to begin anew without these keys, move "
                    f"{self.folder} away",
                )
            key = self._make((Grant(ANYBODY, domain),), Purpose, DEFAULT_SCHEME)
            edit.add(key, note="made on first use")

    def _has_key_of(self, domain: str, keys: Iterable[TrustedKey]) -> bool:
        return any(
            any(grant.domain == domain for grant in key.grants) and self.has(key.keyid)
            for key in keys
        )

    def _choose(
        self, keys: tuple[TrustedKey, ...], sender: str, domain: str, purpose: Purpose
    ) -> TrustedKey:
        own = Grant(sender, domain)
        able = [
            key
            for key in keys
            if key.status is KeyStatus.TRUSTED
            and purpose in key.purposes
            and key.speaks_for(sender, domain)
            and self.has(key.keyid)
        ]
        if not able:
            raise SettingsError(
                f"no private key here may sign a {purpose.value} of {sender!r} in domain "
                f"{domain!r}",
                at=str(self.folder),
                hint="kvbaton keys generate makes one",
            )
        return next((key for key in able if own in key.grants), able[0])

    def _load(self, key: TrustedKey) -> Signer:
        signer = self._loaded.get(key.keyid)
        if signer is None:
            private = self._read(key)
            if key_id(key.scheme.name, key.scheme.public_bytes(private)) != key.keyid:
                raise SettingsError(
                    "this private key is not the one of its name", at=str(self._path(key.keyid))
                )
            signer = self._loaded[key.keyid] = Signer(key.keyid, key.scheme, private)
        return signer

    def _read(self, key: TrustedKey) -> Any:
        path = self._path(key.keyid)
        try:
            check_folder(self.folder, "the folder of private keys")
            data, _ = read_private(path, _WHAT, limit_bytes=_MAX_KEY_BYTES)
        except OSError as error:
            raise SettingsError(
                f"this private key cannot be read: {error.strerror or error}", at=str(path)
            ) from error
        try:
            return self._opened(key, data)
        except InputError as error:
            raise SettingsError(
                error.sentence,
                at=str(path),
                hint="KVBATON_KEY_PASSPHRASE_FILE names the file with the passphrase",
            ) from error

    def _opened(self, key: TrustedKey, data: bytes) -> Any:
        """A key that is not encrypted opens whatever the passphrase is, which stays unasked."""
        try:
            return key.scheme.load(data, None)
        except InputError:
            if self._passphrase is None:
                raise
        return key.scheme.load(data, self._secret(key.keyid))

    def _make(
        self, grants: tuple[Grant, ...], purposes: Iterable[Purpose], scheme_name: str
    ) -> TrustedKey:
        """Write a new private key; it signs nothing before the trust file says so."""
        scheme = seal_scheme(scheme_name)
        private = scheme.generate()
        public = scheme.public_bytes(private)
        key = TrustedKey(key_id(scheme.name, public), scheme, public, grants, frozenset(purposes))
        data = scheme.dump(private, self._secret(key.keyid))
        try:
            make_folder(self.folder)
            check_folder(self.folder, "the folder of private keys")
            write_once(self._path(key.keyid), data)
        except OSError as error:
            raise SettingsError(
                f"a private key cannot be written: {error.strerror or error}", at=str(self.folder)
            ) from error
        return key

    def _secret(self, keyid: str) -> bytes | None:
        """What encrypts one key; its id is the salt, so equal passphrases make unequal keys."""
        given = self._passphrase() if callable(self._passphrase) else self._passphrase
        if given is None:
            return None
        stretched = hashlib.scrypt(
            given,
            salt=keyid.encode("ascii"),
            n=_SCRYPT_N,
            r=_SCRYPT_R,
            p=_SCRYPT_P,
            maxmem=64 << 20,
            dklen=32,
        )
        return stretched.hex().encode("ascii")

    def _path(self, keyid: str) -> Path:
        return self.folder / f"{keyid}.pem"


def _note_of(edit: TrustEdit, keyid: str) -> str:
    return next(entry.note for entry in edit.entries if entry.key.keyid == keyid)


def local_keys(folder: Path, *, passphrase_file: Path | None = None) -> KeyRing:
    """The private keys in ``folder/keys``, with the trust file ``folder/trust.json``.

    Parameters
    ----------
    folder
        That of the domains' secrets.
    passphrase_file
        File (0600) with the passphrase of the private keys, read when a key needs it.
    """
    trust = TrustFile(folder / "trust.json")
    secret = None if passphrase_file is None else passphrase_from(passphrase_file)
    return KeyRing(folder / "keys", trust, secret)


def passphrase_from(path: Path) -> Callable[[], bytes]:
    """The passphrase in a file (0600), without the end of its line; read when it is asked for."""

    def read() -> bytes:
        try:
            data, _ = read_private(path, "this passphrase", limit_bytes=_MAX_PASSPHRASE_BYTES)
        except OSError as error:
            raise SettingsError(
                f"the passphrase cannot be read: {error.strerror or error}", at=str(path)
            ) from error
        secret = data.removesuffix(b"\n").removesuffix(b"\r")
        if not secret:
            raise SettingsError("the passphrase is empty", at=str(path))
        return secret

    return read
