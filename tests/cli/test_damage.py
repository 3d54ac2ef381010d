"""One wrong byte anywhere: what `take` does, and what `verify` says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.conftest import Cli, Exported, Result

from kvbaton.cli.verification import Examination
from kvbaton.seals import local_domain
from kvbaton.stores import open_store

GO_ON = ("--dtype", "float32", "--instruction", "Go on", "--max-new-tokens", "2", "--json")


def flip(path: Path, offset: int) -> None:
    """Change one bit of one byte."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 4
    path.write_bytes(data)


def taken(cli: Cli, tiny: Path, exported: Exported, *more: object) -> Result:
    """What a take of the baton gives."""
    place = ("--baton", exported.baton, "--store", exported.store)
    return cli("take", "--model", tiny, *place, *GO_ON, *more)


def header_bytes(path: Path) -> int:
    """Where a segment's body begins."""
    return 8 + int.from_bytes(path.read_bytes()[:8], "little")


def strata(path: Path) -> Iterator[tuple[str, int, str]]:
    """Name, offset and expected path of a byte in each part of a segment."""
    data, body = path.read_bytes(), header_bytes(path)
    yield "length field", 0, "$.segments[0].header"
    yield "length field's last byte", 7, "$.segments[0].header"
    yield "header", body // 2, "$.segments[0].header"
    yield "header's end", body - 1, "$.segments[0].header"
    table = json.loads(data[8:body])
    ranges = json.loads(table["__metadata__"]["kvbaton"])["ranges"]
    for index, part in enumerate(ranges):
        middle = (part["start"] + part["stop"]) // 2
        yield f"layer {index}", body + middle, f"$.segments[0].ranges[{index}]"
    pads = [entry for name, entry in table.items() if name.endswith("-pad")]
    for entry in pads[:1]:
        yield "padding", body + entry["data_offsets"][0], "$.segments[0].ranges[0]"


def test_a_corrupt_segment_gives_the_answer_from_ids(
    cli: Cli, tiny: Path, exported: Exported
) -> None:
    """In each part of a segment one byte leads to route text, with the place; `verify` names it."""
    first = json_of_first_segment(cli, exported)
    sound = taken(cli, tiny, exported).json
    whole = first.read_bytes()
    for name, offset, at in strata(first):
        flip(first, offset)
        done = taken(cli, tiny, exported)
        receipt = done.json["receipt"]
        assert (done.code, receipt["route"], receipt["outcome"]) == (0, "text", "kv-unusable"), name
        (reason,) = receipt["reasons"]
        assert reason["code"] == "segment-corrupt", name
        assert reason["at"] == at, name
        assert receipt["context_tokens"] == sound["receipt"]["context_tokens"]
        assert receipt["computed_tokens"] == receipt["context_tokens"]
        found = cli("verify", exported.baton, "--store", exported.store, "--json")
        assert found.code == 8, name
        (fault,) = found.json["faults"]
        assert fault["at"] == at, name
        assert fault["object"] == f"segments/{first.name}"
        first.write_bytes(whole)
    assert cli("verify", exported.baton, "--store", exported.store).code == 0


def json_of_first_segment(cli: Cli, exported: Exported) -> Path:
    """The file of the baton's first segment."""
    shown = cli("inspect", exported.baton, "--store", exported.store, "--json").json
    name = shown["segments"][0]["address"]
    return exported.store / "segments" / name[:2] / name


def test_the_bytes_of_a_damaged_layer_are_named(cli: Cli, exported: Exported) -> None:
    """A fault in a layer range tells layer and bytes of the file, and those hold the damage."""
    first = json_of_first_segment(cli, exported)
    offset = first.stat().st_size - 1
    flip(first, offset)
    found = cli("verify", exported.baton, "--store", exported.store, "--json").json
    (fault,) = found["faults"]
    assert fault["layer"] == 3
    assert fault["place"] == "segment 0, layer 3"
    assert fault["bytes"][0] <= offset < fault["bytes"][1]
    assert found["error"]["code"] == "digest-mismatch"
    assert not found["ok"]


def test_all_faults_are_found(cli: Cli, exported: Exported) -> None:
    """Two layers, a missing segment and a damaged transcript are four faults, in this order."""
    first, second = exported.files("segments")
    body = header_bytes(first)
    flip(first, body)
    flip(first, first.stat().st_size - 1)
    second.unlink()
    flip(exported.files("transcripts")[0], 30)
    done = cli("verify", exported.baton, "--store", exported.store, "--json")
    places = [fault["place"] for fault in done.json["faults"]]
    assert places == ["transcript", "segment 0, layer 0", "segment 0, layer 3", "segment 1"]
    assert [fault["code"] for fault in done.json["faults"]][-1] == "not-found"
    assert done.code == 8
    assert "transcript" in cli("verify", exported.baton, "--store", exported.store).out


def test_a_missing_segment_has_its_own_exit_code(cli: Cli, exported: Exported) -> None:
    """Nothing is damaged, something is not there: exit 9."""
    exported.files("segments")[1].unlink()
    done = cli("verify", exported.baton, "--store", exported.store, "--json")
    assert (done.code, done.json["faults"][0]["at"]) == (9, "$.segments[1]")


@pytest.mark.parametrize(
    ("kind", "exits", "error", "outcome", "reasons"),
    [
        ("transcripts", (7, 8), "baton-unavailable", "unavailable", {"transcript-corrupt"}),
        ("batons", (6, 6), "not-trusted", "not-trusted", {"other-baton", "envelope-malformed"}),
    ],
)
def test_without_its_context_nothing_of_a_baton_is_used(
    cli: Cli, tiny: Path, exported: Exported, tmp_path: Path, kind: str, exits: tuple[int, int],
    error: str, outcome: str, reasons: set[str],
) -> None:  # fmt: skip
    """A byte of transcript or manifest: the caller's messages, or an exit code of its own."""
    messages = tmp_path / "messages.json"
    messages.write_text('[{"role": "user", "content": "Hello"}]', encoding="utf-8")
    (damaged,) = exported.files(kind)
    whole = damaged.read_bytes()
    for offset in (0, len(whole) // 3, len(whole) // 2, len(whole) - 1):
        flip(damaged, offset)
        refused = taken(cli, tiny, exported)
        assert (refused.code, refused.json["error"]["code"]) == (exits[0], error)
        found = cli("verify", exported.baton, "--store", exported.store, "--json")
        assert (found.code, found.json["faults"][0]["place"]) == (
            exits[1],
            kind.replace("batons", "manifest").removesuffix("s"),
        )
        damaged.write_bytes(whole)
    flip(damaged, len(whole) // 2)
    answered = taken(cli, tiny, exported, "--messages", messages)
    receipt = answered.json["receipt"]
    assert (answered.code, receipt["route"], receipt["outcome"]) == (0, "text", outcome)
    assert receipt["reasons"][0]["code"] in reasons
    assert receipt["context_tokens"] < 60


def test_a_baton_that_is_not_there_is_unavailable(cli: Cli, exported: Exported) -> None:
    """`verify`, `inspect` and `diff` of an absent baton exit with 7."""
    place = ("--store", exported.store)
    assert cli("verify", "0" * 64, *place).code == 7
    assert cli("inspect", "0" * 64, *place).code == 7
    assert cli("diff", exported.baton, "0" * 64, *place).code == 7


def test_a_store_of_another_key_is_told_from_damage(
    cli: Cli, exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its key is not known nothing can be verified, and the hint says what to do."""
    monkeypatch.setenv("KVBATON_DATA_DIR", str(tmp_path / "elsewhere"))
    done = cli("verify", exported.baton, "--store", exported.store)
    assert done.code == 6
    assert "its key is not known here" in done.err
    assert "kvbaton keys trust" in done.err


def test_another_trust_domain_is_not_trusted(
    cli: Cli, tiny: Path, exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of a foreign baton is shown or used: exit 6."""
    monkeypatch.setenv("KVBATON_DOMAIN", "others")
    place = ("--store", exported.store)
    for command in ("inspect", "verify"):
        assert cli(command, exported.baton, *place).code == 6
    assert taken(cli, tiny, exported).json["error"]["code"] == "not-trusted"
    checked = cli("verify", "--all", *place, "--json").json
    assert (checked["ok"], checked["checked"]["foreign_batons"]) == (True, 1)


def test_a_whole_store_is_verified(cli: Cli, exported: Exported) -> None:
    """`--all` also checks segments and prefix records that no baton lists."""
    place = ("--store", exported.store)
    clean = cli("verify", "--all", *place, "--json").json
    assert (clean["ok"], clean["checked"]["segments"]) == (True, 2)
    cli("rm", exported.baton, *place)
    left = cli("verify", "--all", *place, "--json").json
    assert (left["ok"], left["checked"]["segments"], left["checked"]["batons"]) == (True, 2, 0)
    flip(exported.files("segments")[0], -1)
    flip(exported.files("prefixes")[0], 5)
    found = cli("verify", "--all", *place, "--json")
    assert (found.code, len(found.json["faults"])) == (8, 2)


def test_one_baton_or_all(cli: Cli, exported: Exported) -> None:
    """`verify` wants a baton or `--all`, one of the two."""
    place = ("--store", exported.store)
    assert cli("verify", *place).code == 3
    assert cli("verify", exported.baton, "--all", *place).code == 3


@pytest.fixture(scope="module")
def copy(master: Exported, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A store for many examples, each of which mends what it breaks."""
    store = tmp_path_factory.mktemp("copy") / "store"
    shutil.copytree(master.store, store)
    return replace(master, store=store)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_flipped_bit_is_found(copy: Exported, home_folder: Path, data: st.DataObject) -> None:
    """Whatever bit of manifest, transcript or segments is flipped: one fault, in that object."""
    files = [p for kind in ("batons", "transcripts", "segments") for p in copy.files(kind)]
    path = data.draw(st.sampled_from(files), label="file")
    whole = path.read_bytes()
    offset = data.draw(st.integers(0, len(whole) - 1), label="offset")
    bit = 1 << data.draw(st.integers(0, 7), label="bit")
    try:
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ bit]) + whole[offset + 1 :])
        domain = local_domain(home_folder / "data" / "domains")
        found = Examination(open_store(copy.store), domain)
        found.baton(copy.baton)
    finally:
        path.write_bytes(whole)
    (fault,) = found.faults
    assert fault.object.endswith(path.name)
    assert fault.error.at.startswith("$")
    assert found.exit_code == (6 if path.parent.parent.name == "batons" else 8)
    if fault.start is not None and fault.stop is not None:
        assert fault.start <= offset < fault.stop
