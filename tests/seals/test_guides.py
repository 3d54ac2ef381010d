"""The guides of keys and seals say what is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from kvbaton.cli.main import build_app
from kvbaton.seals import SealScheme, local_keys, public_line
from kvbaton.wire.limits import MAX_VALUE_CHARS

ROOT = Path(__file__).parents[2]
KEYS = ROOT / "docs" / "guides" / "keys.md"
SEAL = ROOT / "docs" / "guides" / "add-a-seal.md"
EXAMPLE = ROOT / "examples" / "thirdparty_seal"


def test_the_code_of_the_guide_is_the_example() -> None:
    """The scheme on the page is the file that is tested, word for word."""
    code = (EXAMPLE / "kvbaton_ed448_seal.py").read_text()
    assert f"```python\n{code}```" in SEAL.read_text()


def test_the_entry_point_of_the_guide_is_the_example() -> None:
    """So is the entry point."""
    block = SEAL.read_text().partition("```toml\n")[2].partition("```")[0]
    assert block in (EXAMPLE / "pyproject.toml").read_text()


def test_the_test_of_the_guide_is_the_example() -> None:
    """So is the test class."""
    block = SEAL.read_text().partition("import SealTests\n\n\n")[2].partition("```")[0]
    assert block in (EXAMPLE / "tests" / "test_ed448_seal.py").read_text()


def test_the_example_uses_public_names_only() -> None:
    """Everything is imported from public modules."""
    public = {"kvbaton.seals", "kvbaton.errors", "kvbaton.testing"}
    for path in EXAMPLE.rglob("*.py"):
        imports = [
            line.split()[1]
            for line in path.read_text().splitlines()
            if line.startswith(("from kvbaton", "import kvbaton"))
        ]
        assert imports
        assert set(imports) <= public | {"kvbaton_ed448_seal"}


def test_the_table_names_what_must_be_written() -> None:
    """Every abstract method is in the guide's table, and the longest signature fits."""
    table = SEAL.read_text().partition("| method |")[2].partition("\n\n")[0]
    for name in SealScheme.__abstractmethods__:
        assert f"`{name}(" in table
    said = int(re.findall(r"at most ([0-9,]+) bytes", table)[0].replace(",", ""))
    assert -(-said // 3) * 4 <= MAX_VALUE_CHARS < -(-2 * said // 3) * 4


@pytest.mark.parametrize("page", [KEYS, SEAL], ids=["keys", "add-a-seal"])
def test_commands_in_the_guides_exist(page: Path) -> None:
    """Every `kvbaton ...` on the pages, in a line of its own or within one, has these options."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"`kvbaton ([a-z][^`]*)`", text) + re.findall(
        r"^\$ kvbaton (.*)$", text, re.M
    )
    assert found
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


def test_the_files_of_the_guide_are_those_of_the_first_use(tmp_path: Path) -> None:
    """Names and notes as they are; the line is as long as a line is."""
    from kvbaton.seals import local_domain

    local_domain(tmp_path)
    rows = set(re.findall(r"^\| `([^`]+)` \|", KEYS.read_text(), re.M))
    made = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
    assert {row.partition("/")[0] for row in rows} >= made
    (entry,) = local_keys(tmp_path).trust.entries()
    assert entry.note in KEYS.read_text()
    (line,) = re.findall(r"^kvbaton-key .*$", KEYS.read_text(), re.M)
    assert len(line) == len(public_line(entry.key))
