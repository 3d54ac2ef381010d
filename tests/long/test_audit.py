"""Audits on SmolLM2: the right cache answers, wrong ones do not, and where nothing is needed
a wrong one does no harm."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kvbaton.cli.main import run

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
UNITS = 15


def audited(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: object) -> Any:
    """The result of an audit on the command line, without a search for break-even lengths."""
    out = io.StringIO()
    monkeypatch.setenv("KVBATON_RECEIPTS", "")
    monkeypatch.setattr(sys, "stdout", out)
    code = run([
        "audit", "run", "--units", str(UNITS), "--repeats", "1", "--ladder", "none",
        "--out", str(folder), "--json", *map(str, arguments),
    ])  # fmt: skip
    assert code == 0, out.getvalue()
    return json.loads(out.getvalue())


def test_only_the_right_cache_answers_private_questions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The right cache is as good as text, at the noise floor; wrong ones lose 80 points."""
    said = audited(monkeypatch, tmp_path, "--treatments", "T3,T4,T5,T5-shuffled")
    right = said["treatments"]["T3"]
    print({name: one["accuracy"] for name, one in said["treatments"].items()})
    assert abs(right["accuracy"] - right["accuracy_t0"]) <= 0.03
    assert right["kl_multiple"] < 3 and right["routes"].keys() == {"baton"}
    assert said["content"]["verdict"] == "transferred" and said["content"]["points"] >= 80
    for name in ("T5", "T5-shuffled"):
        assert right["accuracy"] - said["treatments"][name]["accuracy"] >= 0.8
        assert said["treatments"][name]["kl_multiple"] > 100


def test_a_wrong_cache_does_no_harm_where_nothing_is_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The negative control: T4 is right as often as text, and content is not called transferred."""
    arguments = ("--tasks", "nothing-needed", "--treatments", "T3,T4")
    said = audited(monkeypatch, tmp_path, *arguments)
    wrong = said["treatments"]["T4"]
    print({name: one["accuracy"] for name, one in said["treatments"].items()})
    assert abs(wrong["accuracy"] - wrong["accuracy_t0"]) <= 0.08
    assert said["content"]["verdict"] != "transferred"
