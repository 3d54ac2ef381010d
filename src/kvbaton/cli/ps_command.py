"""``kvbaton ps``: batons that could be taken, who holds them, and until when."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from kvbaton.cli import places
from kvbaton.cli.holdings import Holding, holdings
from kvbaton.cli.ledger_places import LedgerOption, ledger_place, opened
from kvbaton.cli.ledger_tables import short_id
from kvbaton.cli.options import StoreOption
from kvbaton.cli.output import JsonFlag, Output, bytes_text, error_json, expiry_text, print_table
from kvbaton.errors import LedgerError, StoreError, Unsupported
from kvbaton.stores import Key, Kind, LeaseInfo, LeaseState, Store
from kvbaton.types import JSON, Manifest

if TYPE_CHECKING:
    from kvbaton.lineage.records import Head, Node

SHAPES = {
    "ps": """{"store", "ledger" or null, "batons": [{"baton", "model", "tokens", "size_bytes",
 "codec", "holders": [{"owner", "state"}] or null, "expires_ms", "expired", "ref"?, "standing":
 "current", "stale" or "unknown", "stale"?: {"sequence", "ref", "ref_sequence", "why"}}]}
A damaged baton has "baton" and "error"; "model" is what the ledger knows, holders are null where
the store has no leases."""
}
"""What ``--json`` prints, for the reference."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ps")(ps)


@dataclass(frozen=True, slots=True)
class _Lineage:
    """What the ledger says: where it is, nodes by id, and heads by their batons."""

    shown: str | None = None
    nodes: Mapping[str, Node] = field(default_factory=dict)
    heads: Mapping[str, Head] = field(default_factory=dict)


def ps(
    store: StoreOption = None,
    ledger: LedgerOption = None,
    stale: Annotated[bool, typer.Option("--stale", help="Only what is stale.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """List batons with model, tokens, size, codec, holder, and when they expire; newest first.

    A holder leases segments of the baton: nothing of it is evicted or collected meanwhile. Whether
    it is stale, and what its model is called, is what the ledger says, if there is one.
    """
    output = Output(as_json)
    store_opened = places.open_to_read(store)
    lineage = _lineage(output, ledger)
    leases = _leases(output, store_opened)
    found = list(holdings(store_opened, places.trust_domain()))
    found.sort(key=lambda one: 0 if one.manifest is None else -one.manifest.created_ms)
    batons = [_baton(holding, lineage, leases) for holding in found]
    if stale:
        batons = [one for one in batons if one.get("standing") == "stale"]
    said = {"store": store_opened.url, "ledger": lineage.shown, "batons": batons}
    output.result(said, lambda console: _show(console, said))


def _lineage(output: Output, ledger: str | None) -> _Lineage:
    """What the ledger knows of batons; a ledger that is not named, and not there, knows nothing.

    Raises
    ------
    LedgerError
        The one that is named cannot be used.
    """
    from kvbaton.lineage.records import NodeKind

    try:
        if ledger is None:
            ledger_place(None, None).require_there()
    except LedgerError:
        return _Lineage()
    try:
        with opened(output, ledger, None) as found:
            return _Lineage(
                found.database.shown,
                {node.id: node for node in found.nodes(kind=NodeKind.BATON, limit=None)},
                {head.baton: head for head in found.heads()},
            )
    except LedgerError as error:
        if ledger is not None:
            raise
        output.warn(f"{error}; what is stale is not known")
        return _Lineage()


def _leases(output: Output, store: Store) -> Sequence[LeaseInfo] | None:
    """Leases that protect something; None where the store has none."""
    try:
        return [one for one in store.leases() if one.state is not LeaseState.DEAD]
    except Unsupported:
        return None
    except StoreError as error:
        output.warn(f"{error}; holders are not known")
        return None


def _baton(holding: Holding, lineage: _Lineage, leases: Sequence[LeaseInfo] | None) -> JSON:
    said: JSON = {"baton": holding.name}
    manifest = holding.manifest
    if manifest is None:
        return said | {"error": error_json(holding.error) if holding.error else None}
    node, head = lineage.nodes.get(holding.name), lineage.heads.get(holding.name)
    said |= {
        "model": "" if node is None else node.model,
        "tokens": manifest.cached_tokens + manifest.pending_tokens,
        "size_bytes": holding.size_bytes,
        "codec": manifest.fidelity.codec,
        "holders": None if leases is None else _holders(holding.name, manifest, leases),
        "expires_ms": manifest.expires_ms,
        "expired": 0 < manifest.expires_ms <= time.time() * 1000,
        "standing": _standing(node),
    }
    if head is not None:
        said["ref"] = f"{head.ref}@{head.sequence}"
    elif manifest.ref:
        said["ref"] = f"{manifest.ref}@{manifest.sequence}"
    if node is not None and node.stale is not None:
        said["stale"] = node.stale.to_json()
    return said


def _standing(node: Node | None) -> str:
    if node is None:
        return "unknown"
    return "current" if node.stale is None else "stale"


def _holders(name: str, manifest: Manifest, leases: Iterable[LeaseInfo]) -> list[JSON]:
    """Who leases the baton, or anything that it lists."""
    keys = {Key(Kind.BATON, name), Key(Kind.TRANSCRIPT, manifest.transcript)}
    keys |= {Key(Kind.SEGMENT, ref.address) for ref in manifest.segments}
    holding = {(one.owner, one.state.value) for one in leases if not keys.isdisjoint(one.keys)}
    return [{"owner": owner, "state": state} for owner, state in sorted(holding)]


def _show(console: Console, said: JSON) -> None:
    headings = ("baton", "model", "tokens", "size", "codec", "holder", "expires", "ref", "")
    print_table(console, headings, map(_row, said["batons"]), right="  rr")
    console.print(f"{len(said['batons'])} batons in {said['store']}", markup=False)


def _row(one: JSON) -> tuple[str, ...]:
    if "error" in one:
        return one["baton"], "", "", "", "", "", "", "", f"({one['error']['sentence']})"
    return (
        one["baton"],
        short_id(one["model"]),
        str(one["tokens"]),
        bytes_text(one["size_bytes"]),
        one["codec"],
        _holder(one["holders"]),
        expiry_text(one["expires_ms"]),
        one.get("ref", ""),
        f"STALE: {one['stale']['why']}" if "stale" in one else "",
    )


def _holder(holders: Sequence[JSON] | None) -> str:
    """``coder, planner (lingering)``; ``?`` where the store does not say."""
    if holders is None:
        return "?"
    plain = {one["owner"] for one in holders if one["state"] == LeaseState.HELD.value}
    waiting = {one["owner"] for one in holders} - plain
    return ", ".join([*sorted(plain), *(f"{owner} (lingering)" for owner in sorted(waiting))])
