"""What gives way when a store with a size limit is full.

Segments and prefix records go first, those not used for longest before the others: they can be
computed again.  Batons and transcripts are small, and without them the context is lost, so they
go only when nothing else is left.  A prefix record is used together with its segment, so records
that point to evicted segments age and leave with them.  Spent claims never give way: what
was used once could be used again.
"""

from __future__ import annotations

from kvbaton.stores.base import Key, Kind

_RANKS = {Kind.SEGMENT: 0, Kind.PREFIX: 0, Kind.BATON: 1, Kind.TRANSCRIPT: 1}


def may_be_evicted(key: Key) -> bool:
    """Whether an object may give way at all."""
    return key.kind in _RANKS


def rank_of(key: Key) -> int:
    """Objects of a lower rank give way first; within a rank the oldest use does."""
    return _RANKS[key.kind]
