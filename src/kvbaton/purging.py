"""Deleting a baton with all that is its own, and proving it.

Only manifests whose signatures verify are read for names, so nobody else can have objects deleted,
or kept, by listing them.  What a baton lists is deleted before the baton, so a purge that was
interrupted can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kvbaton import codecs
from kvbaton.errors import (
    BatonUnavailable,
    FormatError,
    NotFound,
    NotTrusted,
    StoreError,
)
from kvbaton.leasing import leased_keys
from kvbaton.opening import keys_of, read_manifest, read_transcript
from kvbaton.seals import TrustDomain
from kvbaton.stores import Key, Kind, Reader, Store, StoreURL, open_store
from kvbaton.stores.windows import Windows, chunks_of, files_below, window_in
from kvbaton.types import JSON, Manifest, SegmentHeader
from kvbaton.vaults import bare, sealed
from kvbaton.wire import limits, prefix, segment
from kvbaton.wire.frames import TAG_BYTES, segment_pieces, table_end

BEYOND_REACH = (
    "copies in other stores, backups and snapshots",
    "blocks of the disk that were freed and not yet overwritten, or remapped by an SSD",
    "the memory and the swap space of processes that have taken the baton",
    "text that was made of it for other trust domains, and answers",
    "the baton's id in the manifests of its descendants, in receipts and in logs",
)
"""What no purge reaches.  With encryption, destroying the domain's key covers the first two."""

_DEPTH = 3
_LOOK_BYTES = 4096
_ORDER = {Kind.PREFIX: 0, Kind.SEGMENT: 1, Kind.TRANSCRIPT: 2, Kind.BATON: 3}


@dataclass(frozen=True, slots=True)
class Kept:
    """An object of the baton that stays, because these batons list it."""

    key: Key
    listed_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Search:
    """What was searched after the deletion, for windows of bytes taken before it.

    ``shared`` windows were not looked for: they stand in objects that stay, so finding them would
    say nothing.  ``files`` is 0 for stores that are not a directory; their listings were read.
    """

    files: int = 0
    size_bytes: int = 0
    windows: int = 0
    shared: int = 0


@dataclass(frozen=True, slots=True)
class PurgeReport:
    """What a purge did.

    Parameters
    ----------
    baton, batons
        The baton that was named, and all that were purged.
    deleted, deleted_bytes
        Objects that were deleted, and their size as they were stored.
    kept
        Objects of theirs that other batons list.
    unverified
        Batons among them whose manifest could not be verified: what they list is not known.
    search, remains
        What was searched, and where something was found all the same.
    leased
        What was deleted although somebody was using it: a take that has opened it reads on.
    """

    baton: str
    batons: tuple[str, ...]
    deleted: tuple[Key, ...]
    deleted_bytes: int
    kept: tuple[Kept, ...]
    unverified: tuple[str, ...]
    search: Search
    remains: tuple[str, ...]
    leased: tuple[Key, ...] = ()

    @property
    def proven(self) -> bool:
        """It is known what there was to delete, and nothing of it was found again."""
        return not self.remains and not self.unverified

    def to_json(self) -> JSON:
        """As ``kvbaton purge --json`` prints it."""
        return {
            "baton": self.baton,
            "batons": list(self.batons),
            "deleted": [{"kind": key.kind.value, "name": key.name} for key in self.deleted],
            "deleted_bytes": self.deleted_bytes,
            "kept": [
                {
                    "kind": one.key.kind.value,
                    "name": one.key.name,
                    "listed_by": list(one.listed_by),
                }
                for one in self.kept
            ],
            "unverified": list(self.unverified),
            "searched": {
                "files": self.search.files,
                "bytes": self.search.size_bytes,
                "windows": self.search.windows,
                "shared_windows": self.search.shared,
            },
            "remains": list(self.remains),
            "leased": [{"kind": key.kind.value, "name": key.name} for key in self.leased],
            "proven": self.proven,
            "beyond_reach": list(BEYOND_REACH),
        }


def purge(
    store: Store, domain: TrustDomain, baton: str, *, descendants: bool = False
) -> PurgeReport:
    """Delete a baton, its transcript, its segments and the prefix records that lead to them, and
    look whether anything of them is left.

    Parameters
    ----------
    store
        Encrypted or not: it is opened as the domain asks for it.
    domain
        Its keys verify manifests and read what is there.
    baton
        Id of the baton.
    descendants
        Also the batons that descend from it, or list its segments or its transcript.  Without it,
        what other batons list is kept and reported.

    Raises
    ------
    BatonUnavailable
        The store holds no such baton; nothing was deleted.
    StoreError
        Something could not be read or deleted; the purge can be repeated.
    """
    key = Key(Kind.BATON, baton)
    store = sealed(store, domain)
    under = bare(store)
    if not under.exists(key):
        raise BatonUnavailable(f"the store holds no baton {baton}", hint="nothing was deleted")
    listings = _verified(store, domain)
    going = _going(baton, listings, descendants=descendants)
    plan = _Plan(store, domain, listings, going)
    sizes = {e.key: e.size_bytes for kind in _ORDER for e in under.list(kind)}
    there = [name for name in plan.deleted if name in sizes]
    trace, leased = _Trace(store, there), leased_keys(under)
    deleted = [name for name in there if under.delete(name)]
    under.sweep()
    search, remains = trace.search()
    return PurgeReport(
        baton=baton,
        batons=going,
        deleted=tuple(deleted),
        deleted_bytes=sum(sizes[name] for name in deleted),
        kept=plan.kept,
        unverified=tuple(name for name in going if name not in listings),
        search=search,
        remains=remains,
        leased=tuple(name for name in deleted if name in leased),
    )


# --- what goes and what stays ----------------------------------------------------------------


def _verified(store: Store, domain: TrustDomain) -> dict[str, Manifest]:
    """Manifests of all batons that a key has signed that is trusted, or was before it was revoked:
    those are the first that one wants to be rid of."""
    listings = {e.key.name: _listing(store, domain, e.key) for e in store.list(Kind.BATON)}
    return {name: listing for name, listing in listings.items() if listing is not None}


def _listing(store: Store, domain: TrustDomain, key: Key) -> Manifest | None:
    """A verified manifest; what was made for other domains is not encrypted with this one's key."""
    for place in (store, bare(store)):
        try:
            raw = place.get(key, limit_bytes=limits.MAX_ENVELOPE_BYTES)
            listing, _ = read_manifest(raw, key.name, domain, revoked=True)
        except (NotTrusted, NotFound, FormatError, BatonUnavailable):
            continue
        if place is store or listing.export is not None:
            return listing
    return None


def _going(baton: str, listings: Mapping[str, Manifest], *, descendants: bool) -> tuple[str, ...]:
    """The batons that are purged; a baton stands before those that descend from it."""
    going = [baton]
    if not descendants:
        return (baton,)
    if baton in listings:
        own = _objects(listings[baton])
        going += [n for n, one in listings.items() if n != baton and own & _objects(one)]
    for name in going:  # grows while it is walked
        going += [n for n, one in listings.items() if name in one.parents and n not in going]
    return tuple(going)


def _objects(listing: Manifest) -> set[Key]:
    segments = {Key(Kind.SEGMENT, ref.address) for ref in listing.segments}
    return segments | {Key(Kind.TRANSCRIPT, listing.transcript)}


class _Plan:
    """What is deleted, in that order, and what is kept."""

    def __init__(
        self,
        store: Store,
        domain: TrustDomain,
        listings: Mapping[str, Manifest],
        going: Sequence[str],
    ) -> None:
        self._store, self._domain = store, domain
        self._going = [listings[name] for name in going if name in listings]
        self._runs = [(self._read(one), one) for one in self._going]
        self._staying = {n: _objects(one) for n, one in listings.items() if n not in going}
        listed = {key for one in self._going for key in _objects(one)}
        needed = {key for keys in self._staying.values() for key in keys}
        own = (listed - needed) | set(self._leftovers(listed | needed))
        own |= set(self._prefixes(own, needed))
        # Those that descend first: an interrupted purge must find the way to them again.
        batons = [Key(Kind.BATON, name) for name in reversed(going)]
        self.deleted = sorted(own, key=lambda key: (_ORDER[key.kind], key.name)) + batons
        self.kept = tuple(Kept(key, self._who(key)) for key in sorted(listed & needed))

    def _who(self, key: Key) -> tuple[str, ...]:
        return tuple(sorted(name for name, keys in self._staying.items() if key in keys))

    def _leftovers(self, listed: set[Key]) -> Iterator[Key]:
        """Segments that no baton lists and that hold KV of the same tokens: ends that were cut
        anew, other encodings."""
        for entry in self._store.list(Kind.SEGMENT):
            header = None if entry.key in listed else self._header(entry.key)
            if header is not None and any(
                self._holds(header, ids, listing) for ids, listing in self._runs
            ):
                yield entry.key

    def _read(self, listing: Manifest) -> tuple[int, ...]:
        """Ids of a baton's transcript, none where it is gone or damaged."""
        try:
            place = self._store if listing.export is None else bare(self._store)
            return read_transcript(place, listing, self._domain).ids
        except BatonUnavailable as error:
            if isinstance(error.__cause__, FormatError | NotFound):
                return ()
            raise StoreError(error.sentence, at=error.at) from error

    def _header(self, key: Key) -> SegmentHeader | None:
        try:
            with self._store.open(key) as reader:
                return segment.read_header(
                    reader.read,
                    file_size=reader.size_bytes,
                    address=key.name,
                    keys=self._domain.keys,
                    storage=codecs.storage,
                    first_bytes=reader.head_bytes,
                )
        except (FormatError, NotFound):
            return None

    def _holds(self, header: SegmentHeader, ids: Sequence[int], listing: Manifest) -> bool:
        first, stop, keys = header.span.first, header.span.stop, keys_of(listing, self._domain)
        if first >= len(ids) or keys.prefix_keys(header.function, ids, [first]) != [
            header.prefix_key
        ]:
            return False
        if stop > len(ids):  # the conversation went on: it begins with the end of this one
            return first > 0
        return keys.token_digest(ids[first:stop]) == header.token_digest

    def _prefixes(self, own: set[Key], needed: set[Key]) -> Iterator[Key]:
        """Records that lead to what is deleted, or hold the same tokens and lead nowhere else."""
        ends = set(self._ends())
        for entry in self._store.list(Kind.PREFIX):
            try:
                raw = self._store.get(entry.key, limit_bytes=limits.MAX_PREFIX_RECORD_BYTES)
                record = prefix.stored_record(raw)
                to = Key(Kind.SEGMENT, record.address)
            except NotFound:
                continue
            except FormatError:
                if entry.key.name in ends:
                    yield entry.key
                continue
            same = entry.key.name in ends or self._tells(record)
            if to in own or (same and to not in needed):
                yield entry.key

    def _tells(self, record: prefix.PrefixRecord) -> bool:
        """Whether a record of a longer conversation begins with the end of a purged one."""
        for ids, listing in self._runs:
            end = tuple(ids[record.first :])[: len(record.ids)]
            same = record.function == listing.function.digest
            if same and record.first and end and record.ids[: len(end)] == end:
                return True
        return False

    def _ends(self) -> Iterator[str]:
        """Prefix keys of everything that the batons' tokens begin with."""
        for ids, listing in self._runs:
            stops = range(1, len(ids) + 1)
            yield from self._domain.keys.prefix_keys(listing.function.digest, ids, stops)


# --- proof -------------------------------------------------------------------------------------


class _Trace:
    """Windows of the objects that are going to be deleted, and the search for them afterwards."""

    def __init__(self, store: Store, keys: Sequence[Key]) -> None:
        self._under, self._keys = bare(store), frozenset(keys)
        self._root = _folder_of(self._under)
        taken = {window for key in keys for window in _windows(store, key)}
        shared = self._in_what_stays(Windows(taken))
        self._shared = len(shared)
        self._windows = Windows(taken - shared)

    def _in_what_stays(self, windows: Windows) -> set[bytes]:
        """Windows that other objects have too, such as the beginning that two prompts share."""
        found: set[bytes] = set()
        for path, shown in self._files():
            if (key := _key_of(shown)) is not None and key not in self._keys:
                found |= windows.found_in(chunks_of(path))
        return found

    def _files(self) -> Iterator[tuple[Path, Path]]:
        """Every file below the store's folder, and its path within."""
        if self._root is not None:
            for path in files_below(self._root):
                yield path, path.relative_to(self._root)

    def search(self) -> tuple[Search, tuple[str, ...]]:
        """Look through a fresh handle, and in every file below the store's folder."""
        remains = list(self._still_listed())
        files = size_bytes = 0
        names = {key.name for key in self._keys}
        for path, shown in self._files():
            if any(name in path.name for name in names):
                remains.append(f"file {shown} has the name of a deleted object")
            data = _Counted(chunks_of(path))
            found = len(self._windows.found_in(data))
            if found:
                remains.append(f"file {shown} holds {found} of the windows")
            files, size_bytes = files + 1, size_bytes + data.size_bytes
        return Search(files, size_bytes, len(self._windows), self._shared), tuple(remains)

    def _still_listed(self) -> Iterator[str]:
        fresh = _fresh(self._under)
        for kind in _ORDER:
            listed = {entry.key for entry in fresh.list(kind)}
            for key in self._keys:
                if key.kind is kind and (key in listed or fresh.exists(key)):
                    yield f"{key} is in the store"


class _Counted:
    """Chunks, and how many bytes they were."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks, self.size_bytes = chunks, 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self.size_bytes += len(chunk)
            yield chunk


def _fresh(store: Store) -> Store:
    """Another handle to the same store; the same one where its URL opens nothing."""
    try:
        return open_store(store.url)
    except StoreError:
        return store


def _folder_of(store: Store) -> Path | None:
    url = StoreURL.parse(store.url)
    return Path(url.location) if url.scheme in ("dir", "fsspec+file") else None


def _key_of(shown: Path) -> Key | None:
    """The object whose file has this path within a store's folder."""
    kind, _, name = shown.parts if len(shown.parts) == _DEPTH else ("", "", "")
    known = kind in set(Kind) and Key.is_name(name)
    return Key(Kind(kind), name) if known else None


def _windows(store: Store, key: Key) -> list[bytes]:
    """A window of each layer range, or of the whole, as it is and as it is stored."""
    under, found = bare(store), []
    pieces: list[int] = []
    with suppress(NotFound):
        if under is not store:
            with suppress(FormatError), store.open(key) as reader:
                pieces = _pieces(reader, key.kind)
                found += _taken(reader, pieces)
        with under.open(key) as reader:
            if pieces:
                found += _taken(reader, pieces, first=table_end(len(pieces)), gap=TAG_BYTES)
            else:
                found += _taken(reader, _pieces(reader, key.kind))
    return found


def _pieces(reader: Reader, kind: Kind) -> list[int]:
    if kind is not Kind.SEGMENT:
        return [reader.size_bytes]
    start = reader.read(0, min(reader.size_bytes, limits.LENGTH_FIELD_BYTES))
    try:
        length = segment.header_length(start, file_size=reader.size_bytes)
    except FormatError:
        return [reader.size_bytes]
    return segment_pieces(reader.read(0, length), reader.size_bytes)


def _taken(reader: Reader, pieces: Sequence[int], *, first: int = 0, gap: int = 0) -> list[bytes]:
    """A window from the middle of each piece; they lie ``gap`` bytes apart."""
    found, start = [], first
    for size_bytes in pieces:
        looked_at = min(size_bytes, _LOOK_BYTES)
        window = window_in(reader.read(start + (size_bytes - looked_at) // 2, looked_at))
        found += [] if window is None else [window]
        start += size_bytes + gap
    return found
