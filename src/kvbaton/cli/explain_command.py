"""``kvbaton explain``: why an answer came by its route, gate by gate."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kvbaton import settings
from kvbaton.cli import places
from kvbaton.cli.holdings import open_manifest
from kvbaton.cli.inputs import STDIN
from kvbaton.cli.ledger_places import LedgerOption, ledger_place
from kvbaton.cli.options import StoreOption
from kvbaton.cli.output import JsonFlag, Output, visible
from kvbaton.cli.receipt_log import (
    FEWEST_DIGITS,
    ReceiptsOption,
    find_receipt,
    log_path,
    read_log,
    read_receipt,
)
from kvbaton.errors import InputError, LedgerError
from kvbaton.following import RATE_MINUTES, UNKNOWN
from kvbaton.lineage.records import Freshness
from kvbaton.opening import now_ms
from kvbaton.policy.beforehand import Circumstances, explain_manifest
from kvbaton.policy.explaining import explain
from kvbaton.policy.explanation import Explanation
from kvbaton.policy.policy_files import AgentPolicy, load_policy_file
from kvbaton.seals import TrustDomain
from kvbaton.stores import Key, Kind, Store
from kvbaton.types import JSON, Manifest, Reason, ReasonCode

SHAPES = {
    "explain": """{"of": "receipt" or "baton", "id", "route", "chosen", "outcome", "policy",
 "shadow", "compared", "decided_by", "whole",
 "gates", "afterwards": [{"mark", "name", "sentence", "decided"}],
 "predictions": [{"route", "ttft_s", "low_s", "high_s", "fastest", "actual_s", "came_true"}]}"""
}
"""What ``--json`` prints, for the reference."""

_BATON = re.compile(r"[0-9a-f]{64}")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("explain")(explain_)


def explain_(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RECEIPT|ID",
            help="A file with a receipt (- is standard input), a receipt's id or its first 8 "
            "digits or more, or a baton's id.",
        ),
    ],
    receipts: ReceiptsOption = None,
    store: StoreOption = None,
    agent: Annotated[
        str,
        typer.Option(
            "--agent", metavar="NAME", help="With a baton: the receiver, whose rules are asked."
        ),
    ] = "",
    policy: Annotated[
        Path | None,
        typer.Option(
            "--policy",
            metavar="FILE",
            help="With a baton: the policy file; by default policy.toml in the data folder, if "
            "there is one.",
        ),
    ] = None,
    ledger: LedgerOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what every gate said and what was predicted, and which of them decided first.

    Marks: ✓ passed, or predicted to be fastest; ~ passed by a lesser route or with a note; ✗
    refused, or predicted to be slower; · not asked.

    Of a baton that was not taken yet, those gates are asked that need no receiver; the others say
    what they need.
    """
    output = Output(as_json)
    receipt = _receipt(output, what, receipts)
    if receipt is not None:
        found = explain(receipt)
    else:
        found = _baton(output, what, store, _rules(policy, agent), ledger)
    output.result(found.to_json(), lambda console: _show(console, found))


def _receipt(output: Output, what: str, receipts: Path | None) -> JSON | None:
    """The receipt that is meant; None where it must be a baton."""
    if what == STDIN or _is_file(what):
        return read_receipt(what)
    name, is_baton = what.lower(), bool(_BATON.fullmatch(what.lower()))
    if is_baton and receipts is None and settings.from_environment().receipts is None:
        return None
    if not re.fullmatch(r"[0-9a-z-]+", name) or len(name) < FEWEST_DIGITS:
        raise InputError(
            f"{what[:80]!r} is no file, and no id",
            hint=f"an id is given by {FEWEST_DIGITS} digits at least",
        )
    path = log_path(receipts)
    if is_baton and not path.exists():
        return None
    found = find_receipt(read_log(output, path), name)
    if found is None and not is_baton:
        raise InputError(f"no receipt in {path.name} begins with {what[:80]!r}", at=str(path))
    return found


def _is_file(what: str) -> bool:
    try:
        return Path(what).is_file()
    except OSError:  # no file can have such a name
        return False


def _rules(policy: Path | None, agent: str) -> AgentPolicy:
    path = policy or settings.from_environment().policy
    if policy is None and not path.exists():
        return AgentPolicy()
    return load_policy_file(path).for_agent(agent)


def _baton(
    output: Output, name: str, store: str | None, mine: AgentPolicy, ledger: str | None
) -> Explanation:
    opened, domain = places.open_to_read(store), places.trust_domain()
    baton = name.lower()
    manifest, _ = open_manifest(opened, domain, baton)
    fresh, rate = _freshness(output, baton, manifest, domain, ledger)
    circumstances = Circumstances(
        rules=mine.rules,
        killed=mine.roll_out.killed(),
        distrust=_expired(manifest),
        needs_ticket=domain.requirements.tickets and manifest.export is None,
        standing=fresh.standing.value,
        stale_why=fresh.why,
        moves_per_minute=rate,
        missing=_missing(opened, manifest),
    )
    return explain_manifest(baton, manifest, circumstances)


def _freshness(
    output: Output, baton: str, manifest: Manifest, domain: TrustDomain, ledger: str | None
) -> tuple[Freshness, float | None]:
    """What the ledger says of a baton, and how often its ref moves in a minute; unknown, with a
    warning, where the settings' own ledger does not say it."""
    since_ms = now_ms() - RATE_MINUTES * 60_000
    try:
        with ledger_place(ledger, domain.name).open() as asked:
            found = asked.freshness(baton, manifest.ref, max(0, manifest.sequence))
            if not manifest.ref:
                return found, None
            return found, asked.moves(manifest.ref, since_ms=since_ms) / RATE_MINUTES
    except LedgerError as error:
        if ledger is not None:
            raise
        output.warn(f"freshness is unknown: {error.sentence}")
        return UNKNOWN, None


def _expired(manifest: Manifest) -> Reason | None:
    late_s = (now_ms() - manifest.expires_ms) / 1000
    if not manifest.expires_ms or late_s < 0:
        return None
    return Reason(ReasonCode.EXPIRED, f"the baton expired {late_s:.0f} s ago")


def _missing(store: Store, manifest: Manifest) -> int:
    """How many of a baton's segments are not there."""
    addresses = {ref.address for ref in manifest.segments}
    return sum(not store.exists(Key(Kind.SEGMENT, address)) for address in addresses)


def _show(console: Console, found: Explanation) -> None:
    for line in found.lines():
        console.print(visible(line, lines=False), markup=False)
