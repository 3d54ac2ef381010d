"""The guides do what they say: their examples run, and what they name exists."""

from __future__ import annotations

import queue
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import typer

import kvbaton
from kvbaton.cli.main import build_app
from kvbaton.lineage.ledger import Ledger
from kvbaton.types import Outcome, ReasonCode

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"


def blocks(page: str, language: str) -> list[str]:
    """Code blocks of one language in a guide."""
    text = (GUIDES / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def test_the_examples_of_the_library_guide_run(
    tiny: Path,
    remembered: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    measured: Any,
) -> None:
    """All Python blocks of `hand-off.md`, one after the other, on a tiny model."""
    measured("compact")
    monkeypatch.setattr(kvbaton, "load", lambda name: remembered(str(tiny), dtype="float32"))
    code = "\n".join(blocks("hand-off.md", "python"))
    script = tmp_path / "guide.py"
    script.write_text(code.replace("/dev/shm/batons", str(tmp_path / "store")), encoding="utf-8")
    names = runpy.run_path(str(script))
    assert names["result"].receipt.route == "baton"
    assert (names["guest"].receipt.mode, names["guest"].receipt.route) == ("shared-prefix", "baton")
    assert (names["answer"].receipt.mode, names["answer"].receipt.route) == ("slice", "baton")
    assert names["compact"].manifest.fidelity.codec == "compact"
    assert names["brief"].receipt.route == "baton"
    assert len(names["answers"]) == 3
    assert names["turn"].baton is not None
    out = capsys.readouterr().out
    assert "unavailable manifest-missing" in out
    assert "baton-unavailable 7" in out


def test_the_loop_of_the_guide_is_the_one_of_the_example() -> None:
    """The lines in the guide stand in `examples/own_generate_loop.py`, which the tests run."""
    (shown,) = blocks("hand-off.md", "text")
    assert shown in (ROOT / "examples" / "own_generate_loop.py").read_text(encoding="utf-8")


def test_the_examples_of_the_lineage_guide_run(tiny: Path, remembered: Any, tmp_path: Path) -> None:
    """All Python blocks of `lineage.md`, one after the other: what was built on the first plan is
    stale, and who holds it is told."""
    engine = remembered(str(tiny), dtype="float32")
    place = {"store": f"dir://{tmp_path}/store", "ledger": f"sqlite:///{tmp_path}/ledger.db"}
    agents = {name: kvbaton.Agent(name, engine, **place) for name in ("planner", "coder")}
    turn = agents["planner"].run("Plan it. " * 20, max_new_tokens=4)
    first, second = blocks("lineage.md", "python")
    before, after = first.split("...\n", 1)
    script = tmp_path / "guide.py"
    script.write_text(before + second + after, encoding="utf-8")
    heard: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    given = {"turn": turn, "print": lambda *said: heard.put(said)}
    names = runpy.run_path(str(script), agents | given)
    assert names["code"].receipt.freshness["standing"] == "current"
    with Ledger(place["ledger"], "local") as ledger:
        assert ledger.head("plan").baton == names["plan"].id
        stale = {node.id for node in ledger.nodes(stale=True)}
        assert {names["file"], names["code"].receipt.id} < stale
    node, why = heard.get(timeout=60)
    assert (node in stale, why) == (True, "plan has moved on from 1")
    names["release"]()


@pytest.mark.parametrize("page", ["hand-off.md", "lineage.md", "troubleshooting.md"])
def test_commands_in_the_guides_exist(page: str) -> None:
    """Every `kvbaton ...` in a guide is a command with these options."""
    text = (GUIDES / page).read_text(encoding="utf-8")
    root: Any = typer.main.get_command(build_app())
    for spelled in re.findall(r"`kvbaton ([a-z][^`]*)`", text):
        words = spelled.removesuffix("...").split()
        command = root.commands[words.pop(0)]
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        known = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, spelled


def test_every_reason_and_outcome_is_explained() -> None:
    """`troubleshooting.md` has a row for each reason, `hand-off.md` one for each outcome."""
    rows = re.findall(r"^\| (`[^|]*) \|", (GUIDES / "troubleshooting.md").read_text(), re.MULTILINE)
    listed = set(re.findall(r"`([a-z-]+)`", " ".join(rows)))
    assert {code.value for code in ReasonCode} <= listed
    page = (GUIDES / "hand-off.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `([a-z-]+)` \|", page, flags=re.MULTILINE))
    assert {outcome.value for outcome in Outcome} - {"superseded"} <= told


def test_symptoms_name_a_field_and_a_command() -> None:
    """Each row of the first table has a receipt field or an error, and something to run."""
    text = (GUIDES / "troubleshooting.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \*\*.*$", text.split("## By reason")[0], flags=re.MULTILINE)
    assert len(rows) >= 10
    for row in rows:
        symptom, field, _, run = (cell.strip() for cell in row.strip("|").split(" | "))
        assert "`" in field, symptom
        assert "`kvbaton " in run, symptom
