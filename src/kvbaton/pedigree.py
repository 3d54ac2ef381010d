"""Where batons come from: hops and fidelity as their verified parents allow, never as claimed.

A baton may claim more hops and less fidelity than its parents, never fewer or better.  Where a
parent is missing nothing can be recomputed, and the worst is believed.  A revoked key voids its
batons and all that descends from them: each manifest lists the keys of all its ancestors' signers,
so that removing an ancestor hides nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvbaton.backing import one_more
from kvbaton.errors import FormatError, NotTrusted, StoreError, TrustFault
from kvbaton.seals import KeyStatus, Purpose, TrustDomain
from kvbaton.seals.statement import verify
from kvbaton.stores import Key, Kind, Store
from kvbaton.types import Baton, Fidelity, FidelityClass, Hops, Manifest, Reason, ReasonCode
from kvbaton.wire import limits, manifest

MAX_ANCESTORS = 512
"""Ancestors that are looked at; where there are more the worst is believed."""
KNOWN = 2048
"""Batons whose origin is remembered."""
KNOWN_BYTES = 64 << 20
"""Bytes of their envelopes, at most."""
UNKNOWN_ORIGIN = Hops(exact=limits.MAX_HOPS, lossy=limits.MAX_HOPS)
"""Hops where a parent is missing."""


@dataclass(frozen=True, slots=True)
class Kin:
    """What a baton says about its origin, as its signer has signed it.

    ``signer`` is a key id; ``signers`` those of all ancestors; ``has_kv`` whether it lists
    segments, with what level of ``noise``; ``expires_ms`` when it ends; ``envelope`` its exact
    bytes, empty where they are not at hand.
    """

    name: str
    hops: Hops
    fidelity: Fidelity
    parents: tuple[str, ...]
    signer: str
    signers: tuple[str, ...]
    has_kv: bool
    noise: float
    expires_ms: int
    envelope: bytes

    @classmethod
    def of_manifest(cls, name: str, listing: Manifest, signer: str, envelope: bytes) -> Kin:
        """What a verified manifest says."""
        return cls(
            name,
            listing.hops,
            listing.fidelity,
            listing.parents,
            signer,
            listing.signers,
            bool(listing.segments),
            listing.noise,
            listing.expires_ms,
            envelope,
        )

    @classmethod
    def of(cls, baton: Baton) -> Kin:
        """What a baton of this process says: in its envelope, since its manifest is what is
        believed."""
        listing = baton.manifest
        if baton.envelope:
            listing = manifest.parse_manifest(manifest.unwrap(baton.envelope))
        return cls.of_manifest(baton.id, listing, baton.signer, baton.envelope)


@dataclass(frozen=True, slots=True)
class Origin:
    """What is believed of a baton's origin."""

    hops: Hops
    fidelity: Fidelity
    warnings: tuple[Reason, ...] = ()


class Pedigree:
    """Remembers where batons come from, and reads what it does not know from their store."""

    def __init__(self, domain: TrustDomain) -> None:
        self._domain = domain
        self._known: OrderedDict[str, Kin] = OrderedDict()
        self._size_bytes = 0
        self._sound: set[str] = set()
        """Batons whose ancestors were all verified here."""
        self._lock = threading.Lock()

    def note(self, kin: Kin) -> None:
        """Remember what a verified baton says."""
        with self._lock:
            old = self._known.pop(kin.name, None)
            self._known[kin.name] = kin
            self._size_bytes += len(kin.envelope) - (0 if old is None else len(old.envelope))
            while len(self._known) > 1 and (
                len(self._known) > KNOWN or self._size_bytes > KNOWN_BYTES
            ):
                name, gone = self._known.popitem(last=False)
                self._size_bytes -= len(gone.envelope)
                self._sound.discard(name)

    def find(self, name: str, store: Store) -> Kin | None:
        """What a baton says, remembered or read from a store.

        None where it is absent or cannot be verified: who can put something else in its place
        could as well remove it.

        Raises
        ------
        NotTrusted
            A key that was revoked has signed it.
        """
        with self._lock:
            kin = self._known.get(name)
        if kin is not None:
            return kin
        try:
            raw = store.get(Key(Kind.BATON, name), limit_bytes=limits.MAX_ENVELOPE_BYTES)
            found = verify(
                raw,
                payload_type=manifest.PAYLOAD_TYPE,
                purpose=Purpose.BATON,
                trust=self._domain.trust,
                promised=name,
            )
            listing = manifest.parse_manifest(found.payload)
        except (StoreError, FormatError):
            return None
        except NotTrusted as error:
            if error.fault is TrustFault.KEY_REVOKED:
                raise _revoked() from None
            return None
        if not found.key.speaks_for(listing.sender, listing.domain):
            return None
        kin = Kin.of_manifest(name, listing, found.key.keyid, raw)
        self.note(kin)
        return kin

    def parents(self, names: tuple[str, ...], store: Store) -> tuple[Kin, ...]:
        """Those of a baton's parents that are known, or can be read and verified.

        Raises
        ------
        NotTrusted
            A revoked key has had a part in one of them.
        """
        found = tuple(kin for kin in (self.find(name, store) for name in names) if kin is not None)
        for kin in found:
            self._require_signers(kin, is_ancestor=True)
        return found

    def examine(self, kin: Kin, store: Store) -> Origin:
        """What is believed of a verified baton, once all its ancestors are looked at.

        Raises
        ------
        NotTrusted
            ``CLAIMS``: a baton on the way claims better than its parents allow.
            ``ANCESTOR_REVOKED``: a key of an ancestor was revoked.
        """
        missing = self._look_back(kin, store)
        self.note(kin)
        if not missing:
            return Origin(kin.hops, kin.fidelity)
        worst = Fidelity(FidelityClass.APPROXIMATE, kin.fidelity.codec, kin.fidelity.calibration)
        sentence = f"{missing}: its hops and fidelity count as the worst"
        return Origin(UNKNOWN_ORIGIN, worst, (Reason(ReasonCode.PARENT_MISSING, sentence),))

    def _look_back(self, kin: Kin, store: Store) -> str:
        """Verify all ancestors; why they cannot all be, or an empty sentence.

        Each baton lists the signers of all its ancestors, so where a baton's ancestors were once
        verified its own list tells which keys to ask about.
        """
        missing, seen, todo = "", {kin.name}, [kin]
        while todo:
            one = todo.pop()
            self._require_signers(one, is_ancestor=one is not kin)
            if one.name in self._sound:
                continue
            parents = [self.find(name, store) for name in one.parents]
            there = [parent for parent in parents if parent is not None]
            if len(there) < len(parents):
                missing = "a parent of the baton is missing, or its key is not trusted here"
            _require_modest(one, there)
            new = [parent for parent in there if parent.name not in seen]
            if len(seen) + len(new) > MAX_ANCESTORS:
                return f"the baton has more than {MAX_ANCESTORS} ancestors"
            todo += new
            seen |= {parent.name for parent in new}
        if not missing:
            with self._lock:
                self._sound |= seen & self._known.keys()
        return missing

    def knows(self, name: str) -> bool:
        """Whether a baton's origin is remembered."""
        with self._lock:
            return name in self._known

    def require_not_revoked(self, baton: Baton) -> None:
        """Refuse a baton of this process whose key, or one that it descends from, was revoked.

        Raises
        ------
        NotTrusted
            ``KEY_REVOKED`` for its own key, ``ANCESTOR_REVOKED`` for another.
        """
        if self._revoked(baton.signer):
            raise NotTrusted("the baton's key was revoked", fault=TrustFault.KEY_REVOKED)
        self.require_none_revoked(baton.manifest.signers)

    def bring(self, parents: Sequence[Kin], keep: Callable[[Kin], bool]) -> None:
        """Offer parents and what is remembered of theirs, nearest first.

        ``keep`` says whether it was new: behind what is known already nothing is offered.
        """
        todo, seen = list(parents), {kin.name for kin in parents}
        while todo:
            one = todo.pop(0)
            if not keep(one):
                continue
            for name in one.parents:
                with self._lock:
                    kin = self._known.get(name)
                if kin is not None and name not in seen and len(seen) <= MAX_ANCESTORS:
                    seen.add(name)
                    todo.append(kin)

    def require_none_revoked(self, keyids: Iterable[str]) -> None:
        """Refuse what a revoked key has had a part in.

        Raises
        ------
        NotTrusted
            ``ANCESTOR_REVOKED``.
        """
        if any(map(self._revoked, keyids)):
            raise _revoked()

    def _require_signers(self, kin: Kin, *, is_ancestor: bool) -> None:
        """Refuse what a revoked key has signed or has had a part in; asked each time, since keys
        are revoked while batons are remembered."""
        self.require_none_revoked((kin.signer, *kin.signers) if is_ancestor else kin.signers)

    def _revoked(self, keyid: str) -> bool:
        key = self._domain.trust.find(keyid)
        return key is not None and key.status is KeyStatus.REVOKED


def _require_modest(kin: Kin, parents: list[Kin]) -> None:
    """Refuse claims that are better than what verified parents allow."""
    if parents and kin.has_kv:
        worn = Hops(max(p.hops.exact for p in parents), max(p.hops.lossy for p in parents))
        least = one_more(worn, kin.fidelity)
        if kin.hops.exact < least.exact or kin.hops.lossy < least.lossy:
            raise _too_good("fewer hops", "$.hops")
        if kin.fidelity.rank < max(p.fidelity.rank for p in parents):
            raise _too_good("a better fidelity", "$.fidelity")
        if kin.noise < max(p.noise for p in parents):
            raise _too_good("less noise", "$.extensions.noise")
    known = {key for p in parents for key in (p.signer, *p.signers) if key}
    if not known <= set(kin.signers):
        raise _too_good("fewer signers", "$.extensions.signers")


def _too_good(what: str, at: str) -> NotTrusted:
    return NotTrusted(
        f"the baton claims {what} than its parents allow", fault=TrustFault.CLAIMS, at=at
    )


def _revoked() -> NotTrusted:
    return NotTrusted(
        "the baton descends from one whose key was revoked",
        fault=TrustFault.ANCESTOR_REVOKED,
        at="$.parents",
    )
