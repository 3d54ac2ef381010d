"""`kvbaton advise`: a pipeline that is run to be judged, receipts that are logged, and neither."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import DOCUMENT, Cli
from tests.cli.test_reference import names, shape

from kvbaton.cli import relay_command, scratch
from kvbaton.cli.advise_command import shape_of
from kvbaton.pipelines import default_pipeline, load_pipeline
from kvbaton.policy.advice import Suits

PIPELINE = """
name = "doors"
dtype = "float32"
input = "document.txt"
agents = [
  { name = "planner", task = "{input}", max_new_tokens = 4 },
  { name = "left", task = "Hi", max_new_tokens = 3 },
  { name = "writer", task = "Go on", max_new_tokens = 3 },
]
edges = [{ from = "planner", to = "left" }, { from = "left", to = "writer" }]
"""


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline file with its document beside it; scratch stores go into a folder of the test."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(
        relay_command,
        "scratch_store",
        lambda needed: scratch.scratch_store(needed, shared_memory=folder),
    )
    (tmp_path / "document.txt").write_text(DOCUMENT, encoding="utf-8")
    (tmp_path / "doors.toml").write_text(PIPELINE, encoding="utf-8")
    return tmp_path / "doors.toml"


def logged(path: Path, *receipts: dict[str, Any]) -> Path:
    """A log of receipts."""
    path.write_text("".join(json.dumps(one) + "\n" for one in receipts), encoding="utf-8")
    return path


def receipt(agent: str, route: str, ttft_s: float) -> dict[str, Any]:
    """A take, by cache or by text on purpose."""
    chosen = [{"code": "asked-for-text", "sentence": "as asked"}] if route == "text" else []
    return {
        "id": f"{agent}-{route}",
        "agent": agent,
        "model": "m",
        "baton": "b" * 64,
        "outcome": "used",
        "route": route,
        "reasons": chosen,
        "context_tokens": 900,
        "reused_tokens": 0 if chosen else 800,
        "seconds": {"ttft": ttft_s},
    }


def test_a_run_by_both_routes_is_judged(cli: Cli, tiny: Path, pipeline: Path) -> None:
    """Every receiver has its takes by cache and its seconds by text; the chain is counted."""
    said = cli("advise", pipeline, "--run", "--repeat", 2, "--model", tiny, "--json").json
    assert said["pipeline"] == "doors"
    assert [hop["agent"] for hop in said["hops"]] == ["left", "writer"]
    for hop in said["hops"]:
        assert (hop["takes"], hop["by_cache"], hop["basis"]) == (2, 2, "compared")
        assert hop["ratio"] > 0
        assert hop["verdict"] == ("suits" if hop["faster"] else "does-not-suit")
    assert said["saved_s"] is not None
    assert names(said) == shape("advise") - {verdict.value for verdict in Suits}
    (chain,) = [one for one in said["criteria"] if one["name"] == "short chain"]
    assert chain["sentence"].startswith("at most 2 hand-offs in a row")


def test_a_log_is_judged_without_a_pipeline(cli: Cli, tmp_path: Path) -> None:
    """All agents that took batons, for people and as JSON."""
    log = logged(
        tmp_path / "receipts.jsonl",
        receipt("coder", "baton", 0.1),
        receipt("coder", "text", 1.0),
        receipt("critic", "baton", 0.9),
        receipt("critic", "text", 0.5),
    )
    said = cli("advise", "--receipts", log, "--json").json
    assert (said["pipeline"], said["verdict"]) == ("", "suits-partly")
    assert said["why"] == "for coder; not for critic"
    assert said["hops"][0]["why"].startswith("first token after 0.1 s by cache and 1 s by text")
    assert said["hops"][0]["reasons"] == {}
    shown = cli("advise", "--receipts", log).out
    assert shown.startswith("hand-off suits partly: for coder; not for critic\n")
    assert "10.0x" in shown
    assert "below 512 tokens a net loss" in shown


def test_the_settings_log_is_read(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is there; one that is not there yet is no error, one that is named is."""
    path = tmp_path / "receipts.jsonl"
    monkeypatch.setenv("KVBATON_RECEIPTS", str(path))
    assert cli("advise", "--json").json["verdict"] == "unknown"
    logged(path, receipt("coder", "baton", 0.1), receipt("coder", "text", 1.0))
    assert cli("advise", "--json").json["verdict"] == "suits"
    failed = cli("advise", "--receipts", tmp_path / "absent", "--json")
    assert failed.json["error"]["sentence"].startswith("the receipts cannot be read")


def test_the_pipeline_that_comes_along_is_judged_where_there_is_nothing(cli: Cli) -> None:
    """Nobody can tell, and the command that finds out is named."""
    shown = cli("advise")
    assert shown.code == 0
    assert shown.out.startswith("dossier: nobody can tell yet")
    assert shown.out.endswith("run it once by both routes: kvbaton advise --run\n")


def test_options_of_a_run_need_a_run(cli: Cli) -> None:
    """They are refused, never ignored."""
    for options in (("--model", "x"), ("--repeat", 2)):
        failed = cli("advise", *options, "--json")
        assert (failed.code, failed.json["error"]["hint"]) == (3, "give --run, too")


def test_shapes_of_pipelines(pipeline: Path) -> None:
    """Receivers in their order, the longest way, and who takes slices."""
    shape = shape_of(load_pipeline(pipeline))
    assert (shape.receivers, shape.longest, shape.slices) == (("left", "writer"), 2, ())
    known = shape_of(default_pipeline())
    assert (known.receivers, known.longest) == (("alarm", "repair", "cost", "writer"), 1)
    sliced = PIPELINE.replace('to = "writer"', 'to = "writer", mode = "slice"')
    pipeline.write_text(sliced, encoding="utf-8")
    assert shape_of(load_pipeline(pipeline)).slices == ("writer",)
