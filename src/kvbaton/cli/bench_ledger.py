"""``kvbaton bench ledger``: what records, decisions and hand-offs cost, without a model."""

from __future__ import annotations

from typing import Annotated

import typer

from kvbaton.cli.bench_tables import MarkdownFlag, show_tables
from kvbaton.cli.output import JsonFlag, Output

SHAPES = {
    "ledger": """{"record_ms", "decide_ms", "handoffs_per_s", "handoffs_per_core_s", "move_ms",
 "freshness_ms", "notice_ms", "handoff_us": {"seal", "verify", "decide", "put", "ledger"},
 "samples", "summary": {"targets": [{"target", "limit", "at_least", "value", "met", ...}]},
 "environment", "settings"}"""
}
"""What ``--json`` prints, for the reference."""


def bench_ledger(
    known: Annotated[
        int, typer.Option("--known", metavar="N", min=1, help="Nodes that the ledger has before.")
    ] = 5000,
    records: Annotated[
        int, typer.Option("--records", metavar="N", min=1, help="Records and moves, one by one.")
    ] = 500,
    handoffs: Annotated[
        int, typer.Option("--handoffs", metavar="N", min=1, help="Hand-offs in each run.")
    ] = 3000,
    tokens: Annotated[
        int, typer.Option("--tokens", metavar="N", min=2, help="Of the batons handed off.")
    ] = 64,
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="N", min=1, help="Runs; medians are reported.")
    ] = 3,
    markdown: MarkdownFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Milliseconds of a record and of a decision, and small hand-offs per second on one core.

    A hand-off is sealed, verified, decided on and recorded; nothing is computed or stored. Takes
    half a minute and needs no model.
    """
    from kvbaton.bench.ledger import LedgerPlan, measure_ledger
    from kvbaton.bench.ledger_report import ledger_tables
    from kvbaton.bench.report import environment_line

    output = Output(as_json)
    plan = LedgerPlan(
        known=known, records=records, handoffs=handoffs, tokens=tokens, repeats=repeats
    )
    with output.progress("bench ledger") as step:
        result = measure_ledger(plan, step.say)
    machine = result["environment"]
    if machine["load"] > 0.5 * machine["cores"]:
        output.warn(f"the machine was busy before (load {machine['load']}): trust processor time")
    line = environment_line(result)
    tables = ledger_tables(result)
    output.result(result, lambda console: show_tables(console, line, tables, markdown))
