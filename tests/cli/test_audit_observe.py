"""`kvbaton audit observe`: a log in, a verdict and its grounds out."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.audit.observe.simulated import World, simulate
from tests.cli.conftest import Cli

from kvbaton.cli.audit_observe import SHAPES


def write(path: Path, rows: list[Any]) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log in which long contexts went more often by baton; the truth is 0.6."""
    return write(tmp_path / "receipts.jsonl", simulate(World(fallback=0.1), 1))


def names(value: Any) -> set[str]:
    """Every field name inside a value."""
    if isinstance(value, dict):
        return set(value) | {name for inner in value.values() for name in names(inner)}
    if isinstance(value, list):
        return {name for inner in value for name in names(inner)}
    return set()


def test_people_read_verdict_effects_balance_and_drift(cli: Cli, log: Path) -> None:
    """The first line is the verdict; the tables have the effect as logged and weighted."""
    done = cli("audit", "observe", log)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].startswith("faster: the baton route takes 0.6")
    assert "weighted by propensity" in lines[1]
    assert "of the batons fell back to text" in lines[1]
    for wanted in ("ttft", "score", "log context", "2026-09-21", "placebo"):
        assert wanted in done.out
    assert "points" in next(line for line in lines if line.startswith("score"))


def test_json_has_the_fields_that_the_reference_names(cli: Cli, tmp_path: Path) -> None:
    """Of both ways, and of a log with drift, every field is in the printed shape."""
    told = set(re.findall(r'"(\w+)"', SHAPES["audit observe"]))
    dynamic = {"baton", "text"}  # names of routes and arms
    seen = set()
    for world in (World(drift_day=5, drift_ratio=1.0), World(by_lot=True)):
        log = write(tmp_path / "receipts.jsonl", simulate(world, 1))
        done = cli("audit", "observe", log, "--json")
        assert done.code == 0, done.err
        seen |= names(done.json)
    assert seen - dynamic == told


def test_options_reach_the_analysis(cli: Cli, tmp_path: Path) -> None:
    """Arms of other names and shares, a window, more labels and a second file are used."""
    rows = simulate(World(by_lot=True, conversations=300), 1)
    for row in rows:
        row["labels"]["arm"] = {"text": "old", "baton": "new"}[row["labels"]["arm"]]
        row["labels"]["tier"] = "gold" if row["context_tokens"] % 2 else "iron"
    log = write(tmp_path / "receipts.jsonl", rows)
    judged = write(
        tmp_path / "outcomes.jsonl",
        [{"receipt": row["id"], "right": row["labels"]["arm"] == "new"} for row in rows],
    )
    done = cli(
        "audit", "observe", log, "--outcomes", judged, "--by", "ab", "--text-arm", "old",
        "--baton-arm", "new", "--window", "400", "--label", "tier", "--seed", "3", "--json",
    )  # fmt: skip
    said = done.json
    assert said["by"] == "ab"
    assert said["assignment"]["arms"] == ["old", "new"]
    assert said["effects"]["score"]["naive_points"] == 100.0
    assert said["drift"]["windows"][0]["window"] == "receipts 1 to 400"
    assert "tier iron" in {one["feature"] for one in said["balance"]}
    assert said["seed"] == 3
    skewed = cli("audit", "observe", log, "--text-arm", "old", "--baton-arm", "new",
                 "--share", "0.8", "--json")  # fmt: skip
    assert skewed.json["verdict"] == "arms do not match the plan"


def test_a_bad_line_is_named_and_can_be_skipped(cli: Cli, log: Path) -> None:
    """Exit code 3 with line and field; with `--skip-bad` a warning and a result."""
    with log.open("a", encoding="utf-8") as file:
        file.write('{"id": "x", "agent"\n')
    count = len(log.read_text(encoding="utf-8").splitlines())
    done = cli("audit", "observe", log)
    assert done.code == 3
    assert f"line {count} of the log is bad: not JSON" in done.err
    done = cli("audit", "observe", log, "--skip-bad")
    assert done.code == 0
    assert "warning: bad line skipped" in done.err


def test_the_log_of_the_settings_is_the_default(
    cli: Cli, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`KVBATON_RECEIPTS` names it; without either the error says what to do."""
    done = cli("audit", "observe")
    assert done.code == 3
    assert "set KVBATON_RECEIPTS" in done.err
    monkeypatch.setenv("KVBATON_RECEIPTS", str(log))
    assert cli("audit", "observe", "--json").json["verdict"] == "faster"


def test_too_little_is_an_error_with_advice(cli: Cli, tmp_path: Path) -> None:
    """A log of few receipts, of one route, or of none ends with exit code 3 and a sentence."""
    rows = simulate(World(conversations=5), 1)
    few = cli("audit", "observe", write(tmp_path / "few", rows))
    assert (few.code, "too few" in few.err) == (3, True)
    by_text = [row | {"outcome": "no-baton"} for row in simulate(World(), 1)]
    one = cli("audit", "observe", write(tmp_path / "one", by_text), "--json")
    assert one.code == 3
    assert "receipts are of text" in one.json["error"]["sentence"]
    none = cli("audit", "observe", write(tmp_path / "none", []))
    assert none.code == 3
    assert "holds no receipts" in none.err


def test_no_overlap_is_shown_without_numbers(cli: Cli, tmp_path: Path) -> None:
    """Where nothing can be compared, effects are unknown and the verdict says why."""
    log = write(tmp_path / "receipts.jsonl", simulate(World(confounding=40.0), 1))
    done = cli("audit", "observe", log)
    assert done.code == 0
    assert done.out.startswith("no overlap: ")
    assert "unknown" in done.out
