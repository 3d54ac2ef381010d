"""Every byte of a baton against its digests; all faults with their places, not only the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kvbaton.cli.holdings import OTHER_KEY, claimed_segments, read_signed, read_words
from kvbaton.cli.output import error_json
from kvbaton.codecs import storage
from kvbaton.errors import (
    BatonUnavailable,
    DigestMismatch,
    FormatError,
    KvbatonError,
    NotFound,
    NotTrusted,
    StoreError,
    TrustFault,
)
from kvbaton.prefixes import verified_record
from kvbaton.reasons import located
from kvbaton.seals import TrustDomain
from kvbaton.stores import Key, Kind, Reader, Store
from kvbaton.types import JSON, LayerRange, Manifest, SegmentHeader, SegmentRef, Transcript
from kvbaton.wire import limits
from kvbaton.wire.binding import check_segment, ref_digests
from kvbaton.wire.segment import read_header, verify_range

Watch = Callable[[str, int, int], None]
"""Told what is being checked, and bytes done of bytes in all."""


_TAMPERED = frozenset(
    {
        TrustFault.UNSIGNED,
        TrustFault.DOUBLY_SIGNED,
        TrustFault.ENVELOPE,
        TrustFault.PAYLOAD_TYPE,
        TrustFault.OTHER,
        TrustFault.KEYID,
        TrustFault.SIGNATURE,
    }
)
"""Faults of bytes that nobody has signed as they are."""

_Digests = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class Damage:
    """A fault and its place.

    ``place`` is for people; ``object`` the object in the store; ``layer`` and the bytes ``start``
    to ``stop`` of the object are known where a layer range is damaged.
    """

    place: str
    object: str
    error: KvbatonError
    layer: int | None = None
    start: int | None = None
    stop: int | None = None

    def to_json(self) -> JSON:
        """The error's fields, ``place``, ``object`` and, of a layer range, its bytes."""
        said = {"place": self.place, "object": self.object, **error_json(self.error)}
        if self.layer is not None:
            said |= {"layer": self.layer, "bytes": [self.start, self.stop]}
        return said


@dataclass
class Examination:
    """Checks batons, segments and prefix records of one store, and keeps what it finds."""

    store: Store
    domain: TrustDomain
    watch: Watch = lambda label, done, total: None
    faults: list[Damage] = field(default_factory=list)
    batons: int = 0
    foreign: int = 0
    segments: int = 0
    tokens: int = 0
    ranges: int = 0
    checked_bytes: int = 0
    _segments: set[str] = field(default_factory=set)

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged or missing."""
        return not self.faults

    @property
    def exit_code(self) -> int:
        """0, or that of the first fault; damaged bytes weigh more than missing ones."""
        codes = [fault.error.exit_code for fault in self.faults]
        return FormatError.exit_code if FormatError.exit_code in codes else next(iter(codes), 0)

    def to_json(self) -> JSON:
        """``{"ok", "checked", "faults"}`` and, with faults, the first one as ``error``."""
        said: JSON = {
            "ok": self.ok,
            "checked": {
                "batons": self.batons,
                "foreign_batons": self.foreign,
                "tokens": self.tokens,
                "segments": self.segments,
                "ranges": self.ranges,
                "bytes": self.checked_bytes,
            },
            "faults": [fault.to_json() for fault in self.faults],
        }
        return said if self.ok else said | {"error": error_json(self.faults[0].error)}

    @contextmanager
    def _noting(self, place: str, key: Key, **where: Any) -> Iterator[None]:
        try:
            yield
        except (FormatError, StoreError, NotTrusted) as error:
            if not isinstance(error, NotTrusted) or error.fault in _TAMPERED:  # not just foreign
                self.faults.append(Damage(place, str(key), error, **where))

    # -- one baton ------------------------------------------------------------------------------

    def baton(self, name: str) -> None:
        """Check a manifest, its transcript, and every layer range of every segment.

        Raises
        ------
        NotFound
            The store holds no such baton.
        NotTrusted
            It belongs to another trust domain, or its key is not trusted here, so that nothing can
            be said about it.
        """
        self.batons += 1
        manifest = self._manifest(name)
        if manifest is None:
            return
        words = self._transcript(manifest)
        total = sum(ref.size_bytes for ref in manifest.segments)
        before = self.checked_bytes
        bound = _bindings(self.domain, manifest, words)
        for index, (ref, digests) in enumerate(zip(manifest.segments, bound, strict=True)):
            self.watch(f"segment {index}", self.checked_bytes - before, total)
            self._listed(manifest, index, ref, digests)

    def _manifest(self, name: str) -> Manifest | None:
        try:
            return read_signed(self.store, self.domain, name)[0]
        except (NotTrusted, BatonUnavailable) as error:
            if isinstance(error, NotTrusted) and error.fault not in _TAMPERED:
                raise
            self.faults.append(Damage("manifest", str(Key(Kind.BATON, name)), error))
        return None

    def _transcript(self, manifest: Manifest) -> Transcript | None:
        key, words = Key(Kind.TRANSCRIPT, manifest.transcript), None
        with self._noting("transcript", key), located("$.transcript"):
            words = read_words(self.store, self.domain, manifest)
            self.tokens += len(words.ids)
            self.checked_bytes += manifest.transcript_bytes
        return words

    def _listed(
        self,
        manifest: Manifest,
        index: int,
        ref: SegmentRef,
        digests: tuple[str, str | None] | None,
    ) -> None:
        """One segment as a manifest lists it; the bytes of a segment are read once."""
        place, at, key = f"segment {index}", f"$.segments[{index}]", Key(Kind.SEGMENT, ref.address)
        with self._noting(place, key), located(at), self.store.open(key) as reader:
            header = self._header(reader, ref.address)
            tokens, before = digests or (header.token_digest, header.prefix_key)
            check_segment(
                header,
                ref,
                function=manifest.function.digest,
                token_digest=tokens,
                prefix_key=before,
            )
            self._ranges(place, at, key, reader, header)

    # -- parts ----------------------------------------------------------------------------------

    def _header(self, reader: Reader, address: str) -> SegmentHeader:
        try:
            return read_header(
                reader.read, file_size=reader.size_bytes, address=address, keys=self.domain.keys,
                storage=storage,
            )  # fmt: skip
        except DigestMismatch as error:
            raise DigestMismatch(error.sentence, at=error.at, hint=OTHER_KEY) from error

    def _ranges(self, place: str, at: str, key: Key, reader: Reader, header: SegmentHeader) -> None:
        if key.name in self._segments:
            return
        self._segments.add(key.name)
        self.segments += 1
        self.checked_bytes += header.body_start
        largest = max(part.stop - part.start for part in header.ranges)
        private = memoryview(bytearray(largest))
        for part in header.ranges:
            where = _bytes_of(header, part)
            with self._noting(f"{place}, layer {part.layer}", key, **where), located(at):
                data = private[: part.stop - part.start]
                reader.read_into(header.body_start + part.start, data)
                self.checked_bytes += len(data)
                self.ranges += 1
                verify_range(header, part, data)

    # -- a whole store --------------------------------------------------------------------------

    def everything(self) -> None:
        """Check all batons of this trust domain, and the segments and prefix records that no
        baton lists.  Batons of other domains are counted, and what they list is left out.

        Raises
        ------
        StoreError
            The store cannot be listed.
        """
        for entry in list(self.store.list(Kind.BATON)):
            self._one_of_many(entry.key.name)
        for entry in list(self.store.list(Kind.SEGMENT)):
            if entry.key.name not in self._segments:
                self._unlisted(entry.key)
        for entry in list(self.store.list(Kind.PREFIX)):
            with self._noting("prefix record", entry.key):
                raw = self.store.get(entry.key, limit_bytes=limits.MAX_PREFIX_RECORD_BYTES)
                verified_record(raw, self.domain)
                self.checked_bytes += len(raw)

    def _one_of_many(self, name: str) -> None:
        try:
            self.baton(name)
        except NotFound:
            return  # removed since it was listed
        except NotTrusted:
            self.batons -= 1
            self.foreign += 1
            self._segments |= claimed_segments(self.store, name)

    def _unlisted(self, key: Key) -> None:
        place = f"segment {key.name[:16]}..."
        with self._noting(place, key), self.store.open(key) as reader:
            self._ranges(place, "$", key, reader, self._header(reader, key.name))


def _bindings(
    domain: TrustDomain, manifest: Manifest, words: Transcript | None
) -> Sequence[_Digests | None]:
    """What each segment must say about its tokens; None where the tokens are not known."""
    if words is None:
        return [None] * len(manifest.segments)
    return ref_digests(domain.keys, manifest.function.digest, words.ids, manifest.segments)


def _bytes_of(header: SegmentHeader, part: LayerRange) -> dict[str, int]:
    start = header.body_start
    return {"layer": part.layer, "start": start + part.start, "stop": start + part.stop}
