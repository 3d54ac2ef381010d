"""From a run's folder to its result."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import get_type_hints

import pytest
from tests.audit.sample_records import Effect, Sample, a_a, records_of, run_of, write_run

from kvbaton.audit.analysis import analyse, read_run
from kvbaton.audit.analysis.result import AuditResult, StratumResult, TreatmentResult
from kvbaton.audit.analysis.runs import Run
from kvbaton.errors import FormatError, InputError

SMALL = Sample(units=26, repeats=2, ladder=False)
TWO = {"T0": Effect(), "T3": Effect(0.12)}


@pytest.fixture(scope="module")
def result() -> AuditResult:
    """Of the default sample: 40 units of 5 questions, seven treatments."""
    return analyse([run_of(Sample())])


def numbers_of(value: object) -> Iterator[float]:
    """All numbers of a JSON value."""
    if isinstance(value, dict):
        for one in value.values():
            yield from numbers_of(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from numbers_of(one)
    elif isinstance(value, float):
        yield value


def test_true_effects_are_found(result: AuditResult) -> None:
    """T3 is eight times faster and loses nothing; what the controls lose was put in."""
    found = result["treatments"]
    low, high = found["T3"]["ttft_ratio_ci"] or (0.0, 0.0)
    assert low <= 0.12 <= high
    assert found["T3"]["discordant"] == {"lost": 0, "gained": 0}
    assert found["T3"]["accuracy_difference_points"] == 0.0
    assert found["T3"]["interval"] == "exact"
    assert {name: row["verdict"] for name, row in found.items()} == {
        "T0": "equivalent", "T1": "pays", "T2": "pays", "T3": "pays", "T3:compact": "pays",
        "T4": "harmful", "T5": "harmful",
    }  # fmt: skip


def test_content_was_transferred(result: AuditResult) -> None:
    """T3 answers what T4 does not."""
    assert result["content"]["verdict"] == "transferred"
    assert (result["content"]["points"] or 0) > 80


def test_the_mixed_model_agrees_with_the_paired_ratios(result: AuditResult) -> None:
    """In balanced blocks both are the same geometric means."""
    for name, row in result["mixed_model"]["treatments"].items():
        assert row["ratio"] == pytest.approx(result["treatments"][name]["ttft_ratio"])
    assert result["mixed_model"]["converged"]


def test_parts_of_a_gain_add_up(result: AuditResult) -> None:
    """What is saved in prefill, transport and the rest is the total, and shares are of it."""
    parts = result["attribution"]["T3"]
    known = ("receiver_prefill_s", "sender_decode_s", "allocation_s", "tokenization_s",
             "transport_s", "other_s")  # fmt: skip
    assert sum(parts[key] or 0.0 for key in known) == pytest.approx(parts["total_s"])  # type: ignore[literal-required]
    assert sum(parts["shares"].values()) == pytest.approx(1.0)
    assert (parts["transport_s"] or 0) < 0 < (parts["receiver_prefill_s"] or 0)


def test_the_break_even_is_where_it_was_put(result: AuditResult) -> None:
    """Text and cache take the same time at about 100 tokens."""
    assert result["break_even_tokens"] == pytest.approx(100, abs=8)


def test_kl_is_told_in_multiples_of_the_floor(result: AuditResult) -> None:
    """The compact profile was given twice the floor's KL."""
    assert result["noise_floor_kl"] == pytest.approx(1e-3)
    assert result["treatments"]["T3:compact"]["kl_multiple"] == pytest.approx(2.0, rel=0.1)


def test_every_promised_key_is_there(result: AuditResult) -> None:
    """The result, its treatments and strata have the keys of the contract, no more, no fewer."""
    assert result.keys() == get_type_hints(AuditResult).keys()
    for row in result["treatments"].values():
        assert row.keys() == get_type_hints(TreatmentResult).keys()
    for stratum in result["strata"]:
        assert stratum.keys() == get_type_hints(StratumResult).keys()


def test_strata_are_of_every_kind(result: AuditResult) -> None:
    """Length, kind, language, relevance and load; one pair makes no stratum."""
    kinds = {row["by"] for row in result["strata"]}
    assert kinds == {"length", "kind", "language", "relevance", "load"}
    of_length = [r for r in result["strata"] if (r["by"], r["treatment"]) == ("length", "T3")]
    assert sum(row["units"] for row in of_length) == 40
    assert all(r["units_needed"] for r in of_length if r["verdict"] == "undecided")


def test_the_order_of_records_does_not_matter() -> None:
    """Shuffled records give the same result."""
    run = run_of(replace(SMALL, effects=TWO))
    shuffled = list(run.records)
    Random(1).shuffle(shuffled)
    assert analyse([replace(run, records=shuffled)]) == analyse([run])


def test_a_folder_is_read_and_analysed(tmp_path: Path) -> None:
    """What is written as records comes back as a result, with the plan's digest."""
    sample = replace(SMALL, effects=TWO)
    folder = write_run(tmp_path / "run", sample)
    found = analyse([read_run(folder)])
    assert found == analyse([run_of(sample)])
    assert json.loads(json.dumps(found, allow_nan=False))["units"] == 26


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    """A killed run has half a line at its end."""
    folder = write_run(tmp_path / "run", replace(SMALL, effects=TWO))
    whole = len(read_run(folder).records)
    with (folder / "trials.jsonl").open("a") as file:
        file.write('{"kind": "timed", "unit')
    assert len(read_run(folder).records) == whole


def test_a_trial_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    """The line is named."""
    sample = replace(SMALL, effects=TWO)
    lines = records_of(sample)
    folder = write_run(tmp_path / "run", sample, lines=[*lines, lines[5]])
    with pytest.raises(FormatError, match=f"trials.jsonl:{len(lines) + 1}"):
        read_run(folder)


def test_trials_of_another_plan_are_refused(tmp_path: Path) -> None:
    """Plan and trials belong together."""
    folder = write_run(
        tmp_path / "run", SMALL, lines=records_of(replace(SMALL, seed=8, effects=TWO))
    )
    with pytest.raises(InputError, match="another plan"):
        read_run(folder)


def test_two_pairs_are_strata_and_units_stay_units() -> None:
    """The same units on two pairs are not twice as many."""
    one = run_of(replace(SMALL, effects=TWO))
    two = run_of(replace(SMALL, effects=TWO, pair="other/F32"))
    found = analyse([one, two])
    assert found["units"] == found["treatments"]["T3"]["units"] == 26
    assert {r["value"] for r in found["strata"] if r["by"] == "pair"} == {
        "other/F32",
        "smollm2-135m/BF16",
    }
    assert found["pairs"] == ["other/F32", "smollm2-135m/BF16"]


def test_fallen_back_trials_count_as_assigned_and_apart() -> None:
    """Where all timed trials fell back T3 is no faster, and both figures are told."""
    found = analyse([run_of(replace(SMALL, effects={"T0": Effect(), "T3": Effect(fallback=1.0)}))])
    row = found["treatments"]["T3"]
    assert row["routes"] == {"baton": 26, "text": 52}
    assert row["reasons"] == {"segment-missing": 52}
    assert row["as_treated"]["timed"] == 0
    assert row["as_treated"]["ttft_ratio"] is None
    assert row["speed_verdict"] == "same"
    assert any("fell back" in warning for warning in found["warnings"])


def test_too_few_units_say_how_many_are_needed() -> None:
    """Ten units of five cannot show five points; 26 can."""
    found = analyse([run_of(replace(SMALL, units=10, effects=TWO))])
    row = found["treatments"]["T3"]
    assert (row["verdict"], row["units_needed"]) == ("undecided", 26)
    assert "About 26 units would decide." in row["why"]
    assert any("It takes 26 units at least" in warning for warning in found["warnings"])


@pytest.mark.parametrize("units", [0, 1, 2])
def test_hardly_any_units_give_a_result(units: int) -> None:
    """With none, one or two units nothing is decided, and every number is finite or null."""
    run = run_of(replace(SMALL, units=max(units, 1), effects=TWO))
    if not units:
        run = Run(run.plan, run.header, ())
    found = analyse([run])
    assert found["treatments"]["T3"]["verdict"] == "undecided"
    assert all(math.isfinite(number) for number in numbers_of(found))
    assert found["warnings"]


def test_constant_outcomes_give_a_result() -> None:
    """No noise and nothing right: no interval of speed, and a warning that nothing can be lost."""
    dull = replace(SMALL, noise=0.0, accuracy=0.0, effects=TWO)
    found = analyse([run_of(dull)])
    row = found["treatments"]["T3"]
    assert row["ttft_ratio"] == pytest.approx(0.12)
    assert row["ttft_ratio_ci"] is None
    assert row["speed_verdict"] == "undecided"
    assert not found["mixed_model"]["converged"]
    assert any("little can be lost" in warning for warning in found["warnings"])
    json.dumps(found, allow_nan=False)


def test_numbers_that_are_not_finite_are_left_out() -> None:
    """A record with NaN or infinity for seconds changes nothing but its own trial."""
    run = run_of(replace(SMALL, effects=TWO))
    spoiled = [dict(record) for record in run.records]
    timed = [record for record in spoiled if record["kind"] == "timed"]
    timed[0]["ttft_s"], timed[1]["ttft_s"], timed[2]["e2e_s"] = math.nan, math.inf, None
    json.dumps(analyse([replace(run, records=spoiled)]), allow_nan=False)


def test_load_that_differs_between_treatments_is_told() -> None:
    """Times under another load were not measured alike."""
    run = run_of(replace(SMALL, effects=TWO))
    loaded = [
        record | {"load": 9.0}
        if record["kind"] == "timed" and record["treatment"] == "T3"
        else record
        for record in run.records
    ]
    warnings = analyse([replace(run, records=loaded)])["warnings"]
    assert any("load was 9.0 during T3" in warning for warning in warnings)


def test_nothing_has_no_effect() -> None:
    """A candidate that does nothing is neither faster nor slower nor harmful nor better."""
    row = analyse([run_of(a_a(SMALL, lost=0.0))])["treatments"]["T3"]
    assert row["quality_verdict"] == "equivalent"
    assert row["speed_verdict"] in ("same", "undecided")


def test_lost_answers_come_first_among_examples(result: AuditResult) -> None:
    """Candidates before controls; each example shows both texts."""
    examples = result["flip_examples"]
    assert [e["treatment"] for e in examples][:1] == ["T3:compact"]
    assert all(e["text"] != e["reference_text"] for e in examples)


def test_questions_that_fare_alike_widen_the_others() -> None:
    """Where one profile loses whole units, the others' intervals reckon with it."""
    effects = TWO | {"T3:tiny": Effect(0.2, lost=0.4, same_unit=1.0)}
    found = analyse([run_of(replace(SMALL, effects=effects))])
    alone = analyse([run_of(replace(SMALL, effects=TWO))])
    row, own = found["treatments"]["T3"], alone["treatments"]["T3"]
    assert own["icc"] == 0.3
    assert (row["icc"] or 0) > 0.7
    assert (row["equivalence_ci_points"] or [0])[0] < (own["equivalence_ci_points"] or [0])[0]
    assert any("more alike" in warning for warning in found["warnings"])
    wide, narrow = widths(found), widths(alone)
    assert len(wide) == 3
    assert all(one > two for one, two in zip(wide, narrow, strict=True))


def widths(found: AuditResult) -> list[float]:
    """Of T3's intervals of accuracy in every kind of task."""
    rows = [r for r in found["strata"] if (r["by"], r["treatment"]) == ("kind", "T3")]
    ends = [r["accuracy_difference_ci_points"] or [0.0, 0.0] for r in rows]
    return [high - low for low, high in ends]


def test_content_is_judged_with_the_likeness_that_was_found() -> None:
    """Where a wrong cache answers as well, questions that fare alike leave that open."""
    effects = TWO | {"T4": Effect(0.12)}
    alike = effects | {"T3:tiny": Effect(0.2, lost=0.4, same_unit=1.0)}
    alone, found = (
        analyse([run_of(replace(SMALL, units=30, effects=some))])["content"]
        for some in (effects, alike)
    )
    assert (
        (alone["points"], alone["verdict"]) == (found["points"], "not needed") == (0, "not needed")
    )
    assert found["verdict"] == "undecided"


def test_zero_decode_is_timed_against_text_with_a_message() -> None:
    """Z is compared with Z0, end to end with T0 too; what it saves is the sender's decoding."""
    effects = {"T0": Effect(), "Z0": Effect(), "Z": Effect(0.12)}
    found = analyse([run_of(replace(SMALL, effects=effects))])
    assert found["treatments"]["Z"]["reference"] == "Z0"
    assert found["zero_decode"]["e2e_ratio_t0"] == found["treatments"]["Z"]["e2e_ratio_t0"]
    assert found["attribution"]["Z"]["sender_decode_s"] == pytest.approx(0.8, rel=0.1)
    assert found["zero_decode"]["decode_s"] == found["attribution"]["Z"]["sender_decode_s"]
