"""The trust file: read strictly, changed whole, and seen by those who hold it open."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbaton.errors import InputError, SettingsError
from kvbaton.seals import (
    Grant,
    KeyStatus,
    Purpose,
    Requirements,
    TrustedKey,
    TrustFile,
    key_id,
    seal_scheme,
)
from kvbaton.seals.ed25519 import Ed25519
from kvbaton.wire.canonical import dumps

SCHEME = seal_scheme("ed25519")


def known(number: int, sender: str = "planner", **changes: Any) -> TrustedKey:
    """A key that is the same for the same number."""
    public = SCHEME.public_bytes(Ed25519().of_seed(bytes([number]) * 32))
    keyid = key_id(SCHEME.name, public)
    return TrustedKey(keyid, SCHEME, public, (Grant(sender, "local"),), **changes)


@pytest.fixture
def trust(tmp_path: Path) -> TrustFile:
    """A trust file that is not there yet."""
    return TrustFile(tmp_path / "folder" / "trust.json")


def again(trust: TrustFile) -> TrustFile:
    """The same file, read by somebody else."""
    return TrustFile(trust.path)


def names(folder: Path) -> list[str]:
    """What lies in a folder."""
    return sorted(path.name for path in folder.iterdir())


# --- what is written is read --------------------------------------------------------------------


def test_a_file_that_is_not_there_knows_nobody(trust: TrustFile) -> None:
    """Nobody is trusted, nothing is asked for, and nothing is made."""
    assert trust.find("a" * 64) is None
    assert trust.keys() == trust.entries() == ()
    assert trust.requirements("local") == Requirements()
    assert not trust.path.parent.exists()


def test_keys_come_back_as_they_were_added(trust: TrustFile) -> None:
    """Scheme, bytes, grants, purposes and note; the newest first."""
    one = known(1)
    two = known(2, "*", purposes=frozenset({Purpose.TICKET}))
    trust.add(one, note="first")
    trust.add(two)
    read = again(trust)
    assert read.find(one.keyid) == one
    assert read.find(two.keyid) == two
    assert read.keys() == (two, one)
    assert [(e.key, e.note) for e in read.entries()] == [(one, "first"), (two, "")]
    assert read.entries()[0].added_ms <= read.entries()[1].added_ms


def test_the_file_is_its_owners_only_and_has_one_spelling(trust: TrustFile) -> None:
    """Mode 0600 in a folder of mode 0700, canonical JSON, and no file left aside."""
    trust.add(known(1))
    trust.require("local", tickets=True)
    assert trust.path.stat().st_mode & 0o777 == 0o600
    assert trust.path.parent.stat().st_mode & 0o777 == 0o700
    data = trust.path.read_bytes()
    assert dumps(json.loads(data)) == data
    assert names(trust.path.parent) == [".trust.json.lock", "trust.json"]


def test_a_known_key_gets_more_rights(trust: TrustFile) -> None:
    """Adding a key again adds senders and purposes, and takes none away."""
    trust.add(known(1, "planner", purposes=frozenset({Purpose.BATON})), note="hers")
    trust.add(known(1, "critic", purposes=frozenset({Purpose.TICKET})))
    (entry,) = again(trust).entries()
    assert entry.key.grants == (Grant("planner", "local"), Grant("critic", "local"))
    assert entry.key.purposes == frozenset(Purpose)
    assert entry.note == "hers"


def test_statuses(trust: TrustFile) -> None:
    """Retired and revoked keys stay known; a revoked one is never trusted again."""
    one, two = known(1), known(2)
    trust.add(one)
    trust.add(two)
    assert trust.retire(one.keyid).status is KeyStatus.RETIRED
    assert trust.revoke(two.keyid).status is KeyStatus.REVOKED
    keys = again(trust).keys()
    assert {key.keyid: key.status for key in keys} == {
        one.keyid: KeyStatus.RETIRED,
        two.keyid: KeyStatus.REVOKED,
    }
    assert trust.revoke(two.keyid).status is KeyStatus.REVOKED
    for change in (lambda: trust.add(two), lambda: trust.retire(two.keyid)):
        with pytest.raises(InputError, match="revoked"):
            change()
    assert trust.revoke(one.keyid).status is KeyStatus.REVOKED


def test_requirements_of_a_domain(trust: TrustFile) -> None:
    """Each is set by itself, for one domain."""
    assert trust.require("local", tickets=True) == Requirements(tickets=True)
    assert trust.require("local", encryption=True) == Requirements(tickets=True, encryption=True)
    assert trust.require("lab") == Requirements()
    assert again(trust).requirements("local") == Requirements(tickets=True, encryption=True)
    assert again(trust).requirements("lab") == Requirements()
    assert trust.require("local", tickets=False) == Requirements(encryption=True)


def test_keys_are_found_by_the_first_digits(trust: TrustFile) -> None:
    """As many as make one unique, four at least."""
    keys = [trust.add(known(number)) for number in range(40)]
    for key in keys:
        assert trust.resolve(key.keyid[:16].upper()) == key
    for short in ("", keys[0].keyid[:3], "z" * 8, keys[0].keyid + "0"):
        with pytest.raises(InputError):
            trust.resolve(short)


def test_digits_that_several_keys_have_are_refused(
    trust: TrustFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is chosen among keys that begin alike."""
    monkeypatch.setattr("kvbaton.seals.trust._SHORT", 1)
    keys = [trust.add(known(number)) for number in range(17)]  # more than there are first digits
    firsts = [key.keyid[0] for key in keys]
    twice = next(first for first in firsts if firsts.count(first) > 1)
    with pytest.raises(InputError, match="begins so"):
        trust.resolve(twice)


@pytest.mark.parametrize("sender", ["", "two\nlines", "x" * 10_000])
def test_names_that_could_not_be_read_back_are_refused(trust: TrustFile, sender: str) -> None:
    """Nothing is written that the reader would refuse."""
    with pytest.raises(InputError):
        trust.add(known(1, sender))
    assert not trust.path.exists()


def test_more_than_could_be_read_back_is_not_written(trust: TrustFile) -> None:
    """A key with as many grants as there may be gets no other, and a domain needs a name."""
    trust.add(replace(known(1), grants=tuple(Grant(f"agent-{n}", "local") for n in range(256))))
    before = trust.path.read_bytes()
    for change in (
        lambda: trust.add(known(1, "one-more")),
        lambda: trust.add(replace(known(2), grants=())),
        lambda: trust.add(replace(known(2), purposes=frozenset())),
        lambda: trust.require("two\nlines", tickets=True),
    ):
        with pytest.raises(InputError):
            change()
    assert trust.path.read_bytes() == before
    assert len(trust.keys()) == 1


# --- what is damaged trusts nobody ----------------------------------------------------------------


def document() -> Any:
    """What a file with one key says."""
    key = known(1)
    return {
        "format": 1,
        "domains": {"local": {"encryption": False, "tickets": True}},
        "keys": [
            {
                "keyid": key.keyid,
                "scheme": "ed25519",
                "public": "iojj3XQJ8ZX9UtstPLpdcspnCb8dlBIb83SIAbQPb1w=",
                "grants": [{"sender": "planner", "domain": "local"}],
                "purposes": ["baton", "ticket"],
                "status": "trusted",
                "added_ms": 1,
                "note": "",
            }
        ],
    }


def put(trust: TrustFile, data: bytes) -> None:
    """Write bytes into the file, as its owner would."""
    trust.path.parent.mkdir(exist_ok=True)
    trust.path.write_bytes(data)
    trust.path.chmod(0o600)


def test_a_document_that_is_right_is_read(trust: TrustFile) -> None:
    """What the tests below damage is good before."""
    put(trust, dumps(document()))
    assert trust.keys() == (known(1),)
    assert trust.requirements("local").tickets


def _set(*path: Any) -> Callable[[Any], None]:
    def change(value: Any) -> None:
        *inner, last, new = path
        for step in inner:
            value = value[step]
        value[last] = new

    return change


def _drop(*path: Any) -> Callable[[Any], None]:
    def change(value: Any) -> None:
        *inner, last = path
        for step in inner:
            value = value[step]
        del value[last]

    return change


DAMAGES = [
    (_set("format", 2), "$.format"),
    (_set("more", 1), "$.more"),
    (_drop("domains"), "$.domains"),
    (_set("keys", {}), "$.keys"),
    (_set("keys", 0, "more", 1), "$.keys[0].more"),
    (_drop("keys", 0, "status"), "$.keys[0].status"),
    (_set("keys", 0, "status", "Trusted"), "$.keys[0].status"),
    (_set("keys", 0, "scheme", "rot13"), "$.keys[0].scheme"),
    (_set("keys", 0, "public", "not base64"), "$.keys[0].public"),
    (_set("keys", 0, "public", ""), "$.keys[0].public"),
    (_set("keys", 0, "keyid", "a" * 64), "$.keys[0].keyid"),
    (_set("keys", 0, "keyid", "short"), "$.keys[0].keyid"),
    (_set("keys", 0, "grants", []), "$.keys[0].grants"),
    (_set("keys", 0, "grants", 0, "role", "x"), "$.keys[0].grants[0].role"),
    (_set("keys", 0, "grants", 0, "sender", ""), "$.keys[0].grants[0].sender"),
    (_set("keys", 0, "grants", [{"sender": "a", "domain": "b"}] * 2), "$.keys[0].grants"),
    (_set("keys", 0, "purposes", []), "$.keys[0].purposes"),
    (_set("keys", 0, "purposes", ["baton", "baton"]), "$.keys[0].purposes"),
    (_set("keys", 0, "purposes", ["anything"]), "$.keys[0].purposes[0]"),
    (_set("keys", 0, "added_ms", -1), "$.keys[0].added_ms"),
    (_set("keys", 0, "added_ms", True), "$.keys[0].added_ms"),
    (_set("keys", 0, "note", "two\nlines"), "$.keys[0].note"),
    (_set("domains", "local", "tickets", 1), "$.domains.local.tickets"),
    (_set("domains", "local", "noise", False), "$.domains.local.noise"),
    (lambda value: value["keys"].append(value["keys"][0]), "$.keys[1].keyid"),
]


@pytest.mark.parametrize(("change", "at"), DAMAGES, ids=[at for _, at in DAMAGES])
def test_each_damage_is_an_error_with_its_place(
    trust: TrustFile, change: Callable[[Any], None], at: str
) -> None:
    """Whoever asks anything gets the file and the place; nobody is trusted meanwhile."""
    value = document()
    change(value)
    put(trust, dumps(value))
    for ask in (lambda: trust.find(known(1).keyid), trust.keys, lambda: trust.requirements("x")):
        with pytest.raises(SettingsError) as caught:
            ask()
        assert caught.value.at == f"{trust.path}: {at}"


def test_no_bytes_are_a_trust_file_but_the_right_ones(tmp_path_factory: Any) -> None:
    """Cut, longer, changed and arbitrary bytes raise SettingsError and nothing else, or say the
    same."""
    trust = TrustFile(tmp_path_factory.mktemp("any") / "trust.json")
    whole = dumps(document())

    @given(
        st.one_of(
            st.binary(max_size=100),
            st.integers(0, len(whole) - 1).map(lambda end: whole[:end]),
            st.binary(min_size=1, max_size=3).map(lambda more: whole + more),
            st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 7)).map(
                lambda place: bytes(
                    c ^ (1 << place[1]) if i == place[0] else c for i, c in enumerate(whole)
                )
            ),
        )
    )
    def check(data: bytes) -> None:
        put(trust, data)
        fresh = again(trust)
        try:
            found = fresh.keys()
        except SettingsError:
            return
        assert all(key.public == known(1).public for key in found)

    check()


def test_nothing_is_written_over_a_damaged_file(trust: TrustFile) -> None:
    """A change of a file that cannot be read is refused, and leaves it as it is."""
    put(trust, b"{}")
    with pytest.raises(SettingsError):
        trust.add(known(1))
    assert trust.path.read_bytes() == b"{}"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_file_that_others_may_read_or_write_is_refused(trust: TrustFile, mode: int) -> None:
    """Whoever can write it decides who is trusted."""
    trust.add(known(1))
    trust.path.chmod(mode)
    with pytest.raises(SettingsError) as caught:
        again(trust).keys()
    assert caught.value.hint == "chmod 600 it"


def test_a_file_of_another_user_is_refused(
    trust: TrustFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it came there, it is not what this user has written."""
    trust.add(known(1))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(SettingsError, match="another user"):
        again(trust).keys()


def test_a_folder_in_its_place_is_an_error(trust: TrustFile) -> None:
    """What the system says becomes a sentence with the path."""
    trust.path.mkdir(parents=True)
    with pytest.raises(SettingsError) as caught:
        trust.keys()
    assert str(trust.path) in caught.value.at


# --- who holds it open sees what changes ----------------------------------------------------------


def test_a_revocation_is_seen_at_once(trust: TrustFile) -> None:
    """All three statuses are spelled in as many letters: the size alone does not tell."""
    reader = again(trust)
    for number in range(50):
        keyid = trust.add(known(number)).keyid
        size_bytes = trust.path.stat().st_size
        for change, status in (
            (trust.retire, KeyStatus.RETIRED),
            (trust.revoke, KeyStatus.REVOKED),
        ):
            reader.keys()
            change(keyid)
            found = reader.find(keyid)
            assert found is not None and found.status is status
        assert trust.path.stat().st_size == size_bytes


def test_a_change_is_later_than_what_it_replaces(trust: TrustFile) -> None:
    """Even where the clock stood still, or ran back, the time of the file moves on."""
    trust.add(known(1))
    ahead_ns = trust.path.stat().st_mtime_ns + 10**12
    os.utime(trust.path, ns=(ahead_ns, ahead_ns))
    trust.retire(known(1).keyid)
    assert trust.path.stat().st_mtime_ns > ahead_ns


def test_the_keys_are_one_object_until_the_file_changes(trust: TrustFile) -> None:
    """So that who keeps something by it can tell cheaply."""
    trust.add(known(1))
    reader = again(trust)
    before = reader.keys()
    assert reader.keys() is before
    trust.add(known(2))
    assert reader.keys() is not before


def test_a_file_that_is_removed_trusts_nobody(trust: TrustFile) -> None:
    """What was read before counts no more."""
    trust.add(known(1))
    assert trust.find(known(1).keyid) is not None
    trust.path.unlink()
    assert trust.find(known(1).keyid) is None


def test_many_writers_lose_nothing(trust: TrustFile) -> None:
    """Sixteen threads with files of their own, one key each, and a reader meanwhile."""
    done = threading.Event()
    seen: list[int] = []

    def read() -> None:
        reader = again(trust)
        while not done.is_set():
            seen.append(len(reader.keys()))

    reading = threading.Thread(target=read)
    reading.start()
    writers = [threading.Thread(target=again(trust).add, args=(known(n),)) for n in range(16)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    done.set()
    reading.join()
    assert {entry.key for entry in trust.entries()} == {known(n) for n in range(16)}
    assert seen == sorted(seen)


WRITER = """
import sys
from pathlib import Path
from kvbaton.seals import TrustFile
trust = TrustFile(Path(sys.argv[1]))
for number in range(20):
    trust.require(f"domain-{sys.argv[2]}-{number}", tickets=True)
"""


def test_two_processes_lose_nothing(trust: TrustFile) -> None:
    """Each changes the file twenty times at the same moment."""
    running = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(trust.path), str(n)]) for n in (1, 2)
    ]
    assert [process.wait(60) for process in running] == [0, 0]
    assert len(trust.domains()) == 40


def test_a_change_that_fails_changes_nothing(
    trust: TrustFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the disk is full the old file stays, and nothing lies beside it."""
    trust.add(known(1))
    before = trust.path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SettingsError, match="No space left"):
        trust.add(known(2))
    assert trust.path.read_bytes() == before
    assert names(trust.path.parent) == [".trust.json.lock", "trust.json"]


def test_a_lock_that_nobody_gives_back_is_an_error(
    trust: TrustFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that waits for another too long says so."""
    monkeypatch.setattr("kvbaton.seals.trust._LOCK_S", 0.05)
    with again(trust).editing():
        outcome: list[SettingsError] = []

        def write() -> None:
            with pytest.raises(SettingsError) as caught:
                trust.add(known(1))
            outcome.append(caught.value)

        other = threading.Thread(target=write)
        other.start()
        other.join()
    assert "somebody" in outcome[0].sentence
