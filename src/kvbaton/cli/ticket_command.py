"""``kvbaton ticket``: let one receiver take one baton."""

from __future__ import annotations

from typing import Annotated

import typer

from kvbaton.cli import places
from kvbaton.cli.options import BatonArgument, StoreOption, duration_s
from kvbaton.cli.output import JsonFlag, Output
from kvbaton.reasons import unavailable
from kvbaton.seals import TrustDomain
from kvbaton.seals.tickets import check_ticket
from kvbaton.stores import Key, Kind, Store
from kvbaton.types import Manifest
from kvbaton.wire.limits import MAX_ENVELOPE_BYTES, MAX_USES

SHAPES = {
    "ticket": """{"ticket", "baton", "issuer", "audience", "domain", "uses", "not_before_ms",
 "expires_ms"}"""
}
"""What ``--json`` prints, for the reference."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ticket")(ticket)


def ticket(
    baton: BatonArgument,
    audience: Annotated[
        str, typer.Option("--for", metavar="NAME", help="The receiver that may take it.")
    ],
    uses: Annotated[
        int,
        typer.Option(
            "--uses", metavar="N", min=0, max=MAX_USES, help="How often; 0 for any number."
        ),
    ] = 1,
    expires: Annotated[
        str, typer.Option("--expires", metavar="TIME", help="Valid so long: 30s, 10m, 2h, 7d.")
    ] = "1h",
    not_before: Annotated[
        str, typer.Option("--not-before", metavar="TIME", help="Valid only after this time.")
    ] = "0s",
    store: StoreOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Print a signed ticket that lets one receiver take one baton.

    The baton's own sender signs it, so the sender's private key must be here. Times are from now.
    """
    output, domain = Output(as_json), places.trust_domain()
    opened = places.open_to_read(store)
    listing = _manifest(opened, domain, baton)
    from kvbaton.opening import Opening, now_ms

    after_s, expires_s = duration_s(not_before, "--not-before"), duration_s(expires, "--expires")
    text = Opening(opened, domain).ticket(
        baton, listing.sender, audience, uses=uses, expires_s=expires_s, after_s=after_s
    )
    made = check_ticket(  # what the receiver would refuse is refused here
        text,
        baton=baton,
        sender=listing.sender,
        audience=audience,
        domain=domain.name,
        now_ms=now_ms() + 1000 * after_s,
        trust=domain.trust,
    )
    said = {
        "ticket": text,
        "baton": made.baton,
        "issuer": made.issuer,
        "audience": made.audience,
        "domain": made.domain,
        "uses": made.uses,
        "not_before_ms": made.not_before_ms,
        "expires_ms": made.expires_ms,
    }
    output.result(said, lambda console: console.print(text, markup=False))


def _manifest(opened: Store, domain: TrustDomain, baton: str) -> Manifest:
    """The manifest of a baton that is trusted here."""
    from kvbaton.opening import read_manifest, require_domain

    with unavailable("manifest"):
        raw = opened.get(Key(Kind.BATON, baton), limit_bytes=MAX_ENVELOPE_BYTES)
    listing, _ = read_manifest(raw, baton, domain)
    require_domain(listing, domain)
    return listing
