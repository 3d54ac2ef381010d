"""Seals: what makes a baton's bytes accountable, and who is believed.

Digests, keyed by the trust domain, bind every byte; a signature over the manifest's exact bytes
says who made it.  ``statement`` signs and verifies, ``keys`` holds domains, ``tickets`` grants
taking, ``encryption`` hides what lies in a store.
"""

from kvbaton.seals.base import (
    Grant,
    KeyStatus,
    Purpose,
    Requirements,
    SealScheme,
    Signer,
    Signers,
    Trust,
    TrustedKey,
)
from kvbaton.seals.keys import TrustDomain, local_domain

__all__ = [
    "Grant",
    "KeyStatus",
    "Purpose",
    "Requirements",
    "SealScheme",
    "Signer",
    "Signers",
    "Trust",
    "TrustDomain",
    "TrustedKey",
    "local_domain",
]
