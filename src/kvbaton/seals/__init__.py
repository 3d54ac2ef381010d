"""Seals: what makes a baton's bytes accountable.

For now a seal is the digest of every byte, keyed by the trust domain; the manifest's exact bytes
are what a signature will wrap.
"""

from kvbaton.seals.keys import TrustDomain, local_domain

__all__ = ["TrustDomain", "local_domain"]
