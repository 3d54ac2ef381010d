"""``kvbaton verify``: every byte against its digests."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from kvbaton.cli import places
from kvbaton.cli.options import StoreOption
from kvbaton.cli.output import JsonFlag, Output, bytes_text, print_table
from kvbaton.cli.verification import Examination
from kvbaton.errors import BatonUnavailable, InputError, NotFound

SHAPES = {
    "verify": """{"baton", "store", "ok",
 "checked": {"batons", "foreign_batons", "tokens", "segments", "ranges", "bytes"},
 "faults": [{"place", "object", "code", "sentence", "at", "hint", "exit_code", "fault"?,
  "layer"?, "bytes"?: [start, stop]}],
 "error"?: the first fault}"""
}
"""What ``--json`` prints, for the reference."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify")(verify)


def verify(
    baton: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="The baton's id; or --all.", show_default=False),
    ] = None,
    store: StoreOption = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Check everything that the store holds.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Check every byte of a baton: manifest, transcript, segment headers and layer ranges.

    All faults are listed with their places, the first one first.  Exits with 8 where bytes are
    damaged, with 6 where the manifest cannot be trusted, with 9 where some are only missing, with
    7 where the baton itself is.
    """
    output = Output(as_json)
    if (baton is None) != everything:
        raise InputError("name one baton, or give --all")
    opened = places.open_to_read(store)
    with output.progress("verifying") as step:
        examination = Examination(opened, places.trust_domain(), step.say)
        if baton is None:
            examination.everything()
        else:
            _one(examination, baton)
    said = {"baton": baton, "store": opened.url, **examination.to_json()}
    output.result(said, lambda console: _show(console, examination))
    if not examination.ok:
        raise typer.Exit(examination.exit_code)


def _one(examination: Examination, baton: str) -> None:
    try:
        examination.baton(baton)
    except NotFound as error:
        raise BatonUnavailable("the baton's manifest is not in the store") from error


def _show(console: Console, examination: Examination) -> None:
    if not examination.ok:
        rows = [(f.place, f.error.sentence, f.error.at) for f in examination.faults]
        print_table(console, ("place", "fault", "at"), rows)
        for hint in dict.fromkeys(f.error.hint for f in examination.faults if f.error.hint):
            console.print(f"hint: {hint}", markup=False)
    what = f"{examination.batons} baton{'s' if examination.batons != 1 else ''}"
    console.print(
        f"{'intact' if examination.ok else 'DAMAGED'}: {what}, {examination.segments} segments, "
        f"{examination.ranges} layer ranges, {bytes_text(examination.checked_bytes)} checked",
        markup=False,
    )
