"""The reference page is what the app says, and what commands print is what the page says."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cli.conftest import Cli, Exported

from kvbaton import errors
from kvbaton.cli.reference import reference

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "cli.md"


def test_the_page_is_current() -> None:
    """`python -m kvbaton.cli.reference > docs/guides/cli.md` would change nothing."""
    assert PAGE.read_text(encoding="utf-8") == reference() + "\n"


def test_every_exit_code_is_listed() -> None:
    """Each class of the error tree stands in the row of its exit code."""
    rows = dict(re.findall(r"^\| (\d+) \| (.*?) \|", reference(), flags=re.MULTILINE))
    waiting = list(errors.KvbatonError.__subclasses__())
    while waiting:
        kind = waiting.pop()
        if kind.__module__ != errors.__name__:
            continue
        waiting += kind.__subclasses__()
        assert f"`{kind.__new__(kind).code}`" in rows[str(kind.exit_code)]
    assert {"0", "1", "2", "130", "141"} <= set(rows)


def shape(command: str) -> set[str]:
    """Every field that the page names in the JSON of a command."""
    section = reference().split(f"## `kvbaton {command}`")[1].split("\n## ")[0]
    return set(re.findall(r'"(\w+)"', section.split("`--json` (a")[1]))


def names(value: object) -> set[str]:
    """Every key in a JSON value."""
    if isinstance(value, dict):
        return set(value).union(*(names(v) for v in value.values()))
    return set().union(*(names(v) for v in value)) if isinstance(value, list) else set()


def test_commands_print_what_the_page_says(cli: Cli, exported: Exported, tiny: Path) -> None:
    """Every field that a command prints is on the page, and the other way round."""
    place = ("--store", exported.store, "--json")
    free = {"parts", "producer", "sender_seconds", "calibration"}
    assert names(exported.said) == shape("export") - {"ref", "sequence"}  # where a ref is moved
    assert names(cli("models", "list", "--json").json) == shape("models list")
    said = cli("inspect", exported.baton, *place, "--text").json
    said["function"]["parts"] = said["producer"] = None
    assert names(said) == shape("inspect") - {"salt"}
    assert names(cli("diff", exported.baton, exported.baton, *place).json) <= shape("diff")
    said = cli(
        "take", "--model", tiny, "--baton", exported.baton, *place, "--dtype", "float32",
        "--max-new-tokens", "1",
    ).json  # fmt: skip
    assert names(said) - free <= shape("take")
    listed = names(cli("list", *place).json)
    assert listed - free - {"class", "codec", "calibration"} <= shape("list")
    assert names(cli("verify", exported.baton, *place).json) <= shape("verify")
    assert names(cli("rm", exported.baton, *place).json) == shape("rm")
