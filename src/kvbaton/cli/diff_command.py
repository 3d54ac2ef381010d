"""``kvbaton diff``: where two batons differ."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from kvbaton.cli import places
from kvbaton.cli.comparison import CacheDifference, Comparison, compare
from kvbaton.cli.holdings import open_manifest, open_transcript
from kvbaton.cli.options import BatonArgument, StoreOption
from kvbaton.cli.output import JsonFlag, Output, print_table

DIFFERENT = 1


SHAPES = {
    "diff": """{"a", "b", "store", "same", "first": {"position", "layer", "field"},
 "fields": [{"field", "a", "b"}], "ids": {"position"} or null,
 "cache": {"position", "layer", "tensor", "exact_position"} or null, "note"}"""
}
"""What ``--json`` prints, for the reference."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("diff")(diff)


def diff(
    a: BatonArgument,
    b: BatonArgument,
    store: StoreOption = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 where the batons differ.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show the first position, layer and field in which two batons differ.

    Fields of the manifests and token ids are compared as they are, caches by the digests of their
    layer ranges, and ranges that differ by their bytes.
    """
    output = Output(as_json)
    opened, domain = places.open_to_read(store), places.trust_domain()
    with output.progress("comparing"):
        read = []
        for name in (a, b):
            manifest, _ = open_manifest(opened, domain, name)
            read.append((manifest, open_transcript(opened, domain, manifest)))
        found = compare(opened, domain, read[0], read[1])
    said = {"a": a, "b": b, "store": opened.url, **found.to_json()}
    output.result(said, lambda console: _show(console, found))
    if exit_code and not found.same:
        raise typer.Exit(DIFFERENT)


def _show(console: Console, found: Comparison) -> None:
    if found.same:
        console.print("the batons are the same")
        return
    if found.fields:
        rows = [(field.field, field.a, field.b) for field in found.fields]
        print_table(console, ("field", "a", "b"), rows)
    ids = "no id differs" if found.ids is None else f"the first id differs at position {found.ids}"
    console.print(f"ids: {ids}")
    console.print(f"cache: {found.note or _cache(found.cache)}", markup=False)


def _cache(found: CacheDifference | None) -> str:
    if found is None:
        return "no byte differs where both have KV"
    if not found.exact_position:
        return f"{found.tensor} of layer {found.layer} differs, at position {found.position} or on"
    return f"{found.tensor} of layer {found.layer} differs first, at position {found.position}"
