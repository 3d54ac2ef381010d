"""The result of ``bench throughput`` as tables."""

from __future__ import annotations

from kvbaton.bench.report import Table
from kvbaton.types import JSON


def throughput_tables(result: JSON) -> tuple[Table, ...]:
    """Turns per minute, memory of whole runs, and agents that wait."""
    rows, waiting = result["rows"], result["waiting"]
    memory = waiting["memory_bytes"]
    return (
        Table(
            "Turns per minute",
            ("agents", "rounds", "last context", "text", "own caches kept", "baton",
             "baton / text", "baton / kept"),
            tuple(_speed(row) for row in rows),
        ),
        Table(
            "Most memory at once above the model, store included",
            ("agents", "rounds", "text", "own caches kept", "baton"),
            tuple(_memory(row) for row in rows),
        ),
        Table(
            f"Agents that have read {waiting['tokens']:,} tokens and wait, in {_mb(memory)}",
            ("route", "each", "shared by all", "agents"),
            (
                ("own caches kept", _mb(waiting["kept_bytes"]), "-",
                 f"{waiting['kept_agents']:,}"),
                ("baton", _mb(waiting["baton_bytes"]), _mb(waiting["shared_bytes"]),
                 f"{waiting['baton_agents']:,}"),
            ),
        ),
    )  # fmt: skip


def _speed(row: JSON) -> tuple[str, ...]:
    return (
        str(row["agents"]),
        str(row["rounds"]),
        f"{row['context_tokens']:,}",
        *(f"{row[f'{route}_turns_per_min']:.1f}" for route in ("text", "kept", "baton")),
        f"{row['ratio']:.2f}x",
        f"{row['ratio_kept']:.2f}x",
    )


def _memory(row: JSON) -> tuple[str, ...]:
    peaks = (_mb(row[f"peak_bytes_{route}"]) for route in ("text", "kept", "baton"))
    return (str(row["agents"]), str(row["rounds"]), *peaks)


def _mb(size_bytes: float | None) -> str:
    return "-" if size_bytes is None else f"{size_bytes / 1e6:,.1f} MB"
