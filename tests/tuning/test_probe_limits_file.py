"""Limits of windows are kept in a file of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvbaton.codecs.calibration import stored_calibrations
from kvbaton.errors import FormatError, InputError
from kvbaton.probes.limits import CodecLimits, ProbeLimits, WindowLimits
from kvbaton.tuning.probe_limits import (
    measured_probe_limits,
    store_probe_limits,
    stored_probe_limits,
)
from kvbaton.types import EXACT

FUNCTION = "ab" * 32
ROW = (0.5, 0.25)
LIMITS = ProbeLimits(
    FUNCTION, "m", "F32", 3, (CodecLimits("raw", None, WindowLimits((ROW, ROW), (ROW, ROW))),)
)


def test_limits_come_back(tmp_path: Path) -> None:
    """What is stored for a function is read for it, and for no other."""
    path = store_probe_limits(LIMITS, tmp_path)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert stored_probe_limits(FUNCTION, tmp_path) == LIMITS
    assert stored_probe_limits("cd" * 32, tmp_path) is None


def test_a_damaged_or_foreign_file_is_named(tmp_path: Path) -> None:
    """Something else under the name is an error that says where, and what to do."""
    path = store_probe_limits(LIMITS, tmp_path)
    good = path.read_text(encoding="ascii")
    for text in ("{", "{}", "[]", good.replace(FUNCTION, "cd" * 32), good.replace("0.5", "-1")):
        path.write_text(text, encoding="ascii")
        with pytest.raises(FormatError) as caught:
            stored_probe_limits(FUNCTION, tmp_path)
        assert caught.value.at == str(path)


def test_a_folder_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    """The reason of the system stands in the sentence."""
    (tmp_path / "probes").write_text("not a folder", encoding="ascii")
    with pytest.raises(InputError, match="cannot be kept"):
        store_probe_limits(LIMITS, tmp_path)


def test_models_with_window_layers_have_no_limits(tiny_engine: Any) -> None:
    """Their caches cannot be computed again."""
    texts = ["Hello there, you plan and code. " * 20]
    assert measured_probe_limits(tiny_engine("gemma3"), (), texts, takes=1) is None
    found = measured_probe_limits(tiny_engine("llama"), (), texts, takes=1)
    assert found is not None and found.find(EXACT) is not None


def test_the_limits_of_the_small_model_come_along(
    smollm2_f32: Any, smollm2_bf16: Any, tmp_path: Path
) -> None:
    """SmolLM2-135M is examined without measuring anything, in every shipped profile."""
    for engine in (smollm2_f32, smollm2_bf16):
        function = engine.function.digest
        limits = stored_probe_limits(function, tmp_path)
        assert limits is not None and limits.takes >= 40
        known = stored_calibrations(function)
        for name in known.profiles(function):
            record = known.find(function, name)
            assert record is not None
            assert limits.find(record.calibrated_plan.fidelity) is not None
        assert limits.find(EXACT) is not None
