"""What the guide and the examples show is run as it stands."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.conftest import DOCUMENT

import kvbaton
from kvbaton.pipelines import load_pipeline, parse_pipeline, run_pipeline, with_document
from kvbaton.stores import MemoryStore, Store
from kvbaton.types import Mode, Route

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "pipelines.md").read_text(encoding="utf-8")


def block(language: str, number: int = 0) -> str:
    """A code block of a language in the guide."""
    text: str = re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)[number]
    return text


def test_the_guides_join_does_what_the_guide_says(engine: Any, store: Store) -> None:
    """The writer has both workers' turns behind its own beginning, and computes neither."""
    pipeline = parse_pipeline(tomllib.loads(block("toml", 1)))
    result = run_pipeline(pipeline, engine, store, route="baton", compare=True)
    writer = result.turns[-1]
    assert (writer.receipt.mode, writer.receipt.route) == (Mode.SLICE, Route.BATON)
    assert len(writer.receipt.batons) == 2
    whole = sum(len(turn.ids) for turn in result.turns[1:3])
    assert writer.receipt.reused_tokens > whole
    assert writer.receipt.computed_tokens < writer.receipt.context_tokens - whole
    assert writer.text is not None


def test_the_guides_example_does_what_the_guide_says(engine: Any, store: Store) -> None:
    """Reader first, then three takers by baton; the writer's turn is the one that is shown."""
    pipeline = with_document(parse_pipeline(tomllib.loads(block("toml"))), DOCUMENT)
    fed: list[list[int]] = []
    hook = engine.model.register_forward_hook(
        lambda module, args, given, out: fed.append(given["input_ids"][0].tolist()),
        with_kwargs=True,
    )
    result = run_pipeline(pipeline, engine, store, route="baton")
    hook.remove()
    assert [turn.agent for turn in result.turns] == ["reader", "risks", "costs", "writer"]
    assert [turn.receipt.route for turn in result.turns[1:]] == [Route.BATON] * 3
    _, _, costs, writer = [engine.chat.text_of(ids) for ids in fed if len(ids) > 1]
    assert "user\nYou count.\n\nWhat does it cost?<|im_end|>" in costs
    shown = block("text").strip()
    for turn in result.turns[1:3]:
        shown = shown.replace("...", turn.output.strip(), 1)
    assert f"user\n{shown}<|im_end|>" in writer


def test_the_guides_program_runs(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The library example runs on a file like the guide's own."""
    (tmp_path / "mine.toml").write_text(block("toml"), encoding="utf-8")
    (tmp_path / "report.txt").write_text(DOCUMENT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kvbaton, "load", lambda name: engine, raising=False)
    (tmp_path / "program.py").write_text(block("python"), encoding="utf-8")
    runpy.run_path(str(tmp_path / "program.py"))
    MemoryStore.forget("mine")
    said = capsys.readouterr().out
    assert said.startswith("reader text")
    assert "writer baton" in said


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.toml")), ids=lambda p: p.name)
def test_examples_can_be_read_with_their_documents(path: Path) -> None:
    """Every example is a pipeline, and its input lies beside it."""
    pipeline = load_pipeline(path)
    assert len(pipeline.agents) > 1
    assert pipeline.document
