"""Publishing a baton: its transcript, its parents, and last its signed manifest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvbaton.backing import Shipment
from kvbaton.clock import Clock
from kvbaton.engines.base import Engine
from kvbaton.errors import StoreError
from kvbaton.leasing import Loan, in_use
from kvbaton.opening import keys_of, now_ms
from kvbaton.pedigree import Kin, Pedigree
from kvbaton.seals import TrustDomain
from kvbaton.seals.statement import sign
from kvbaton.stores import Key, Kind, Store
from kvbaton.types import (
    EXACT,
    Baton,
    BatonRef,
    FunctionId,
    Hops,
    Manifest,
    Mode,
    Span,
    Terms,
    Transcript,
)
from kvbaton.vaults import bare, require_sealed
from kvbaton.wire import manifest, transcript
from kvbaton.wire.digests import baton_id


class Publisher:
    """Signs and stores the batons of one relay; parameters as there."""

    def __init__(
        self,
        engine: Engine,
        store: Store,
        domain: TrustDomain,
        pedigree: Pedigree,
        observe: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        self.engine, self.store, self.domain = engine, store, domain
        self.pedigree, self.observe = pedigree, observe

    def listing(
        self,
        sender: str,
        mode: Mode,
        terms: Terms | None,
        ids: Sequence[int],
        spans: tuple[Span, ...],
        function: FunctionId,
        parents: Sequence[Kin],
        *,
        signers: Sequence[str] = (),
    ) -> Manifest:
        """A manifest of text, before its transcript is known.

        ``signers`` have had a part in it besides those of the parents: what was prefilled as text
        has no parents, and still comes from somebody.
        """
        all_signers = {key for kin in parents for key in (kin.signer, *kin.signers) if key}
        return Manifest(
            function=function,
            domain=self.domain.name,
            sender=sender,
            mode=mode,
            created_ms=now_ms(),
            cached_tokens=0,
            pending_tokens=len(ids),
            token_digest="",
            transcript="",
            transcript_bytes=0,
            spans=spans,
            segments=(),
            fidelity=EXACT,
            hops=Hops(),
            parents=(),
            terms=terms or Terms(),
            producer=self.engine.producer,
            signers=tuple(sorted(all_signers.union(signers))),
        )

    def publish(
        self,
        clock: Clock,
        listing: Manifest,
        words: Transcript,
        shipment: Shipment,
        parents: Sequence[Kin],
        loan: Loan,
    ) -> Baton:
        """Sign and store the manifest, behind its transcript and its parents.

        Raises
        ------
        StoreError
            The store could not take it, or something that it lists may have been removed, because
            this process stood still for longer than ``loan`` lasts; no baton exists.
        """
        keys = keys_of(listing, self.domain)
        blob = transcript.encode_transcript(words)
        listing = replace(
            listing,
            token_digest=keys.token_digest(words.ids),
            transcript=keys.transcript_address(blob),
            transcript_bytes=len(blob),
        )
        with clock.phase("sign"):
            payload = manifest.encode_manifest(listing)
            name = baton_id(payload)
            signer = self.domain.signers.signer(listing.sender, self.domain.name)
            raw = sign(manifest.PAYLOAD_TYPE, payload, signer)
        with clock.phase("put"):
            require_sealed(self.store, self.domain)
            # Who opens this one looks for its ancestors here.
            self.pedigree.bring(parents, lambda kin: self._keep(kin, loan))
            # Another domain does not have this one's key.
            store = self.store if listing.export is None else bare(self.store)
            self._put(store, listing.transcript, blob, name, raw, loan)
        self.observe("baton-stored", {"baton": name})
        clock.seconds["total"] = clock.elapsed()
        baton = Baton(
            ref=BatonRef(name, self.store.url),
            manifest=listing,
            transcript=words,
            signer=signer.keyid,
            envelope=raw,
            bytes_written=shipment.bytes_written,
            bytes_deduplicated=shipment.bytes_deduplicated,
            seconds=clock.seconds,
        )
        self.pedigree.note(Kin.of_manifest(name, listing, signer.keyid, raw))
        return baton

    def _put(
        self, store: Store, transcript: str, blob: bytes, name: str, raw: bytes, loan: Loan
    ) -> None:
        """Put transcript and manifest, which cannot be seen before it is known that all it lists
        is there."""
        words, baton = Key(Kind.TRANSCRIPT, transcript), Key(Kind.BATON, name)
        loan.lease(store, [words, baton])
        store.put(words, [blob])
        loan.confirm()
        store.put(baton, [raw])
        try:
            loan.confirm()  # again: this process may have stood still just then
        except StoreError:
            store.delete(baton)
            raise

    def _keep(self, kin: Kin, loan: Loan) -> bool:
        """Store an ancestor's envelope; False where it is there, and so are its own ancestors."""
        key = Key(Kind.BATON, kin.name)
        if not kin.envelope:
            return False
        loan.lease(self.store, [key])
        if in_use(self.store, key):
            return False
        self.store.put(key, [kin.envelope])
        return True
