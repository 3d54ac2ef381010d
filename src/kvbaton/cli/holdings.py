"""What a store holds, read without a model: manifests, transcripts, and who lists what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvbaton.errors import (
    DigestMismatch,
    FormatError,
    KvbatonError,
    NotFound,
    NotTrusted,
    StoreError,
)
from kvbaton.reasons import unavailable
from kvbaton.seals import TrustDomain
from kvbaton.stores import Entry, Key, Kind, Store
from kvbaton.types import Manifest, Transcript
from kvbaton.wire import limits
from kvbaton.wire.binding import check_transcript
from kvbaton.wire.manifest import parse_manifest, unwrap
from kvbaton.wire.prefix import parse_prefix
from kvbaton.wire.transcript import parse_transcript

OTHER_KEY = "the store may have been filled with another key of this trust domain"


def read_manifest(store: Store, baton: str) -> Manifest:
    """The manifest whose bytes have this id.

    Raises
    ------
    NotFound
        The store holds no such baton.
    FormatError
        Its bytes are damaged.
    """
    raw = store.get(Key(Kind.BATON, baton), limit_bytes=limits.MAX_ENVELOPE_BYTES)
    return parse_manifest(unwrap(raw, baton_id=baton))


def read_transcript(store: Store, domain: TrustDomain, manifest: Manifest) -> Transcript:
    """The transcript that a manifest lists, with exactly its tokens.

    Raises
    ------
    NotFound
        The store does not hold it.
    FormatError
        Its bytes are damaged, or of another key.
    """
    key = Key(Kind.TRANSCRIPT, manifest.transcript)
    blob = store.get(key, limit_bytes=manifest.transcript_bytes)
    try:
        words = parse_transcript(blob, address=manifest.transcript, keys=domain.keys)
    except DigestMismatch as error:
        raise DigestMismatch(error.sentence, at=error.at, hint=OTHER_KEY) from error
    check_transcript(manifest, words, domain.keys)
    return words


def require_domain(manifest: Manifest, domain: TrustDomain) -> None:
    """Refuse a baton of another trust domain.

    Raises
    ------
    NotTrusted
        It is one; nothing of it should be shown or used.
    """
    if manifest.domain != domain.name:
        raise NotTrusted(
            "the baton belongs to another trust domain", hint="KVBATON_DOMAIN names this one's"
        )


def open_manifest(store: Store, domain: TrustDomain, baton: str) -> Manifest:
    """The manifest of a baton of this trust domain.

    Raises
    ------
    BatonUnavailable
        It is absent, damaged or cannot be read.
    NotTrusted
        It belongs to another trust domain.
    """
    with unavailable("manifest"):
        manifest = read_manifest(store, baton)
    require_domain(manifest, domain)
    return manifest


def open_transcript(store: Store, domain: TrustDomain, manifest: Manifest) -> Transcript:
    """The transcript of a baton.

    Raises
    ------
    BatonUnavailable
        It is absent, damaged or cannot be read.
    """
    with unavailable("transcript"):
        return read_transcript(store, domain, manifest)


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


def holdings(store: Store) -> Iterator[Holding]:
    """All batons of a store, those used longest ago first; damaged ones with their error."""
    for entry in store.list(Kind.BATON):
        try:
            yield Holding(entry, read_manifest(store, entry.key.name))
        except (FormatError, StoreError) as error:
            yield Holding(entry, None, error)


def prefix_records(store: Store) -> Iterator[tuple[Key, str]]:
    """Keys of prefix records and the segment that each points to; unreadable ones point nowhere."""
    for entry in store.list(Kind.PREFIX):
        try:
            raw = store.get(entry.key, limit_bytes=limits.MAX_PREFIX_RECORD_BYTES)
            yield entry.key, parse_prefix(raw).address
        except NotFound:
            continue
        except FormatError:
            yield entry.key, ""
