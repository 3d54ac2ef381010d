"""Ed25519 signatures by pyca/cryptography; private keys as PKCS #8 in PEM."""

from __future__ import annotations

from typing import Any, ClassVar

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from kvbaton.errors import InputError
from kvbaton.seals.base import SealScheme

_PUBLIC_BYTES = 32


class Ed25519(SealScheme):
    """RFC 8032 signatures of 64 bytes; public keys of 32."""

    name: ClassVar[str] = "ed25519"

    def generate(self) -> Ed25519PrivateKey:
        """See :meth:`SealScheme.generate`."""
        return Ed25519PrivateKey.generate()

    def of_seed(self, seed: bytes) -> Ed25519PrivateKey:
        """The private key of 32 secret bytes."""
        return Ed25519PrivateKey.from_private_bytes(seed)

    def public_bytes(self, private: Any) -> bytes:
        """See :meth:`SealScheme.public_bytes`."""
        return bytes(private.public_key().public_bytes_raw())

    def sign(self, private: Any, message: bytes) -> bytes:
        """See :meth:`SealScheme.sign`."""
        return bytes(private.sign(message))

    def verify(self, public: bytes, message: bytes, signature: bytes) -> bool:
        """See :meth:`SealScheme.verify`."""
        if len(public) != _PUBLIC_BYTES:
            return False
        try:
            Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True

    def dump(self, private: Any, passphrase: bytes | None) -> bytes:
        """See :meth:`SealScheme.dump`."""
        guard: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if passphrase is not None:
            guard = serialization.BestAvailableEncryption(passphrase)
        return bytes(
            private.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, guard
            )
        )

    def load(self, data: bytes, passphrase: bytes | None) -> Ed25519PrivateKey:
        """See :meth:`SealScheme.load`."""
        try:
            private = serialization.load_pem_private_key(data, passphrase)
        except TypeError:
            sentence = (
                "the private key needs a passphrase"
                if passphrase is None
                else "the private key has no passphrase"
            )
            raise InputError(sentence) from None
        except (ValueError, UnsupportedAlgorithm):
            raise InputError("no private key, or the passphrase is wrong") from None
        if not isinstance(private, Ed25519PrivateKey):
            raise InputError("the private key is of another scheme")
        return private
