"""``kvbaton models list`` and ``pull``: the built-in models."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from kvbaton import settings
from kvbaton.cli.output import JsonFlag, Output, Step, bytes_text, print_table
from kvbaton.models import ModelStatus, Progress, ProgressCallback, list_models, pull
from kvbaton.types import JSON

SHAPES = {
    "list": """{"models": [{"name", "title", "license", "parameters", "context_tokens",
 "download_bytes", "installed", "path"}]}""",
    "pull": """{"model", "path"}""",
}
"""What ``--json`` prints, for the reference."""


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="The built-in models.", no_args_is_help=True)
    group.command("list")(models_list)
    group.command("pull")(models_pull)
    app.add_typer(group, name="models")


def models_list(as_json: JsonFlag = False) -> None:
    """List the built-in models and which of them are on this machine."""
    output = Output(as_json)
    found = list_models(data_dir=settings.from_environment().data_dir)
    output.result({"models": [_to_json(s) for s in found]}, lambda console: _show(console, found))


def models_pull(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A built-in model's name.")],
    as_json: JsonFlag = False,
) -> None:
    """Fetch a built-in model and convert it once to a local bf16 checkpoint.

    An interrupted pull goes on where it stopped; the model is there whole or not at all.
    """
    output, chosen = Output(as_json), settings.from_environment()
    with output.progress(f"pulling {name}") as step:
        folder = pull(
            name, data_dir=chosen.data_dir, cache_dir=chosen.cache_dir, progress=_shown(step, name)
        )
    output.result(
        {"model": name, "path": str(folder)},
        lambda console: console.print(f"{name} is in {folder}", markup=False),
    )


def _shown(step: Step, name: str) -> ProgressCallback:
    def show(report: Progress) -> None:
        if report.stage != "done":
            label = f"{name}: {report.stage}" + (f" {report.note}" if report.note else "")
            step.say(label, report.done_bytes, report.total_bytes)

    return show


def _to_json(status: ModelStatus) -> JSON:
    model = status.model
    return {
        "name": model.name,
        "title": model.title,
        "license": model.license,
        "parameters": model.parameters,
        "context_tokens": model.context_tokens,
        "download_bytes": model.download_bytes,
        "installed": status.installed,
        "path": str(status.path),
    }


def _show(console: Console, found: tuple[ModelStatus, ...]) -> None:
    headings = ("name", "parameters", "window", "download", "license", "here")
    print_table(console, headings, map(_row, found), right=" rrr")


def _row(status: ModelStatus) -> tuple[str, ...]:
    model = status.model
    return (
        model.name,
        f"{model.parameters / 1e6:.0f} M",
        str(model.context_tokens),
        bytes_text(model.download_bytes),
        model.license,
        "yes" if status.installed else "no",
    )
