"""Removing what nobody needs any more: what senders that died have left, what expired.

**What is needed.**  Batons, but for those that expired or were withdrawn; what they list; the
manifests of their ancestors, by which hops and fidelity are recomputed; prefix records that lead to
what is needed; everything that is leased.

**Epochs.**  Each run marks what is not needed.  What was marked for a grace period, in every run of
it, and was not used meanwhile, is removed.  A mark is as old as the clock of this machine since its
start says, so that clocks which are set, or differ, make nothing old; after a restart all marks
begin anew.

**Why nothing goes too early.**  Objects are listed first, then leases, then batons; and an object
is removed only if, at that moment, nobody leases it and it was not used since it was listed.  A
hand-off leases an object before it puts or uses it, and until its baton can be seen.  So if its
lease was there when leases were listed, or is there at the removal, the object stays; if it ended
before the first, the baton was listed; and if it began and ended in between, the object was used
since.  The grace period, longer than any lease lasts without its owner, is for those who do not
lease: what a sender stores while it decodes, and other programs.

**Crashes.**  Marks are written before anything is removed.  Batons go first, then what leads to
segments, then segments and transcripts: a run that is killed leaves nothing that lists what is
gone, and the next one goes on.
"""

from __future__ import annotations

import math
from collections.abc import Collection as Names
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from kvbaton import codecs
from kvbaton.errors import BatonUnavailable, Fault, FormatError, InputError, NotFound, NotTrusted
from kvbaton.opening import now_ms, read_manifest
from kvbaton.prefixes import verified_record
from kvbaton.seals import TrustDomain
from kvbaton.stores import Debris, Entry, Key, Kind, LeaseState, Removal, Store, read_whole
from kvbaton.stores.lease_clock import SteadyClock, boot_clock
from kvbaton.stores.leases import MAX_TTL_S
from kvbaton.stores.marks import Mark, Marks
from kvbaton.types import JSON, Manifest
from kvbaton.vaults import bare, sealed
from kvbaton.wire import limits, prefix, segment, transcript
from kvbaton.wire.manifest import parse_manifest, unwrap

DEFAULT_GRACE_S = 2 * MAX_TTL_S
"""Longer than any lease lasts without its owner."""
_MAX_GRACE_S = 366 * 86_400.0

KINDS = (Kind.BATON, Kind.PREFIX, Kind.SEGMENT, Kind.TRANSCRIPT)
"""In the order in which they go.  Spent claims stay: what was used once may not be used again."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Objects, and their bytes as they are stored."""

    objects: int = 0
    size_bytes: int = 0

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Amount:
        """How much some entries are."""
        sizes = [entry.size_bytes for entry in entries]
        return cls(len(sizes), sum(sizes))

    def to_json(self) -> JSON:
        """``{"objects", "bytes"}``."""
        return {"objects": self.objects, "bytes": self.size_bytes}


@dataclass(frozen=True, slots=True)
class Collection:
    """What a run has found and done; in a dry run, what it would have done.

    Parameters
    ----------
    needed
        Objects that batons need, or that lead to such.
    leased
        Objects that are not needed, but leased.
    waiting
        Objects that are not needed and whose grace period is not over, or that were used meanwhile.
    removed
        What went, by kind.
    due_s
        Seconds until the first of those that wait may go; None where none waits.
    unreadable
        Batons that nobody could read with the keys of this trust domain.  Where there are any, only
        what this domain is known to have made is removed.
    dangling
        Batons that list segments which the store does not hold; they are taken by text.
    debris
        What owners and writers that died have left.
    """

    needed: Amount
    leased: Amount
    waiting: Amount
    removed: Mapping[Kind, Amount]
    due_s: float | None
    unreadable: int
    dangling: tuple[str, ...]
    debris: Debris
    grace_s: float
    dry_run: bool

    @property
    def removed_objects(self) -> int:
        """How many objects went."""
        return sum(amount.objects for amount in self.removed.values())

    @property
    def removed_bytes(self) -> int:
        """Their bytes, as they were stored."""
        return sum(amount.size_bytes for amount in self.removed.values())

    def to_json(self) -> JSON:
        """As ``kvbaton gc --json`` prints it."""
        return {
            "dry_run": self.dry_run,
            "grace_s": self.grace_s,
            "needed": self.needed.to_json(),
            "leased": self.leased.to_json(),
            "waiting": self.waiting.to_json(),
            "due_s": self.due_s,
            "removed": {kind.value: self.removed[kind].to_json() for kind in KINDS},
            "unreadable": self.unreadable,
            "dangling": list(self.dangling),
            "debris": {
                "temporaries": self.debris.temporaries,
                "bytes": self.debris.size_bytes,
                "leases": self.debris.leases,
            },
        }


def collect(
    store: Store,
    domain: TrustDomain,
    *,
    grace_s: float = DEFAULT_GRACE_S,
    withdrawn: Names[str] = (),
    dry_run: bool = False,
    clock: SteadyClock | None = None,
) -> Collection:
    """Mark what nobody needs any more, and remove what was marked for a grace period.

    Parameters
    ----------
    store
        Encrypted or not: it is opened as the domain asks for it.
    domain
        Its keys verify manifests and read what is there.
    grace_s
        0 removes at once what no baton needs and nobody leases, also what a sender has stored
        while it decodes and would have handed off.
    withdrawn
        Ids of batons that are not needed, although they have not expired.
    dry_run
        Change nothing.
    clock
        By which marks age; by default the time since this machine was started.

    Raises
    ------
    Unsupported
        The store cannot lease, so nothing could be removed safely.
    InputError
        ``grace_s`` is no such time.
    StoreError
        Something could not be read or removed; the collection can be repeated.
    """
    if not (math.isfinite(grace_s) and 0 <= grace_s <= _MAX_GRACE_S):
        raise InputError(f"{grace_s!r} is no time from 0 s to {_MAX_GRACE_S:.0f} s", at="$.grace_s")
    run = _Run(sealed(store, domain), domain, clock or boot_clock(), grace_s, frozenset(withdrawn))
    return run.look() if dry_run else run.work()


@dataclass
class _Listed:
    """A baton's manifest, and whether it is needed."""

    manifest: Manifest
    needed: bool


@dataclass
class _Run:
    """One collection: what is there, what is needed, what is marked."""

    store: Store
    domain: TrustDomain
    clock: SteadyClock
    grace_s: float
    withdrawn: frozenset[str]
    entries: dict[Key, Entry] = field(default_factory=dict)
    leased: frozenset[Key] = frozenset()
    batons: dict[str, _Listed] = field(default_factory=dict)
    leads: dict[Key, Key | None] = field(default_factory=dict)
    unreadable: int = 0
    marks: Marks = field(default_factory=lambda: Marks(""))
    now_ms: int = 0

    def __post_init__(self) -> None:
        """Read everything, in the order on which safety rests: objects, leases, batons."""
        under = bare(self.store)
        known = Marks.parse(under.read_marks(), self.clock)
        self.entries = {entry.key: entry for kind in KINDS for entry in under.list(kind)}
        living = [one for one in under.leases() if one.state is not LeaseState.DEAD]
        self.leased = frozenset(key for one in living for key in one.keys)
        for entry in under.list(Kind.BATON):
            self._read(entry.key)
        self.leads = {key: self._lead(key) for key in self.entries if key.kind is Kind.PREFIX}
        self.now_ms = int(self.clock.now_s() * 1000)
        unneeded = self._unneeded()
        self.marks = Marks(self.clock.name, {e.key: known.again(e, self.now_ms) for e in unneeded})

    # -- reading ----------------------------------------------------------------------------------

    def _read(self, key: Key) -> None:
        """Note what a baton lists, whoever has signed it: what others need stays as well."""
        try:
            listing, verified = _listing(self.store, self.domain, key)
        except NotFound:
            return
        except FormatError:
            self.unreadable += 1
            return
        over = verified and (key.name in self.withdrawn or 0 < listing.expires_ms <= now_ms())
        self.batons[key.name] = _Listed(listing, needed=not over)

    def _lead(self, key: Key) -> Key | None:
        """The segment that a prefix record leads to; None where it leads nowhere."""
        try:
            reader = self.store.look(key)
            raw = read_whole(reader, key, limit_bytes=limits.MAX_PREFIX_RECORD_BYTES)
            return Key(Kind.SEGMENT, prefix.stored_record(raw).address)
        except (NotFound, FormatError):
            return None

    def _needed(self) -> set[Key]:
        """What is there for a reason, leases among them."""
        needed = {key for one in self.batons.values() if one.needed for key in _lists(one.manifest)}
        todo = [name for name, one in self.batons.items() if one.needed]
        unread = {k for k in self.entries if k.kind is Kind.BATON and k.name not in self.batons}
        needed |= unread
        seen = set(todo)
        while todo:  # manifests of ancestors, whose segments need not be there
            name = todo.pop()
            needed.add(Key(Kind.BATON, name))
            listed = self.batons.get(name)
            new = set(listed.manifest.parents) - seen if listed is not None else set()
            seen |= new
            todo += new
        kept = needed | self.leased
        return needed | {key for key, to in self.leads.items() if to in kept}

    def _unneeded(self) -> list[Entry]:
        needed = self._needed()
        return [e for k, e in self.entries.items() if k not in needed and k not in self.leased]

    # -- deciding ---------------------------------------------------------------------------------

    def _due(self) -> list[Entry]:
        """What has been marked for long enough, in the order in which it goes."""
        due = [self.entries[k] for k, mark in self.marks.marks.items() if self._left_s(mark) <= 0]
        order = {kind: place for place, kind in enumerate(KINDS)}
        return sorted(due, key=lambda e: (order[e.key.kind], e.key.name))

    def _left_s(self, mark: Mark) -> float:
        return self.grace_s - (self.now_ms - mark.since_ms) / 1000

    def _may_go(self, entry: Entry) -> bool:
        """Whether it could not be listed by a baton that nobody here can read."""
        return not self.unreadable or entry.key.kind is Kind.BATON or self._is_ours(entry.key)

    def _is_ours(self, key: Key) -> bool:
        """Whether this trust domain has made an object: its name is keyed with the domain's
        secret, or its signer is trusted."""
        keys = self.domain.keys
        try:
            with self.store.look(key) as reader:
                if key.kind is Kind.SEGMENT:
                    segment.read_header(
                        reader.read, file_size=reader.size_bytes, address=key.name, keys=keys,
                        storage=codecs.storage, first_bytes=reader.head_bytes,
                    )  # fmt: skip
                    return True
                raw = reader.read(0, min(reader.size_bytes, limits.MAX_TRANSCRIPT_BYTES))
            if key.kind is Kind.TRANSCRIPT:
                transcript.parse_transcript(raw, address=key.name, keys=keys)
            else:
                verified_record(raw, self.domain)
        except (NotFound, FormatError, NotTrusted):
            return False
        return True

    # -- doing ------------------------------------------------------------------------------------

    def look(self) -> Collection:
        """What :meth:`work` would do."""
        due = [entry for entry in self._due() if self._may_go(entry)]
        return self._result(due, bare(self.store).debris(), dry_run=True)

    def work(self) -> Collection:
        """Write the marks, then remove what is due."""
        under = bare(self.store)
        under.write_marks(self.marks.encode())
        due = [entry for entry in self._due() if self._may_go(entry)]
        gone: list[Entry] = []
        for kind in KINDS:
            some = [entry for entry in due if entry.key.kind is kind]
            found = list(zip(some, under.remove_unused(some), strict=True))
            gone += [entry for entry, what in found if what is Removal.DELETED]
            stays = [entry.key for entry, what in found if what in (Removal.LEASED, Removal.USED)]
            if stays:
                due = self._without(due, stays)
        return self._result(gone, under.sweep(), dry_run=False)

    def _without(self, due: list[Entry], stays: list[Key]) -> list[Entry]:
        """What still goes where some of it stays after all: not what that leads to."""
        for key in stays:
            if key.name in self.batons and key.kind is Kind.BATON:
                self.batons[key.name].needed = True
        led = {to for key in stays if (to := self.leads.get(key)) is not None}
        needed = self._needed() | led
        return [entry for entry in due if entry.key not in needed]

    def _result(self, gone: list[Entry], debris: Debris, *, dry_run: bool) -> Collection:
        names = {entry.key for entry in gone}
        waiting = [self.entries[key] for key in self.marks.marks if key not in names]
        left_s = [self._left_s(self.marks.marks[entry.key]) for entry in waiting]
        needed = self._needed()
        held = [e for k, e in self.entries.items() if k in self.leased and k not in needed]
        return Collection(
            needed=Amount.of(e for k, e in self.entries.items() if k in needed),
            leased=Amount.of(held),
            waiting=Amount.of(waiting),
            removed={k: Amount.of(e for e in gone if e.key.kind is k) for k in KINDS},
            due_s=max(0.0, min(left_s)) if left_s else None,
            unreadable=self.unreadable,
            dangling=tuple(sorted(self._dangling(names))),
            debris=debris,
            grace_s=self.grace_s,
            dry_run=dry_run,
        )

    def _dangling(self, gone: set[Key]) -> Iterator[str]:
        """Needed batons with a segment that was not there; those that came after the objects were
        listed are not known well enough."""
        for name, one in self.batons.items():
            key = Key(Kind.BATON, name)
            if one.needed and key in self.entries and key not in gone:
                segments = {Key(Kind.SEGMENT, ref.address) for ref in one.manifest.segments}
                if not segments <= self.entries.keys() or segments & gone:
                    yield name


def _lists(listing: Manifest) -> set[Key]:
    """What a baton lists."""
    segments = {Key(Kind.SEGMENT, ref.address) for ref in listing.segments}
    return segments | {Key(Kind.TRANSCRIPT, listing.transcript)}


def _listing(store: Store, domain: TrustDomain, key: Key) -> tuple[Manifest, bool]:
    """A manifest, and whether a key that is trusted has signed it, revoked since or not.

    Raises
    ------
    NotFound
        It is gone.
    FormatError
        There is no manifest in it that could be read.
    """
    problem: FormatError | None = None
    for place in dict.fromkeys((store, bare(store))):  # other domains' are not encrypted with ours
        try:
            raw = read_whole(place.look(key), key, limit_bytes=limits.MAX_ENVELOPE_BYTES)
        except FormatError as error:
            problem = error
            continue
        try:
            return read_manifest(raw, key.name, domain, revoked=True)[0], True
        except (NotTrusted, BatonUnavailable):
            try:
                return parse_manifest(unwrap(raw)), False
            except FormatError as error:
                problem = error
    raise problem or FormatError("no manifest", fault=Fault.ENVELOPE, at=str(key))
