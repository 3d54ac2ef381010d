"""`kvbaton models`: what is here, and a pull with its progress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Cli

from kvbaton.cli import models_command
from kvbaton.errors import ModelUnavailable
from kvbaton.models import Progress, Stage


def test_built_in_models_are_listed(cli: Cli, home: Path) -> None:
    """Three models, none of which is in an empty home; smallest first."""
    said = cli("models", "list", "--json").json["models"]
    assert [m["name"] for m in said] == ["smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"]
    assert [m["installed"] for m in said] == [False] * 3
    assert said[0]["path"].startswith(str(home))
    assert "smollm2-135m" in cli("models", "list").out


def test_a_pull_reports_and_names_the_folder(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress goes to standard error, the folder to standard output."""
    seen: list[tuple[str, int, int]] = []

    def pull(name: str, *, data_dir: Path, cache_dir: Path, progress: Any) -> Path:
        assert (data_dir, cache_dir) == (home / "data", home / "cache")
        progress(Progress(Stage.DOWNLOADING, 5, 10, "part 1"))
        progress(Progress(Stage.CONVERTING))
        progress(Progress(Stage.DONE, note="here"))
        return data_dir / "models" / name

    def show(step: object, name: str) -> Any:
        return shown(Recorder(seen), name)

    shown = models_command._shown
    monkeypatch.setattr(models_command, "pull", pull)
    monkeypatch.setattr(models_command, "_shown", show)
    said = cli("models", "pull", "smollm2-135m", "--json").json
    assert said == {"model": "smollm2-135m", "path": str(home / "data/models/smollm2-135m")}
    assert seen == [("smollm2-135m: downloading part 1", 5, 10), ("smollm2-135m: converting", 0, 0)]


class Recorder:
    """A step that keeps what it is told."""

    def __init__(self, seen: list[tuple[str, int, int]]) -> None:
        self._seen = seen

    def say(self, label: str, done_bytes: int = 0, total_bytes: int = 0) -> None:
        """Keep a report."""
        self._seen.append((label, done_bytes, total_bytes))


def test_a_pull_without_network_is_clear(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 12, and what to do; an unknown name exits with 3."""

    def offline(name: str, **_: object) -> Path:
        raise ModelUnavailable("the parts cannot be fetched", hint="connect, and pull again")

    assert cli("models", "pull", "smollm2", "--json").json["error"]["code"] == "unknown-model"
    monkeypatch.setattr(models_command, "pull", offline)
    done = cli("models", "pull", "smollm2-135m")
    assert (done.code, done.err.splitlines()[-1]) == (12, "hint: connect, and pull again")


def test_a_model_that_was_not_pulled_says_how(cli: Cli, tmp_path: Path) -> None:
    """Using a built-in model that is not here names the command that fetches it."""
    arguments = ("export", "--model", "smollm2-135m", "--context", "-", "--store", tmp_path / "s")
    error = cli(*arguments, "--json", stdin=b"text").json["error"]
    assert (error["code"], error["exit_code"]) == ("model-unavailable", 12)
    assert "kvbaton models pull smollm2-135m" in error["hint"]
