"""Seals: what makes a baton's bytes accountable, and who is believed.

Digests, keyed by the trust domain, bind every byte; a signature over the manifest's exact bytes
says who made it.  ``statement`` signs and verifies, ``keys`` holds domains, ``tickets`` grants
taking, ``encryption`` hides what lies in a store.
"""

from kvbaton.seals.base import (
    ANYBODY,
    Grant,
    KeyStatus,
    Purpose,
    Requirements,
    SealScheme,
    Signer,
    Signers,
    Trust,
    TrustedKey,
    key_id,
)
from kvbaton.seals.keyring import KeyRing, local_keys
from kvbaton.seals.keys import TrustDomain, local_domain
from kvbaton.seals.public import public_line, read_public_line
from kvbaton.seals.schemes import register_seal, seal_scheme, seal_schemes
from kvbaton.seals.trust import TrustFile
from kvbaton.seals.trust_document import TrustEntry

__all__ = [
    "ANYBODY",
    "Grant",
    "KeyRing",
    "KeyStatus",
    "Purpose",
    "Requirements",
    "SealScheme",
    "Signer",
    "Signers",
    "Trust",
    "TrustDomain",
    "TrustEntry",
    "TrustFile",
    "TrustedKey",
    "key_id",
    "local_domain",
    "local_keys",
    "public_line",
    "read_public_line",
    "register_seal",
    "seal_scheme",
    "seal_schemes",
]
