"""Tables of ``bench ledger``."""

from __future__ import annotations

from kvbaton.bench.report import Table, target_row
from kvbaton.types import JSON

_PARTS = {
    "seal": "seal: encode and sign",
    "verify": "verify: signature, manifest, transcript",
    "decide": "decide: predictions and gates",
    "put": "put: two records into the spool",
    "ledger": "what was left to write at the end",
}


def ledger_tables(result: JSON) -> tuple[Table, ...]:
    """What each thing costs, where the time of a hand-off goes, and the targets."""
    single = [
        ("a record, in a transaction of its own", f"{result['record_ms']:.2f} ms"),
        ("a move of a ref that makes six nodes stale", f"{result['move_ms']:.2f} ms"),
        ("is this fresh?", f"{result['freshness_ms']:.2f} ms"),
        ("by which route?", f"{result['decide_ms']:.3f} ms"),
        ("until a holder elsewhere hears of it", f"{result['notice_ms']:.0f} ms"),
    ]
    parts = [(_PARTS[name], f"{micro:.0f} us") for name, micro in result["handoff_us"].items()]
    rates = [
        ("hand-offs per second, by the clock", f"{result['handoffs_per_s']:,.0f}"),
        ("hand-offs per second of processor time", f"{result['handoffs_per_core_s']:,.0f}"),
    ]
    targets = [target_row(one) for one in result["summary"]["targets"]]
    return (
        Table("By itself", ("", "median"), tuple(single)),
        Table("A hand-off of a small baton, on one core", ("", "each"), (*parts, *rates)),
        Table("Targets", ("target", "limit", "measured", "met"), tuple(targets)),
    )
