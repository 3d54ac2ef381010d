"""Opening a baton: nothing of it is used before its signature, its sender and its time are right.

The order is fixed: the envelope, the id, the signature by a key that is trusted, and only then
the manifest: who the key may speak for, the trust domain, the time, what its parents allow, the
ticket; last the transcript.  Until the signature is verified no byte of the payload is parsed.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import TypeVar

from kvbaton.clock import within
from kvbaton.errors import (
    BatonUnavailable,
    Fault,
    FormatError,
    InputError,
    NotTrusted,
    StoreError,
    StoreTimeout,
    TrustFault,
)
from kvbaton.pedigree import Kin, Pedigree
from kvbaton.reasons import unavailable
from kvbaton.seals import Purpose, TrustDomain
from kvbaton.seals.statement import parsed_quietly, verify
from kvbaton.seals.tickets import Ticket, check_ticket, issue, spend
from kvbaton.stores import Key, Kind, Store, StoreURL, open_store
from kvbaton.types import Baton, BatonRef, Manifest, Transcript
from kvbaton.vaults import bare, require_sealed, sealed
from kvbaton.wire import limits, manifest, transcript
from kvbaton.wire.binding import check_transcript
from kvbaton.wire.digests import DomainKeys


@dataclass(frozen=True, slots=True)
class Bearer:
    """Who takes a baton, and by which ticket, if any.

    Who only looks at it, and answers nothing from it, does not ``take`` it and needs none.
    """

    name: str = ""
    ticket: str | None = None
    takes: bool = True


@dataclass(frozen=True, slots=True)
class Spending:
    """A ticket that is right and has to be used up, and where its baton lies."""

    ticket: Ticket
    store: Store


NOBODY = Bearer()
_CLAIM_BYTES = 32
T = TypeVar("T")
EXAMINER = Bearer(takes=False)
TICKET_S = 3600.0
"""Seconds for which a ticket is valid by default."""
MAX_SECONDS = 100 * 366 * 86_400


class Opening:
    """Opens batons of one trust domain.

    Parameters
    ----------
    store
        The receiver's own store: where ids without a store are looked up.
    domain
        Its keys verify; its requirements say whether a ticket is needed.
    """

    def __init__(self, store: Store, domain: TrustDomain) -> None:
        self.store, self.domain = store, domain
        self.pedigree = Pedigree(domain)

    def open(
        self,
        baton: Baton | BatonRef | str,
        *,
        deadline_s: float,
        bearer: Bearer = NOBODY,
        unspent: list[Spending] | None = None,
    ) -> Baton:
        """Manifest and transcript of a baton; a ``Baton`` in process carries both.

        Parameters
        ----------
        unspent
            Where what a ticket costs is put, for ``spend``, once everything else is known to be
            right; without it the ticket is spent here.

        Raises
        ------
        NotTrusted
            It is not authentic, not for this receiver, or not at this time; ``fault`` says what
            is wrong.  Nothing of it was used.
        BatonUnavailable
            Manifest or transcript is absent, damaged or too late; the cause is chained.
        """
        require_sealed(self.store, self.domain)
        started, due = time.monotonic(), list[Spending]()
        if isinstance(baton, Baton) and not baton.looked_at:
            self._in_process(baton, bearer, due)
            opened = baton
        else:
            ref = BatonRef(baton, self.store.url) if isinstance(baton, str) else baton
            ref = ref.ref if isinstance(ref, Baton) else ref
            opened = _in_time(deadline_s, lambda: self._read(ref, bearer, due))
        if unspent is None:
            self.spend(due, deadline_s=deadline_s - (time.monotonic() - started))
        else:
            unspent += due
        return opened

    def spend(self, due: Sequence[Spending], *, deadline_s: float) -> None:
        """Use tickets up, those of several batons together.

        Raises
        ------
        NotTrusted
            One of them is spent.
        BatonUnavailable
            The store did not answer in time.
        Unsupported
            The store cannot tell who was first.
        """
        if not due:
            return
        given_up = _GivenUp()

        def claim() -> None:
            with given_up.not_yet():  # whoever waits no more must not lose the ticket
                for one in due:
                    self._spend(one)

        _in_time(deadline_s, claim, given_up.now)

    def store_of(self, url: str) -> Store:
        """The store with a URL: one's own, or another that is there already.

        Raises
        ------
        StoreError
            It cannot be opened, or is not there: references come from elsewhere, and nothing is
            made where they point to.
        """
        if url == self.store.url:
            return self.store
        parsed = StoreURL.parse(url)
        if parsed.scheme == "dir" and not Path(parsed.location, Kind.BATON.value).is_dir():
            raise StoreError("there is no store where the reference points to")
        return sealed(open_store(url), self.domain)

    def _in_process(self, baton: Baton, bearer: Bearer, due: list[Spending]) -> None:
        """A baton of this process needs no ticket and no signature: whoever could forge it could
        as well call the model."""
        _require_current(baton.manifest, self.domain, now_ms=now_ms())
        self.pedigree.require_not_revoked(baton)
        if not self.pedigree.knows(baton.id):
            self.pedigree.note(Kin.of(baton))
        if bearer.ticket is not None:
            ticket = self._checked(baton.id, baton.manifest, bearer)
            due.append(Spending(ticket, self.store_of(baton.ref.store)))

    def _read(self, ref: BatonRef, bearer: Bearer, due: list[Spending]) -> Baton:
        with unavailable("manifest"):
            store = self.store_of(ref.store)
            raw, store = read_envelope(store, ref.id, self.domain)
        listing, signer = read_manifest(raw, ref.id, self.domain)
        _require_current(listing, self.domain, now_ms=now_ms())
        found = self.pedigree.examine(Kin.of_manifest(ref.id, listing, signer, raw), store)
        ticket = self._ticket(ref.id, listing, bearer)
        words = read_transcript(store, listing, self.domain)
        if ticket is not None:
            due.append(Spending(ticket, store))
        believed = replace(listing, hops=found.hops, fidelity=found.fidelity)
        return Baton(
            ref, believed, words, signer=signer, envelope=raw, warnings=found.warnings,
            looked_at=not bearer.takes,
        )  # fmt: skip

    # -- tickets --------------------------------------------------------------------------------

    def ticket(
        self,
        baton: str,
        issuer: str,
        audience: str,
        *,
        uses: int = 1,
        expires_s: float = TICKET_S,
        after_s: float = 0.0,
    ) -> str:
        """A ticket of ``issuer`` for ``audience``: see ``seals.tickets``; seconds from now.

        Raises
        ------
        InputError
            A number or a name makes no sense.
        SettingsError
            There is no key that may sign for the issuer.
        """
        start = now_ms()
        return issue(
            baton,
            issuer=issuer,
            audience=audience,
            domain=self.domain.name,
            not_before_ms=start + _ms(after_s, "$.after_s"),
            expires_ms=start + _ms(expires_s, "$.expires_s"),
            uses=uses,
            signer=self.domain.signers.signer(issuer, self.domain.name, Purpose.TICKET),
        )

    def _ticket(self, name: str, listing: Manifest, bearer: Bearer) -> Ticket | None:
        if bearer.ticket is not None:
            return self._checked(name, listing, bearer)
        wanted = bearer.takes and self.domain.requirements.tickets
        if wanted and listing.export is None:
            raise NotTrusted(
                "this trust domain asks for a ticket, and there is none",
                fault=TrustFault.TICKET_MISSING,
                hint="the sender makes one with: kvbaton ticket BATON --for NAME",
            )
        return None

    def _checked(self, name: str, listing: Manifest, bearer: Bearer) -> Ticket:
        return check_ticket(
            bearer.ticket or "",
            baton=name,
            sender=listing.sender,
            audience=bearer.name,
            domain=listing.domain,
            now_ms=now_ms(),
            trust=self.domain.trust,
        )

    def _spend(self, due: Spending) -> None:
        """Use a ticket up, where the baton lies and in the receiver's own store: a copy of a store
        must not make it new.  Two URLs may name one store, so each claim says whose it is."""
        mine = secrets.token_bytes(_CLAIM_BYTES)
        shelves = [due.store]
        if due.store.url != self.store.url:
            shelves.insert(0, self.store)
        for shelf in shelves:
            spend(due.ticket, self.domain.keys, _claimer(shelf, mine))


def _in_time(
    deadline_s: float, work: Callable[[], T], given_up: Callable[[], None] = lambda: None
) -> T:
    """The result of ``work``, or ``BatonUnavailable`` past the deadline."""
    try:
        return within(deadline_s, work)
    except FutureTimeout:
        given_up()
        late = StoreTimeout(f"the store did not answer within {deadline_s:.3g} s")
        raise BatonUnavailable(f"the baton cannot be read: {late.sentence}") from late


class _GivenUp:
    """Whether somebody still waits: asked before what cannot be taken back."""

    def __init__(self) -> None:
        self._lock, self._over = Lock(), False

    def now(self) -> None:
        """Nobody waits any more; what has begun goes on."""
        if self._lock.acquire(blocking=False):
            self._over = True
            self._lock.release()

    @contextmanager
    def not_yet(self) -> Iterator[None]:
        """Do something that only counts where somebody waits for it.

        Raises
        ------
        StoreTimeout
            Nobody does.
        """
        with self._lock:
            if self._over:
                raise StoreTimeout("the take was abandoned")
            yield


def _claimer(store: Store, mine: bytes) -> Callable[[str], bool]:
    def claim(name: str) -> bool:
        key = Key(Kind.SPENT, name)
        with unavailable("ticket"):
            return store.claim(key, mine) or store.get(key, limit_bytes=_CLAIM_BYTES) == mine

    return claim


def expiry_ms(expires_s: float | None) -> int:
    """When a baton expires that does so in so many seconds; 0 for one that does not.

    Raises
    ------
    InputError
        It would have expired already.
    """
    return 0 if expires_s is None else now_ms() + _ms(expires_s, "$.expires_s", positive=True)


def earliest(*times_ms: int) -> int:
    """The first of several ends, of which 0 is none; 0 where there is none."""
    return min((end for end in times_ms if end), default=0)


def _ms(seconds: float, at: str, *, positive: bool = False) -> int:
    if not 0 <= seconds <= MAX_SECONDS or (positive and seconds == 0):
        raise InputError(f"{seconds!r} is no time from 0 s to {MAX_SECONDS} s", at=at)
    return round(1000 * seconds)


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def read_envelope(store: Store, name: str, domain: TrustDomain) -> tuple[bytes, Store]:
    """What lies in a baton's place, and the store to read on in.

    What was made for another trust domain is not encrypted with the key of its maker's, so it is
    read as it lies there, and only that.

    Raises
    ------
    NotFound
        There is nothing.
    FormatError
        It cannot be decrypted, and is nothing that was made for another domain.
    """
    key = Key(Kind.BATON, name)
    try:
        return store.get(key, limit_bytes=limits.MAX_ENVELOPE_BYTES), store
    except FormatError as error:
        if error.fault is not Fault.DECRYPTION:
            raise
        raw = bare(store).get(key, limit_bytes=limits.MAX_ENVELOPE_BYTES)
        if read_manifest(raw, name, domain)[0].export is None:
            raise
        return raw, bare(store)


def read_manifest(
    raw: bytes, name: str, domain: TrustDomain, *, revoked: bool = False
) -> tuple[Manifest, str]:
    """The manifest in an envelope and the id of its key, once the signature is verified.

    ``revoked`` accepts a revoked key as well, for who deletes what it has signed.

    Raises
    ------
    NotTrusted
        It is not signed by a key that is trusted, and may speak for its sender and domain.
    BatonUnavailable
        What a trusted key has signed is no manifest.
    """
    verified = verify(
        raw,
        payload_type=manifest.PAYLOAD_TYPE,
        purpose=Purpose.BATON,
        trust=domain.trust,
        promised=name,
        revoked=revoked,
    )
    found = parsed_quietly(manifest.parse_manifest, verified.payload)
    if isinstance(found, Fault):
        damaged = FormatError("no manifest", fault=found)
        raise BatonUnavailable(f"the baton's manifest is damaged ({found})") from damaged
    listing = found
    if not verified.key.speaks_for(listing.sender, listing.domain):
        raise NotTrusted(
            "the baton's key may not speak for the sender that it names",
            fault=TrustFault.SIGNER,
            at="$.sender",
        )
    return listing, verified.key.keyid


def require_domain(listing: Manifest, domain: TrustDomain) -> None:
    """Refuse what is neither of this domain nor text that another one has made for it.

    Raises
    ------
    NotTrusted
        It belongs to another trust domain.
    """
    wanted = listing.export.domain if listing.export is not None else listing.domain
    if wanted != domain.name:
        raise NotTrusted(
            "the baton belongs to another trust domain",
            hint="ask its sender for text: hand_off(to_domain=...)",
        )


def _require_current(listing: Manifest, domain: TrustDomain, *, now_ms: int) -> None:
    require_domain(listing, domain)
    if listing.expires_ms and now_ms >= listing.expires_ms:
        late_s, age_s = now_ms - listing.expires_ms, now_ms - listing.created_ms
        raise NotTrusted(
            f"the baton expired {late_s / 1000:.0f} s ago; it is {age_s / 1000:.0f} s old",
            fault=TrustFault.EXPIRED,
            at="$.extensions.expires_ms",
        )


def read_transcript(store: Store, listing: Manifest, domain: TrustDomain) -> Transcript:
    """The transcript that a verified manifest lists, with exactly its tokens.

    Raises
    ------
    BatonUnavailable
        It is absent, or its bytes are not the ones that were signed.
    """
    keys = keys_of(listing, domain)
    with unavailable("transcript"):
        key = Key(Kind.TRANSCRIPT, listing.transcript)
        blob = store.get(key, limit_bytes=listing.transcript_bytes)
        words = transcript.parse_transcript(blob, address=listing.transcript, keys=keys)
        check_transcript(listing, words, keys)
    return words


def keys_of(listing: Manifest, domain: TrustDomain) -> DomainKeys:
    """What keys a baton's digests: its domain's secret, or the salt of what was made for another
    domain."""
    if listing.export is None:
        return domain.keys
    return DomainKeys(bytes.fromhex(listing.export.salt))
