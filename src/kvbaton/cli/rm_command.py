"""``kvbaton rm``: remove batons and, where nobody else needs them, their segments."""

from __future__ import annotations

from typing import Annotated

import typer

from kvbaton.cli import places
from kvbaton.cli.holdings import Holding, claimed_segments, holdings, prefix_records
from kvbaton.cli.options import StoreOption
from kvbaton.cli.output import JsonFlag, Output, bytes_text
from kvbaton.errors import BatonUnavailable, StoreError
from kvbaton.leasing import leased_keys
from kvbaton.stores import Key, Kind, Store
from kvbaton.types import JSON

SHAPES = {"rm": """{"store", "removed", "transcripts", "segments", "bytes"}"""}
"""What ``--json`` prints, for the reference."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("rm")(rm)


def rm(
    batons: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of batons.")],
    store: StoreOption = None,
    segments: Annotated[
        bool,
        typer.Option("--segments", help="Also segments that no baton left there lists."),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also what somebody is using just now.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Remove batons with their transcripts, as far as no other baton lists them.

    Nothing is removed unless all the batons are there, and nobody is using what would go.
    Without --segments the segments stay: they serve other prompts that begin alike, until the
    store's size limit evicts them, or `kvbaton gc` finds that nobody has used them for a while.
    """
    output = Output(as_json)
    opened = places.open_to_read(store)
    going = {Key(Kind.BATON, name) for name in batons}
    found = list(holdings(opened, places.trust_domain()))
    absent = going - {holding.entry.key for holding in found}
    if absent:
        raise BatonUnavailable(
            f"the store holds no baton {min(absent).name}", hint="nothing was removed"
        )
    gone = [holding for holding in found if holding.entry.key in going]
    kept = [holding for holding in found if holding.entry.key not in going]
    with output.progress("removing"):
        said = {"store": opened.url, **remove(opened, gone, kept, segments=segments, force=force)}
    for holding in gone:
        if holding.manifest is None:
            output.warn(f"{holding.name} cannot be verified: what it listed is not known")
    output.result(
        said,
        lambda console: console.print(
            f"removed {len(gone)} batons, {said['transcripts']} transcripts, {said['segments']} "
            f"segments: {bytes_text(said['bytes'])}",
            markup=False,
        ),
    )


def remove(
    store: Store, gone: list[Holding], kept: list[Holding], *, segments: bool, force: bool
) -> JSON:
    """Remove batons first, so that none is left that lists what is not there any more.

    Raises
    ------
    StoreError
        Somebody leases some of it, and ``force`` is not given; nothing was removed.
    """
    sizes = {entry.key: entry.size_bytes for kind in Kind for entry in store.list(kind)}
    batons = [holding.entry.key for holding in gone]
    transcripts = _listed(gone, Kind.TRANSCRIPT) - _listed(kept, Kind.TRANSCRIPT)
    unneeded: set[Key] = set()
    prefixes: set[Key] = set()
    if segments:
        unneeded = _listed(gone, Kind.SEGMENT) - _listed(kept, Kind.SEGMENT) - _claimed(store, kept)
        lost = {key.name for key in unneeded}
        prefixes = {key for key, address in prefix_records(store) if address in lost}
    going = [*batons, *sorted(prefixes), *sorted(transcripts | unneeded)]
    if not force:
        _require_unleased(store, going)
    removed = [key for key in going if store.delete(key)]
    return {
        "removed": [holding.name for holding in gone],
        "transcripts": sum(key.kind is Kind.TRANSCRIPT for key in removed),
        "segments": sum(key.kind is Kind.SEGMENT for key in removed),
        "bytes": sum(sizes.get(key, 0) for key in removed),
    }


def _require_unleased(store: Store, going: list[Key]) -> None:
    leased = leased_keys(store)
    used = next((key for key in going if key in leased), None)
    if used is not None:
        raise StoreError(
            f"{used.kind.value}/{used.name[:16]} is in use: {leased[used]}; nothing was removed",
            hint="try again later, or --force",
        )


def _claimed(store: Store, kept: list[Holding]) -> set[Key]:
    """Segments that batons say they need that cannot be verified here: of another key, say."""
    unverified = [holding.name for holding in kept if holding.manifest is None]
    return {Key(Kind.SEGMENT, a) for name in unverified for a in claimed_segments(store, name)}


def _listed(several: list[Holding], kind: Kind) -> set[Key]:
    """Keys of the transcripts or segments that some batons list."""
    manifests = [holding.manifest for holding in several if holding.manifest is not None]
    if kind is Kind.TRANSCRIPT:
        return {Key(kind, manifest.transcript) for manifest in manifests}
    return {Key(kind, ref.address) for manifest in manifests for ref in manifest.segments}
