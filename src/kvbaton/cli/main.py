"""The app and its entry point: every error becomes a sentence and an exit code."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer

import kvbaton
from kvbaton.cli.output import Output, error_json, to_json
from kvbaton.errors import KvbatonError
from kvbaton.types import JSON

COMMANDS = (
    "models_command",
    "relay_command",
    "export_command",
    "take_command",
    "list_command",
    "ps_command",
    "inspect_command",
    "verify_command",
    "diff_command",
    "explain_command",
    "rm_command",
    "purge_command",
    "gc_command",
    "ledger_command",
    "keys_command",
    "ticket_command",
    "doctor_command",
    "advise_command",
    "policy_command",
    "tune_command",
    "audit_command",
    "bench_command",
)
"""Modules of this package, in the order of ``kvbaton --help``; each has ``register(app)``."""

UNEXPECTED, USAGE, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141

_UsageError: Any = typer.BadParameter.__mro__[1]
"""What the parser raises for a wrong command line, whichever copy of click typer brings."""

_HELP = """One LLM agent hands its KV cache to the next: exact, measured, and always able to fall
back to text."""


def build_app() -> typer.Typer:
    """The app with all commands; no command imports torch before it runs."""
    app = typer.Typer(
        name="kvbaton",
        help=_HELP,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in COMMANDS:
        importlib.import_module(f"kvbaton.cli.{name}").register(app)
    return app


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"kvbaton {kvbaton.__version__}")
        raise typer.Exit


def _root(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
    _debug: Annotated[
        bool, typer.Option("--debug", help="Show the trace of an error, and all warnings.")
    ] = False,
) -> None:
    """Options that stand before the command."""


def main() -> int:
    """Run the process's own command line; return its exit code."""
    arguments = sys.argv[1:]
    if "--debug" not in _before_dashes(arguments):
        warnings.simplefilter("ignore")
    code = run(arguments)
    if code in (INTERRUPTED, BROKEN_PIPE):
        _close_output()
    return code


def run(arguments: Sequence[str]) -> int:
    """Run one command line in this process; return its exit code.

    0 is success; ``kvbaton.errors`` draws the codes of its errors; 1 is an error that nobody
    expected, 2 a command line that makes no sense, 130 an interrupt, 141 a reader that went away.
    """
    said = _before_dashes(arguments)
    output = Output(as_json="--json" in said)
    try:
        return _invoke(build_app(), arguments)
    except KvbatonError as error:
        return _report(output, error_json(error), debug="--debug" in said)
    except _UsageError as error:
        return _report_usage(output, error)
    except KeyboardInterrupt:
        return _report(output, _plain("interrupted", "interrupted", INTERRUPTED))
    except BrokenPipeError:
        return BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the last handler: said in one line, exit 1
        sentence = f"unexpected {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        hint = "kvbaton --debug ... shows the trace; please report it"
        return _report(output, _plain("unexpected", sentence, UNEXPECTED, hint), "--debug" in said)


def _before_dashes(arguments: Sequence[str]) -> Sequence[str]:
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _invoke(app: typer.Typer, arguments: Sequence[str]) -> int:
    command = typer.main.get_command(app)
    try:
        with command.make_context("kvbaton", list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as done:
        return int(done.exit_code)
    sys.stdout.flush()
    return 0


def _plain(code: str, sentence: str, exit_code: int, hint: str = "") -> JSON:
    return {"code": code, "sentence": sentence, "at": "", "hint": hint, "exit_code": exit_code}


def _report_usage(output: Output, error: Any) -> int:
    """A wrong command line; one without any command gets the help text."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "kvbaton"
    sentence = error.format_message().strip()
    if type(error).__name__ == "NoArgsIsHelpError" and not output.as_json:
        output.say(sentence)  # blank where the parser has printed the help text itself
        return USAGE
    return _report(output, _plain("usage", sentence, USAGE, f"{path} --help"))


def _report(output: Output, error: JSON, debug: bool = False) -> int:
    if debug:
        traceback.print_exc(file=sys.stderr)
    if output.as_json:
        sys.stdout.write(to_json({"error": error}) + "\n")
        sys.stdout.flush()
    else:
        where = f" at `{error['at']}`" if error["at"] else ""
        output.say(f"error: {error['sentence']}{where}", style="red")
        if error["hint"]:
            output.say(f"hint: {error['hint']}")
    return int(error["exit_code"])


def _close_output() -> None:
    """Point standard output at nothing, so that the interpreter's last flush cannot complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
