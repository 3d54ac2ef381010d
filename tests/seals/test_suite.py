"""The suite itself: each way in which a scheme can be wrong fails the law that names it."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from kvbaton.seals import SealScheme
from kvbaton.seals.ed25519 import Ed25519
from kvbaton.testing import SealTests


class IgnoresTheEnd(Ed25519):
    """Only the first bytes of a message are signed."""

    def sign(self, private: Any, message: bytes) -> bytes:
        """A signature of a part."""
        return super().sign(private, message[:30])

    def verify(self, public: bytes, message: bytes, signature: bytes) -> bool:
        """A part is right."""
        return super().verify(public, message[:30], signature)


class TakesLongerSignatures(Ed25519):
    """What stands behind a signature is not looked at."""

    def verify(self, public: bytes, message: bytes, signature: bytes) -> bool:
        """The first bytes are right."""
        return super().verify(public, message, signature[:64])


class TakesLongerKeys(Ed25519):
    """A public key has several spellings."""

    def verify(self, public: bytes, message: bytes, signature: bytes) -> bool:
        """The first bytes are right."""
        return super().verify(public[:32], message, signature)


class Raises(Ed25519):
    """What the library raises goes through."""

    def verify(self, public: bytes, message: bytes, signature: bytes) -> bool:
        """Right, or an exception."""
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
        return True


class ForgetsThePassphrase(Ed25519):
    """Private keys lie in the clear."""

    def dump(self, private: Any, passphrase: bytes | None) -> bytes:
        """Never encrypted."""
        return super().dump(private, None)

    def load(self, data: bytes, passphrase: bytes | None) -> Any:
        """Never decrypted."""
        return super().load(data, None)


class OnePrivateKey(Ed25519):
    """All keys are the same."""

    def generate(self) -> Any:
        """Always this one."""
        return self.of_seed(bytes(32))


class LoudKey:
    """A private key that shows itself."""

    def __init__(self, seed: bytes) -> None:
        self.seed = seed

    def __repr__(self) -> str:
        return f"LoudKey({self.seed.hex()})"


class Loud(Ed25519):
    """Representations of private keys hold their bytes."""

    def generate(self) -> Any:
        """A key that shows itself."""
        return LoudKey(super().generate().private_bytes_raw())

    def public_bytes(self, private: Any) -> bytes:
        """As ever."""
        return super().public_bytes(self.of_seed(private.seed))

    def dump(self, private: Any, passphrase: bytes | None) -> bytes:
        """As ever."""
        return super().dump(self.of_seed(private.seed), passphrase)


BROKEN = (AssertionError, pytest.fail.Exception, InvalidSignature, ValueError, ExceptionGroup)
"""What a law raises; Hypothesis gathers several of them in a group."""


@pytest.mark.parametrize(
    ("scheme", "law"),
    [
        (IgnoresTheEnd, "test_a_changed_payload_is_refused"),
        (IgnoresTheEnd, "test_a_signature_is_for_one_payload_type"),
        (TakesLongerSignatures, "test_a_changed_signature_is_refused"),
        (TakesLongerKeys, "test_another_public_key_is_refused"),
        (Raises, "test_verifying_never_raises"),
        (ForgetsThePassphrase, "test_another_passphrase_opens_nothing"),
        (ForgetsThePassphrase, "test_a_private_key_does_not_show"),
        (ForgetsThePassphrase, "test_equal_keys_have_unequal_encrypted_files"),
        (OnePrivateKey, "test_each_key_is_new"),
        (Loud, "test_a_private_key_does_not_show"),
    ],
)
def test_a_wrong_scheme_fails(scheme: type[SealScheme], law: str) -> None:
    """The built-in scheme keeps the law, and the one that is wrong does not."""

    class Held(SealTests):
        kind: type[SealScheme] = Ed25519

        def make_scheme(self) -> SealScheme:
            return self.kind()

    class Wrong(Held):
        kind = scheme

    arguments = (b"another",) if "passphrase" in law else ()
    getattr(Held(), law)(*arguments)
    with pytest.raises(BROKEN):
        getattr(Wrong(), law)(*arguments)
