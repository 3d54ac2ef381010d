"""BLAKE3 digests: keyed per trust domain where equality must not show, plain where it may.

A domain's secret is never used itself; each purpose has a key derived with its own context, so
that no digest of one purpose can be passed off as one of another.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from blake3 import blake3

from kvbaton.errors import InputError
from kvbaton.wire.fields import check_hex64

SECRET_BYTES = 32
_CONTEXT = "kvbaton format 1 {purpose}"
Buffer = bytes | bytearray | memoryview


def token_bytes(ids: Sequence[int]) -> bytes:
    """Token ids as little-endian 32-bit unsigned integers.

    Raises
    ------
    InputError
        An id is not an integer from 0 to 2**32 - 1.
    """
    try:
        return struct.pack(f"<{len(ids)}I", *ids)
    except struct.error as error:
        raise InputError(
            "token ids are integers from 0 to 4294967295", at=f"$[{_first_bad(ids)}]"
        ) from error


def range_digest(buffer: Buffer) -> str:
    """Plain BLAKE3-256 (hex) of a buffer, which is not copied."""
    return blake3(buffer).hexdigest()


def parts_digest(parts: Iterable[Buffer]) -> str:
    """Plain BLAKE3-256 (hex) of a concatenation that is never made."""
    hasher = blake3()
    for part in parts:
        hasher.update(part)
    return hasher.hexdigest()


def baton_id(payload: Buffer) -> str:
    """Id of a baton: plain BLAKE3-256 (hex) of the manifest's exact bytes."""
    return blake3(payload).hexdigest()


def _derived(secret: bytes, purpose: str) -> bytes:
    return blake3(secret, derive_key_context=_CONTEXT.format(purpose=purpose)).digest()


@dataclass(frozen=True, slots=True)
class DomainKeys:
    """The keyed digests of one trust domain.

    Parameters
    ----------
    secret
        32 random bytes, kept by the domain.  Never shown.

    ``signing_seed`` and ``encryption`` are 32 bytes each: of the key that signs where a domain
    has no other, and of what encrypts in its stores.

    Raises
    ------
    InputError
        The secret is not 32 bytes.
    """

    secret: bytes = field(repr=False)
    _segment: bytes = field(init=False, repr=False, compare=False)
    _transcript: bytes = field(init=False, repr=False, compare=False)
    _tokens: bytes = field(init=False, repr=False, compare=False)
    _prefix: bytes = field(init=False, repr=False, compare=False)
    _uses: bytes = field(init=False, repr=False, compare=False)
    signing_seed: bytes = field(init=False, repr=False, compare=False)
    encryption: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.secret) != SECRET_BYTES:
            raise InputError(f"a domain secret is {SECRET_BYTES} bytes")
        for name, purpose in _PURPOSES:
            object.__setattr__(self, name, _derived(self.secret, purpose))

    def segment_address(self, header_bytes: Buffer) -> str:
        """Address (hex) of the segment whose header these bytes are: length field, JSON, padding.

        The header holds a digest of every layer range, so the address binds the whole file.
        """
        return blake3(header_bytes, key=self._segment).hexdigest()

    def transcript_address(self, data: Buffer) -> str:
        """Address (hex) of a transcript's bytes."""
        return blake3(data, key=self._transcript).hexdigest()

    def token_digest(self, ids: Sequence[int]) -> str:
        """Keyed digest (hex) of a run of token ids, each below 2**32."""
        return blake3(token_bytes(ids), key=self._tokens).hexdigest()

    def use_name(self, nonce: str, use: int) -> str:
        """Name (hex) of the record that one use of a ticket is spent."""
        return blake3(f"{nonce} {use}".encode("ascii"), key=self._uses).hexdigest()

    def prefix_keys(
        self, function_digest: str, ids: Sequence[int], stops: Sequence[int]
    ) -> list[str]:
        """Keys (hex) of the prefixes ``ids[:stop]`` under one function.

        A key depends on the function and on all tokens before ``stop``, not on how they were cut
        into segments.  One pass over the ids; ``stops`` ascend.

        Raises
        ------
        InputError
            The stops do not ascend, leave the ids, or an id is out of range.
        FormatError
            ``function_digest`` is not 64 hexadecimal digits.
        """
        function = bytes.fromhex(check_hex64(function_digest, "$.function"))
        data = memoryview(token_bytes(ids))
        hasher = blake3(function, key=self._prefix)
        keys, done = [], 0
        for stop in stops:
            if not done <= stop <= len(ids):
                raise InputError(f"prefix of {stop} tokens after {done}, of {len(ids)}")
            hasher.update(data[4 * done : 4 * stop])
            keys.append(hasher.hexdigest())
            done = stop
        return keys


_PURPOSES = (
    ("_segment", "segment address"),
    ("_transcript", "transcript address"),
    ("_tokens", "token digest"),
    ("_prefix", "prefix key"),
    ("_uses", "ticket use"),
    ("signing_seed", "signing seed"),
    ("encryption", "encryption"),
)


def _first_bad(ids: Sequence[int]) -> int:
    for index, token in enumerate(ids):
        try:
            struct.pack("<I", token)
        except struct.error:
            return index
    return len(ids)
