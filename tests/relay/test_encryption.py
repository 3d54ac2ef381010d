"""Encryption in the flow: the same hand-offs, nothing readable in the store, nothing shared."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.relay.child import LONG

from kvbaton.errors import Fault, FormatError, KvbatonError
from kvbaton.seals import Requirements, TrustDomain
from kvbaton.seals.keys import OwnKey
from kvbaton.stores import DirectoryStore, EncryptedStore, Key, Kind, MemoryStore, Store
from kvbaton.testing import FaultyStore
from kvbaton.types import Route
from kvbaton.vaults import bare, sealed
from kvbaton.wire.digests import DomainKeys, token_bytes

ROOT = Path(__file__).parents[2]
SENDER = "the-planner-of-the-team"
HELD = tuple(kind for kind in Kind if kind is not Kind.SPENT)


def domain_of(secret: int, *, encryption: bool = True, name: str = "local") -> TrustDomain:
    """A trust domain with a fixed secret that asks for encryption."""
    keys = DomainKeys(bytes(range(secret, secret + 32)))
    return TrustDomain(name, keys, trust=OwnKey(name, keys, Requirements(encryption=encryption)))


DOMAIN = domain_of(0)


@pytest.fixture
def pair(agent_of: Callable[..., Any]) -> Callable[..., Any]:
    """Makes agents whose store is encrypted where their domain asks for it."""

    def make(name: str, store: Store, domain: TrustDomain = DOMAIN, **options: Any) -> Any:
        return agent_of(name, store=sealed(store, domain), domain=domain, **options)

    return make


def stored_bytes(store: Store) -> dict[Key, bytes]:
    """Everything that lies in a store, as it lies there."""
    under = bare(store)
    keys = [entry.key for kind in Kind for entry in under.list(kind)]
    return {key: under.get(key, limit_bytes=1 << 30) for key in keys}


# --- where it is applied -------------------------------------------------------------------------


def test_a_store_is_encrypted_where_its_domain_asks_for_it_and_once() -> None:
    """Not without being asked, not twice, and never with another domain's keys."""
    store = MemoryStore()
    assert sealed(store, domain_of(0, encryption=False)) is store
    once = sealed(store, DOMAIN)
    assert isinstance(once, EncryptedStore) and once.inner is store
    assert sealed(once, DOMAIN) is once
    assert sealed(once, domain_of(0)) is once
    other = sealed(once, domain_of(1))
    assert isinstance(other, EncryptedStore) and other.inner is store
    assert other.cipher != once.cipher
    assert once.url == store.url


# --- the flow is the same ------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["engine", "window_engine"])
def test_what_is_taken_is_bit_equal(pair: Any, request: Any, family: str) -> None:
    """Cache and logits of a taker are those that it has with a store of plain bytes."""
    engine = request.getfixturevalue(family)
    taken = []
    for domain in (DOMAIN, domain_of(0, encryption=False)):
        store = MemoryStore()
        sender = pair(SENDER, store, domain, engine=engine)
        baton = sender.hand_off(sender.run(LONG, max_new_tokens=9))
        turn = pair("b", store, domain, engine=engine).take(baton.id, "Go on", max_new_tokens=9)
        assert turn.receipt.route is Route.BATON
        assert turn.receipt.reused_tokens == baton.manifest.cached_tokens
        taken.append(turn.conversation)
    one, other = taken
    assert one.ids == other.ids
    for mine, theirs in zip(one.cache.layers, other.cache.layers, strict=True):
        assert torch.equal(mine.keys, theirs.keys)
        assert torch.equal(mine.values, theirs.values)
    assert torch.equal(engine.forward(one.cache, [5]), engine.forward(other.cache, [5]))


def test_a_second_hand_off_writes_no_segment_bytes(pair: Any) -> None:
    """Encryption is deterministic within a domain, so what is there is found again."""
    store = MemoryStore()
    sender = pair(SENDER, store)
    turn = sender.run(LONG, max_new_tokens=9)
    first = sender.hand_off(turn)
    held = {key: data for key, data in stored_bytes(store).items() if key.kind is Kind.SEGMENT}
    second = sender.hand_off(turn)
    assert first.bytes_written > 0
    assert second.bytes_written == 0
    assert second.manifest.segments == first.manifest.segments
    after = {key: data for key, data in stored_bytes(store).items() if key.kind is Kind.SEGMENT}
    assert after == held


def test_layers_stream(pair: Any) -> None:
    """Layer 0 is attached before the last range was read from the store below."""
    watched = FaultyStore(MemoryStore())
    sender = pair(SENDER, watched)
    baton = sender.hand_off(sender.run(LONG, max_new_tokens=9))
    seen: list[tuple[int, int]] = []

    def observe(event: str, facts: Any) -> None:
        if event == "layer-attached":
            seen.append((facts["layer"], watched.count("read", Kind.SEGMENT)))

    taker = pair("b", watched, observer=observe)
    turn = taker.take(baton.id, "Go on", max_new_tokens=2)
    assert turn.receipt.route is Route.BATON
    layers = [layer for layer, _ in seen]
    assert layers == sorted(layers)
    assert layers[0] == 0
    assert seen[0][1] < seen[-1][1]


def test_a_prefix_is_found_in_an_encrypted_store(pair: Any) -> None:
    """Another agent with the same beginning loads it instead of prefilling it."""
    store = MemoryStore()
    one, other = pair("a", store, system="You plan"), pair("b", store, system="You plan")
    one.hand_off(one.run(LONG, max_new_tokens=5))
    assert other.run(LONG, max_new_tokens=5).receipt.reused_tokens > 0


def test_a_prefix_is_not_believed_when_it_lies_there_unencrypted(pair: Any) -> None:
    """Records and segments of the time before encryption are misses, and are replaced."""
    store = MemoryStore()
    plain = domain_of(0, encryption=False)
    before = pair(SENDER, store, plain)
    before.hand_off(before.run(LONG, max_new_tokens=5))
    old = stored_bytes(store)
    after = pair(SENDER, store)
    turn = after.run(LONG, max_new_tokens=5)
    assert turn.receipt.reused_tokens == 0
    baton = after.hand_off(turn)
    new = stored_bytes(store)
    for ref in baton.manifest.segments:
        key = Key(Kind.SEGMENT, ref.address)
        assert key in old and new[key] != old[key]
    assert pair("b", store).take(baton.id, "Go on", max_new_tokens=3).receipt.route is Route.BATON


# --- what lies in the store ----------------------------------------------------------------------


@pytest.fixture
def secrets(pair: Any, tmp_path: Path) -> Callable[[TrustDomain], tuple[list[bytes], Path]]:
    """Hands a turn off into a directory; what nobody may find there, and the directory."""

    def hand_off(domain: TrustDomain) -> tuple[list[bytes], Path]:
        root = tmp_path / f"encryption-{domain.requirements.encryption}"
        sender = pair(SENDER, DirectoryStore(root), domain)
        turn = sender.run(LONG, max_new_tokens=9)
        sender.hand_off(turn, instruction="You who read this go on")
        ids = turn.conversation.ids
        found = [SENDER.encode(), b"plan and code", b"You who read this", b'"format"', b'kvbaton"']
        found += [token_bytes(ids[i : i + 4]) for i in range(len(ids) - 4)]
        found += [json.dumps(ids[i : i + 6])[1:-1].encode() for i in range(len(ids) - 6)]
        found += [part.replace(b" ", b"") for part in found[-3:]]
        for layer in turn.conversation.cache.layers:
            for tensor in (layer.keys, layer.values):
                data = tensor.contiguous().numpy().tobytes()
                found += [data[i : i + 16] for i in range(0, len(data) - 16, 256)]
        return [one for one in found if len(set(one)) > 4], root

    return hand_off


def files_of(root: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_nothing_of_a_conversation_can_be_read_from_the_store(secrets: Any) -> None:
    """No id, text, name, key or value in any file; without encryption this test finds them all."""
    looked_for, root = secrets(DOMAIN)
    held = files_of(root)
    assert len(held) > 5
    assert [one for one in looked_for for data in held.values() if one in data] == []
    looked_for, root = secrets(domain_of(0, encryption=False))
    joined = b"".join(files_of(root).values())
    assert sum(one in joined for one in looked_for) > 50


def test_keys_never_reach_the_store(secrets: Any) -> None:
    """Neither the domain's secret nor what is derived from it lies in a file."""
    _, root = secrets(DOMAIN)
    keys = DOMAIN.keys
    drawn = [keys.secret, keys.encryption, keys.signing_seed]
    cipher = sealed(MemoryStore(), DOMAIN).cipher  # type: ignore[attr-defined]
    drawn += [cipher._table, cipher._digest, cipher._frame]
    assert not [key for key in drawn for data in files_of(root).values() if key[:16] in data]


def test_other_users_cannot_open_anything(secrets: Any) -> None:
    """Folders are 0700 and files 0600 below the store, and so is the store itself."""
    before = os.umask(0)
    try:
        _, root = secrets(DOMAIN)
    finally:
        os.umask(before)
    paths = [root, *root.rglob("*")]
    modes = {
        (path.is_dir(), stat.S_IMODE(path.stat(follow_symlinks=False).st_mode)) for path in paths
    }
    assert modes == {(True, 0o700), (False, 0o600)}


def test_two_domains_share_no_name_and_no_bytes(pair: Any) -> None:
    """The same conversation in one store: no common name, nothing skipped because the other has it,
    and what is stored has no eight bytes in common but lengths."""
    store = MemoryStore()
    names, written = [], []
    for secret in (0, 1):
        seen = set(stored_bytes(store))
        sender = pair(SENDER, store, domain_of(secret), stream=False)
        baton = sender.hand_off(sender.run(LONG, max_new_tokens=9))
        written.append((baton.bytes_written, baton.bytes_deduplicated))
        names.append(set(stored_bytes(store)) - seen)
    assert written[0] == written[1]
    assert written[1][1] == 0
    assert {key.name for key in names[0]}.isdisjoint(key.name for key in names[1])
    assert sorted(key.kind for key in names[0]) == sorted(key.kind for key in names[1])
    held = stored_bytes(store)
    windows = [
        {held[key][i : i + 8] for key in part for i in range(16, len(held[key]) - 8)}
        for part in names
    ]
    common = windows[0] & windows[1]
    assert all(one.count(0) >= 3 for one in common)  # lengths of frames, as far as they go


def test_without_encryption_domains_share_no_name_either(pair: Any) -> None:
    """Addresses are keyed: nobody learns by a put, or its time, what another domain holds."""
    store = MemoryStore()
    written = []
    for secret in (0, 1):
        sender = pair(SENDER, store, domain_of(secret, encryption=False), stream=False)
        turn = sender.run(LONG, max_new_tokens=9)
        assert turn.receipt.reused_tokens == 0  # no prefix of the other is found
        baton = sender.hand_off(turn)
        written.append((baton.bytes_written, baton.bytes_deduplicated))
    assert written[0] == written[1] and written[1][1] == 0
    keys = list(stored_bytes(store))
    assert len({key.name for key in keys}) == len(keys)


_CHILD = """
import sys
sys.path[:0] = [{root!r}]
from tests.relay.conftest import SEGMENT_TOKENS, make_engine
from tests.relay.child import LONG
from tests.relay.test_encryption import DOMAIN, SENDER
from kvbaton.agent import Agent
from kvbaton.relay import Relay
from kvbaton.stores import DirectoryStore
from kvbaton.vaults import sealed

store = sealed(DirectoryStore(sys.argv[1]), DOMAIN)
relay = Relay(make_engine(), store, DOMAIN, segment_tokens=SEGMENT_TOKENS)
agent = Agent(SENDER, relay.engine, relay, stream=False)
agent.hand_off(agent.run(LONG, max_new_tokens=9))
"""


def test_two_processes_store_the_same_bytes(tmp_path: Path) -> None:
    """Segments, transcripts and prefix records of the same conversation are the same files."""
    roots = [tmp_path / "one", tmp_path / "other"]
    script = _CHILD.format(root=str(ROOT))
    for root in roots:
        subprocess.run([sys.executable, "-c", script, str(root)], cwd=ROOT, check=True)
    one, other = (
        {name: data for name, data in files_of(root).items() if not name.startswith("batons")}
        for root in roots
    )
    one.pop("usage"), other.pop("usage")
    assert len(one) > 5
    assert one == other


# --- what is refused -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def held(request: Any) -> dict[Key, bytes]:
    """What lies in a store after a hand-off; made once."""
    make = request.getfixturevalue("engine")
    from tests.relay.conftest import SEGMENT_TOKENS

    from kvbaton.agent import Agent
    from kvbaton.relay import Relay

    store = MemoryStore()
    relay = Relay(make, sealed(store, DOMAIN), DOMAIN, segment_tokens=SEGMENT_TOKENS)
    agent = Agent(SENDER, relay.engine, relay, stream=False)
    agent.hand_off(agent.run(LONG, max_new_tokens=9))
    return stored_bytes(store)


def read(key: Key, data: bytes, domain: TrustDomain = DOMAIN) -> bytes:
    """An object of the store with these bytes, read through the encryption."""
    store = MemoryStore()
    store.put(key, [data])
    return sealed(store, domain).get(key, limit_bytes=1 << 30)


def test_the_objects_are_of_every_kind(held: Any) -> None:
    """Batons, transcripts, segments and prefix records are all encrypted, and all readable."""
    assert {key.kind for key in held} == set(HELD)
    assert all(read(key, data) for key, data in held.items())


@given(data=st.data())
@settings(max_examples=300)
def test_every_change_of_every_object_is_refused(held: Any, data: Any) -> None:
    """Any bit of any file, cut or lengthened anywhere: a typed refusal that names the object."""
    key = data.draw(st.sampled_from(sorted(held)))
    raw = bytearray(held[key])
    place = data.draw(st.integers(0, len(raw) - 1))
    change = data.draw(st.sampled_from(["flip", "cut", "grow", "remove"]))
    if change == "flip":
        raw[place] ^= 1 << data.draw(st.integers(0, 7))
    elif change == "cut":
        del raw[place:]
    elif change == "grow":
        raw[place:place] = data.draw(st.binary(min_size=1, max_size=4))
    else:
        del raw[place]
    with pytest.raises(FormatError) as caught:
        read(key, bytes(raw))
    assert caught.value.fault is Fault.DECRYPTION
    assert key.name in caught.value.sentence


def test_another_secret_reads_nothing(held: Any) -> None:
    """Every object is refused under the keys of another domain."""
    for key, data in held.items():
        with pytest.raises(FormatError) as caught:
            read(key, data, domain_of(1))
        assert caught.value.fault is Fault.DECRYPTION


@pytest.mark.parametrize("kind", HELD)
def test_a_changed_object_is_never_used(pair: Any, kind: Kind) -> None:
    """A take goes on with text, or is refused with a typed error; it never crashes."""
    store = MemoryStore()
    sender = pair(SENDER, store)
    baton = sender.hand_off(sender.run(LONG, max_new_tokens=9))
    for key, data in stored_bytes(store).items():
        if key.kind is kind:
            store.delete(key)
            store.put(key, [data[:-1] + bytes([data[-1] ^ 1])])
    taker = pair("b", store)
    try:
        turn = taker.take(baton.id, "Go on", max_new_tokens=3)
    except KvbatonError as error:
        assert kind in (Kind.BATON, Kind.TRANSCRIPT)
        assert SENDER not in str(error)
    else:
        assert kind in (Kind.SEGMENT, Kind.PREFIX)
        assert (turn.receipt.route is Route.BATON) == (kind is Kind.PREFIX)
