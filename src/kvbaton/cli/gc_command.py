"""``kvbaton gc``: remove what no baton needs any more; and who leases what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from kvbaton.cli import places
from kvbaton.cli.ledger_places import DomainOption, LedgerOption, ledger_place
from kvbaton.cli.options import StoreOption, duration_s
from kvbaton.cli.output import JsonFlag, Output, age_text, bytes_text, print_table
from kvbaton.errors import LedgerError, LedgerUnavailable
from kvbaton.stores import LeaseInfo
from kvbaton.types import JSON

if TYPE_CHECKING:
    from kvbaton.lineage.ledger import Ledger

GRACE = "2h"
"""The default, as it is written; a test holds it to the library's."""

_LEASES = """{"store", "leases": [{"name", "owner", "state": "held", "lingering" or "dead", "ttl_s",
 "beats", "objects", "keys": [KIND/NAME]}], "debris": {"temporaries", "bytes", "leases"}}"""
_GC = """{"store", "dry_run", "grace_s", "needed": {"objects", "bytes"}, "leased": {...},
 "waiting": {...}, "due_s" or null, "removed": {KIND: {"objects", "bytes"}}, "unreadable",
 "dangling": [ID], "debris": {"temporaries", "bytes", "leases"}, "withdrawn"}"""
SHAPES = {"gc": _GC, "leases": _LEASES}
"""What ``--json`` prints, for the reference."""


def register(app: typer.Typer) -> None:
    """Add the command; ``kvbaton ledger`` has it, too, and ``leases``."""
    app.command("gc")(gc_command)


def gc_command(
    store: StoreOption = None,
    grace: Annotated[
        str,
        typer.Option(
            "--grace",
            metavar="TIME",
            help="How long something was not needed before it goes: 30m, 2h, 7d; 0s at once.",
        ),
    ] = GRACE,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed now.")
    ] = False,
    ledger: LedgerOption = None,
    domain: DomainOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Remove what no baton needs any more: what senders that died have left, what has expired.

    Needed is what batons list that have neither expired nor been withdrawn, with the manifests of
    their ancestors. The rest is marked, and goes once it was marked in every run for the grace
    period, unless it was used meanwhile or somebody leases it: run this now and then. Reuse of
    prompts that begin alike is use.
    """
    from kvbaton.collecting import collect

    output = Output(as_json)
    grace_s = duration_s(grace, "--grace")
    opened = places.open_to_read(store)
    withdrawn = _withdrawn(output, ledger, domain)
    with output.progress("collecting"):
        found = collect(
            opened,
            places.trust_domain(),
            grace_s=grace_s,
            withdrawn=withdrawn,
            dry_run=dry_run,
        )
    if found.unreadable:
        output.warn(
            f"{found.unreadable} batons cannot be read: of what they may list, only what this "
            "trust domain has made is removed"
        )
    for name in found.dangling:
        output.warn(f"{name} lists segments that are not there: it is taken by text")
    said = {"store": opened.url, **found.to_json(), "withdrawn": len(withdrawn)}
    output.result(said, lambda console: _show(console, said))


def leases_command(store: StoreOption = None, as_json: JsonFlag = False) -> None:
    """List who keeps objects of the store from being evicted or collected, and what is left behind.

    `held` by a living owner; `lingering` after its release; `dead` ones protect nothing, and the
    next who looks for room, or `gc`, removes them.
    """
    output = Output(as_json)
    opened = places.open_to_read(store)
    debris = opened.debris()
    said = {
        "store": opened.url,
        "leases": [_lease(info) for info in opened.leases()],
        "debris": {
            "temporaries": debris.temporaries,
            "bytes": debris.size_bytes,
            "leases": debris.leases,
        },
    }
    output.result(said, lambda console: _show_leases(console, said))


def _withdrawn(output: Output, ledger: str | None, domain: str | None) -> frozenset[str]:
    """Ids of what was withdrawn, as far as there is a ledger.

    Raises
    ------
    LedgerError
        One was named, and cannot be used.
    """
    from kvbaton.lineage.connection import is_there

    try:
        place = ledger_place(ledger, domain)
    except LedgerUnavailable:
        return frozenset()  # the settings switch it off
    if ledger is None and not is_there(place.url):
        return frozenset()
    try:
        with place.open() as found:
            return frozenset(_withdrawals(found))
    except LedgerError as error:
        if ledger is not None:
            raise
        output.warn(f"what was withdrawn is not known, and stays: {error}")
        return frozenset()


def _withdrawals(ledger: Ledger) -> Iterator[str]:
    from kvbaton.lineage.records import EventKind

    since = 0
    while several := ledger.log(since=since):
        yield from (one.node for one in several if one.kind is EventKind.WITHDRAWN)
        since = several[-1].sequence


def _lease(info: LeaseInfo) -> JSON:
    return {
        "name": info.name,
        "owner": info.owner,
        "state": info.state.value,
        "ttl_s": info.ttl_s,
        "beats": info.beats,
        "objects": len(info.keys),
        "keys": sorted(map(str, info.keys)),
    }


def _show(console: Console, said: JSON) -> None:
    rows = [
        (kind, str(part["objects"]), bytes_text(part["bytes"]))
        for kind, part in said["removed"].items()
    ]
    verb = "would be removed" if said["dry_run"] else "removed"
    print_table(console, (verb, "objects", "size"), rows, right=" rr")
    left = said["waiting"]
    due = "" if said["due_s"] is None else f", the first may go in {age_text(said['due_s'])}"
    console.print(
        f"needed: {said['needed']['objects']} objects, {bytes_text(said['needed']['bytes'])}; "
        f"leased: {said['leased']['objects']}; waiting: {left['objects']}, "
        f"{bytes_text(left['bytes'])}{due}",
        markup=False,
    )
    _show_debris(console, said["debris"])


def _show_leases(console: Console, said: JSON) -> None:
    rows = [
        (one["owner"], one["state"], f"{one['ttl_s']:g} s", str(one["beats"]), str(one["objects"]))
        for one in said["leases"]
    ]
    print_table(console, ("owner", "state", "ttl", "beats", "objects"), rows, right="  rrr")
    _show_debris(console, said["debris"])


def _show_debris(console: Console, debris: JSON) -> None:
    if debris["temporaries"] or debris["leases"]:
        console.print(
            f"of dead processes: {debris['leases']} leases, {debris['temporaries']} unfinished "
            f"objects, {bytes_text(debris['bytes'])}",
            markup=False,
        )
