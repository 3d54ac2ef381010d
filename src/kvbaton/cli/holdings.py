"""What a store holds, read without a model: manifests, transcripts, and who lists what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvbaton.errors import (
    BatonUnavailable,
    DigestMismatch,
    FormatError,
    KvbatonError,
    NotFound,
    NotTrusted,
    StoreError,
)
from kvbaton.opening import keys_of, read_envelope, read_manifest, require_domain
from kvbaton.reasons import unavailable
from kvbaton.seals import TrustDomain
from kvbaton.stores import Entry, Key, Kind, Store
from kvbaton.types import Manifest, Transcript
from kvbaton.vaults import bare
from kvbaton.wire import limits
from kvbaton.wire.binding import check_transcript
from kvbaton.wire.manifest import parse_manifest, unwrap
from kvbaton.wire.prefix import stored_record
from kvbaton.wire.transcript import parse_transcript

OTHER_KEY = "the store may have been filled with another key of this trust domain"


def read_signed(store: Store, domain: TrustDomain, baton: str) -> tuple[Manifest, str]:
    """The manifest of a baton of this trust domain, or that it has made for another one, and the
    id of the key that signed it.

    Raises
    ------
    NotFound
        The store holds no such baton.
    NotTrusted
        It is not signed by a key that is trusted, or belongs to another trust domain.
    BatonUnavailable
        What was signed is no manifest.
    FormatError
        It cannot be decrypted.
    """
    raw, _ = read_envelope(store, baton, domain)
    manifest, signer = read_manifest(raw, baton, domain)
    if manifest.domain != domain.name:
        require_domain(manifest, domain)
    return manifest, signer


def claimed_segments(store: Store, baton: str) -> frozenset[str]:
    """Addresses that a baton lists, although it is not trusted: only to leave them alone.

    Nothing else of it is looked at; what is no baton lists none.
    """
    try:
        raw = store.get(Key(Kind.BATON, baton), limit_bytes=limits.MAX_ENVELOPE_BYTES)
        claimed = parse_manifest(unwrap(raw))
    except (FormatError, StoreError):
        return frozenset()
    return frozenset(ref.address for ref in claimed.segments)


def read_words(store: Store, domain: TrustDomain, manifest: Manifest) -> Transcript:
    """The transcript that a manifest lists, with exactly its tokens.

    Raises
    ------
    NotFound
        The store does not hold it.
    FormatError
        Its bytes are damaged, or of another key.
    """
    key, keys = Key(Kind.TRANSCRIPT, manifest.transcript), keys_of(manifest, domain)
    store = store if manifest.export is None else bare(store)
    blob = store.get(key, limit_bytes=manifest.transcript_bytes)
    try:
        words = parse_transcript(blob, address=manifest.transcript, keys=keys)
    except DigestMismatch as error:
        raise DigestMismatch(error.sentence, at=error.at, hint=OTHER_KEY) from error
    check_transcript(manifest, words, keys)
    return words


def open_manifest(store: Store, domain: TrustDomain, baton: str) -> tuple[Manifest, str]:
    """The manifest of a baton of this trust domain, and the id of the key that signed it.

    Raises
    ------
    BatonUnavailable
        It is absent or cannot be read.
    NotTrusted
        It is not authentic, or belongs to another trust domain.
    """
    with unavailable("manifest"):
        return read_signed(store, domain, baton)


def open_transcript(store: Store, domain: TrustDomain, manifest: Manifest) -> Transcript:
    """The transcript of a baton.

    Raises
    ------
    BatonUnavailable
        It is absent, damaged or cannot be read.
    """
    with unavailable("transcript"):
        return read_words(store, domain, manifest)


@dataclass(frozen=True, slots=True)
class Holding:
    """A baton in a listing; ``manifest`` is None where ``error`` says why."""

    entry: Entry
    manifest: Manifest | None
    error: KvbatonError | None = None

    @property
    def name(self) -> str:
        """The baton's id."""
        return self.entry.key.name

    @property
    def size_bytes(self) -> int:
        """Bytes of its segments, its transcript and its manifest; others may share them."""
        if self.manifest is None:
            return self.entry.size_bytes
        segments = sum(ref.size_bytes for ref in self.manifest.segments)
        return segments + self.manifest.transcript_bytes + self.entry.size_bytes


def holdings(store: Store, domain: TrustDomain) -> Iterator[Holding]:
    """All batons of a store, those used longest ago first; those that cannot be verified, or are
    of another trust domain, with their error."""
    for entry in store.list(Kind.BATON):
        try:
            yield Holding(entry, read_signed(store, domain, entry.key.name)[0])
        except (NotTrusted, BatonUnavailable, FormatError, StoreError) as error:
            yield Holding(entry, None, error)


def prefix_records(store: Store) -> Iterator[tuple[Key, str]]:
    """Keys of prefix records and the segment that each points to; unreadable ones point nowhere."""
    for entry in store.list(Kind.PREFIX):
        try:
            raw = store.get(entry.key, limit_bytes=limits.MAX_PREFIX_RECORD_BYTES)
            yield entry.key, stored_record(raw).address
        except NotFound:
            continue
        except FormatError:
            yield entry.key, ""
