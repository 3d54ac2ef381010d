"""The two processes of ``bench seals``: takes with and without what makes a baton trusted, and the
speed of each part of it by itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from blake3 import blake3

from kvbaton import codecs
from kvbaton.agent import Agent
from kvbaton.bench import rivals
from kvbaton.bench.receiver import Receiver
from kvbaton.bench.sender import Sender
from kvbaton.bench.ttft import turned
from kvbaton.clock import Clock, within
from kvbaton.errors import KvbatonError
from kvbaton.opening import NOBODY, Bearer, Opening, Spending, read_manifest, read_transcript
from kvbaton.relay import Checks, Relay
from kvbaton.seals import Purpose
from kvbaton.seals.encryption import DomainCipher
from kvbaton.seals.statement import sign, verify
from kvbaton.stores import EncryptedStore, Key, Kind, Reader, open_store
from kvbaton.types import (
    JSON,
    Baton,
    BatonRef,
    FetchedLayer,
    LayerRange,
    Manifest,
    SegmentHeader,
    SegmentRef,
    VerifiedLayer,
)
from kvbaton.wire import limits, manifest, segment
from kvbaton.wire.digests import baton_id
from kvbaton.wire.envelope import parse_envelope
from kvbaton.wire.frames import TAG_BYTES, Frame

_Works = list[tuple[str, Callable[[], object]]]

RUNS = 40
"""Times that each part of a signature is timed per repeat."""


class _BareOpening(Opening):
    """Opens whatever lies in a baton's place: no signature, no key, no ancestors."""

    def open(
        self,
        baton: Baton | BatonRef | str,
        *,
        deadline_s: float,
        bearer: Bearer = NOBODY,
        unspent: list[Spending] | None = None,
    ) -> Baton:
        """See :meth:`Opening.open`; only ids are asked for here, and nobody has a ticket."""
        name = baton if isinstance(baton, str) else baton.id
        return within(deadline_s, lambda: self._believed(BatonRef(name, self.store.url)))

    def _believed(self, ref: BatonRef) -> Baton:
        raw = self.store.get(Key(Kind.BATON, ref.id), limit_bytes=limits.MAX_ENVELOPE_BYTES)
        envelope = parse_envelope(raw, payload_type=manifest.PAYLOAD_TYPE)
        listing = manifest.parse_manifest(envelope.payload)
        return Baton(ref, listing, read_transcript(self.store, listing, self.domain))


class BareRelay(Relay):
    """A relay that believes everything, to measure what not doing so costs: neither signature nor
    digests of layers nor layer 0 are looked at.  Nothing else may use it."""

    def __init__(self, relay: Relay) -> None:
        super().__init__(relay.engine, relay.store, relay.domain, checks=Checks(tokens=False))
        self.opening = _BareOpening(relay.store, relay.domain)

    def _verified(
        self, fetched: Iterable[tuple[int, FetchedLayer]], clock: Clock
    ) -> Iterable[tuple[int, VerifiedLayer]]:
        for index, part in fetched:
            yield index, VerifiedLayer(part.header, part.range, part.data)


def encrypted_relay(relay: Relay) -> Relay:
    """The same relay with an encrypted store, beside the relay's own."""
    store = open_store(f"{relay.store.url}-encrypted")
    sealed = EncryptedStore(store, DomainCipher(relay.domain.keys))
    return Relay(relay.engine, sealed, relay.domain, segment_tokens=relay.segment_tokens)


class SealingReceiver(Receiver):
    """Takes the same baton in three ways, and prefills the tokens that it stands for."""

    def __init__(self, engine: Any, relay: Relay) -> None:
        super().__init__(engine, relay)
        self.bare = Agent("receiver", engine, BareRelay(relay))
        self.encrypted = Agent("receiver", engine, encrypted_relay(relay))

    def take_bare(self, baton: str) -> JSON:
        """As :meth:`take`, believing everything."""
        return self.take_by(self.bare, baton)

    def take_encrypted(self, baton: str) -> JSON:
        """As :meth:`take`, from the encrypted store."""
        return self.take_by(self.encrypted, baton)

    def prefill(self) -> JSON:
        """The text route for the tokens whose KV the baton has."""
        work = self.work
        return self.timed(lambda: rivals.text_by_loop(self.engine, work.ids[: work.cached]))


class SealingSender(Sender):
    """Hands off to both stores, and times each part of a seal by itself."""

    def __init__(self, engine: Any, relay: Relay) -> None:
        super().__init__(engine, relay)
        self._encrypted = Agent("sender", engine, encrypted_relay(relay))

    def hand_off_encrypted(self) -> JSON:
        """Hand the prepared turn off to the encrypted store."""
        started_s = time.perf_counter()
        baton = self._encrypted.hand_off(self.turn)
        return {
            "baton": baton.id,
            "seconds": time.perf_counter() - started_s,
            "phases": dict(baton.seconds),
        }

    def seal_speed(self, baton: str) -> JSON:
        """Seconds of signing and verifying a baton, part by part: one value per run."""
        domain = self.relay.domain
        raw = self.relay.store.get(Key(Kind.BATON, baton), limit_bytes=limits.MAX_ENVELOPE_BYTES)
        kind = manifest.PAYLOAD_TYPE
        payload = parse_envelope(raw, payload_type=kind).payload
        listing = manifest.parse_manifest(payload)
        signer = domain.signers.signer(listing.sender, domain.name)

        def signed() -> bytes:
            encoded = manifest.encode_manifest(listing)
            baton_id(encoded)
            return sign(kind, encoded, domain.signers.signer(listing.sender, domain.name))

        def verified() -> object:
            return verify(
                raw, payload_type=kind, purpose=Purpose.BATON, trust=domain.trust, promised=baton
            )

        parts: dict[str, Callable[[], object]] = {
            "sign": signed,
            "sign_alone": lambda: sign(kind, payload, signer),
            "verify": lambda: read_manifest(raw, baton, domain),
            "parse_envelope": lambda: parse_envelope(raw, payload_type=kind),
            "verify_alone": verified,
            "parse_manifest": lambda: manifest.parse_manifest(payload),
        }
        return {
            "segments": len(listing.segments),
            "manifest_bytes": len(payload),
            "envelope_bytes": len(raw),
            "seconds": {
                name: [_seconds(part) for _ in range(RUNS)] for name, part in parts.items()
            },
        }

    def byte_speed(self, baton: str, *, turn: int) -> JSON:
        """Seconds over all layer ranges of a baton: BLAKE3, the digest as a take checks it,
        encryption as a store does it, decryption as a take does it.

        Each range is read into private memory first, as in a take.  ``turn`` changes their order.
        """
        cipher, listing = DomainCipher(self.relay.domain.keys), self._listing(baton)
        seconds = dict.fromkeys(("blake3", "digest", "encrypt", "decrypt"), 0.0)
        size_bytes = largest = 0
        for ref in listing.segments:
            with self._segment(ref) as (header, reader):
                for index, part in enumerate(header.ranges):
                    data = memoryview(bytearray(part.stop - part.start))
                    ranged = _Range(header, part, data, cipher, index)
                    for works in turned(ranged.works(), turn):
                        reader.read_into(header.body_start + part.start, data)
                        for name, work in works:
                            seconds[name] += _seconds(work)
                    size_bytes += data.nbytes
                    largest = max(largest, data.nbytes)
        return {"size_bytes": size_bytes, "range_bytes": largest, "seconds": seconds}

    def _listing(self, baton: str) -> Manifest:
        return self.relay.open(baton).manifest

    @contextmanager
    def _segment(self, ref: SegmentRef) -> Iterator[tuple[SegmentHeader, Reader]]:
        with self.relay.store.open(Key(Kind.SEGMENT, ref.address)) as reader:
            header = segment.read_header(
                reader.read,
                file_size=reader.size_bytes,
                address=ref.address,
                keys=self.relay.domain.keys,
                storage=codecs.storage,
            )
            yield header, reader


class _Range:
    """One layer range in private memory, and what is done with it."""

    def __init__(
        self,
        header: SegmentHeader,
        part: LayerRange,
        data: memoryview,
        cipher: DomainCipher,
        index: int,
    ) -> None:
        self._header, self._part, self._data, self._cipher = header, part, data, cipher
        self._frame = Frame(b"bench", index + 1, len(header.ranges) + 1, data.nbytes)
        self._stored = memoryview(bytearray(data.nbytes + TAG_BYTES))

    def works(self) -> list[_Works]:
        """By name; those in one list belong together."""
        return [
            [("blake3", lambda: blake3(self._data).digest())],
            [("digest", lambda: segment.verify_range(self._header, self._part, self._data))],
            [("encrypt", self._encrypt), ("decrypt", self._decrypt)],
        ]

    def _encrypt(self) -> None:
        plain = replace(self._frame, digest=b"")
        self._frame = replace(plain, digest=self._cipher.digest(plain, self._data))
        self._cipher.encrypt(self._frame, self._data, self._stored)

    def _decrypt(self) -> None:
        if not self._cipher.decrypt(self._frame, self._stored, self._data):
            raise KvbatonError("what was encrypted cannot be decrypted")


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
