"""``kvbaton purge``: delete a baton with all that is its own, and prove it."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from kvbaton.cli import places
from kvbaton.cli.options import StoreOption
from kvbaton.cli.output import JsonFlag, Output, bytes_text
from kvbaton.errors import StoreError
from kvbaton.types import JSON

SHAPES = {
    "purge": """{"store", "baton", "batons", "deleted": [{"kind", "name"}], "deleted_bytes",
 "kept": [{"kind", "name", "listed_by"}], "unverified",
 "searched": {"files", "bytes", "windows", "shared_windows"}, "remains",
 "leased": [{"kind", "name"}], "proven",
 "beyond_reach"}"""
}
"""What ``--json`` prints, for the reference."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("purge")(purge)


def purge(
    baton: Annotated[str, typer.Argument(metavar="ID", help="The baton's id.")],
    store: StoreOption = None,
    descendants: Annotated[
        bool,
        typer.Option(
            "--descendants", help="Also batons that descend from it or list what it lists."
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Delete a baton with its transcript, segments and prefix records, and look for what is left.

    What other batons list is kept, and named with them, unless --descendants purges those as well.
    Afterwards every file of the store is searched for names and for samples of what was deleted;
    exits with 9 where something is found.
    """
    from kvbaton import purging

    output = Output(as_json)
    opened, domain = places.open_to_read(store), places.trust_domain()
    with output.progress("purging"):
        report = purging.purge(opened, domain, baton, descendants=descendants)
    for name in report.unverified:
        output.warn(f"{name} could not be verified: what it listed is not known")
    if report.leased:
        output.warn(f"{len(report.leased)} of the deleted objects were in use")
    said = {"store": opened.url, **report.to_json()}
    output.result(said, lambda console: _show(console, said))
    if not report.proven:
        raise typer.Exit(StoreError.exit_code)


def _show(console: Console, said: JSON) -> None:
    for one in said["kept"]:
        others = ", ".join(name[:16] for name in one["listed_by"])
        console.print(f"kept {one['kind']}/{one['name']}, listed by {others}", markup=False)
    for one in said["remains"]:
        console.print(f"REMAINS: {one}", markup=False)
    searched, found = said["searched"], "nothing of them" if said["proven"] else "SOMETHING"
    console.print(
        f"deleted {len(said['deleted'])} objects of {len(said['batons'])} batons, "
        f"{bytes_text(said['deleted_bytes'])}; kept {len(said['kept'])}",
        markup=False,
    )
    console.print(
        f"{found} found: listings, {searched['files']} files ({bytes_text(searched['bytes'])}), "
        f"{searched['windows']} samples",
        markup=False,
    )
    console.print(f"beyond reach: {'; '.join(said['beyond_reach'])}", markup=False)
