"""`list`, `inspect`, `rm`, and stores that are missing, full, or of one process."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.cli.conftest import DOCUMENT, Cli, Exported

from kvbaton.stores import directory

DTYPE = ("--dtype", "float32")


def export(cli: Cli, tiny: Path, folder: Path, text: str, store: Path, *more: object) -> str:
    """The id of a baton of some text."""
    path = folder / "text.txt"
    path.write_text(text, encoding="utf-8")
    arguments = ("--model", tiny, "--context", path, "--store", store, *DTYPE, *more, "--json")
    return str(cli("export", *arguments).json["baton"])


def test_list_shows_batons_with_their_numbers(cli: Cli, exported: Exported) -> None:
    """Age, tokens, size and sender of each baton, and totals by kind that add up."""
    said = cli("list", "--store", exported.store, "--json").json
    (entry,) = said["batons"]
    assert (entry["baton"], entry["sender"]) == (exported.baton, "planner")
    assert entry["tokens"] == entry["cached_tokens"] + 1 == exported.said["tokens"]
    kinds = ("segments", "batons", "transcripts")
    sizes = {kind: sum(p.stat().st_size for p in exported.files(kind)) for kind in kinds}
    assert entry["bytes"] == sum(sizes.values())
    assert 0 <= entry["age_s"] < 24 * 3600
    totals = said["totals"]
    assert {kind: totals[kind]["bytes"] for kind in kinds} == sizes
    assert totals["bytes"] == sum(sizes.values()) + totals["prefixes"]["bytes"]
    shown = cli("list", "--store", exported.store).out
    assert exported.baton in shown
    assert "planner" in shown


def test_list_shows_other_kinds_by_name(cli: Cli, exported: Exported) -> None:
    """`--kind` lists segments, transcripts and prefix records."""
    for kind, count in (("segments", 2), ("transcripts", 1), ("prefixes", 1)):
        said = cli("list", "--store", exported.store, "--kind", kind, "--json").json
        assert len(said[kind]) == count
        assert {e["name"] for e in said[kind]} == {p.name for p in exported.files(kind)}


def test_a_damaged_baton_is_listed_as_such(cli: Cli, exported: Exported) -> None:
    """One damaged manifest does not hide the others, and `list` succeeds."""
    (path,) = exported.files("batons")
    path.write_bytes(path.read_bytes()[:-1])
    (entry,) = cli("list", "--store", exported.store, "--json").json["batons"]
    assert entry["error"]["exit_code"] == 6
    assert cli("list", "--store", exported.store).code == 0


def test_inspect_shows_what_the_manifest_says(cli: Cli, exported: Exported) -> None:
    """Spans partition the tokens, segments are there, terms and fidelity are told."""
    said = cli("inspect", exported.baton, "--store", exported.store, "--json").json
    assert said["terms"]["instruction"] == "Name the door."
    assert said["fidelity"] == {"class": "exact", "codec": "raw", "calibration": None}
    assert {s["role"] for s in said["spans"]} == {"task", "generated"}
    assert sum(s["count"] for s in said["spans"]) == exported.said["tokens"]
    assert [(s["first"], s["present"]) for s in said["segments"]] == [(0, True), (256, True)]
    assert said["function"]["parts"]["dtype"] == "F32"
    assert "text" not in said
    shown = cli("inspect", exported.baton, "--store", exported.store, "--text").out
    assert DOCUMENT.splitlines()[0] in shown
    assert "Name the door." in shown


def test_text_of_a_baton_cannot_act_on_the_terminal(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    """Escape sequences in document, names and terms are spelled out; markup stays text."""
    store = tmp_path / "store"
    nasty = "\x1b]0;title\x07[bold]x[/bold]"
    made = export(
        cli, tiny, tmp_path, nasty, store, "--name", "[red]eve[/red]", "--instruction", nasty
    )
    for command in (["inspect", made, "--text"], ["list"]):
        shown = cli(*command, "--store", store)
        assert "\x1b" not in shown.out
        assert "[red]eve[/red]" in shown.out
    assert r"\x1b]0;title\x07[bold]x[/bold]" in cli("inspect", made, "--store", store).out


def test_removing_a_baton_leaves_what_others_list(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    """Two batons share a full segment: it goes with the second one only."""
    store = tmp_path / "store"
    first = export(cli, tiny, tmp_path, DOCUMENT + "One", store)
    second = export(cli, tiny, tmp_path, DOCUMENT + "Two", store)
    totals = cli("list", "--store", store, "--json").json["totals"]
    assert totals["segments"]["objects"] == 3
    gone = cli("rm", first, "--segments", "--store", store, "--json").json
    assert (gone["removed"], gone["transcripts"], gone["segments"]) == ([first], 1, 1)
    assert cli("verify", second, "--store", store).code == 0
    assert cli("verify", first, "--store", store).code == 7
    cli("rm", second, "--segments", "--store", store)
    totals = cli("list", "--store", store, "--json").json["totals"]
    assert totals["bytes"] == 0


def test_without_the_flag_segments_stay(cli: Cli, exported: Exported) -> None:
    """Segments serve other prompts until they are evicted; the transcript goes."""
    done = cli("rm", exported.baton, "--store", exported.store)
    assert done.code == 0
    assert [len(exported.files(k)) for k in ("batons", "transcripts", "segments")] == [0, 0, 2]


def test_a_transcript_that_another_baton_lists_stays(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    """The same context handed off twice has one transcript and two batons."""
    store = tmp_path / "store"
    first = export(cli, tiny, tmp_path, DOCUMENT, store, "--goal", "one")
    second = export(cli, tiny, tmp_path, DOCUMENT, store, "--goal", "two")
    assert cli("rm", first, "--store", store, "--json").json["transcripts"] == 0
    assert cli("verify", second, "--store", store).code == 0


def test_nothing_is_removed_unless_all_are_there(cli: Cli, exported: Exported) -> None:
    """An unknown id among several removes none of them."""
    done = cli("rm", exported.baton, "0" * 64, "--store", exported.store)
    assert (done.code, len(exported.files("batons"))) == (7, 1)
    assert cli("rm", "../../etc", "--store", exported.store).code == 3


def test_a_damaged_baton_can_be_removed(cli: Cli, exported: Exported) -> None:
    """What it listed is not known, and the warning says so."""
    (path,) = exported.files("batons")
    path.write_bytes(b"{")
    done = cli("rm", exported.baton, "--store", exported.store)
    assert (done.code, len(exported.files("batons"))) == (0, 0)
    assert "not known" in done.err


@pytest.mark.parametrize("command", ["list", "inspect", "verify", "diff", "rm"])
def test_a_missing_store_is_named_and_not_made(cli: Cli, tmp_path: Path, command: str) -> None:
    """Reading commands exit with 9 where there is no store, and leave the place alone."""
    ids = {"list": 0, "diff": 2}.get(command, 1) * ["0" * 64]
    for place in (tmp_path / "absent", tmp_path):
        done = cli(command, *ids, "--store", place, "--json")
        assert (done.code, done.json["error"]["code"]) == (9, "not-found")
        assert str(place) in done.json["error"]["sentence"]
    assert list(tmp_path.iterdir()) == []


def test_a_store_in_memory_is_refused(cli: Cli, tiny: Path, document: Path) -> None:
    """A memory store ends with its process, and the sentence says what to use instead."""
    for url in ("memory://x", "fsspec+memory://x", "MEMORY://x"):
        done = cli("export", "--model", tiny, "--context", document, "--store", url, "--json")
        assert (done.code, done.json["error"]["at"]) == (3, url)
        assert "dir://" in done.json["error"]["hint"]


def test_an_unknown_scheme_is_an_error_of_the_store(cli: Cli) -> None:
    """A URL that no store knows exits with 9."""
    assert cli("list", "--store", "carrier-pigeon://loft").code == 9


def test_the_settings_store_is_the_default(
    cli: Cli, exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `--store` the one from the environment is used."""
    monkeypatch.setenv("KVBATON_STORE", f"dir://{exported.store}")
    assert cli("list", "--json").json["batons"][0]["baton"] == exported.baton


def test_a_store_that_is_full_leaves_no_baton(cli: Cli, tiny: Path, document: Path) -> None:
    """A size limit that is too small exits with 9, `store-full`, and the store verifies clean."""
    store = document.with_name("store")
    url = f"dir://{store}?max_bytes=50kB"
    done = cli("export", "--model", tiny, "--context", document, "--store", url, *DTYPE, "--json")
    assert (done.code, done.json["error"]["code"]) == (9, "store-full")
    assert cli("verify", "--all", "--store", store).code == 0
    assert cli("list", "--store", store, "--json").json["batons"] == []


@pytest.mark.parametrize("nth", range(5))
def test_a_disk_that_is_full_leaves_no_partial_state(
    cli: Cli, tiny: Path, document: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """ENOSPC in the middle of any write: exit 9, no temporary file, and no damage."""
    written = [0]
    write_all = directory.write_all

    def fail(descriptor: int, parts: list[memoryview]) -> None:
        written[0] += 1
        if written[0] <= nth:
            return write_all(descriptor, parts)
        os.write(descriptor, parts[0][: len(parts[0]) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = document.with_name("store")
    arguments = ("export", "--model", tiny, "--context", document, "--store", store, *DTYPE)
    with monkeypatch.context() as patch:
        patch.setattr(directory, "write_all", fail)
        done = cli(*arguments, "--json")
    assert (done.code, done.json["error"]["code"]) == (9, "store-full")
    assert list((store / "tmp").iterdir()) == []
    checked = cli("verify", "--all", "--store", store, "--json").json
    assert (checked["ok"], checked["checked"]["batons"]) == (True, 0)
    assert cli(*arguments).code == 0
