"""`bench fidelity`: what it measures on a tiny model, and how its parts hold together."""

import gc
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bench.tiny import checkpoint
from tests.engines import families

from kvbaton.bench.fidelity import private, slices, whole
from kvbaton.bench.fidelity.frontier import plot_frontier
from kvbaton.bench.fidelity.journal import Journal
from kvbaton.bench.fidelity.run import KnownFloors, measure
from kvbaton.bench.fidelity.session import Scope, Session
from kvbaton.bench.fidelity.tables import fidelity_tables
from kvbaton.bench.fidelity.targets import targets
from kvbaton.cli.main import run
from kvbaton.errors import InputError

PROMISED = {
    "profile", "mode", "tokens", "dtype", "kl", "flips", "ppl_ratio", "bits_per_element", "hops",
    "qa_accuracy", "qa_text_accuracy", "recompute_fraction",
}  # fmt: skip
SCOPE = Scope(
    tokens=(48,),
    profiles=("exact", "near-lossless", "compact"),
    questions=10,
    texts=3,
    positions=8,
    prefix_tokens=36,
    before_tokens=24,
    slice_tokens=48,
    document_tokens=600,
    fractions=(0.3,),
    counts=(1, 3),
    hops=(1, 3),
    take_tokens=48,
    repeats=1,
)


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """One thread, as tiny models gain nothing from more, and little to look at for gc."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def engine() -> Any:
    """A tiny random model with a long window: its tokens are bytes."""
    made = families.tiny("smollm")
    made.max_tokens = 16_384
    return made


@pytest.fixture
def session(engine: Any) -> Session:
    """A run of its own."""
    return Session(engine, SCOPE, Journal(engine.function.digest))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file in which the whole run keeps its measurements."""
    return tmp_path_factory.mktemp("kept") / "journal.jsonl"


@pytest.fixture(scope="module")
def result(engine: Any, kept: Path) -> Any:
    """A whole run."""
    return measure(engine, SCOPE, floors=KnownFloors(1e-9, 1e-3), journal=kept)


def rows_of(result: Any, mode: str) -> list[Any]:
    """The rows of a mode."""
    return [row for row in result["rows"] if row["mode"] == mode]


# --- the whole ------------------------------------------------------------------------------------


def test_the_result_has_the_promised_shape(result: Any) -> None:
    """Every row has every promised column, and JSON can carry it."""
    assert result["noise_floor_kl"] == 1e-9
    assert all(row.keys() >= PROMISED for row in result["rows"])
    assert {row["mode"] for row in result["rows"]} == {
        "continue", "slice", "slice-unshifted", "slice-recompute", "slice-clean",
        "slice-mismatched", "text",
    }  # fmt: skip
    assert json.loads(json.dumps(result)) == result


def test_exact_costs_nothing_and_coarser_profiles_cost_more(result: Any) -> None:
    """A lossless plan has a KL of 0 at 32 bits and more; fewer bits lose more, and save bytes."""
    found = {row["profile"]: row for row in rows_of(result, "continue") if "by_text" in row}
    exact, fine, coarse = (found[name] for name in ("exact", "near-lossless", "compact"))
    assert exact["kl"] == exact["flips"] == 0 and exact["ppl_ratio"] == 1
    assert exact["bits_per_element"] >= 32
    assert 0 < fine["kl"] < coarse["kl"]
    assert max(coarse["bits_per_element"], fine["bits_per_element"]) < 32
    assert coarse["bf16_noise_multiple"] == pytest.approx(coarse["kl"] / 1e-3)
    assert coarse["kl_worst"] == max(coarse["by_text"].values()) >= coarse["kl"]


def test_there_is_a_row_per_number_of_slices(result: Any) -> None:
    """1 and 3 slices, as they are and with the default repair, with the time they took."""
    found = [row for row in rows_of(result, "slice") if row["kl"] is not None]
    assert {row["slices"] for row in found} == {1, 3}
    assert all(row["splice_s"] > 0 and row["mask_s"] > 0 for row in found)
    repaired = rows_of(result, "slice-recompute")
    assert {row.get("slices") for row in repaired if row["kl"] is not None} == {1, 3}


def test_questions_are_counted_against_the_same_ids_by_text(result: Any) -> None:
    """Ten questions per row; a random model finds no code, by whatever way."""
    asked = [row for row in result["rows"] if row["qa_accuracy"] is not None]
    assert len(asked) == len(private.askings(Session(None, SCOPE, Journal("")))) > 10
    assert all(row["questions"] == 10 for row in asked)
    assert {row["private_questions"] for row in asked} == {0, 5}
    assert all(0 <= row["qa_accuracy"] <= 1 for row in asked)


def test_inherited_segments_are_bit_identical(result: Any) -> None:
    """After 1 and 3 hops nothing that was handed on has changed; one hop is one hand-off."""
    hops = {row["hops"]: row for row in rows_of(result, "continue") if row["hops"]}
    assert set(hops) == {1, 3}
    assert all(row["inherited_bit_identical"] for row in hops.values())
    assert hops[1]["kl_over_once"] == pytest.approx(1.0)
    assert hops[3]["kl"] > 0


def test_times_are_shares_of_other_times(result: Any) -> None:
    """A take, a slice and hand-offs are there, and their shares are quotients of their seconds."""
    (take,) = result["takes"]
    assert take["ratio"] == pytest.approx(take["seconds"]["exact"] / take["seconds"]["compact"])
    assert take["bytes"]["compact"] < take["bytes"]["exact"]
    kinds = {(one["what"], one.get("profile")) for one in result["costs"]}
    assert kinds == {("slice", None), ("hand-off", "exact"), ("hand-off", "compact")}
    for one in result["costs"]:
        assert one["share"] > 0


def test_a_run_that_is_repeated_measures_nothing_again(
    engine: Any, kept: Path, result: Any
) -> None:
    """With the same journal the second run finds everything there, and says the same."""
    said: list[str] = []
    again = measure(
        engine, SCOPE, floors=KnownFloors(1e-9, 1e-3), journal=kept, progress=said.append
    )
    assert said == []
    for part in ("rows", "takes", "costs", "targets"):
        assert again[part] == result[part]


def test_a_profile_is_measured_again_when_its_plan_changes(session: Session) -> None:
    """The journal tells plans of one name apart; the exact one has no digest."""
    assert session.plan_key("exact") == "exact"
    assert session.plan_key("compact") != session.plan_key("near-lossless")
    assert session.plan_key("compact").startswith("compact-")
    assert not session.calibrated("compact") and session.calibrated("exact")
    keys = [task.key for task in (*whole.tasks(session), *slices.tasks(session))]
    assert len(set(keys)) == len(keys)


def test_tables_have_a_cell_for_every_heading(result: Any) -> None:
    """All seven tables are there, and Markdown keeps their columns."""
    tables = fidelity_tables(result)
    assert len(tables) == 7
    for table in tables:
        assert all(len(row) == len(table.headings) for row in table.rows)
        lines = table.markdown().splitlines()[2:]
        assert len({line.count(" | ") for line in lines}) == 1


def test_targets_that_were_not_measured_are_not_called_met(result: Any) -> None:
    """Bounds about 1,024 tokens say nothing about this run; those about any length do."""
    checked = {one["target"]: one for one in result["targets"]}
    assert checked["compact: KL"]["met"] is None
    assert checked["mismatched slice: share of answers"]["met"] is True
    nothing = targets({"model": "m", "rows": [], "takes": [], "costs": []})
    assert all(one["met"] is None and one["value"] is None for one in nothing)


def test_targets_take_their_values_from_the_rows() -> None:
    """The gap that is closed, the points below text and the worst text, by hand."""
    row = {
        "profile": "exact", "dtype": "F32", "hops": None, "slices": 1, "qa_accuracy": None,
        "recompute_fraction": 0.0,
    }  # fmt: skip
    rows = [
        row | {"mode": "slice", "kl": 4.0},
        row | {"mode": "slice-unshifted", "kl": 50.0},
        row | {"mode": "slice-recompute", "kl": 1.0, "recompute_fraction": 0.3},
        row | {"mode": "slice-recompute", "kl": 0.1, "recompute_fraction": 0.5},
        row | {"mode": "continue", "profile": "compact", "tokens": 1024, "kl": 1e-3,
               "kl_worst": 2e-3, "bits_per_element": 5.0},
        row | {"mode": "slice", "spans": "prompt", "includes_private": False, "slices": None,
               "qa_accuracy": 0.7, "qa_text_accuracy": 0.75},
    ]  # fmt: skip
    checked = {
        one["target"]: one
        for one in targets({"model": "smollm2-135m", "rows": rows, "takes": [], "costs": []})
    }
    assert checked["slice: KL over that of the un-shifted one"]["value"] == pytest.approx(0.08)
    assert checked["30% recomputed: share of the gap closed"]["value"] == pytest.approx(0.75)
    assert checked["slice: points below text"]["value"] == pytest.approx(5.0)
    assert checked["slice: points below text"]["met"] is True
    assert checked["compact: KL"]["met"] is False
    assert checked["compact: KL of the worst text"]["met"] is True
    assert checked["compact: bits per element"]["met"] is True


def test_a_scope_that_makes_no_sense_is_refused() -> None:
    """Unknown modes and profiles, and no texts at all."""
    with pytest.raises(InputError, match="no mode is called 'all'"):
        Scope(modes=("all",))
    with pytest.raises(InputError, match="no profile is called 'best'"):
        Scope(profiles=("best",))
    with pytest.raises(InputError, match="at least 1"):
        Scope(texts=0)


def test_the_plot_is_a_png_or_an_error_that_says_what_is_missing(
    result: Any, tmp_path: Path
) -> None:
    """The picture is written as PNG; without matplotlib, or without profiles, nothing is."""
    file = tmp_path / "out.png"
    if find_spec("matplotlib") is None:
        with pytest.raises(InputError, match="matplotlib"):
            plot_frontier([result], file)
        assert not file.exists()
        return
    plot_frontier([result, result], file)
    assert file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    with pytest.raises(InputError, match="no profile to draw"):
        plot_frontier([{**result, "rows": []}], file)


def test_the_command_prints_its_result_and_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One JSON object with ``--json``, tables without; the second run measures nothing anew."""
    folder = tmp_path / "model"
    folder.mkdir()
    monkeypatch.setenv("KVBATON_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("KVBATON_CACHE_DIR", str(tmp_path / "cache"))
    asked = [
        "bench", "fidelity", "--model", str(checkpoint(folder)), "--modes", "continue",
        "--tokens", "64", "--texts", "1", "--profiles", "exact,near-lossless",
        "--keep", str(tmp_path / "kept.jsonl"),
    ]  # fmt: skip
    assert run([*asked, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [row["profile"] for row in said["rows"]] == ["exact", "near-lossless"]
    assert run([*asked, "--markdown"]) == 0
    captured = capsys.readouterr()
    assert "| near-lossless | F32 | 64 | 1 |" in captured.out
    assert "not measured" in captured.out
    assert run([*asked, "--tokens", "many"]) != 0
    assert "--tokens takes whole numbers" in capsys.readouterr().err
