"""The programs in ``attacks/``: each is fended off, in the way that its docstring says."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from attacks.__main__ import names
from attacks.scene import Finding, report

ROOT = Path(__file__).parents[2]
RUN_AS = "python -m attacks"


@pytest.mark.parametrize("name", names())
def test_the_attack_is_fended_off(name: str, tmp_path: Path) -> None:
    """Every attempt ends as it must, with its own reason, and the honest way still works."""
    findings = importlib.import_module(f"attacks.{name}").attack(tmp_path)
    assert len(findings) > 5
    assert [f"{f.tried}: {f.found}, not {f.wanted}" for f in findings if not f.held] == []


def test_every_attack_of_the_list_has_its_program() -> None:
    """A1 to A13 stand in the first lines of the programs, but for A11: files of other users."""
    heads = [importlib.import_module(f"attacks.{name}").__doc__.splitlines()[0] for name in names()]
    found = {number for head in heads for number in re.findall(r"\b[AC]\d+\b", head)}
    assert found == {f"A{n}" for n in range(1, 14) if n != 11} | {"C8"}


def test_an_attack_that_succeeds_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """One attempt that ends in any other way than it must is enough."""
    good, bad = Finding("a", "used", "used"), Finding("b", "not-trusted unsigned", "used")
    assert report("x", [good]) is True
    assert report("x", [good, bad]) is False
    assert "BROKEN b: used, not: not-trusted unsigned" in capsys.readouterr().out


def test_the_table_says_where_each_fault_is_held() -> None:
    """``attacks/README.md`` has a row for C8, W1 to W9 and A1 to A13; the places it names exist."""
    text = (ROOT / "attacks" / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([ACW]\d+) \| (.+) \|$", text, re.MULTILINE))
    wanted = {"C8"} | {f"W{n}" for n in range(1, 10)} | {f"A{n}" for n in range(1, 14)}
    assert set(rows) == wanted
    for row in rows.values():
        places = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", row)
        assert places
        for path, test in places:
            assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8") or not test
            assert (ROOT / path).exists()
