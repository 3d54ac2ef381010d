"""Opening a baton: its manifest and transcript, checked before anything of them is used."""

from __future__ import annotations

from concurrent.futures import TimeoutError as FutureTimeout

from kvbaton.clock import within
from kvbaton.errors import BatonUnavailable, NotTrusted, StoreTimeout
from kvbaton.reasons import unavailable
from kvbaton.seals import TrustDomain
from kvbaton.stores import Key, Kind, Store, open_store
from kvbaton.types import Baton, BatonRef, Manifest
from kvbaton.wire import limits, manifest, transcript
from kvbaton.wire.binding import check_transcript


def open_baton(
    baton: Baton | BatonRef | str, store: Store, domain: TrustDomain, *, deadline_s: float
) -> Baton:
    """Manifest and transcript of a baton; a ``Baton`` in process carries both.

    Raises
    ------
    NotTrusted
        The baton belongs to another trust domain; its transcript was not read.
    BatonUnavailable
        Manifest or transcript is absent, damaged or too late; the cause is chained.
    """
    if isinstance(baton, Baton):
        _require_domain(baton.manifest, domain)
        return baton
    ref = BatonRef(baton, store.url) if isinstance(baton, str) else baton
    try:
        return within(deadline_s, lambda: _read(ref, store_of(ref.store, store), domain))
    except FutureTimeout:
        late = StoreTimeout(f"the store did not answer within {deadline_s:.3g} s")
        raise BatonUnavailable(f"the baton cannot be read: {late.sentence}") from late


def store_of(url: str, own: Store) -> Store:
    """The store with a URL: one's own, or another that is opened."""
    return own if url == own.url else open_store(url)


def _read(ref: BatonRef, store: Store, domain: TrustDomain) -> Baton:
    with unavailable("manifest"):
        raw = store.get(Key(Kind.BATON, ref.id), limit_bytes=limits.MAX_ENVELOPE_BYTES)
        listing = manifest.parse_manifest(manifest.unwrap(raw, baton_id=ref.id))
    _require_domain(listing, domain)
    with unavailable("transcript"):
        key, keys = Key(Kind.TRANSCRIPT, listing.transcript), domain.keys
        blob = store.get(key, limit_bytes=listing.transcript_bytes)
        words = transcript.parse_transcript(blob, address=listing.transcript, keys=keys)
        check_transcript(listing, words, keys)
    return Baton(ref, listing, words)


def _require_domain(listing: Manifest, domain: TrustDomain) -> None:
    if listing.domain != domain.name:
        raise NotTrusted(
            "the baton belongs to another trust domain", hint="ask its sender for text instead"
        )
