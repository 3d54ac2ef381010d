"""Treatments of which a part is not known: what failed, was not judged, or not counted."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from tests.audit.sample_records import Effect, Sample, run_of

from kvbaton.audit.analysis import AuditResult, analyse
from kvbaton.types import JSON

SMALL = Sample(
    units=26,
    repeats=2,
    ladder=False,
    effects={"T0": Effect(), "T3": Effect(0.12), "T4": Effect(0.12, lost=0.9)},
)


def failed(unit: int, what: str, sentence: str = "No.", treatment: str = "T3") -> JSON:
    """A record of a failure."""
    about = {"unit": f"u{unit:03d}", "treatment": treatment, "what": what}
    return {"kind": "failed", **about, "code": "unsupported-layout", "sentence": sentence}


def without(*kinds: str, treatments: tuple[str, ...] = ("T3",), more: Any = ()) -> AuditResult:
    """The result without these records of the treatments, and with more."""
    run = run_of(SMALL)
    gone = {(kind, treatment) for kind in kinds for treatment in treatments}
    kept = [r for r in run.records if (r["kind"], r.get("treatment")) not in gone]
    found = analyse([replace(run, records=[*kept, *more])])
    json.dumps(found, allow_nan=False)
    return found


def test_a_treatment_without_answers_is_about_speed_alone() -> None:
    """It is faster, its quality is unknown, and no number of units would decide."""
    found = without("quality", more=[failed(n, "quality") for n in range(26)])
    row = found["treatments"]["T3"]
    assert (row["speed_verdict"], row["quality_verdict"]) == ("faster", "undecided")
    assert (row["verdict"], row["units_needed"]) == ("undecided", None)
    assert "accuracy is not known" in row["why"].lower()
    assert row["why"].endswith("So this is about speed alone.")
    for name in ("accuracy", "accuracy_difference_points", "kl", "flips", "flops_ratio"):
        assert row[name] is None  # type: ignore[literal-required]
    assert found["content"]["verdict"] == "undecided"


def test_an_audit_without_any_answers_is_about_speed_alone() -> None:
    """Models of which no answer can be judged still have times."""
    found = without("quality", "floor", treatments=tuple(SMALL.effects))
    assert found["questions"] == 0
    assert found["noise_floor_kl"] is None
    assert found["treatments"]["T3"]["speed_verdict"] == "faster"
    assert {row["quality_verdict"] for row in found["strata"]} == {"undecided"}


def test_a_treatment_without_times_is_about_answers_alone() -> None:
    """Its answers are as good, its speed is unknown."""
    found = without("timed", more=[failed(n, "timed") for n in range(26)])
    row = found["treatments"]["T3"]
    assert (row["speed_verdict"], row["quality_verdict"]) == ("undecided", "equivalent")
    assert (row["verdict"], row["units_needed"]) == ("undecided", None)
    assert row["why"].endswith("So this is about answers alone.")
    assert (row["ttft_ratio"], row["ttft_s"]["p50"], row["tokens_per_s"]) == (None, None, None)
    assert "T3" not in found["mixed_model"]["treatments"]
    assert found["attribution"]["T3"]["total_s"] is None


def test_a_treatment_without_anything_is_undecided() -> None:
    """Nothing is said of speed or answers, and the failure is told."""
    found = without("timed", "quality", more=[failed(0, "hand-off")])
    assert found["treatments"]["T3"]["verdict"] == "undecided"
    assert any("every unit: T3 (hand-off)." in warning for warning in found["warnings"])


def test_equal_failures_are_one_row() -> None:
    """Forty that differ in unit and numbers are one, with their count; another part is another."""
    many = [failed(n, "quality", f"question q{n} needs {n} tokens") for n in range(25, -1, -1)]
    others = [failed(3, "timed"), failed(4, "", "Why.", "T4"), failed(1, "timed", "Else.")]
    found = without(more=[*many, *others])["failed"]
    rows = [(r["treatment"], r["what"], r["sentence"], r["count"], r["unit"]) for r in found]
    assert sorted(rows) == [
        ("T3", "quality", "question q0 needs 0 tokens", 26, "u000"),
        ("T3", "timed", "Else.", 1, "u001"),
        ("T3", "timed", "No.", 1, "u003"),
        ("T4", "", "Why.", 1, "u004"),
    ]
    assert {r["pair"] for r in found} == {SMALL.pair}


def test_the_warning_names_each_part_once() -> None:
    """Treatments in order, each with its parts."""
    more = [failed(1, "timed"), failed(2, "quality"), failed(2, "sender", treatment="T4")]
    warnings = without(more=more)["warnings"]
    assert "These could not be run on every unit: T3 (quality, timed); T4 (sender)." in warnings


def test_answers_that_were_not_judged_are_left_out() -> None:
    """A question without a judgement is neither right nor wrong; answers may be absent at all."""
    run = run_of(SMALL)
    spoiled = [dict(record) for record in run.records]
    for record in spoiled:
        if record["kind"] == "quality" and record["treatment"] == "T3":
            first, *rest = record["answers"]
            unjudged = first | {"right": None, "score": None, "kl": None}
            record["answers"] = None if record["unit"] == "u000" else [unjudged, *rest]
    found = analyse([replace(run, records=spoiled)])
    row = found["treatments"]["T3"]
    assert row["questions"] == 25 * 4
    assert row["discordant"] == {"lost": 0, "gained": 0}
    assert row["accuracy_difference_points"] == 0.0
    assert row["accuracy"] == row["accuracy_reference"]


def test_operations_are_compared_where_both_were_counted() -> None:
    """Counted on three units of which one lacks the reference: two units speak."""
    run = run_of(SMALL)
    counted = {("u000", "T3"): 1.0, ("u001", "T3"): 4.0, ("u002", "T3"): 100.0,
               ("u000", "T0"): 8.0, ("u001", "T0"): 8.0}  # fmt: skip
    records = [
        record | {"flops": counted.get((record["unit"], record["treatment"]))}
        if record["kind"] == "quality"
        else record
        for record in run.records
    ]
    found = analyse([replace(run, records=records)])["treatments"]
    assert found["T3"]["flops"] == pytest.approx(2.5)
    assert found["T3"]["flops_ratio"] == pytest.approx(math.sqrt(1 / 8 * 4 / 8))
    assert found["T0"]["flops"] == pytest.approx(8.0)
    assert (found["T4"]["flops"], found["T4"]["flops_ratio"]) == (None, None)
