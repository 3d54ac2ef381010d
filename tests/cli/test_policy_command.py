"""`kvbaton policy`: what is measured is kept, and shown without loading the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Cli
from tests.policy.speed_examples import KNOWN

from kvbaton.bench import calibrating
from kvbaton.bench.calibrating import CalibrationPlan
from kvbaton.policy.hosts import host_id
from kvbaton.policy.speed_files import Kept, speeds_file, store_speeds


@pytest.fixture(autouse=True)
def alone(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Speeds and stores of this test only."""
    monkeypatch.setenv("KVBATON_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A calibration of two rounds."""

    def plan(profiles: tuple[str, ...]) -> CalibrationPlan:
        return CalibrationPlan(
            profiles, (64, 128), (64, 128), rounds=2, budget_s=0.0, patience_s=0.0
        )

    monkeypatch.setattr(calibrating, "CalibrationPlan", plan)


def kept(data: Path, **changes: Any) -> Path:
    """Keep the known speeds as those of this machine."""
    import dataclasses

    return store_speeds(
        Kept(dataclasses.replace(KNOWN, **{"host": host_id(), "model": "smollm2-135m"} | changes)),
        data,
    )


@pytest.mark.usefixtures("brief")
def test_calibrate_keeps_what_map_shows(cli: Cli, tiny: Path, alone: Path) -> None:
    """Speeds of the store that was named; a second one is added to it."""
    first, second = alone / "first", alone / "second"
    said = cli(
        "policy", "calibrate", "--model", tiny, "--dtype", "float32", "--store", first, "--json"
    )
    assert said.code == 0, said.err
    assert Path(said.json["file"]).is_file()
    assert said.json["speeds"]["model"] == str(tiny)
    assert set(said.json["left_out"]) == {"near-lossless", "layered", "compact", "tiny"}
    assert list(said.json["speeds"]["stores"]) == [f"dir://{first}"]
    again = cli(
        "policy", "calibrate", "--model", tiny, "--dtype", "float32", "--store", second, "--json"
    )
    assert set(again.json["speeds"]["stores"]) == {f"dir://{first}", f"dir://{second}"}
    shown = cli("policy", "map", "--model", tiny, "--json").json
    assert shown["routes"] == ["text", "exact"]
    assert set(shown["stores"]) == {f"dir://{first}", f"dir://{second}"}


@pytest.mark.usefixtures("brief")
def test_calibrate_speaks_to_people(cli: Cli, tiny: Path, alone: Path) -> None:
    """Prefill by length, profiles, the store, and where it is kept."""
    said = cli("policy", "calibrate", "--model", tiny, "--dtype", "float32")
    assert said.code == 0, said.err
    for word in ("tokens/s", "bytes/token", "exact", "kept in"):
        assert word in said.out
    assert "kvbaton tune-codec" in said.err


def test_a_profile_that_was_not_measured_is_an_error(cli: Cli, tiny: Path) -> None:
    """It was asked for by name."""
    said = cli(
        "policy", "calibrate", "--model", tiny, "--dtype", "float32", "--profile", "compact",
        "--json",
    )  # fmt: skip
    assert (said.code, said.json["error"]["code"]) == (3, "not-calibrated")


def test_map_shows_and_draws_winners(cli: Cli, alone: Path, tmp_path: Path) -> None:
    """By length and bandwidth; the picture goes where it is told to."""
    kept(alone)
    picture = tmp_path / "map.svg"
    said = cli("policy", "map", "--tokens", "64,1000", "--bandwidths", "0.1,1000", "--svg", picture)
    assert said.code == 0, said.err
    rows = [line.split() for line in said.out.splitlines()]
    assert ["1,000*", "text", "exact"] in rows
    assert picture.read_text(encoding="utf-8").startswith("<svg ")


def test_map_says_what_is_missing(cli: Cli) -> None:
    """With the command that measures it."""
    said = cli("policy", "map", "--json")
    assert said.code == 3
    assert said.json["error"]["code"] == "not-measured-here"
    assert "kvbaton policy calibrate" in said.json["error"]["hint"]


def test_map_names_files_that_are_something_else(cli: Cli, alone: Path) -> None:
    """The file, and what to do."""
    file = kept(alone)
    file.write_text("{}")
    said = cli("policy", "map", "--json")
    assert (said.code, said.json["error"]["at"]) == (8, str(file))


def test_speeds_that_were_copied_from_another_host_are_not_shown(cli: Cli, alone: Path) -> None:
    """Their host stands in them."""
    file = kept(alone)
    value = json.loads(file.read_text())
    value["speeds"]["host"] = "b" * 64
    speeds_file(alone, KNOWN.function).write_text(json.dumps(value))
    said = cli("policy", "map", "--json")
    assert said.json["error"]["code"] == "not-measured-here"
    assert "another host" in said.json["error"]["sentence"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--tokens", "many"),
        ("--tokens", ""),
        ("--bandwidths", "fast"),
        ("--bandwidths", "0"),
        ("--new-tokens", "0"),
        ("--svg", "/nowhere/at/all.svg"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(
    cli: Cli, alone: Path, arguments: tuple[str, str]
) -> None:
    """By an error of input."""
    kept(alone)
    said = cli("policy", "map", *arguments, "--json")
    assert said.code == 3
    assert said.json["error"]["code"] == "input-error"
