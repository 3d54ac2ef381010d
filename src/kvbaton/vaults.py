"""Stores as a trust domain asks for them: encrypted, or as they are."""

from __future__ import annotations

from kvbaton.errors import SettingsError
from kvbaton.seals import TrustDomain
from kvbaton.seals.encryption import DomainCipher
from kvbaton.stores import EncryptedStore, Store


def sealed(store: Store, domain: TrustDomain) -> Store:
    """The store as a domain's processes use it: encrypted with its keys where it asks for that.

    Never encrypted twice: a store that is encrypted for this domain is returned as it is, and of
    one that is encrypted for another domain the store under it is taken.
    """
    if not domain.requirements.encryption:
        return store
    cipher = DomainCipher(domain.keys)
    if isinstance(store, EncryptedStore) and store.cipher == cipher:
        return store
    return EncryptedStore(bare(store), cipher)


def require_sealed(store: Store, domain: TrustDomain) -> None:
    """Refuse to write in the clear where a domain asks for encryption since a store was opened.

    Raises
    ------
    SettingsError
        It does.
    """
    if domain.requirements.encryption and not isinstance(store, EncryptedStore):
        raise SettingsError(
            f"trust domain {domain.name!r} asks for encryption since this process began",
            hint="start it again",
        )


def bare(store: Store) -> Store:
    """What lies under the encryption of a store; the store itself where there is none."""
    return store.inner if isinstance(store, EncryptedStore) else store
