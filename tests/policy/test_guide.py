"""The guide to error control says what the code does."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from kvbaton.policy.fitting import SINKS, FitStrategy
from kvbaton.policy.gates import TakeContext

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "error-control.md"


def test_the_example_prints_what_the_guide_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Python block runs, and its last comment is its output."""
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)
    script = tmp_path / "guide.py"
    script.write_text(code)
    runpy.run_path(str(script))
    assert capsys.readouterr().out.strip() == code.splitlines()[-1].removeprefix("# ")


def test_the_guide_names_strategies_and_defaults() -> None:
    """Every strategy has a row; limits that are stated are those of the code."""
    text = PAGE.read_text()
    assert all(f"| `{strategy}`" in text for strategy in FitStrategy)
    assert TakeContext.__dataclass_fields__["max_lossy_hops"].default == 3
    assert "Beyond a limit, 3 unless" in text
    assert f"first {SINKS} positions" in text
