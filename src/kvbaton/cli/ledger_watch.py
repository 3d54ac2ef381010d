"""``kvbaton ledger watch``: what happens in a ledger, as it happens."""

from __future__ import annotations

import itertools
import queue
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from kvbaton.cli.ledger_places import DomainOption, LedgerOption, ledger_place
from kvbaton.cli.ledger_tables import event_row
from kvbaton.cli.output import Output, to_json, visible

if TYPE_CHECKING:
    from kvbaton.lineage.records import Event

SHAPES = {
    "watch": """one object per event, a line each:
{"sequence", "kind", "node", "ref", "ref_sequence", "detail", "created_ms"}"""
}
"""What ``--json`` prints, for the reference."""


def ledger_watch(
    since: Annotated[
        int | None,
        typer.Option(
            "--since", metavar="N", min=0, help="Also what came behind this sequence; 0: all."
        ),
    ] = None,
    count: Annotated[
        int, typer.Option("--count", metavar="N", min=0, help="End after so many; 0: never.")
    ] = 0,
    every: Annotated[
        float, typer.Option("--every", metavar="S", help="Seconds between two looks.")
    ] = 0.2,
    ledger: LedgerOption = None,
    domain: DomainOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per event, a line each.")
    ] = False,
) -> None:
    """Follow a ledger: print each event, of every process, until Ctrl-C.

    A ledger that cannot be reached for a while is waited for; nothing is left out.
    """
    from kvbaton.lineage.watching import Watch

    output, place = Output(as_json), ledger_place(ledger, domain)
    place.open().close()  # what is wrong at the beginning is an error
    events: queue.SimpleQueue[Sequence[Event]] = queue.SimpleQueue()
    with Watch(
        place.open,
        events.put,
        since=since,
        every_s=every,
        complain=lambda error: output.warn(str(error)),
    ):
        output.say("watching; Ctrl-C ends it")
        try:
            for event in itertools.islice(_each(events), count or None):
                _print(output, event)
        except KeyboardInterrupt:
            return


def _each(events: queue.SimpleQueue[Sequence[Event]]) -> Iterator[Event]:
    while True:
        yield from events.get()


def _print(output: Output, event: Event) -> None:
    said = event.to_json()
    if output.as_json:
        sys.stdout.write(to_json(said) + "\n")
    else:
        sequence, _, *others = event_row(said)
        words = "  ".join(part for part in others if part)
        sys.stdout.write(f"{sequence:>8}  {visible(words, lines=False)}\n")
    sys.stdout.flush()
