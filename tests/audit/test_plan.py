"""Plans: what is fixed before the run, as a file with a digest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbaton.audit.foretelling import foretold
from kvbaton.audit.plan import Plan, read_plan, write_plan
from kvbaton.errors import InputError


@given(
    units=st.integers(1, 500),
    margin=st.floats(0.1, 100),
    seed=st.integers(0, 5),
    lengths=st.lists(st.integers(1, 6000), max_size=4).map(tuple),
    treatments=st.sampled_from([("T1",), ("T3", "T4"), ("S:all", "Z", "T3:tiny")]),
    excerpts=st.booleans(),
)
def test_a_plan_survives_its_file(**fields: Any) -> None:
    """What is read is what was written, and has the same digest."""
    plan = Plan(margin_points=fields.pop("margin"), **fields)
    again = Plan.from_json(plan.to_json())
    assert again == plan and again.digest == plan.digest


@pytest.mark.parametrize(
    "change", [{"units": 41}, {"seed": 2}, {"treatments": ("T3",)}, {"dtype": "float32"}]
)
def test_every_change_changes_the_digest(change: Any) -> None:
    """A run folder belongs to one plan only."""
    assert replace(Plan(), **change).digest != Plan().digest


@pytest.mark.parametrize(
    ("change", "at"),
    [
        ({"units": 0}, "$.units"),
        ({"units": "40"}, "$.units"),
        ({"units": True}, "$.units"),
        ({"questions": -1}, "$.questions"),
        ({"margin_points": 0}, "$.margin_points"),
        ({"margin_points": 101.0}, "$.margin_points"),
        ({"alpha": 0.5}, "$.alpha"),
        ({"icc": 1.5}, "$.icc"),
        ({"ladder": [0]}, "$.lengths"),
        ({"ladder": "32"}, "$.ladder"),
        ({"seed": -1}, "$.seed"),
        ({"treatments": ["T9"]}, "treatments"),
        ({"treatments": []}, "treatments"),
        ({"margin": 5}, "$.margin"),
        ({"format": "something else"}, "$.format"),
    ],
)
def test_a_bad_field_is_named(change: Any, at: str) -> None:
    """Unknown fields, wrong types and impossible bounds: each says where."""
    with pytest.raises(InputError) as caught:
        Plan.from_json(Plan().to_json() | change)
    assert caught.value.at == at


def test_plans_are_files(tmp_path: Path) -> None:
    """A plan that was written is read again; what is no plan is refused."""
    path = tmp_path / "plan.json"
    write_plan(Plan(units=7), path)
    assert read_plan(path).units == 7
    path.write_text("[]")
    with pytest.raises(InputError, match="no plan"):
        read_plan(path)
    path.write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        read_plan(path)
    with pytest.raises(InputError, match="cannot be written"):
        write_plan(Plan(), tmp_path / "missing" / "plan.json")


def test_too_few_units_are_told_how_many_it_takes() -> None:
    """Before the run, not after it."""
    few, many = foretold(Plan(units=5)), foretold(Plan(units=200))
    assert few["units_needed"] > 5 and str(few["units_needed"]) in few["warning"]
    assert many["warning"] == "" and many["power"]["power"] > 0.8


def test_a_plan_counts_its_trials() -> None:
    """Per unit: a noise floor, and each treatment once for quality and for every repeat."""
    assert foretold(Plan(units=10, repeats=3))["trials"] == 10 * (1 + 6 * 4)


def test_an_unknown_task_set_is_refused_before_anything_is_loaded() -> None:
    """Neither a name nor a file."""
    with pytest.raises(InputError, match="no task set"):
        foretold(Plan(tasks="nothing-of-that-name"))


@pytest.mark.parametrize("change", [{"questions": 3}, {"lengths": (256,)}])
def test_a_task_file_has_its_own_questions_and_lengths(tmp_path: Path, change: Any) -> None:
    """A number that would be passed over is refused."""
    path = tmp_path / "mine.jsonl"
    path.write_text('{"context": "x 7", "questions": [{"question": "y?", "answer": "7"}]}\n')
    assert foretold(Plan(tasks=str(path), units=1))["power"]["questions"] == 1
    with pytest.raises(InputError, match="its own"):
        foretold(Plan(tasks=str(path), units=1, **change))
