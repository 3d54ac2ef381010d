"""AES-256-GCM with a key of its own for every frame, derived from what the frame is.

The key and the nonce come from the domain's encryption key, the frame's place and the keyed digest
of its plaintext (a synthetic IV).  So equal frames give equal bytes in every process, and no pair
of key and nonce ever encrypts two plaintexts.
"""

from __future__ import annotations

import struct

from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kvbaton.wire.digests import Buffer, DomainKeys
from kvbaton.wire.frames import Frame

_KEY_BYTES = 32
_NONCE_BYTES = 12
_CONTEXT = "kvbaton format 1 {purpose}"
_PLACE = struct.Struct("<IIQI")


class DomainCipher:
    """Encrypts frames with the keys of one domain.

    Parameters
    ----------
    keys
        The domain's; only its encryption key is used.
    """

    def __init__(self, keys: DomainKeys) -> None:
        self._table = _derived(keys.encryption, "encrypted table")
        self._digest = _derived(keys.encryption, "frame digest")
        self._frame = _derived(keys.encryption, "frame key")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DomainCipher) and self._frame == other._frame

    def __hash__(self) -> int:
        return hash(self._frame)

    def authenticator(self, place: bytes, table: bytes) -> bytes:
        """See :meth:`FrameCipher.authenticator`."""
        framed = len(place).to_bytes(4, "little") + place + table
        return blake3(framed, key=self._table).digest()

    def digest(self, frame: Frame, plain: Buffer) -> bytes:
        """See :meth:`FrameCipher.digest`."""
        # The plaintext first: what stands before it would move it off BLAKE3's boundaries, at
        # half the speed.
        hasher = blake3(plain, key=self._digest)
        hasher.update(_described(frame))
        return hasher.digest()

    def encrypt(self, frame: Frame, plain: Buffer, out: memoryview) -> None:
        """See :meth:`FrameCipher.encrypt`."""
        cipher, nonce = self._cipher(frame)
        cipher.encrypt_into(nonce, plain, None, out)

    def decrypt(self, frame: Frame, data: Buffer, out: memoryview) -> bool:
        """See :meth:`FrameCipher.decrypt`."""
        cipher, nonce = self._cipher(frame)
        try:
            cipher.decrypt_into(nonce, data, None, out)
        except InvalidTag:
            out[:] = bytes(out.nbytes)
            return False
        return True

    def _cipher(self, frame: Frame) -> tuple[AESGCM, bytes]:
        described = frame.digest + _described(frame)
        drawn = blake3(described, key=self._frame).digest(length=_KEY_BYTES + _NONCE_BYTES)
        return AESGCM(drawn[:_KEY_BYTES]), drawn[_KEY_BYTES:]


def _derived(key: bytes, purpose: str) -> bytes:
    return blake3(key, derive_key_context=_CONTEXT.format(purpose=purpose)).digest()


def _described(frame: Frame) -> bytes:
    """Read from its end, it says where everything before it begins."""
    fixed = _PLACE.pack(frame.index, frame.count, frame.size_bytes, len(frame.place))
    return frame.place + fixed
