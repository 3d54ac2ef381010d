"""A kvbaton seal scheme: Ed448 signatures (RFC 8032), for keys of about 224 bits of security."""

from __future__ import annotations

from typing import Any, ClassVar

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey, Ed448PublicKey

from kvbaton.errors import InputError
from kvbaton.seals import SealScheme

_PUBLIC_BYTES = 57


class Ed448(SealScheme):
    """Signatures of 114 bytes; public keys of 57."""

    name: ClassVar[str] = "ed448"

    def generate(self) -> Ed448PrivateKey:
        """A new private key."""
        return Ed448PrivateKey.generate()

    def public_bytes(self, private: Any) -> bytes:
        """The public key's bytes: they have one spelling, since key ids are made of them."""
        return private.public_key().public_bytes_raw()

    def sign(self, private: Any, message: bytes) -> bytes:
        """The signature of a message."""
        return private.sign(message)

    def verify(self, public: bytes, message: bytes, signature: bytes) -> bool:
        """Whether a signature is good; bytes that make no sense are not, and raise nothing."""
        if len(public) != _PUBLIC_BYTES:
            return False
        try:
            Ed448PublicKey.from_public_bytes(public).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True

    def dump(self, private: Any, passphrase: bytes | None) -> bytes:
        """PKCS #8 in PEM, encrypted where there is a passphrase."""
        guard: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if passphrase is not None:
            guard = serialization.BestAvailableEncryption(passphrase)
        return private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, guard
        )

    def load(self, data: bytes, passphrase: bytes | None) -> Ed448PrivateKey:
        """The key in a file; no error shows anything of the file or the passphrase."""
        try:
            private = serialization.load_pem_private_key(data, passphrase)
        except (TypeError, ValueError, UnsupportedAlgorithm):
            raise InputError("no private key, or the passphrase is wrong or missing") from None
        if not isinstance(private, Ed448PrivateKey):
            raise InputError("the private key is of another scheme")
        return private
