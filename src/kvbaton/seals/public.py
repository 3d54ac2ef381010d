"""Public keys as one line of text, so that they travel by mail, chat or clipboard.

``kvbaton-key SCHEME BASE64 KEYID``; by the key id lines are known that were cut or mistyped.
"""

from __future__ import annotations

import base64
import binascii

from kvbaton.errors import InputError
from kvbaton.seals.base import SealScheme, TrustedKey, key_id
from kvbaton.seals.schemes import seal_scheme

PREFIX = "kvbaton-key"
MAX_PUBLIC_CHARS = 16 << 10
"""Characters of a public key in base64."""


def spell_public(public: bytes) -> str:
    """A public key in base64."""
    return base64.b64encode(public).decode("ascii")


def read_public(text: str) -> bytes:
    """Inverse of :func:`spell_public`; a key has one spelling.

    Raises
    ------
    InputError
        It is empty, too long, not base64, or not its only spelling.
    """
    public = b""
    if len(text) <= MAX_PUBLIC_CHARS:
        try:
            public = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            public = b""
    if not public or spell_public(public) != text:
        raise InputError("no public key in base64")
    return public


def public_line(key: TrustedKey) -> str:
    """The line that :func:`read_public_line` reads."""
    return f"{PREFIX} {key.scheme.name} {spell_public(key.public)} {key.keyid}"


def read_public_line(text: str) -> tuple[SealScheme, bytes]:
    """The scheme and the bytes of a public key.

    Raises
    ------
    InputError
        It is no such line, its scheme is not known, or the id is not this key's.
    """
    words = text.split()
    if len(words) != 4 or words[0] != PREFIX:
        raise InputError(
            "no public key",
            hint=f"it is one line: {PREFIX} ed25519 BASE64 ID (kvbaton keys export)",
        )
    scheme, public = seal_scheme(words[1]), read_public(words[2])
    if words[3] != key_id(scheme.name, public):
        raise InputError(
            "this public key is not the one of its id, so the line was damaged",
            hint="ask for it again",
        )
    return scheme, public
