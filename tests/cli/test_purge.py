"""`purge`, and `list`, `verify`, `take` and `rm` where the trust domain asks for encryption."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import DOCUMENT, Cli, Exported

from kvbaton.stores import DirectoryStore, Key, Kind

DTYPE = ("--dtype", "float32")


def files_of(store: Path) -> list[Path]:
    """Every object of a store."""
    kinds = [kind.value for kind in Kind]
    return [p for kind in kinds for p in (store / kind).rglob("*") if p.is_file()]


def test_a_purge_deletes_and_proves(cli: Cli, exported: Exported) -> None:
    """What was deleted, what was searched, and what is beyond reach."""
    before = files_of(exported.store)
    result = cli("purge", exported.baton, "--store", exported.store, "--json")
    said = result.json
    assert result.code == 0
    assert said["proven"] is True and said["remains"] == [] and said["kept"] == []
    assert {one["name"] for one in said["deleted"]} == {path.name for path in before}
    assert said["deleted_bytes"] > 0
    assert said["searched"]["windows"] > 5 and said["searched"]["files"] == 1
    assert len(said["beyond_reach"]) == 5
    assert files_of(exported.store) == []
    again = cli("purge", exported.baton, "--store", exported.store)
    assert again.code == 7
    assert "nothing was deleted" in again.err


def test_a_purge_says_what_it_did(cli: Cli, exported: Exported) -> None:
    """For people, in lines."""
    out = cli("purge", exported.baton, "--store", exported.store).out
    assert "deleted 5 objects of 1 batons" in out
    assert "nothing of them found" in out
    assert "backups" in out


def test_what_is_left_is_an_error(cli: Cli, exported: Exported) -> None:
    """A copy in the store's folder: named, and another exit code."""
    segment = exported.files("segments")[0]
    shutil.copy(segment, exported.store / "segments" / "copy")
    result = cli("purge", exported.baton, "--store", exported.store, "--json")
    assert result.code == 9
    assert result.json["proven"] is False
    assert "segments/copy" in result.json["remains"][0]
    shown = cli("purge", exported.baton, "--store", exported.store)
    assert shown.code == 7  # it is gone; what was left was never the store's


def test_a_damaged_baton_is_purged_alone(cli: Cli, exported: Exported) -> None:
    """It cannot be verified, so its names are not known: a warning says so."""
    (path,) = exported.files("batons")
    path.write_bytes(path.read_bytes()[:-1])
    result = cli("purge", exported.baton, "--store", exported.store, "--json")
    assert result.json["unverified"] == [exported.baton]
    assert [one["kind"] for one in result.json["deleted"]] == ["batons"]
    assert "could not be verified" in result.err
    assert len(exported.files("segments")) == 2


def test_what_was_used_once_survives_purge_and_rm(cli: Cli, exported: Exported) -> None:
    """Spent claims are no part of a baton: they stay, and are listed."""
    store, key = DirectoryStore(exported.store), Key(Kind.SPENT, "ab" * 32)
    assert store.claim(key, b"spent")
    cli("rm", exported.baton, "--segments", "--store", exported.store)
    said = cli("list", "--kind", "spent", "--store", exported.store, "--json").json
    assert [one["name"] for one in said["spent"]] == [key.name]
    assert said["totals"]["spent"]["objects"] == 1
    assert not store.claim(key, b"again")


@pytest.fixture
def encrypted(cli: Cli) -> Iterator[None]:
    """The domain of the settings asks for encryption within the test."""
    assert cli("keys", "domain", "--encryption").code == 0
    yield
    assert cli("keys", "domain", "--no-encryption").code == 0


@pytest.mark.usefixtures("encrypted")
def test_every_command_sees_an_encrypted_store(
    cli: Cli, tiny: Path, document: Path, tmp_path: Path
) -> None:
    """export, list, inspect, verify, take, purge: as with plain bytes, which are nowhere."""
    store = ("--store", tmp_path / "store")
    exported = cli("export", "--model", tiny, "--context", document, *store, *DTYPE, "--json")
    baton = exported.json["baton"]
    assert not any(DOCUMENT[:40].encode() in path.read_bytes() for path in files_of(store[1]))
    (entry,) = cli("list", *store, "--json").json["batons"]
    assert entry["baton"] == baton and "error" not in entry
    assert cli("inspect", baton, *store).code == 0
    assert cli("verify", "--all", *store).code == 0
    taken = cli(
        "take", "--model", tiny, "--baton", baton, "--instruction", "Go on",
        "--max-new-tokens", "3", *store, *DTYPE, "--json",
    )  # fmt: skip
    assert taken.json["receipt"]["route"] == "baton"
    said = cli("purge", baton, "--descendants", *store, "--json").json
    assert said["proven"] is True
    assert files_of(store[1]) == []


@pytest.mark.usefixtures("encrypted")
def test_a_store_of_plain_bytes_is_refused(cli: Cli, exported: Exported) -> None:
    """What lies there unencrypted is an error that says so, and quotes nothing."""
    (entry,) = cli("list", "--store", exported.store, "--json").json["batons"]
    assert "unencrypted" in entry["error"]["sentence"]
    result = cli("verify", exported.baton, "--store", exported.store)
    assert result.code == 8
    assert "planner" not in result.out + result.err
