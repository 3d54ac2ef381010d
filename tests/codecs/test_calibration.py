"""Calibration records: their digest, where they are kept, and plans that need one."""

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from kvbaton.codecs.calibration import (
    CalibrationRecord,
    Calibrations,
    TextMeasure,
    plan_for,
    record_text,
    store_calibration,
    stored_calibrations,
)
from kvbaton.codecs.profiles import profile
from kvbaton.errors import FormatError, InputError, NotCalibrated
from kvbaton.types import KVLayout, LayerKind, LayerLayout, RopeSpec

ROPE = RopeSpec("default", "half", 64, 10000.0, 1.0, "0" * 64)
LAYOUT = KVLayout("BF16", (LayerLayout(LayerKind.FULL, 2, 64, 64),) * 3, (ROPE,))
FUNCTION = "f" * 64


def record(name: str = "compact", *, created_s: int = 5, kl: float = 1.25e-3) -> CalibrationRecord:
    """A record with figures that are easy to recognize."""
    return CalibrationRecord(
        function=FUNCTION,
        model="tiny",
        dtype="BF16",
        profile=name,
        plan=profile(name).plan(LAYOUT),
        searched=False,
        corpus="c" * 64,
        texts=(TextMeasure("prose", kl, 0.01, 1.5), TextMeasure("code", 2 * kl, 0.0, 1.0)),
        tokens=1024,
        positions=128,
        kl=kl,
        kl_worst=2 * kl,
        flips=0.005,
        ppl_ratio=1.25,
        bits_per_element=4.95,
        noise_floor_kl=1e-3,
        bf16_floor_kl=None,
        first_layer_error=0.01,
        producer=(("torch", "2"),),
        created_s=created_s,
    )


def plan(name: str, *known: CalibrationRecord):
    """What the sender encodes with, given these records."""
    return plan_for(
        name, function=FUNCTION, model="tiny", layout=LAYOUT, calibrations=Calibrations(known)
    )


def test_a_record_survives_its_json():
    """Floats, plan and all, and so does its digest."""
    before = record()
    after = CalibrationRecord.from_json(json.loads(record_text(before)))
    assert after == before
    assert after.digest == before.digest
    assert len(before.digest) == 64


@pytest.mark.parametrize(
    "change",
    [
        {"kl": 1.2500001e-3},
        {"created_s": 6},
        {"model": "other"},
        {"plan": profile("compact").plan(replace(LAYOUT, layers=LAYOUT.layers[:2]))},
    ],
)
def test_the_digest_binds_everything(change: dict[str, object]):
    """Whatever is changed, the digest is another one."""
    assert replace(record(), **change).digest != record().digest


def test_multiples_of_the_noise_floor():
    """KL over floor; None where there is no floor."""
    assert record().noise_multiple == pytest.approx(1.25)
    assert record().bf16_multiple is None
    assert replace(record(), noise_floor_kl=0.0).noise_multiple is None


def test_exact_needs_no_record():
    """Nothing is lost, so there is nothing to measure."""
    made = plan("exact")
    assert made.lossless
    assert made.calibration is None


def test_a_lossy_profile_without_a_record_is_refused_with_the_command_that_makes_one():
    """The hint is the command line."""
    with pytest.raises(NotCalibrated) as caught:
        plan("compact")
    assert caught.value.code == "not-calibrated"
    assert caught.value.hint == ("run: kvbaton tune-codec tiny --profile compact --dtype bfloat16")


def test_records_of_other_functions_or_profiles_do_not_count():
    """The loss depends on the model, and on the plan."""
    with pytest.raises(NotCalibrated):
        plan("compact", record("tiny"), replace(record(), function="e" * 64))


def test_the_newest_record_counts_and_is_named_by_the_plan():
    """Its digest is the calibration of what is encoded with the plan."""
    old, new = record(created_s=1), record(created_s=2)
    for known in ((old, new), (new, old)):
        made = plan("compact", *known)
        assert made.calibration == new.digest
        assert made.layers == new.plan.layers


def test_earlier_records_stay_known():
    """What was encoded with them is still read."""
    old, new = record(created_s=1), record(created_s=2)
    known = Calibrations([old, new])
    assert known.digests == {old.digest, new.digest}
    assert known.get(old.digest) is old
    assert known.get("0" * 64) is None
    assert known.profiles(FUNCTION) == ("compact",)


def test_a_record_for_another_number_of_layers_is_refused():
    """A plan that does not fit encodes nothing."""
    short = replace(
        record(), plan=profile("compact").plan(replace(LAYOUT, layers=LAYOUT.layers[:2]))
    )
    with pytest.raises(InputError, match="names 2 layers, the model has 3"):
        plan("compact", short)


def test_records_are_kept_in_a_folder_per_function(tmp_path: Path):
    """Stored ones are found again, by function."""
    for one in (record(created_s=1), record(created_s=2), record("tiny")):
        store_calibration(one, tmp_path)
    store_calibration(replace(record(), function="e" * 64), tmp_path)
    found = stored_calibrations(FUNCTION, tmp_path)
    assert len(found.digests) == 3
    assert found.profiles(FUNCTION) == ("compact", "tiny")
    assert not stored_calibrations("d" * 64, tmp_path).digests


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": "kvbaton calibration 9"}'])
def test_a_file_that_is_no_record_is_named(tmp_path: Path, text: str):
    """Nothing is skipped silently."""
    path = store_calibration(record(), tmp_path)
    path.write_text(text)
    with pytest.raises(FormatError) as caught:
        stored_calibrations(FUNCTION, tmp_path)
    assert caught.value.at == str(path)


def test_a_record_in_a_foreign_folder_is_refused(tmp_path: Path):
    """A copied file does not make another model's loss known."""
    path = store_calibration(record(), tmp_path)
    foreign = tmp_path / "calibration" / ("e" * 64)
    foreign.mkdir()
    path.rename(foreign / path.name)
    with pytest.raises(FormatError, match="of this function"):
        stored_calibrations("e" * 64, tmp_path)


def test_a_folder_that_cannot_be_written_is_an_input_error(tmp_path: Path):
    """Named by its path."""
    (tmp_path / "calibration").write_text("a file in the way")
    with pytest.raises(InputError, match="cannot be kept"):
        store_calibration(record(), tmp_path)


@pytest.mark.parametrize("function", ["", "..", "../noise", "F" * 64])
def test_a_function_is_a_digest(tmp_path: Path, function: str):
    """It names a folder, so nothing else is taken."""
    with pytest.raises(FormatError):
        stored_calibrations(function, tmp_path)


def test_shipped_records_are_whole():
    """Every record that ships is read, lies in its function's folder, and has a plan that fits."""
    folders = list(files("kvbaton").joinpath("data", "calibration").iterdir())
    assert folders
    for folder in folders:
        known = stored_calibrations(folder.name)
        names = {entry.name for entry in folder.iterdir()}
        assert {f"{known.get(d).profile}-{d}.json" for d in known.digests} == names
        assert set(known.profiles(folder.name)) >= {"near-lossless", "layered", "compact", "tiny"}
