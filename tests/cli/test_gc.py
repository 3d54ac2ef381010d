"""`gc`, `ledger leases`, and removing what is in use."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import DOCUMENT, Cli
from tests.cli.test_stores import export

from kvbaton import collecting
from kvbaton.cli.gc_command import GRACE
from kvbaton.cli.options import duration_s
from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.records import Node, NodeKind
from kvbaton.stores import DirectoryStore, Key, Kind


@pytest.fixture
def two(cli: Cli, tiny: Path, tmp_path: Path) -> tuple[Path, str, str]:
    """A store with two batons that share a segment."""
    store = tmp_path / "store"
    first = export(cli, tiny, tmp_path, DOCUMENT + "One", store)
    return store, first, export(cli, tiny, tmp_path, DOCUMENT + "Two", store)


def test_the_default_is_the_librarys() -> None:
    """`--grace` is by default what `collect` has."""
    assert duration_s(GRACE, "--grace") == collecting.DEFAULT_GRACE_S


def test_what_rm_leaves_is_collected(cli: Cli, two: tuple[Path, str, str]) -> None:
    """Segments that a removed baton alone has listed go when their time is over; a dry run says
    so, and the first run marks them."""
    store, first, second = two
    cli("rm", first, "--store", store)
    waiting = cli("gc", "--store", store, "--json").json
    assert waiting["removed"]["segments"]["objects"] == 0
    assert waiting["waiting"]["objects"] == 1
    assert waiting["due_s"] == waiting["grace_s"] == collecting.DEFAULT_GRACE_S
    would = cli("gc", "--grace", "0s", "--dry-run", "--store", store, "--json").json
    assert would["dry_run"] and would["removed"]["segments"]["objects"] == 1
    shown = cli("gc", "--grace", "0s", "--store", store).out
    assert "removed" in shown and "needed: " in shown
    left = cli("list", "--store", store, "--json").json["totals"]
    assert left["segments"]["objects"] == 2
    assert cli("verify", second, "--store", store).code == 0
    again = cli("gc", "--grace", "0s", "--store", store, "--json").json
    assert sum(part["objects"] for part in again["removed"].values()) == 0


def test_what_was_withdrawn_is_collected(
    cli: Cli, two: tuple[Path, str, str], tmp_path: Path
) -> None:
    """The ledger says what is not needed any more; a ledger that is named must be there."""
    store, first, second = two
    path = tmp_path / "own.db"
    assert cli("gc", "--grace", "0s", "--store", store, "--ledger", path).code == 14
    with Ledger(f"sqlite:///{path}", "local") as ledger:
        for number, baton in enumerate((first, second), start=1):
            ledger.move("plan", Node(baton, NodeKind.BATON), expected=number - 1)
        ledger.withdraw(first, why="wrong")
    said = cli("gc", "--grace", "0s", "--store", store, "--ledger", path, "--json").json
    assert said["withdrawn"] == 1
    assert said["removed"]["batons"]["objects"] == 1
    assert cli("verify", second, "--store", store).code == 0
    assert cli("verify", first, "--store", store).code == 7


def test_leases_are_listed(cli: Cli, two: tuple[Path, str, str]) -> None:
    """Who keeps what, by both names of the command's group."""
    store, first, _ = two
    assert cli("ledger", "leases", "--store", store, "--json").json["leases"] == []
    with DirectoryStore(store).lease([Key(Kind.BATON, first)], owner="the [coder]"):
        said = cli("ledger", "leases", "--store", store, "--json").json
        (one,) = said["leases"]
        assert (one["owner"], one["state"], one["keys"]) == (
            "the [coder]",
            "held",
            [f"batons/{first}"],
        )
        assert said["debris"] == {"temporaries": 0, "bytes": 0, "leases": 0}
        assert "the [coder]" in cli("ledger", "leases", "--store", store).out
        kept = cli("ledger", "gc", "--grace", "0s", "--store", store, "--json").json
        assert kept["removed"]["batons"]["objects"] == 0


def test_what_is_in_use_is_not_removed_by_the_way(cli: Cli, two: tuple[Path, str, str]) -> None:
    """`rm` refuses what somebody leases, whole, unless it is forced; what stays may be leased."""
    store, first, second = two
    (shared, _) = sorted(
        entry["name"]
        for entry in cli("list", "--kind", "segments", "--store", store, "--json").json["segments"]
    )[:2]
    with DirectoryStore(store).lease([Key(Kind.BATON, second)], owner="the coder"):
        refused = cli("rm", first, second, "--store", store)
        assert refused.code == 9
        assert "in use: the coder" in refused.err
        assert len(list(DirectoryStore(store).list(Kind.BATON))) == 2
        assert cli("rm", first, "--store", store).code == 0
        assert cli("rm", second, "--force", "--store", store).code == 0
    assert list(DirectoryStore(store).list(Kind.BATON)) == []
    assert DirectoryStore(store).exists(Key(Kind.SEGMENT, shared))


def test_a_purge_of_what_is_in_use_says_so(cli: Cli, two: tuple[Path, str, str]) -> None:
    """A purge must delete; it goes through, and names what somebody was using."""
    store, first, _ = two
    with DirectoryStore(store).lease([Key(Kind.BATON, first)], owner="the coder"):
        done = cli("purge", first, "--store", store, "--json")
    assert done.code == 0
    assert done.json["leased"] == [{"kind": "batons", "name": first}]
    assert "in use" in done.err


@pytest.mark.parametrize("grace", ["soon", "-1s", "1.5h", "999999999d"])
def test_a_grace_that_is_no_time_is_refused(
    cli: Cli, two: tuple[Path, str, str], grace: str
) -> None:
    """A time that makes no sense is an input error, and nothing is done."""
    store, *_ = two
    assert cli("gc", f"--grace={grace}", "--store", store).code == 3
    assert not (store / "marks").exists()


def test_a_store_without_leases_is_not_collected(cli: Cli, tmp_path: Path) -> None:
    """Nothing is removed from a store that cannot look and remove in one step."""
    assert cli("gc", "--store", f"fsspec+file://{tmp_path}/other").code == 4
