"""What signing and trusting consist of: schemes, signers, trusted keys, and what a domain asks for.

A scheme is a signature algorithm behind four functions; others are added by an entry point in the
group ``kvbaton.seals`` and held to ``kvbaton.testing.SealTests``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Protocol

from blake3 import blake3

ANYBODY = "*"
"""The sender of a grant that speaks for everybody in its domain."""

_KEYID_CONTEXT = "kvbaton format 1 key id"


class Purpose(StrEnum):
    """What a key may sign; each document has one purpose."""

    BATON = "baton"
    TICKET = "ticket"


class KeyStatus(StrEnum):
    """``retired`` keys (after a rotation) verify but no longer sign; ``revoked`` ones void."""

    TRUSTED = "trusted"
    RETIRED = "retired"
    REVOKED = "revoked"


class SealScheme(ABC):
    """A signature algorithm.  Private keys are objects of its own."""

    name: ClassVar[str]

    @abstractmethod
    def generate(self) -> Any:
        """A new private key."""

    @abstractmethod
    def public_bytes(self, private: Any) -> bytes:
        """The public key's bytes, their only spelling."""

    @abstractmethod
    def sign(self, private: Any, message: bytes) -> bytes:
        """The signature of a message."""

    @abstractmethod
    def verify(self, public: bytes, message: bytes, signature: bytes) -> bool:
        """Whether a signature is the message's by this key.  Never raises for bad bytes."""

    @abstractmethod
    def dump(self, private: Any, passphrase: bytes | None) -> bytes:
        """A private key as it lies in its file; encrypted where there is a passphrase."""

    @abstractmethod
    def load(self, data: bytes, passphrase: bytes | None) -> Any:
        """Inverse of :meth:`dump`.

        Raises
        ------
        InputError
            It is no such key, or the passphrase is wrong or missing.
        """


def key_id(scheme: str, public: bytes) -> str:
    """Id (hex) of a public key: a hint in envelopes, its name in a trust file."""
    named = len(scheme).to_bytes(1, "little") + scheme.encode("utf-8") + public
    return blake3(named, derive_key_context=_KEYID_CONTEXT).hexdigest()


@dataclass(frozen=True, slots=True)
class Grant:
    """A key may speak for this sender (``*`` for all) of this domain."""

    sender: str
    domain: str

    def covers(self, sender: str, domain: str) -> bool:
        """Whether it lets a key speak for a sender of a domain."""
        return self.domain == domain and self.sender in (sender, ANYBODY)


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """A public key that is known here: what it may sign, and for whom."""

    keyid: str
    scheme: SealScheme
    public: bytes
    grants: tuple[Grant, ...]
    purposes: frozenset[Purpose] = frozenset(Purpose)
    status: KeyStatus = KeyStatus.TRUSTED

    def speaks_for(self, sender: str, domain: str) -> bool:
        """Whether a grant covers a sender of a domain."""
        return any(grant.covers(sender, domain) for grant in self.grants)


@dataclass(frozen=True, slots=True)
class Signer:
    """A private key that signs, with its scheme and id."""

    keyid: str
    scheme: SealScheme
    private: Any

    def sign(self, message: bytes) -> bytes:
        """The signature of a message."""
        return self.scheme.sign(self.private, message)


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a domain asks for besides signatures: a ticket for every take from another process,
    and encryption of everything in its stores."""

    tickets: bool = False
    encryption: bool = False


class Trust(Protocol):
    """Which keys are known, and what a domain asks for; read anew when its file changes."""

    def find(self, keyid: str) -> TrustedKey | None:
        """The key with this id, whatever its status."""
        ...

    def keys(self) -> Iterable[TrustedKey]:
        """All keys."""
        ...

    def requirements(self, domain: str) -> Requirements:
        """What a domain asks for."""
        ...


class Signers(Protocol):
    """Private keys at hand."""

    def signer(self, sender: str, domain: str, purpose: Purpose = Purpose.BATON) -> Signer:
        """The key that signs for a sender; one of its own before one that speaks for all.

        Raises
        ------
        SettingsError
            There is none, or its file cannot be used.
        """
        ...
