"""``kvbaton list``: what a store holds."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated

import typer
from rich.console import Console

from kvbaton.cli import places
from kvbaton.cli.holdings import Holding, holdings
from kvbaton.cli.options import StoreOption
from kvbaton.cli.output import (
    JsonFlag,
    Output,
    age_text,
    bytes_text,
    error_json,
    print_table,
)
from kvbaton.stores import Entry, Kind, Store
from kvbaton.types import JSON

SHAPES = {
    "list": """{"store",
 "batons": [{"baton", "bytes", "sender", "receiver", "mode", "domain", "created_ms", "age_s",
  "tokens", "cached_tokens", "pending_tokens", "segments", "fidelity"}]
  or, by --kind, "segments", "transcripts", "prefixes" or "spent": [{"name", "bytes", "unused_s"}],
 "totals": {"segments", "batons", "transcripts", "prefixes", "spent": {"objects", "bytes"},
  "bytes"}}
A damaged baton has "baton", "bytes" and "error"."""
}
"""What ``--json`` prints, for the reference."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("list")(list_)


def list_(
    store: StoreOption = None,
    kind: Annotated[
        Kind,
        typer.Option(
            "--kind", metavar="KIND", help="batons, segments, transcripts, prefixes, spent"
        ),
    ] = Kind.BATON,
    as_json: JsonFlag = False,
) -> None:
    """List what a store holds, what was used longest ago first, with totals.

    The size of a baton counts all its segments; batons that share segments share those bytes.
    """
    output = Output(as_json)
    opened = places.open_to_read(store)
    if kind is Kind.BATON:
        entries = [_baton(holding) for holding in holdings(opened, places.trust_domain())]
    else:
        entries = [_object(entry) for entry in opened.list(kind)]
    said = {"store": opened.url, kind.value: entries, "totals": totals(opened)}
    output.result(said, lambda console: _show(console, kind, said))


def totals(store: Store) -> JSON:
    """Objects and bytes by kind, and together."""
    found: JSON = {}
    for kind in Kind:
        sizes = [entry.size_bytes for entry in store.list(kind)]
        found[kind.value] = {"objects": len(sizes), "bytes": sum(sizes)}
    return found | {"bytes": sum(part["bytes"] for part in found.values())}


def _baton(holding: Holding) -> JSON:
    said: JSON = {"baton": holding.name, "bytes": holding.size_bytes}
    if holding.manifest is None or holding.error is not None:
        return said | {"error": error_json(holding.error) if holding.error else None}
    manifest = holding.manifest
    return said | {
        "sender": manifest.sender,
        "receiver": manifest.terms.receiver,
        "mode": manifest.mode.value,
        "domain": manifest.domain,
        "created_ms": manifest.created_ms,
        "age_s": max(0.0, time.time() - manifest.created_ms / 1000),
        "tokens": manifest.cached_tokens + manifest.pending_tokens,
        "cached_tokens": manifest.cached_tokens,
        "pending_tokens": manifest.pending_tokens,
        "segments": len(manifest.segments),
        "fidelity": manifest.fidelity.to_json(),
    }


def _object(entry: Entry) -> JSON:
    return {
        "name": entry.key.name,
        "bytes": entry.size_bytes,
        "unused_s": max(0.0, time.time() - entry.modified_s),
    }


def _show(console: Console, kind: Kind, said: JSON) -> None:
    entries: Iterable[JSON] = said[kind.value]
    if kind is Kind.BATON:
        headings = ("baton", "age", "tokens", "size", "sender")
        print_table(console, headings, map(_baton_row, entries), right=" rrr")
    else:
        rows = [(e["name"], age_text(e["unused_s"]), bytes_text(e["bytes"])) for e in entries]
        print_table(console, (kind.value, "unused for", "size"), rows, right=" rr")
    counts = ", ".join(f"{said['totals'][k.value]['objects']} {k.value}" for k in Kind)
    console.print(f"{counts}: {bytes_text(said['totals']['bytes'])} in all", markup=False)


def _baton_row(said: JSON) -> tuple[str, ...]:
    if "error" in said:
        return said["baton"], "", "", bytes_text(said["bytes"]), f"({said['error']['sentence']})"
    age, size = age_text(said["age_s"]), bytes_text(said["bytes"])
    return said["baton"], age, str(said["tokens"]), size, said["sender"]
