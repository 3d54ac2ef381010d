"""`kvbaton relay`: the table, the one JSON object, what it leaves behind, and its errors."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from tests.cli.conftest import DOCUMENT, Cli

from kvbaton.cli import relay_command, scratch
from kvbaton.errors import StoreError
from kvbaton.stores import Key, Kind

PIPELINE = """
name = "doors"
dtype = "float32"
input = "document.txt"
agents = [
  { name = "planner", system = "You plan", task = "{input}", max_new_tokens = 6 },
  { name = "left", task = "Hi", max_new_tokens = 5 },
  { name = "writer", task = "Go on", max_new_tokens = 5 },
]
edges = [{ from = "planner", to = "left" }, { from = "planner", to = "writer", join = ["left"] }]
"""


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """Tiny tensors are faster on one thread, above all while the cores are busy."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """A pipeline file with its document beside it."""
    (tmp_path / "document.txt").write_text(DOCUMENT, encoding="utf-8")
    (tmp_path / "doors.toml").write_text(PIPELINE, encoding="utf-8")
    return tmp_path / "doors.toml"


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of the test's own for scratch stores; empty again behind every test."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(relay_command, "scratch_store", _scratch_in(folder))
    yield folder
    assert list(folder.iterdir()) == []


def _scratch_in(folder: Path) -> Any:
    return lambda needed_bytes: scratch.scratch_store(needed_bytes, shared_memory=folder)


def test_the_result_is_one_json_object(cli: Cli, tiny: Path, pipeline: Path) -> None:
    """Turns, routes and totals in JSON on standard output; the answers by both routes agree."""
    result = cli("relay", pipeline, "--model", tiny, "--compare", "--json")
    assert result.code == 0
    said = result.json
    assert (said["pipeline"], said["dtype"]) == ("doors", "float32")
    assert [turn["agent"] for turn in said["turns"]] == ["planner", "left", "writer"]
    assert [turn["route"] for turn in said["turns"]] == ["text", "baton", "baton"]
    assert [turn["output"] for turn in said["turns"]] == [t["text_output"] for t in said["turns"]]
    assert said["totals"]["ttft_speedup"] > 0


def test_people_see_answers_and_a_table(cli: Cli, tiny: Path, pipeline: Path) -> None:
    """Each answer stands under its agent's name; the table ends with the totals."""
    plain = cli("relay", pipeline, "--model", tiny)
    assert plain.code == 0
    assert "planner (text)" in plain.out
    assert "writer (baton)" in plain.out
    assert "all turns together" in plain.out
    assert "answer by text" not in plain.out
    compared = cli("relay", pipeline, "--model", tiny, "--compare")
    assert "answer by text" in compared.out
    assert compared.out.count("same  ") == 2
    assert "2 agents that take a baton" in compared.out


def test_a_route_that_is_not_the_baton_has_its_reason_below(
    cli: Cli, tiny: Path, pipeline: Path
) -> None:
    """By text every taker says that text was asked for, in the table's lines and in JSON."""
    shown = cli("relay", pipeline, "--model", tiny, "--route", "text")
    assert shown.out.count("the caller asked for the text route") == 2
    said = cli("relay", pipeline, "--model", tiny, "--route", "text", "--json").json
    assert [turn["route"] for turn in said["turns"]] == ["text"] * 3
    assert said["turns"][1]["reasons"][0]["code"] == "asked-for-text"


def test_a_store_that_is_named_keeps_the_batons(
    cli: Cli, tiny: Path, pipeline: Path, tmp_path: Path
) -> None:
    """Batons stay in a store of the caller's, and a second run reuses the document."""
    store = tmp_path / "kept"
    first = cli("relay", pipeline, "--model", tiny, "--store", store, "--json").json
    assert first["turns"][0]["reused_tokens"] == 0
    assert len(cli("list", "--store", store, "--json").json["batons"]) == 2
    second = cli("relay", pipeline, "--model", tiny, "--store", store, "--json").json
    assert second["turns"][0]["reused_tokens"] == 256
    assert second["turns"][0]["reasons"][0]["code"] == "prefix-hit"
    memory = cli("relay", pipeline, "--model", tiny, "--store", "memory://relay-test", "--json")
    assert memory.json["turns"][1]["route"] == "baton"


def test_another_document_can_be_given(
    cli: Cli, tiny: Path, pipeline: Path, tmp_path: Path
) -> None:
    """`--input` replaces the file's own document, from a file or from standard input."""
    (tmp_path / "document.txt").unlink()
    (tmp_path / "other.txt").write_text("Hello there", encoding="utf-8")
    from_file = cli(
        "relay", pipeline, "--model", tiny, "--input", tmp_path / "other.txt", "--json"
    ).json
    from_stdin = cli(
        "relay", pipeline, "--model", tiny, "--input", "-", "--json", stdin=b"Hello there"
    ).json
    contexts = [[turn["context_tokens"] for turn in r["turns"]] for r in (from_file, from_stdin)]
    assert contexts[0] == contexts[1]
    assert contexts[0][0] < 80


def test_the_picture_is_an_svg_that_loads_nothing(
    cli: Cli, tiny: Path, pipeline: Path, tmp_path: Path
) -> None:
    """`--svg` writes well-formed XML with the table's text and no address in it."""
    picture = tmp_path / "relay.svg"
    assert cli("relay", pipeline, "--model", tiny, "--compare", "--svg", picture).code == 0
    text = picture.read_text(encoding="utf-8")
    root = ET.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    shown = " ".join(root.itertext()).replace("\N{NO-BREAK SPACE}", " ")
    assert "planner" in shown
    assert "answer by text" in shown
    assert "url(http" not in text
    missing = cli("relay", pipeline, "--model", tiny, "--svg", tmp_path / "no" / "x.svg")
    assert missing.code == StoreError.exit_code


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (PIPELINE.replace("system =", "systm ="), "$.agents[0].systm"),
        (PIPELINE.replace('"left", task', '"left" task'), "not TOML"),
        (PIPELINE.replace('input = "document.txt"', ""), "'input' is missing"),
        (PIPELINE.replace("document.txt", "gone.txt"), "cannot be read"),
        (PIPELINE.replace('from = "planner", to = "left"', 'from = "left", to = "left"'), "itself"),
    ],
    ids=["unknown key", "not toml", "no input", "input gone", "cycle"],
)
def test_a_wrong_pipeline_is_said_before_a_model_is_loaded(
    cli: Cli, pipeline: Path, text: str, said: str
) -> None:
    """Mistakes in the file have exit code 3 and their place, whatever model is named."""
    pipeline.write_text(text, encoding="utf-8")
    result = cli("relay", pipeline, "--model", "no-such-model")
    assert (result.code, result.out) == (3, "")
    assert said in result.err
    as_json = cli("relay", pipeline, "--model", "no-such-model", "--json")
    assert as_json.json["error"]["exit_code"] == 3


def test_other_bad_input_has_its_own_error(cli: Cli, tiny: Path, pipeline: Path) -> None:
    """Unknown models and stores, blank documents and too long ones are told apart."""
    common = ("relay", pipeline, "--json", "--model")
    assert cli(*common, "no-such-model").json["error"]["code"] == "unknown-model"
    assert cli(*common, tiny, "--store", "ftpx://x").json["error"]["code"] == "unknown-scheme"
    blank = cli(*common, tiny, "--input", "-", stdin=b" \n")
    assert blank.json["error"]["code"] == "empty-input"
    long = cli(*common, tiny, "--input", "-", stdin=b"x " * 300)
    assert (long.code, long.json["error"]["code"]) == (3, "window-exceeded")
    assert cli(*common, tiny, "--route", "fastest").code == 2


def test_an_interrupt_in_the_middle_leaves_nothing(
    cli: Cli, tiny: Path, pipeline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while a cache is being attached gives exit code 130; the scratch store is gone."""
    heard: list[str] = []
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job may ignore it

    class Interrupting(relay_command._Story):
        def __call__(self, event: str, facts: Any) -> None:
            super().__call__(event, facts)
            heard.append(event)
            if event == "layer-attached" and heard.count(event) == 2:
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(relay_command, "_Story", Interrupting)
    try:
        result = cli("relay", pipeline, "--model", tiny)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert result.code == 130
    assert heard.count("turn-ended") == 1


# --- the scratch store -------------------------------------------------------------------------


def put_one(store: Any) -> Key:
    """Put an object and return its key."""
    key = Key(Kind.TRANSCRIPT, "0" * 64)
    store.put(key, [b"x"])
    return key


def test_a_scratch_store_is_private_and_goes_with_its_block(places: Path) -> None:
    """Nobody else may look into it, and an error takes it away as well."""
    with scratch.scratch_store(1, shared_memory=places) as store:
        key = put_one(store)
        (folder,) = places.iterdir()
        assert folder.stat().st_mode & 0o077 == 0
        assert store.get(key, limit_bytes=9) == b"x"
    assert not folder.exists()

    def fail() -> None:
        with scratch.scratch_store(1, shared_memory=places) as store:
            put_one(store)
            raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        fail()


def test_without_room_in_shared_memory_it_is_on_the_disk(places: Path, tmp_path: Path) -> None:
    """Too little room, or no such place, leaves the ordinary folder for temporary files."""
    elsewhere = tmp_path / "shm"
    elsewhere.mkdir()
    for needed, shared in ((1 << 62, elsewhere), (1, tmp_path / "none")):
        with scratch.scratch_store(needed, shared_memory=shared) as store:
            assert store.url.startswith(f"dir://{places}/kvbaton-run-")
    with scratch.scratch_store(1, shared_memory=elsewhere) as store:
        assert store.url.startswith(f"dir://{elsewhere}/kvbaton-run-")


def test_what_killed_runs_left_is_removed(places: Path) -> None:
    """Old folders without a holder go; young ones and those in use stay."""
    dead, young, used = (places / f"kvbaton-run-{name}" for name in ("dead", "young", "used"))
    for folder in (dead, young, used):
        folder.mkdir()
        (folder / "lock").touch()
    for folder in (dead, used):
        os.utime(folder, (1, 1))
    with FileLock(used / "lock"):
        os.utime(used, (1, 1))
        with scratch.scratch_store(1, shared_memory=places):
            left = {path.name for path in places.iterdir()}
            assert {"kvbaton-run-young", "kvbaton-run-used"} < left
            assert "kvbaton-run-dead" not in left
    for folder in (young, used):
        (folder / "lock").unlink()
        folder.rmdir()


def test_a_writer_that_goes_on_cannot_bring_it_back(places: Path) -> None:
    """A thread that still puts when the block ends gets typed errors, and leaves nothing."""
    stop, failed = threading.Event(), threading.Event()

    def write(store: Any) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            try:
                store.put(Key(Kind.PREFIX, f"{number:064x}"), [b"x" * 64])
            except StoreError:
                failed.set()

    with scratch.scratch_store(1, shared_memory=places) as store:
        writer = threading.Thread(target=write, args=(store,))
        writer.start()
    assert failed.wait(timeout=60)
    stop.set()
    writer.join()
    assert list(places.iterdir()) == []


def test_a_measured_profile_moves_fewer_bytes(
    cli: Cli, tiny: Path, pipeline: Path, measured: Any
) -> None:
    """Every taker goes by baton, lossy, and reads less than half of the exact bytes."""
    record = measured("compact")
    exact = cli("relay", pipeline, "--model", tiny, "--json").json
    said = cli("relay", pipeline, "--model", tiny, "--profile", "compact", "--json").json
    for turn, whole in list(zip(said["turns"], exact["turns"], strict=True))[1:]:
        assert turn["route"] == "baton"
        assert turn["fidelity"]["calibration"] == record.digest
        assert turn["bytes_moved"] < whole["bytes_moved"] / 2


def test_a_profile_that_was_not_measured_runs_nothing(cli: Cli, tiny: Path, pipeline: Path) -> None:
    """Exit 3, with the command that measures it."""
    result = cli("relay", pipeline, "--model", tiny, "--profile", "layered", "--json")
    assert (result.code, result.json["error"]["code"]) == (3, "not-calibrated")
