"""Results as tables: cells of text, for a terminal or for a Markdown page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kvbaton.types import JSON

Cell = Callable[[JSON], str]


@dataclass(frozen=True, slots=True)
class Table:
    """Headings and rows of text; the first ``labels`` columns are words, the others numbers."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    labels: int = 1

    def markdown(self) -> str:
        """The table as Markdown, under its title."""
        rules = [":--" if i < self.labels else "--:" for i in range(len(self.headings))]
        lines = [_line(self.headings), _line(rules), *(_line(row) for row in self.rows)]
        return f"**{self.title}**\n\n" + "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def ttft_tables(result: JSON) -> tuple[Table, ...]:
    """Times to the first token, where a take's time goes, and the targets."""
    rows = result["rows"]
    return (
        _table("Time to the first token, milliseconds", _TIMES, rows, labels=2),
        _table("Where the time of a take goes, milliseconds", _PHASES, rows, labels=2),
        _table("Memory and bytes", _BYTES, rows, labels=2),
        _targets(result["summary"]),
    )


def _table(
    title: str, columns: Sequence[tuple[str, Cell]], rows: Sequence[JSON], *, labels: int
) -> Table:
    return Table(
        title,
        tuple(heading for heading, _ in columns),
        tuple(tuple(cell(row) for _, cell in columns) for row in rows),
        labels,
    )


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{1e3 * seconds:,.0f}" if seconds >= 0.1 else f"{1e3 * seconds:.1f}"


def _times(ratio: float | None) -> str:
    if ratio is None:
        return "-"
    return f"{ratio:.1f}x" if ratio >= 10 else f"{ratio:.2f}x"


def _mb(size_bytes: float | None) -> str:
    return "-" if size_bytes is None else f"{size_bytes / 1e6:.1f} MB"


def _seconds(name: str) -> Cell:
    return lambda row: _ms(row[name])


def _phase(*names: str) -> Cell:
    return lambda row: _ms(sum(row["phases"][name] for name in names))


def _rest(row: JSON) -> str:
    return _ms(max(0.0, row["baton_s"] - sum(row["phases"].values())))


def _grown(row: JSON) -> str:
    grown = row["grown"]
    return "-" if grown is None else f"{_mb(grown['bytes_written'])} / {grown['tokens']} tokens"


_CONTEXT: tuple[tuple[str, Cell], ...] = (
    ("dtype", lambda row: str(row["dtype"])),
    ("context", lambda row: f"{row['tokens']:,}"),
)
_TIMES = (
    *_CONTEXT,
    ("text", _seconds("text_s")),
    ("by hand", _seconds("handmade_s")),
    ("prefix cache", _seconds("prefix_cache_s")),
    ("baton", _seconds("baton_s")),
    ("floor", _seconds("floor_s")),
    ("hand-off", _seconds("handoff_s")),
    ("hand-off again", _seconds("handoff_again_s")),
    ("hand-off by hand", _seconds("handmade_handoff_s")),
    ("text / baton", lambda row: _times(row["speedup"])),
    ("baton / floor", lambda row: _times(row["over_floor"])),
)
_PHASES = (
    *_CONTEXT,
    ("get", _phase("get")),
    ("verify", _phase("verify")),
    ("decode + align", _phase("decode", "align")),
    ("layer 0", _phase("probe")),
    ("attach", _phase("attach")),
    ("first forward", _phase("first_forward")),
    ("rest", _rest),
    ("memcpy", _seconds("memcpy_s")),
    ("BLAKE3", _seconds("hash_s")),
    ("(get + verify + attach - BLAKE3) / memcpy", lambda row: _times(row["moved_over_memcpy"])),
)
_BYTES = (
    *_CONTEXT,
    ("cache", lambda row: _mb(row["kv_bytes"])),
    ("peak extra", lambda row: _mb(row["peak_extra_bytes"])),
    ("peak / cache", lambda row: _times(row["peak_over_kv"])),
    ("second hand-off", lambda row: f"{row['second_handoff_bytes']:,} B"),
    ("grown context", _grown),
    ("decode / generate", lambda row: _times(row["decode_ratio"])),
)


def _targets(summary: JSON) -> Table:
    rows = [target_row(checked) for checked in summary["targets"]]
    import_s, limit_s = summary["import_s"], summary["import_limit_s"]
    rows.append(
        ("import kvbaton, seconds", f"<= {limit_s:g}", f"{import_s:.3f}", _met(import_s <= limit_s))
    )
    return Table("Targets", ("target", "limit", "measured", "met"), tuple(rows))


def target_row(checked: JSON) -> tuple[str, ...]:
    """A target, its limit, what was measured, and whether that keeps it."""
    where = [f"{checked['tokens']:,} tokens"] if checked["tokens"] else []
    where += [checked["dtype"]] if checked["dtype"] else []
    name = f"{checked['target']} ({', '.join(where)})" if where else checked["target"]
    limit = f"{'>=' if checked['at_least'] else '<='} {checked['limit']:g}"
    return name, limit, _number(checked["value"]), _met(checked["met"])


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def _met(met: Any) -> str:
    return "not measured" if met is None else ("yes" if met else "no")


def store_table(result: JSON) -> Table:
    """Speeds of stores against a plain copy and against hashing."""
    plain = [
        (name, f"{result[key]:.1f}", "", "")
        for name, key in (
            ("memcpy", "memcpy_gb_s"),
            ("BLAKE3", "blake3_gb_s"),
            ("SHA-256", "sha256_gb_s"),
        )
    ]
    rows = [
        (row["label"], *(_speed(row, what) for what in ("put", "get", "ranges")))
        for row in result["stores"]
    ]
    return Table(
        f"GB/s for objects of {_mb(result['size_bytes'])}; in brackets the time over one memcpy",
        ("store", "put", "get", f"get by {result['range_bytes'] / 1e3:.0f} kB"),
        (*rows, *plain),
    )


def _speed(row: JSON, what: str) -> str:
    return f"{row[f'{what}_gb_s']:.2f} ({_times(row[f'{what}_over_memcpy'])})"


def environment_line(result: JSON) -> str:
    """One line on what it ran on."""
    machine = result["environment"]
    parts = [
        machine["cpu"],
        f"{machine['cores']} cores",
        f"load {machine['load']}",
        f"Python {machine['python']}",
    ]
    versions, producer = machine.get("versions", {}), machine.get("producer", {})
    parts += [f"{name} {versions[name]}" for name in ("torch", "transformers") if name in versions]
    parts += [
        f"{name} {producer[name]}" for name in ("device", "kernel", "threads") if name in producer
    ]
    return ", ".join(parts)
