"""The entry point: exit codes, one JSON object, and nothing heavy before a model is needed."""

from __future__ import annotations

import pytest
from tests.cli.conftest import Cli

from kvbaton import errors
from kvbaton.cli import main as entry
from kvbaton.cli.main import run
from kvbaton.errors import Fault, FormatError


def raising(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `kvbaton models list` raise."""

    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr("kvbaton.cli.models_command.list_models", fail)


def classes() -> list[type[errors.KvbatonError]]:
    """Every class of the error tree."""
    found, waiting = [], [errors.KvbatonError]
    while waiting:
        kind = waiting.pop()
        found.append(kind)
        waiting += [k for k in kind.__subclasses__() if k.__module__ == errors.__name__]
    return found


@pytest.mark.parametrize("kind", classes(), ids=lambda kind: kind.__name__)
def test_every_error_has_its_exit_code_and_sentence(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, kind: type[errors.KvbatonError]
) -> None:
    """An error becomes its class's exit code; sentence, place and hint go to standard error."""
    needed = {"BatonRefused": {"reason_code": "memory"}, "FormatError": {"fault": Fault.GAP}}
    error = kind("it is so", at="$.here", hint="do that", **needed.get(kind.__name__, {}))
    raising(error, monkeypatch)
    done = cli("models", "list")
    assert (done.code, done.out) == (kind.exit_code, "")
    assert done.err == "error: it is so at `$.here`\nhint: do that\n"


def test_with_json_an_error_is_one_object(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code, sentence, place, hint and exit code; what a class adds is there, too."""
    raising(FormatError("it has a gap", fault=Fault.GAP, at="$.tensors"), monkeypatch)
    done = cli("models", "list", "--json")
    assert done.json == {
        "error": {
            "code": "format-error",
            "sentence": "it has a gap",
            "at": "$.tensors",
            "hint": "",
            "exit_code": 8,
            "fault": "gap",
        }
    }
    assert done.err == ""


def test_an_unforeseen_error_is_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 1, one line and a hint; the trace is shown with `--debug` only."""
    raising(ValueError("first line\nsecond line"), monkeypatch)
    done = cli("models", "list")
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines()[0] == "error: unexpected ValueError: first line"
    assert "--debug" in done.err
    assert "Traceback" not in done.err
    assert "Traceback" in cli("--debug", "models", "list").err


def test_an_interrupt_exits_with_130(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C has the exit code that shells know."""
    raising(KeyboardInterrupt(), monkeypatch)
    assert cli("models", "list").code == 130
    assert cli("models", "list", "--json").json["error"]["code"] == "interrupted"


def test_a_reader_that_went_away_is_no_error(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken pipe ends the command in silence, as SIGPIPE would."""
    raising(BrokenPipeError(), monkeypatch)
    done = cli("models", "list")
    assert (done.code, done.out, done.err) == (141, "", "")


@pytest.mark.parametrize(
    "arguments", [["fly"], ["list", "--no-such-option"], ["take"], ["diff", "a"]]
)
def test_a_wrong_command_line_exits_with_2(cli: Cli, arguments: list[str]) -> None:
    """Unknown commands and options and missing arguments name the help to read."""
    done = cli(*arguments)
    assert (done.code, done.out) == (2, "")
    assert "--help" in done.err
    assert cli(*arguments, "--json").json["error"]["exit_code"] == 2


def test_json_as_a_value_behind_dashes_is_no_option(cli: Cli) -> None:
    """What stands behind `--` does not switch the format."""
    assert cli("fly", "--", "--json").out == ""


def test_the_version_is_printed(cli: Cli) -> None:
    """`--version` names the program and the version of the package."""
    done = cli("--version")
    assert (done.code, done.out) == (0, "kvbaton 0.1.0\n")


def test_every_command_has_json_and_a_sentence() -> None:
    """Each command can print JSON and has a help text that begins with a sentence."""
    import typer

    waiting = [typer.main.get_command(entry.build_app())]
    commands = []
    while waiting:
        command = waiting.pop()
        waiting += getattr(command, "commands", {}).values()
        if not hasattr(command, "commands"):
            commands.append(command)
    assert len(commands) >= 8
    for command in commands:
        assert any("--json" in p.opts for p in command.params), command.name
        assert command.help.strip().splitlines()[0].endswith((".", ".,", ",")), command.name


def test_help_is_no_error() -> None:
    """`--help` exits with 0 on the app and on a command."""
    assert run(["--help"]) == 0
    assert run(["take", "--help"]) == 0


@pytest.mark.parametrize(
    ("name", "hint"), [("smollm2-135", "smollm2-135m"), ("qwen2.5-coder-1.5", "qwen2.5-coder-1.5b")]
)
def test_an_unknown_model_names_close_matches(
    cli: Cli, tmp_path: object, name: str, hint: str
) -> None:
    """A misspelt name fails before anything is loaded, and says what may have been meant."""
    arguments = ("export", "--model", name, "--context", "-", "--store", tmp_path, "--json")
    error = cli(*arguments, stdin=b"text").json["error"]
    assert (error["code"], error["exit_code"]) == ("unknown-model", 3)
    assert f"did you mean {hint}" in error["hint"]


def test_a_setting_that_makes_no_sense_is_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt variable is an error of the command, not of the import."""
    monkeypatch.setenv("KVBATON_DEADLINE", "3")
    done = cli("list", "--json")
    assert (done.code, done.json["error"]["at"]) == (3, "KVBATON_DEADLINE")
