"""The guides of policies and roll-outs say what is so."""

from __future__ import annotations

import json
import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from kvbaton.cli.main import build_app
from kvbaton.policy.base import Question
from kvbaton.policy.gates import GATES, gate_name
from kvbaton.policy.policy_files import load_policy_file, parse_policy
from kvbaton.policy.rollout import RollOut, RollOutMode
from kvbaton.policy.rules import PolicyRules
from kvbaton.testing import PolicyTests

ROOT = Path(__file__).parents[2]
ADD = ROOT / "docs" / "guides" / "add-a-policy.md"
ROLL_OUT = ROOT / "docs" / "guides" / "roll-out.md"
EXAMPLE = ROOT / "examples" / "thirdparty_policy"


def test_the_code_of_the_guide_is_the_example() -> None:
    """The policy on the page is the file that is tested, word for word."""
    code = (EXAMPLE / "kvbaton_sure_win_policy.py").read_text()
    assert f"```python\n{code}```" in ADD.read_text()


def test_the_entry_point_of_the_guide_is_the_example() -> None:
    """So is the entry point, and the file that names the policy is a policy file's beginning."""
    blocks = re.findall(r"```toml\n(.*?)```", ADD.read_text(), re.S)
    assert blocks[0] in (EXAMPLE / "pyproject.toml").read_text()
    assert tomllib.loads(blocks[1]) == {"policy": "sure-win"}


def test_the_test_of_the_guide_is_the_example() -> None:
    """So is the test class."""
    block = ADD.read_text().partition("import PolicyTests\n\n\n")[2].partition("```")[0]
    assert block in (EXAMPLE / "tests" / "test_sure_win_policy.py").read_text()


def test_the_example_uses_public_names_only() -> None:
    """Everything is imported from packages that say what is public."""
    public = {"kvbaton", "kvbaton.policy", "kvbaton.testing"}
    for path in EXAMPLE.rglob("*.py"):
        imports = [
            line.split()[1]
            for line in path.read_text().splitlines()
            if line.startswith(("from kvbaton", "import kvbaton"))
        ]
        assert imports
        assert set(imports) <= public | {"kvbaton_sure_win_policy"}


def test_the_guide_names_what_a_question_has_and_the_suite_takes() -> None:
    """Each row of both tables is an attribute."""
    rows = re.findall(r"^\| `question\.(\w+)` \|", ADD.read_text(), re.M)
    assert len(rows) == 7
    fields = set(Question.__dataclass_fields__)
    assert all(name in fields or isinstance(getattr(Question, name), property) for name in rows)
    attributes = re.findall(r"^\| `(\w+)` \|", ADD.read_text(), re.M)
    assert all(hasattr(PolicyTests, name) for name in attributes)


# --- roll-out -----------------------------------------------------------------------------------


def _table(heading: str) -> dict[str, str]:
    """Rows of the first table behind a heading: what is in code first -> the rest."""
    behind = ROLL_OUT.read_text().partition(f"\n{heading}\n")[2]
    table = re.search(r"(^\|.*\n)+", behind, re.M)
    assert table is not None
    rows = [line.strip("| ").split(" | ", 1) for line in table.group().splitlines()[2:]]
    return {row[0].strip("` "): row[1] for row in rows}


def test_every_rule_is_documented_with_its_default() -> None:
    """The rows are the fields, and the defaults those of the class."""
    rows = _table("## Rules")
    assert list(rows) == list(PolicyRules.__dataclass_fields__)
    for name, field in PolicyRules.__dataclass_fields__.items():
        said = rows[name].rsplit(" | ", 1)[1]
        default = field.default
        if default is None or default == frozenset():
            assert said == "none", name
        elif isinstance(default, str):
            assert said == f'`"{default.value}"`', name  # type: ignore[attr-defined]
        else:
            assert said == f"`{json.dumps(default)}`", name


def test_every_key_of_a_roll_out_is_documented() -> None:
    """The rows are the keys that a file may have, and every mode has its row."""
    rows = _table("## Roll-out")
    assert list(rows) == ["mode", "share", "experiment", "kill", "kill_file"]
    fields = set(RollOut.__dataclass_fields__)
    assert set(rows) - {"kill_file"} | {"kill_files"} == fields
    assert list(_table("### Modes")) == list(RollOutMode)


def test_every_gate_is_documented_in_its_order() -> None:
    """With what it asks."""
    assert list(_table("## Gates")) == [gate_name(gate) for gate in GATES]


def test_every_policy_file_of_the_guide_is_one(tmp_path: Path) -> None:
    """Each TOML block is read, and the first one says what its text says."""
    blocks = re.findall(r"```toml\n(.*?)```", ROLL_OUT.read_text(), re.S)
    assert len(blocks) >= 3
    for block in blocks:
        path = tmp_path / "policy.toml"
        path.write_text(block, encoding="utf-8")
        load_policy_file(path)
    whole = parse_policy(tomllib.loads(blocks[0]))
    assert whole.common.roll_out.mode is RollOutMode.CANARY
    assert whole.common.roll_out.share == 0.05


def test_the_example_of_arms_prints_what_the_guide_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Python block runs, and its last comment is its output."""
    (code,) = re.findall(r"^```python\n(.*?)^```", ROLL_OUT.read_text(), flags=re.M | re.S)
    script = tmp_path / "guide.py"
    script.write_text(code)
    runpy.run_path(str(script))
    assert capsys.readouterr().out.strip() == code.splitlines()[-1].rpartition("# ")[2]


@pytest.mark.parametrize("page", [ADD, ROLL_OUT], ids=["add-a-policy", "roll-out"])
def test_commands_in_the_guides_exist(page: Path) -> None:
    """Every `kvbaton ...` on the pages, in a line of its own or within one, has these options."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"`kvbaton ([a-z][^`]*)`", text) + re.findall(
        r"^\$ kvbaton (.*)$", text, re.M
    )
    root: Any = typer.main.get_command(build_app())
    for spelled in found:
        words = spelled.split()
        command = root.commands[words.pop(0)]
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        known = {
            name
            for parameter in command.params
            for name in parameter.opts + parameter.secondary_opts
        }
        assert {word for word in words if word.startswith("--")} <= known, spelled
