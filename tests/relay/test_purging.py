"""Purging: what goes, what stays and why, and that the proof would notice what is left."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.relay.child import LONG

from kvbaton.codecs import storage
from kvbaton.errors import BatonUnavailable, InputError, StoreError
from kvbaton.purging import BEYOND_REACH, PurgeReport, purge
from kvbaton.seals import Requirements, TrustDomain
from kvbaton.seals.keys import OwnKey
from kvbaton.stores import DirectoryStore, Key, Kind, MemoryStore, Store
from kvbaton.testing import Fail, FaultyStore, StoreFault
from kvbaton.types import Baton, Route
from kvbaton.vaults import bare, sealed
from kvbaton.wire.digests import DomainKeys
from kvbaton.wire.prefix import stored_record
from kvbaton.wire.segment import read_header


def domain_of(secret: int = 0, *, encryption: bool = False) -> TrustDomain:
    """A trust domain with a fixed secret."""
    keys = DomainKeys(bytes(range(secret, secret + 32)))
    own = OwnKey("local", keys, Requirements(encryption=encryption))
    return TrustDomain("local", keys, trust=own)


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def domain(request: Any) -> TrustDomain:
    """A domain that asks for encryption, and one that does not."""
    return domain_of(encryption=request.param)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder of the store."""
    return tmp_path / "store"


@pytest.fixture
def agents(agent_of: Callable[..., Any], domain: TrustDomain, root: Path) -> Callable[..., Any]:
    """Makes agents that share a directory."""

    def make(name: str, **options: Any) -> Any:
        store = sealed(options.pop("store", None) or DirectoryStore(root), domain)
        return agent_of(name, store=store, domain=domain, **options)

    return make


def names(store: Store) -> dict[Kind, set[str]]:
    """Names of everything in a store."""
    return {kind: {entry.key.name for entry in bare(store).list(kind)} for kind in Kind}


def hand_off(agent: Any, text: str = LONG) -> Baton:
    """A baton of a new conversation."""
    baton: Baton = agent.hand_off(agent.run(text, max_new_tokens=9))
    return baton


def addresses(baton: Baton) -> set[str]:
    """Names of a baton's segments."""
    return {ref.address for ref in baton.manifest.segments}


# --- what goes and what stays ----------------------------------------------------------------


def test_nothing_of_the_only_baton_stays(agents: Any, domain: TrustDomain, root: Path) -> None:
    """Segments, transcript, prefix records, ends that were cut anew, and the baton."""
    baton = hand_off(agents("a"))
    before = names(DirectoryStore(root))
    assert all(before[kind] for kind in Kind if kind is not Kind.SPENT)
    report = purge(DirectoryStore(root), domain, baton.id)
    assert report.proven and report.kept == () and report.unverified == ()
    assert not any(names(DirectoryStore(root)).values())
    assert {key.name for key in report.deleted} == set().union(*before.values())
    assert report.deleted_bytes > sum(ref.size_bytes for ref in baton.manifest.segments)
    assert report.search.files == 1  # the account
    assert report.search.windows > 10


def test_what_another_baton_lists_is_kept_and_named(
    agents: Any, domain: TrustDomain, root: Path
) -> None:
    """The descendant can still be taken whole; but its parent, and so its hops, are unknown now."""
    a, b = agents("a"), agents("b")
    first = hand_off(a)
    second = b.hand_off(b.take(first.id, "Go on", max_new_tokens=9))
    shared = addresses(first) & addresses(second)
    assert shared and addresses(first) - shared
    report = purge(DirectoryStore(root), domain, first.id)
    assert report.proven
    assert {one.key.name for one in report.kept} == shared
    assert all(one.listed_by == (second.id,) for one in report.kept)
    left = names(DirectoryStore(root))
    assert left[Kind.BATON] == {second.id}
    assert left[Kind.SEGMENT] >= addresses(second)
    assert not left[Kind.SEGMENT] & (addresses(first) - shared)
    taken = agents("c").take(second.id, "Go on", max_new_tokens=3)
    assert taken.receipt.route is Route.TEXT
    taken = agents("c", max_lossy_hops=None).take(second.id, "Go on", max_new_tokens=3)
    assert taken.receipt.route is Route.BATON
    assert taken.receipt.reused_tokens == second.manifest.cached_tokens


def test_descendants_go_with_it_where_that_is_asked(
    agents: Any, domain: TrustDomain, root: Path
) -> None:
    """Children and grandchildren, and who lists the same segments; nobody else."""
    a, b = agents("a"), agents("b")
    first = hand_off(a)
    second = b.hand_off(b.take(first.id, "Go on", max_new_tokens=9))
    third = a.hand_off(a.take(second.id, "Go on", max_new_tokens=9))
    cousin = agents("c").hand_off(agents("c").take(first.id, "Stop", max_new_tokens=3))
    stranger = hand_off(agents("d"), "Another thing that is to be planned, and not at all that")
    report = purge(DirectoryStore(root), domain, first.id, descendants=True)
    assert report.proven
    assert set(report.batons) == {first.id, second.id, third.id, cousin.id}
    left = names(DirectoryStore(root))
    assert left[Kind.BATON] == {stranger.id}
    assert left[Kind.SEGMENT] >= addresses(stranger)
    taken = agents("e").take(stranger.id, "Go on", max_new_tokens=3)
    assert taken.receipt.route is Route.BATON


def test_a_conversation_that_begins_alike_keeps_its_beginning(
    agents: Any, domain: TrustDomain, root: Path
) -> None:
    """Two batons share the segments of a common prompt: purging one leaves the other whole."""
    one = hand_off(agents("a"), LONG + "and then go left")
    other = hand_off(agents("b"), LONG + "and then turn to the right side")
    assert addresses(one) & addresses(other)
    report = purge(DirectoryStore(root), domain, one.id)
    assert report.proven and report.kept
    taken = agents("c").take(other.id, "Go on", max_new_tokens=3)
    assert taken.receipt.reused_tokens == other.manifest.cached_tokens


def test_other_domains_and_spent_claims_are_left_alone(
    agents: Any, agent_of: Any, domain: TrustDomain, root: Path
) -> None:
    """What a purge deletes is its own domain's; what was used once stays used."""
    baton = hand_off(agents("a"))
    foreign = domain_of(1)
    kept = hand_off(agent_of("z", store=DirectoryStore(root), domain=foreign))
    spent = Key(Kind.SPENT, "ab" * 32)
    assert DirectoryStore(root).claim(spent, b"spent")
    report = purge(DirectoryStore(root), domain, baton.id, descendants=True)
    assert report.batons == (baton.id,)
    assert not DirectoryStore(root).claim(spent, b"again")
    taken = agent_of("y", store=DirectoryStore(root), domain=foreign).take(
        kept.id, "Go on", max_new_tokens=3
    )
    assert taken.receipt.route is Route.BATON


def test_a_baton_that_cannot_be_verified_is_not_read_for_names(
    agents: Any, agent_of: Any, domain: TrustDomain, root: Path
) -> None:
    """Somebody else's list protects nothing and dooms nothing: only the file itself goes."""
    baton = hand_off(agents("a"))
    stranger = TrustDomain("local", domain.keys, signers=OwnKey("local", domain_of(1).keys))
    forger = agent_of("a", store=sealed(DirectoryStore(root), domain), domain=stranger)
    forged = hand_off(forger)
    shared = addresses(forged) & addresses(baton)
    assert shared
    before = names(DirectoryStore(root))
    report = purge(DirectoryStore(root), domain, forged.id)
    assert report.unverified == (forged.id,)
    assert [key.name for key in report.deleted] == [forged.id]
    assert names(DirectoryStore(root))[Kind.SEGMENT] == before[Kind.SEGMENT]
    forged = hand_off(forger)
    report = purge(DirectoryStore(root), domain, baton.id)
    assert report.kept == ()
    assert not names(DirectoryStore(root))[Kind.SEGMENT] & addresses(baton)


def test_windows_that_say_nothing_are_not_looked_for(agent_of: Any, root: Path) -> None:
    """Text that another baton has too stands in the store rightly: it is counted, not found."""
    domain = domain_of()
    text = LONG * 3
    one, other = (
        hand_off(agent_of(name, store=DirectoryStore(root), domain=domain), text + end)
        for name, end in (("a", "left"), ("b", "right"))
    )
    report = purge(DirectoryStore(root), domain, one.id)
    assert report.proven
    assert report.search.shared > 0
    assert report.search.windows > 0
    assert Key(Kind.BATON, other.id) not in report.deleted


def test_text_for_another_domain_is_purged_like_anything_else(
    agents: Any, agent_of: Any, domain: TrustDomain, root: Path
) -> None:
    """It lies there without this domain's encryption, and is verified all the same."""
    kept = hand_off(agents("a"))
    sender = agent_of("a", store=DirectoryStore(root), domain=domain_of())
    turn = sender.run(LONG, max_new_tokens=5)
    abroad = sender.hand_off(turn, to_domain="abroad")
    report = purge(DirectoryStore(root), domain, abroad.id)
    assert report.proven and report.unverified == ()
    assert {key.kind for key in report.deleted} >= {Kind.BATON, Kind.TRANSCRIPT}
    assert Key(Kind.TRANSCRIPT, abroad.manifest.transcript) in report.deleted
    assert names(DirectoryStore(root))[Kind.BATON] == {kept.id}


@pytest.mark.parametrize("name", ["00" * 32, "f" * 64])
def test_a_baton_that_is_not_there_is_named(domain: TrustDomain, root: Path, name: str) -> None:
    """Nothing is deleted for a wrong id."""
    with pytest.raises(BatonUnavailable, match=name):
        purge(DirectoryStore(root), domain, name)


def test_a_name_that_is_none_is_refused(domain: TrustDomain, root: Path) -> None:
    """No path can be purged."""
    with pytest.raises(InputError):
        purge(DirectoryStore(root), domain, "../../etc/passwd")


# --- interruptions ---------------------------------------------------------------------------


@pytest.mark.parametrize("nth", [1, 2, 4, 7])
@pytest.mark.parametrize("descendants", [False, True])
def test_an_interrupted_purge_can_be_repeated(
    agents: Any, domain: TrustDomain, root: Path, nth: int, descendants: bool
) -> None:
    """Whatever deletion fails, the second run finds everything that the first one left."""
    a, b = agents("a"), agents("b")
    first = hand_off(a)
    second = b.hand_off(b.take(first.id, "Go on", max_new_tokens=9))
    third = a.hand_off(a.take(second.id, "Go on", max_new_tokens=9))
    store = FaultyStore(DirectoryStore(root))
    store.inject(StoreFault("delete", Fail(StoreError("the disk is gone")), nth=nth))
    goal = first if descendants else third
    with pytest.raises(StoreError):
        purge(store, domain, goal.id, descendants=descendants)
    assert store.exists(Key(Kind.BATON, goal.id))
    report = purge(DirectoryStore(root), domain, goal.id, descendants=descendants)
    assert report.proven
    if descendants:
        assert not any(names(DirectoryStore(root)).values())
    else:
        assert names(DirectoryStore(root))[Kind.BATON] == {first.id, second.id}


def test_what_a_dead_writer_left_goes_too(agents: Any, domain: TrustDomain, root: Path) -> None:
    """Temporary files that nobody writes any more are removed before the search."""
    baton = hand_off(agents("a"))
    (segment, *_) = [path for path in (root / "segments").rglob("*") if path.is_file()]
    shutil.copy(segment, root / "tmp" / f"{segment.stat().st_size}-{'ab' * 12}")
    assert purge(DirectoryStore(root), domain, baton.id).proven
    assert list((root / "tmp").iterdir()) == []


# --- the proof -------------------------------------------------------------------------------


def purged_with(
    place: Callable[[Path, Path], None], agents: Any, domain: TrustDomain, root: Path
) -> PurgeReport:
    """A purge while somebody has put something of a segment elsewhere in the store's folder."""
    baton = hand_off(agents("a"))
    held = [path for path in (root / "segments").rglob("*") if path.is_file()]
    place(max(held, key=lambda path: path.stat().st_size), root)
    return purge(DirectoryStore(root), domain, baton.id)


def test_a_copy_under_another_name_is_found(agents: Any, domain: TrustDomain, root: Path) -> None:
    """By its bytes, wherever they begin."""

    def place(segment: Path, root: Path) -> None:
        (root / "batons" / "notes.txt").write_bytes(b"12345" + segment.read_bytes())

    report = purged_with(place, agents, domain, root)
    assert not report.proven
    (remark,) = report.remains
    assert remark.startswith("file batons/notes.txt holds ")


def test_one_layer_range_is_found(agents: Any, domain: TrustDomain, root: Path) -> None:
    """The last bytes of a segment are its last layer: every range has a window of its own."""

    def place(segment: Path, root: Path) -> None:
        data = segment.read_bytes()
        (root / "tmp" / "core").write_bytes(data[-len(data) // 4 :])

    report = purged_with(place, agents, domain, root)
    assert [remark.split(" holds ")[0] for remark in report.remains] == ["file tmp/core"]


def test_a_name_without_content_is_found(agents: Any, domain: TrustDomain, root: Path) -> None:
    """A name says which text was there to whoever has the domain's key."""

    def place(segment: Path, root: Path) -> None:
        (root / "tmp" / f"{segment.name}.lock").touch()

    report = purged_with(place, agents, domain, root)
    assert len(report.remains) == 1
    assert report.remains[0].endswith("has the name of a deleted object")


def test_a_store_that_does_not_delete_is_found_out(agent_of: Any) -> None:
    """Deletions are believed only after a fresh look."""

    class Forgetful(MemoryStore):
        def delete(self, key: Key) -> bool:
            return key in self._shelf.objects

    store, domain = Forgetful(), domain_of()
    baton = hand_off(agent_of("a", store=store, domain=domain))
    report = purge(store, domain, baton.id)
    assert not report.proven
    assert len(report.remains) == len(report.deleted) > 3


def test_a_store_without_files_says_what_was_searched(agent_of: Any) -> None:
    """In memory only listings can be read: no files are claimed."""
    store, domain = MemoryStore(), domain_of()
    baton = hand_off(agent_of("a", store=store, domain=domain))
    report = purge(store, domain, baton.id)
    assert report.proven and report.search.files == 0
    assert not any(names(store).values())
    said = report.to_json()
    assert said["proven"] is True and said["beyond_reach"] == list(BEYOND_REACH)


def test_the_end_of_a_baton_in_a_segment_of_what_went_on_goes_too(
    agent_of: Any, domain: TrustDomain
) -> None:
    """The conversation went on and streamed a segment that begins within the baton's last tokens:
    neither it nor its prefix record, which holds ids in the clear, may stay."""
    store = MemoryStore()
    agent = agent_of("a", store=store)
    baton = agent.hand_off(agent.run(LONG, max_new_tokens=4))
    agent.run(LONG, max_new_tokens=9).conversation.stored()
    ids = baton.transcript.ids
    report, store = purge(store, domain, baton.id), agent.relay.store
    assert report.proven
    for entry in store.list(Kind.PREFIX):
        record = stored_record(store.get(entry.key, limit_bytes=1 << 20))
        end = ids[record.first :][: len(record.ids)]
        assert not end or record.ids[: len(end)] != tuple(end)
    for entry in store.list(Kind.SEGMENT):
        with store.open(entry.key) as reader:
            header = read_header(
                reader.read,
                file_size=reader.size_bytes,
                address=entry.key.name,
                keys=domain.keys,
                storage=storage,
            )
        assert header.span.first >= len(ids)
