"""The range of first tokens of a model is kept in a file of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbaton.errors import FormatError, InputError
from kvbaton.probes.first_tokens import WatchRange
from kvbaton.probes.spread import spread_of
from kvbaton.tuning.watch import store_watch_range, stored_watch_range

FUNCTION = "ab" * 32
ROWS = [[float(i % 5), float(i * i % 7)] for i in range(40)]
LIMITS = WatchRange(8, (1, 2), spread_of(ROWS), spread_of(ROWS), 1.5, 0.005, 200)


def test_a_range_comes_back(tmp_path: Path) -> None:
    """What is stored for a function is read for it, and for no other."""
    path = store_watch_range(LIMITS, FUNCTION, tmp_path)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert stored_watch_range(FUNCTION, tmp_path) == LIMITS
    assert stored_watch_range("cd" * 32, tmp_path) is None


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    """Something else under the name is an error that says where, and what to do."""
    path = store_watch_range(LIMITS, FUNCTION, tmp_path)
    for text in ("{", "{}", "[]"):
        path.write_text(text, encoding="ascii")
        with pytest.raises(FormatError) as caught:
            stored_watch_range(FUNCTION, tmp_path)
        assert caught.value.at == str(path)


def test_a_folder_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    """The reason of the system stands in the sentence."""
    (tmp_path / "watch").write_text("not a folder", encoding="ascii")
    with pytest.raises(InputError, match="cannot be kept"):
        store_watch_range(LIMITS, FUNCTION, tmp_path)


def test_the_range_of_the_small_model_comes_along(smollm2_f32: object, tmp_path: Path) -> None:
    """SmolLM2-135M in float32 is watched without measuring anything."""
    found = stored_watch_range(smollm2_f32.function.digest, tmp_path)  # type: ignore[attr-defined]
    assert found is not None
    assert found.alarm_rate <= 0.005
    assert all(count.alarms <= 1 for count in found.false_alarms)
