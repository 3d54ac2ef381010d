"""The guide does what it says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from kvbaton.audit.observe.verdict import Verdict

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "audit-production.md"


def test_the_example_assigns_a_conversation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Python block runs and prints what stands beside it."""
    (code,) = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text("utf-8"), re.M | re.S)
    script = tmp_path / "guide.py"
    script.write_text(code, encoding="utf-8")
    assert runpy.run_path(str(script))["labels"]["conversation"] == "chat-1"
    assert capsys.readouterr().out == "True\n"


def test_every_verdict_is_explained() -> None:
    """Each word stands in the table of verdicts."""
    rows = [line for line in GUIDE.read_text("utf-8").splitlines() if line.startswith("| `")]
    words = {word for row in rows for word in re.findall(r"`([^`]+)`", row.split("|")[1])}
    assert {verdict.value for verdict in Verdict} <= words
