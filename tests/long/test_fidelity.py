"""The evidence for codecs and slices on a real model, in its quick form; figures are printed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvbaton.alignment.recompute import DEFAULT_CHOOSER
from kvbaton.bench.fidelity.run import measure
from kvbaton.bench.fidelity.session import Scope
from kvbaton.bench.fidelity.targets import find
from kvbaton.codecs.calibration import stored_calibrations

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

Say = Callable[[str], None]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Print a figure where whoever runs the tests sees it."""

    def show(line: str) -> None:
        with capsys.disabled():
            print(f"\n  {line}", flush=True)

    return show


def measured(engine: Any, *modes: str, **scope: Any) -> Any:
    """A run of some parts, by the records that come along."""
    known = stored_calibrations(engine.function.digest)
    return measure(engine, Scope(modes=modes, **scope), calibrations=known)


def test_profiles_keep_what_they_promise(smollm2_f32: Any, say: Say) -> None:
    """Every target about profiles is met on five texts of 1,024 tokens."""
    result = measured(smollm2_f32, "continue", tokens=(1024,))
    checked = [one for one in result["targets"] if one["value"] is not None]
    for one in checked:
        say(f"{one['target']}: {one['value']:.3g} (limit {one['limit']:g})")
    assert len(checked) >= 9
    assert all(one["met"] for one in checked)


def test_slices_need_their_shift_and_profit_from_repair(smollm2_f32: Any, say: Say) -> None:
    """A shifted slice is at least ten times nearer to text than one whose keys were left alone,
    and recomputing 30% of it brings it nearer still."""
    result = measured(smollm2_f32, "slice", profiles=("exact",), texts=3, counts=(1,))
    kl = {
        (row["mode"], row["recompute_fraction"]): row["kl"]
        for row in result["rows"]
        if row["chooser"] in (None, DEFAULT_CHOOSER)
    }
    say(f"KL by mode and share recomputed: { {k: f'{v:.2e}' for k, v in kl.items()} }")
    shifted = kl["slice", 0.0]
    assert shifted <= 0.1 * kl["slice-unshifted", 0.0]
    assert kl["slice-recompute", 0.3] < shifted


def test_sixty_questions_are_answered_from_a_slice_as_from_text(smollm2_f32: Any, say: Say) -> None:
    """The slice is within 8 points of the same ids by text; another document's KV answers none."""
    result = measured(smollm2_f32, "questions", questions=60, profiles=("exact",))
    asked = [row for row in result["rows"] if row["qa_accuracy"] is not None]
    for row in asked:
        say(
            f"{row['mode']} {row['spans']} {row['recompute_fraction'] or 0:g}: "
            f"{row['right']} of {row['questions']}, by text {row['text_right']}, "
            f"private {row['private_right']} of {row['private_questions']}"
        )
    plain = find(result, mode="slice", profile="exact", spans="prompt", includes_private=False)
    wrong = find(result, mode="slice-mismatched")
    assert plain is not None and wrong is not None
    assert plain["qa_text_accuracy"] >= 0.6
    assert plain["qa_accuracy"] >= plain["qa_text_accuracy"] - 0.08
    assert wrong["right"] <= 1


def test_hops_change_no_inherited_bit(smollm2_f32: Any, say: Say) -> None:
    """Ten hand-offs of a lossy baton keep every inherited bit, and drift by half at most."""
    result = measured(smollm2_f32, "hops", tokens=(1024,))
    rows = {row["hops"]: row for row in result["rows"]}
    for hops, row in rows.items():
        say(f"{hops} hops: KL {row['kl']:.2e}, {row['kl_over_once']:.2f} times one hand-off's")
    assert all(row["inherited_bit_identical"] for row in rows.values())
    assert rows[10]["kl_over_once"] <= 1.5
