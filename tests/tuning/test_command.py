"""``kvbaton tune-codec`` on a tiny checkpoint, from the command line on."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.bench.tiny import checkpoint

from kvbaton import api
from kvbaton.cli.main import run
from kvbaton.codecs.calibration import plan_for, stored_calibrations
from kvbaton.probes import measuring
from kvbaton.probes.measuring import Effort
from kvbaton.tuning.probe_limits import stored_probe_limits
from kvbaton.tuning.watch import stored_watch_range
from kvbaton.types import Fidelity, FidelityClass

WORDS = "the quick brown fox jumps over the lazy dog and runs away.\n" * 40


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder with a tiny checkpoint; settings point to empty folders."""
    monkeypatch.setenv("KVBATON_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("KVBATON_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "words.txt").write_text(WORDS)
    return str(checkpoint(tmp_path / "model"))


def tune(capsys: pytest.CaptureFixture[str], model: str, *options: str) -> tuple[int, Any]:
    """Exit code, and what ``--json`` printed."""
    text = Path(model).parent / "words.txt"
    given = ["tune-codec", model, "--text", str(text), "--tokens", "48", "--positions", "8"]
    capsys.readouterr()
    code = run([*given, "--takes", "0", *options, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_measured_profile_can_be_used(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """The record is kept, and is the plan of the profile from then on."""
    code, said = tune(capsys, model, "--profile", "near-lossless", "--dtype", "float32")
    assert code == 0
    (row,) = said["records"]
    assert (row["profile"], row["searched"]) == ("near-lossless", False)
    assert 0 < row["kl"] <= row["kl_worst"]
    assert row["noise_multiple"] is None
    engine = api.load(model, dtype="float32")
    assert said["function"] == engine.function.digest
    plan = plan_for(
        "near-lossless",
        function=engine.function.digest,
        model=model,
        layout=engine.layout,
        calibrations=stored_calibrations(engine.function.digest, tmp_path / "data"),
    )
    assert plan.calibration == row["digest"]


def test_a_bound_is_searched_in_float32_and_measured_in_the_dtype_asked_for(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """The plan is kept as ``tuned``; what the search measured is kept for the next one."""
    options = ("--target-kl", "1e-3", "--profile", "cheapest", "--profile", "near-lossless")
    code, said = tune(capsys, model, *options, "--dtype", "bfloat16")
    assert code == 0
    assert said["dtype"] == "BF16"
    named = [(row["profile"], row["searched"]) for row in said["records"]]
    assert named == [("tuned", True), ("cheapest", False), ("near-lossless", False)]
    assert len(list((tmp_path / "cache" / "tuning").glob("*.json"))) == 1


def test_the_range_of_first_tokens_is_measured_on_demand(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """``--watch`` keeps where honest answers lie, with false alarms by route and codec."""
    few = Effort(spread_runs=30, limit_runs=199, check_runs=2, shortest=8, longest=16)
    monkeypatch.setattr(measuring, "Effort", lambda: few)
    code, said = tune(capsys, model, "--profile", "cheapest", "--watch", "--dtype", "float32")
    assert code == 0
    assert [row["caches"] for row in said["watch"]["false_alarms"]] == ["text", "cheapest"]
    limits = stored_watch_range(said["function"], tmp_path / "data")
    assert limits is not None
    assert (limits.limit, limits.runs) == (said["watch"]["limit"], 199)


def test_limits_of_windows_are_measured_with_a_profile(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """They are kept for the lossless cache and the profile, and those of another one stay."""
    options = ("--takes", "3", "--dtype", "float32")
    code, said = tune(capsys, model, "--profile", "cheapest", *options)
    assert code == 0
    assert (said["windows"]["takes"], said["windows"]["codecs"]) == (3, ["raw", "cheapest"])
    code, said = tune(capsys, model, "--profile", "near-lossless", *options)
    assert code == 0
    limits = stored_probe_limits(said["function"], tmp_path / "data")
    assert limits is not None
    assert {one.codec for one in limits.codecs} == {"raw", "cheapest", "near-lossless"}
    fidelity = Fidelity(FidelityClass.LOSSY, "near-lossless", said["records"][0]["digest"])
    assert limits.find(fidelity) is not None


@pytest.mark.parametrize(
    ("options", "code", "word"),
    [
        (("--profile", "huge"), 3, "no profile is called"),
        (("--target-kl", "-1"), 3, "makes no sense"),
        (("--target-kl", "1e-30"), 3, "was found"),
        (("--max-bits", "1"), 3, "at most 1.0 bits"),
        (("--text", "/nowhere/at/all.txt"), 3, "cannot be read"),
        (("--tokens", "100000"), 3, "no text has"),
    ],
)
def test_what_cannot_be_done_is_an_input_error(
    model: str,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    code: int,
    word: str,
):
    """With a sentence, and nothing is kept."""
    found, said = tune(capsys, model, "--dtype", "float32", *options)
    assert found == code
    assert word in said["error"]["sentence"]
