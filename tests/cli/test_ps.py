"""`kvbaton ps`: which batons there are, who holds them, and what the ledger says of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.conftest import Cli, Exported
from tests.cli.test_reference import shape
from tests.lineage.nodes import baton

from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.records import Entry
from kvbaton.stores import DirectoryStore, Key, Kind


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the test's ledger lies."""
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(place: Path) -> Iterator[Ledger]:
    """An empty ledger."""
    with Ledger(f"sqlite:///{place}", "local") as made:
        yield made


def test_a_baton_with_its_holder_and_its_ref(
    cli: Cli, exported: Exported, place: Path, ledger: Ledger
) -> None:
    """Model, tokens, size and codec from the manifest, holders from the store's leases."""
    ledger.move("plan", replace(baton(exported.baton), model="tiny"), expected=0)
    where = ("--store", exported.store, "--ledger", place)
    (one,) = cli("ps", *where, "--json").json["batons"]
    listed = cli("list", "--store", exported.store, "--json").json["batons"][0]
    assert one["baton"] == exported.baton
    assert set(one) <= shape("ps")
    assert (one["tokens"], one["size_bytes"]) == (listed["tokens"], listed["bytes"])
    assert one["model"] == "tiny"
    assert (one["codec"], one["holders"], one["expires_ms"]) == ("raw", [], 0)
    assert (one["expired"], one["standing"], one["ref"]) == (False, "current", "plan@1")
    store = DirectoryStore(exported.store)
    segment = next(iter(store.list(Kind.SEGMENT))).key
    with store.lease([segment], owner="coder"), store.lease([Key(Kind.SPENT, "0" * 64)], owner="x"):
        (one,) = cli("ps", *where, "--json").json["batons"]
        assert one["holders"] == [{"owner": "coder", "state": "held"}]
        out = cli("ps", *where).out
    assert exported.baton in out and "coder" in out and "never" in out and "plan@1" in out
    assert out.splitlines()[-1].startswith("1 batons in ")


def test_what_is_stale_says_why(cli: Cli, exported: Exported, place: Path, ledger: Ledger) -> None:
    """As the ledger has it; `--stale` leaves out the others."""
    where = ("--store", exported.store, "--ledger", place)
    ledger.record([Entry(baton(exported.baton))])
    assert cli("ps", *where, "--stale", "--json").json["batons"] == []
    ledger.withdraw(exported.baton, why="wrong customer")
    (one,) = cli("ps", *where, "--stale", "--json").json["batons"]
    assert (one["standing"], "wrong customer" in one["stale"]["why"]) == ("stale", True)
    assert "STALE" in cli("ps", *where).out


def test_without_a_ledger_nothing_is_known_of_freshness(
    cli: Cli, exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is named has to be there; the settings' own may not be, or be broken."""
    missing = cli("ps", "--store", exported.store, "--ledger", tmp_path / "none.db", "--json")
    assert (missing.code, missing.json["error"]["code"]) == (14, "ledger-unavailable")
    monkeypatch.setenv("KVBATON_LEDGER", "off")
    said = cli("ps", "--store", exported.store, "--json").json
    assert (said["ledger"], said["batons"][0]["standing"]) == (None, "unknown")
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"no database" * 100)
    monkeypatch.setenv("KVBATON_LEDGER", f"sqlite:///{broken}")
    result = cli("ps", "--store", exported.store, "--json")
    assert (result.code, result.json["batons"][0]["standing"]) == (0, "unknown")
    assert "what is stale is not known" in result.err


def test_a_damaged_baton_is_listed_with_its_error(
    cli: Cli, exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is believed, and the others are not kept back."""
    monkeypatch.setenv("KVBATON_LEDGER", f"sqlite:///{tmp_path}/none.db")
    (path,) = exported.files("batons")
    path.write_bytes(path.read_bytes()[:-1])
    (one,) = cli("ps", "--store", exported.store, "--json").json["batons"]
    assert (one["baton"], one["error"]["exit_code"]) == (exported.baton, 6)
    assert exported.baton in cli("ps", "--store", exported.store).out
