"""Trust domains: each has a secret that keys its addresses and digests, and keys that sign.

Without the secret nobody can tell whether a store holds the KV of a given text.  Domain ``local``
makes its secret on first use.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from kvbaton.errors import SettingsError
from kvbaton.seals.base import (
    ANYBODY,
    Grant,
    Requirements,
    Signer,
    Signers,
    Trust,
    TrustedKey,
    key_id,
)
from kvbaton.seals.ed25519 import Ed25519
from kvbaton.wire.digests import DomainKeys

_SECRET_BYTES = 32


@dataclass(frozen=True)
class TrustDomain:
    """A domain's name and keys; the secret is never shown.

    Parameters
    ----------
    name, keys
        Its name, and the digests that its secret keys.
    signers, trust
        Private keys at hand, and public keys that are known.  Without them one key of the secret
        itself signs for everybody in the domain, and only that one is trusted.
    """

    name: str
    keys: DomainKeys = field(repr=False)
    signers: Signers = field(default=None, repr=False, compare=False)  # type: ignore[assignment]
    trust: Trust = field(default=None, repr=False, compare=False)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        own = OwnKey(self.name, self.keys)
        if self.signers is None:
            object.__setattr__(self, "signers", own)
        if self.trust is None:
            object.__setattr__(self, "trust", own)

    @property
    def requirements(self) -> Requirements:
        """What the domain asks for besides signatures."""
        return self.trust.requirements(self.name)


class OwnKey:
    """The key that a domain's secret makes: signs for everybody in it, and nothing else is
    trusted.  Whoever has the secret can sign."""

    def __init__(self, domain: str, keys: DomainKeys, requirements: Requirements | None = None):
        scheme = Ed25519()
        private = scheme.of_seed(keys.signing_seed)
        public = scheme.public_bytes(private)
        self._requirements = requirements or Requirements()
        self._signer = Signer(key_id(scheme.name, public), scheme, private)
        grants = (Grant(ANYBODY, domain),)
        self._key = TrustedKey(self._signer.keyid, scheme, public, grants)

    def signer(self, sender: str, domain: str) -> Signer:
        """See :meth:`Signers.signer`."""
        return self._signer

    def find(self, keyid: str) -> TrustedKey | None:
        """See :meth:`Trust.find`."""
        return self._key if keyid == self._key.keyid else None

    def keys(self) -> tuple[TrustedKey, ...]:
        """See :meth:`Trust.keys`."""
        return (self._key,)

    def requirements(self, domain: str) -> Requirements:
        """See :meth:`Trust.requirements`."""
        return self._requirements


def local_domain(folder: Path, name: str = "local") -> TrustDomain:
    """The domain whose secret lies in ``folder``; made on first use, readable by the owner only.

    Raises
    ------
    SettingsError
        The secret cannot be made or read, has a wrong size, or others may read it.
    """
    path = folder / f"{name}.key"
    try:
        secret = _read(path) if path.exists() else _make(path)
    except OSError as error:
        raise SettingsError(
            f"the key of trust domain {name!r} cannot be used: {error.strerror or error}",
            at=str(path),
        ) from error
    return TrustDomain(name, DomainKeys(secret))


def _read(path: Path) -> bytes:
    secret = path.read_bytes()
    if len(secret) != _SECRET_BYTES:
        raise SettingsError(
            f"a domain key has {_SECRET_BYTES} bytes, not {len(secret)}", at=str(path)
        )
    if path.stat().st_mode & 0o077:
        raise SettingsError("others may read this domain key", at=str(path), hint="chmod 600 it")
    return secret


def _make(path: Path) -> bytes:
    """Write a new secret aside and link it in place: whoever is first wins, all read the same."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_SECRET_BYTES))
        try:
            os.link(aside, path)
        except FileExistsError:
            return _read(path)
    finally:
        aside.unlink(missing_ok=True)
    return _read(path)
