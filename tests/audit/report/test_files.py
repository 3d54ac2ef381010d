"""Files of an audit's report: page, JSON and CSV."""

import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.audit.report.results import sample_result

from kvbaton.audit.report import write_report
from kvbaton.audit.report.reading import Fields
from kvbaton.audit.report.sheets import TRIAL_COLUMNS, inert, summary_csv, trials_csv
from kvbaton.audit.report.terminal import HEADINGS, sentences, strata_table, treatments_table
from kvbaton.errors import InputError
from kvbaton.types import JSON

HEADER = {"format": "kvbaton audit trials 1", "pair": "small/BF16"}
UNIT = {
    "kind": "unit", "unit": "u1", "excerpt": "=cmd " + "x" * 60, "prompt_tokens": 300,
    "message_tokens": 48, "context_tokens": 348,
}  # fmt: skip
QUALITY = {
    "kind": "quality", "unit": "u1", "treatment": "T3", "route": "baton",
    "answers": [
        {"question": "q0", "score": 1.0, "right": True, "kl": 0.25, "flips": 1, "new_tokens": 6},
        {"question": "q1", "score": 0.5, "right": False, "kl": 0.75, "flips": 2, "new_tokens": 4},
    ],
}  # fmt: skip
TIMED = {
    "kind": "timed", "unit": "u1", "treatment": "T3", "repeat": 2, "ttft_s": 0.125, "fixed_s": 0.5,
    "fixed_tokens": 16, "e2e_s": 1.5, "computed_tokens": 24, "reused_tokens": 324,
    "bytes_moved": 4096, "route": "text", "reasons": ["segment-missing"], "load": 1.5, "busy": 0.0,
}  # fmt: skip


def rows_of(text: str) -> list[dict[str, str]]:
    """A sheet's rows by heading."""
    return list(csv.DictReader(io.StringIO(text, newline="")))


def small_result() -> JSON:
    """A result that draws fast."""
    empty = {"break_even": {}, "attribution": {}, "samples": {}}
    result = sample_result(**empty)
    result["treatments"] = {name: result["treatments"][name] for name in ("T0", "T3")}
    return result


def test_a_report_is_four_files(tmp_path: Path) -> None:
    """Page, result and both sheets lie in the folder, and no partial file beside them."""
    result = small_result()
    report = write_report(result, tmp_path / "new" / "folder", trials=[HEADER, UNIT, TIMED])
    names = {"report.html", "result.json", "summary.csv", "trials.csv"}
    assert {path.name for path in (tmp_path / "new" / "folder").iterdir()} == names
    assert json.loads(report.json.read_text(encoding="ascii")) == result
    assert report.html.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert report.trials is not None
    assert len(rows_of(report.trials.read_bytes().decode())) == 1


def test_without_trials_there_is_no_sheet_of_trials(tmp_path: Path) -> None:
    """A report from a result alone has three files, the same bytes each time."""
    first = write_report(small_result(), tmp_path, trials=None)
    before = first.html.read_bytes()
    assert first.trials is None
    assert not (tmp_path / "trials.csv").exists()
    assert write_report(small_result(), tmp_path, trials=None).html.read_bytes() == before


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    """Nothing in result.json is not finite, whatever the result held."""
    report = write_report(
        {"seed": 7, "wall_s": float("inf"), "pairs": [float("nan"), "a"]}, tmp_path, trials=None
    )
    read = json.loads(report.json.read_text(encoding="ascii"))
    assert read == {"seed": 7, "wall_s": None, "pairs": [None, "a"]}


def test_a_place_that_cannot_be_written_is_an_error_of_ours(tmp_path: Path) -> None:
    """A file where the folder should be is named, and nothing is left behind."""
    (tmp_path / "file").write_text("here")
    with pytest.raises(InputError, match="cannot be written") as caught:
        write_report(small_result(), tmp_path / "file", trials=None)
    assert caught.value.at.endswith("report.html")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_row_joins_what_was_timed_with_what_was_answered() -> None:
    """Seconds of the trial, sizes of the unit, and the answers' counts and means in one row."""
    [row] = rows_of(trials_csv([HEADER, UNIT, QUALITY, TIMED]))
    assert tuple(row) == TRIAL_COLUMNS
    assert row["pair"] == "small/BF16"
    assert row["excerpt"] == "'=cmd " + "x" * 45
    assert (row["treatment"], row["unit"], row["repeat"]) == ("T3", "u1", "2")
    assert (row["ttft_s"], row["fixed_s"], row["e2e_s"]) == ("0.125", "0.5", "1.5")
    assert (row["message_tokens"], row["answer_tokens"]) == ("48", "10")
    assert (row["questions"], row["right"], row["score"]) == ("2", "1", "0.75")
    assert (row["kl"], row["flips"], row["bytes_moved"]) == ("0.5", "3", "4096")
    assert (row["route"], row["reasons"]) == ("text", "segment-missing")


def test_answers_that_were_not_timed_have_a_row() -> None:
    """A treatment whose trials were only judged is not dropped; its seconds are empty."""
    [row] = rows_of(trials_csv([HEADER, UNIT, QUALITY]))
    assert (row["treatment"], row["right"], row["route"]) == ("T3", "1", "baton")
    assert (row["ttft_s"], row["repeat"]) == ("", "")


def test_the_same_unit_of_two_pairs_is_two_units() -> None:
    """Records belong to the header before them."""
    other = {**HEADER, "pair": "large/BF16"}
    rows = rows_of(trials_csv([HEADER, UNIT, QUALITY, TIMED, other, TIMED]))
    assert [(row["pair"], row["right"]) for row in rows] == [
        ("small/BF16", "1"),
        ("large/BF16", ""),
    ]


def test_the_summary_has_a_row_per_treatment() -> None:
    """Ratios, ends of intervals, percentiles and counts of each treatment have columns."""
    reference, whole = rows_of(summary_csv(Fields(small_result())))
    assert (reference["treatment"], reference["ttft_ratio"]) == ("T0", "")
    assert (whole["ttft_ratio"], whole["ttft_p99_s"]) == ("0.12", str(1.42 * 0.12))
    assert (whole["accuracy_difference_low_points"], whole["lost"]) == ("-1.4", "3")
    assert whole["verdict"] == "pays"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "  =1+1", "\t=1", "|x", "%0A"])
def test_what_looks_like_a_formula_is_text(text: str) -> None:
    """A cell that a spreadsheet would run begins with a quote."""
    assert inert(text) == f"'{text}"


@given(st.text(alphabet=st.characters(exclude_characters="\r"), max_size=30))
def test_no_text_is_run_and_none_is_lost(text: str) -> None:
    """Whatever an excerpt holds, its cell starts with nothing that runs, and rows stay whole."""
    trial = {**TIMED, "reasons": [text]}
    [row] = rows_of(trials_csv([HEADER, trial]))
    cell = row["reasons"]
    assert not cell.lstrip(" ").startswith(("=", "+", "-", "@", "\t"))
    assert row["load"] == "1.5"


def test_the_terminal_gets_the_sentence_and_a_row_per_treatment() -> None:
    """Verdict first; then ratios with intervals, divergence, flips, answers, bytes."""
    result = small_result()
    assert sentences(result)[0].startswith("Handing the cache over pays: first token 8.3x faster")
    table = treatments_table(result)
    assert table.headings == HEADINGS
    assert table.rows == (
        (
            "T3", "pays", "8.3x faster [7.9, 8.8]", "1.82x faster", "0.9x", "0.50%", "96.0%",
            "+0.5 [\u22121.4, +2.4]", "43.0 MB", "1.7%", "\u2013",
        ),
    )  # fmt: skip
    strata = strata_table(result)
    assert strata.rows[0][:5] == ("length", "200-500", "T3", "undecided", "8")
    assert all(len(row) == len(strata.headings) for row in strata.rows)


def test_controls_have_no_groups_in_the_terminal() -> None:
    """A control's row says nothing of a group; rows of candidates and of unknown ones stay."""
    result = sample_result()
    [row, *_] = result["strata"]
    names = ("T3", "T4", "T5", "T5-shuffled", "S:all", "unknown")
    result["strata"] = [{**row, "treatment": name} for name in names]
    assert [row[2] for row in strata_table(result).rows] == ["T3", "S:all", "unknown"]
