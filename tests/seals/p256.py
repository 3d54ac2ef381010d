"""A second scheme, as a third party would write one: ECDSA on P-256 with SHA-256.

A signature is r and s, 32 bytes each; of the two values that s can have only the smaller is good.
"""

from __future__ import annotations

from typing import Any, ClassVar

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)

from kvbaton.errors import InputError
from kvbaton.seals import SealScheme

ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


class EcdsaP256(SealScheme):
    """Signatures of 64 bytes; public keys are compressed points of 33."""

    name: ClassVar[str] = "ecdsa-p256"

    def generate(self) -> Any:
        """See :meth:`SealScheme.generate`."""
        return ec.generate_private_key(ec.SECP256R1())

    def public_bytes(self, private: Any) -> bytes:
        """See :meth:`SealScheme.public_bytes`."""
        return private.public_key().public_bytes(
            serialization.Encoding.X962, serialization.PublicFormat.CompressedPoint
        )

    def sign(self, private: Any, message: bytes) -> bytes:
        """See :meth:`SealScheme.sign`."""
        r, s = decode_dss_signature(private.sign(message, ec.ECDSA(hashes.SHA256())))
        return r.to_bytes(32, "big") + min(s, ORDER - s).to_bytes(32, "big")

    def verify(self, public: bytes, message: bytes, signature: bytes) -> bool:
        """See :meth:`SealScheme.verify`."""
        r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
        if len(public) != 33 or len(signature) != 64 or s > ORDER // 2:
            return False
        try:
            key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), public)
            key.verify(encode_dss_signature(r, s), message, ec.ECDSA(hashes.SHA256()))
        except (InvalidSignature, ValueError):
            return False
        return True

    def dump(self, private: Any, passphrase: bytes | None) -> bytes:
        """See :meth:`SealScheme.dump`."""
        guard: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if passphrase is not None:
            guard = serialization.BestAvailableEncryption(passphrase)
        return private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, guard
        )

    def load(self, data: bytes, passphrase: bytes | None) -> Any:
        """See :meth:`SealScheme.load`."""
        try:
            private = serialization.load_pem_private_key(data, passphrase)
        except (TypeError, ValueError, UnsupportedAlgorithm):
            raise InputError("no such key, or the passphrase is wrong or missing") from None
        if not (
            isinstance(private, ec.EllipticCurvePrivateKey)
            and isinstance(private.curve, ec.SECP256R1)
        ):
            raise InputError("a key of another scheme")
        return private
