"""Trust domains: each has a secret that keys its addresses and digests, and keys that sign.

Without the secret nobody can tell whether a store holds the KV of a given text.  Domain ``local``
makes its secret on first use.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path

from kvbaton.errors import SettingsError
from kvbaton.seals.base import (
    ANYBODY,
    Grant,
    Purpose,
    Requirements,
    Signer,
    Signers,
    Trust,
    TrustedKey,
    key_id,
)
from kvbaton.seals.ed25519 import Ed25519
from kvbaton.seals.keyring import local_keys
from kvbaton.seals.private_files import make_folder, read_private, write_once
from kvbaton.wire.digests import DomainKeys

_SECRET_BYTES = 32
_MAX_SECRET_BYTES = 4096


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
        for name in ("signers", "trust"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, OwnKey(self.name, self.keys))

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

    def signer(self, sender: str, domain: str, purpose: Purpose = Purpose.BATON) -> Signer:
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


def local_domain(
    folder: Path, name: str = "local", *, passphrase_file: Path | None = None
) -> TrustDomain:
    """The domain whose secret lies in ``folder``, with private keys in ``folder/keys`` and known
    ones in ``folder/trust.json``.

    On first use a secret is made, and a key that signs for everybody in the domain and is trusted.
    All of it is readable by the owner only.

    Parameters
    ----------
    folder, name
        Where domains lie, and which of them.
    passphrase_file
        File (0600) with the passphrase of the private keys; None where they have none.

    Raises
    ------
    SettingsError
        The secret, the keys or the trust file cannot be made or read, or others may read them.
    """
    path = folder / f"{name}.key"
    try:
        secret = _secret(path)
    except OSError as error:
        raise SettingsError(
            f"the key of trust domain {name!r} cannot be used: {error.strerror or error}",
            at=str(path),
        ) from error
    ring = local_keys(folder, passphrase_file=passphrase_file)
    ring.ready(name)
    return TrustDomain(name, DomainKeys(secret), signers=ring, trust=ring.trust)


def _secret(path: Path) -> bytes:
    """The secret in a file; whoever makes it first wins, and all read the same."""
    if not path.exists():
        make_folder(path.parent)
        write_once(path, secrets.token_bytes(_SECRET_BYTES))
    secret, _ = read_private(path, "this domain key", limit_bytes=_MAX_SECRET_BYTES)
    if len(secret) != _SECRET_BYTES:
        raise SettingsError(
            f"a domain key has {_SECRET_BYTES} bytes, not {len(secret)}", at=str(path)
        )
    return secret
