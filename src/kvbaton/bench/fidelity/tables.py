"""The result as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kvbaton.bench.report import Table
from kvbaton.types import JSON

Cell = Callable[[JSON], str]
_CONTINUE, _TEXT = "continue", "text"


def fidelity_tables(result: JSON) -> tuple[Table, ...]:
    """Tables of all that was measured, the targets last; parts that were left out have none."""
    rows = result["rows"]
    whole = [row for row in rows if row["mode"] == _CONTINUE and row["kl"] is not None]
    slices = [row for row in rows if row["mode"].startswith("slice") and row["kl"] is not None]
    tables = (
        _table("Profiles", _PROFILES, [row for row in whole if row["hops"] is None], labels=2),
        _table("Slices behind another beginning", _SLICES, slices, labels=2),
        _table(
            "Private facts",
            _ANSWERS,
            [row for row in rows if row["qa_accuracy"] is not None],
            labels=3,
        ),
        _table("Hops", _HOPS, [row for row in whole if row["hops"] is not None], labels=1),
        _table("Takes from a store of 100 MB/s", _TAKES, result["takes"], labels=1),
        _table("Shares of time", _COSTS, result["costs"], labels=2),
        _table("Targets", _TARGETS, result["targets"], labels=1),
    )
    return tuple(table for table in tables if table.rows)


def _table(
    title: str, columns: Sequence[tuple[str, Cell]], rows: Iterable[JSON], *, labels: int
) -> Table:
    cells = tuple(tuple(cell(row) for _, cell in columns) for row in rows)
    return Table(title, tuple(heading for heading, _ in columns), cells, labels)


def _small(name: str) -> Cell:
    return lambda row: "-" if row[name] is None else f"{row[name]:.1e}"


def _number(name: str, digits: int) -> Cell:
    return lambda row: "-" if row.get(name) is None else f"{row[name]:.{digits}f}"


def _percent(name: str, digits: int = 1) -> Cell:
    return lambda row: "-" if row.get(name) is None else f"{100 * row[name]:.{digits}f}%"


def _plain(name: str) -> Cell:
    return lambda row: "-" if row.get(name) is None else str(row[name])


def _ms(name: str) -> Cell:
    return lambda row: "-" if row.get(name) is None else f"{1e3 * row[name]:.3g}"


def _noise(row: JSON) -> str:
    """In multiples of the model's noise in bfloat16: in float32 there is next to none."""
    found = row.get("bf16_noise_multiple") or row.get("noise_multiple")
    return "-" if found is None else f"{found:.2g}"


def _how(row: JSON) -> str:
    """A mode with what it was asked for."""
    share, private = row["recompute_fraction"], row.get("includes_private")
    parts = [row["mode"]]
    if share:
        parts.append(f"{100 * share:g}%")
        parts.append(row.get("chooser") or "")
    if private and row["mode"] != _CONTINUE and row.get("spans") == "prompt":
        parts.append("with the system prompt")
    return " ".join(part for part in parts if part)


def _right(mine: str, all_of: str) -> Cell:
    return lambda row: f"{row[mine]} / {row[all_of]}" if row[all_of] else "-"


_PROFILES: tuple[tuple[str, Cell], ...] = (
    ("profile", _plain("profile")),
    ("dtype", _plain("dtype")),
    ("tokens", lambda row: f"{row['tokens']:,}"),
    ("texts", _plain("texts")),
    ("bits", _number("bits_per_element", 2)),
    ("KL", _small("kl")),
    ("worst text", _small("kl_worst")),
    ("x bf16 noise", _noise),
    ("flips", _percent("flips")),
    ("perplexity", _number("ppl_ratio", 4)),
)
_SLICES: tuple[tuple[str, Cell], ...] = (
    ("mode", _how),
    ("profile", _plain("profile")),
    ("slices", _plain("slices")),
    ("KL", _small("kl")),
    ("worst text", _small("kl_worst")),
    ("x bf16 noise", _noise),
    ("flips", _percent("flips")),
    ("perplexity", _number("ppl_ratio", 4)),
    ("splice ms", _ms("splice_s")),
    ("mask ms", _ms("mask_s")),
    ("repair ms", _ms("repair_s")),
    ("prefill ms", _ms("prefill_s")),
)
_ANSWERS: tuple[tuple[str, Cell], ...] = (
    ("mode", _how),
    ("spans", _plain("spans")),
    ("profile", _plain("profile")),
    ("tokens", _plain("tokens")),
    ("right", _right("right", "questions")),
    ("by text", _right("text_right", "questions")),
    ("private codes", _right("private_right", "private_questions")),
)
_HOPS: tuple[tuple[str, Cell], ...] = (
    ("profile", _plain("profile")),
    ("hops", _plain("hops")),
    ("bits", _number("bits_per_element", 2)),
    ("KL", _small("kl")),
    ("KL of one hand-off", _small("kl_once")),
    ("ratio", _number("kl_over_once", 2)),
    ("bit-identical", lambda row: "yes" if row["inherited_bit_identical"] else "no"),
)
_TAKES: tuple[tuple[str, Cell], ...] = (
    ("dtype", _plain("dtype")),
    ("tokens", lambda row: f"{row['tokens']:,}"),
    ("MB", lambda row: _each(row["bytes"], lambda size: f"{size / 1e6:.1f}")),
    ("ms to the cache", lambda row: _each(row["seconds"], lambda s: f"{1e3 * s:.0f}")),
    ("ratio", _number("ratio", 2)),
    ("ms to the first token", lambda row: _each(row["first_token_s"], lambda s: f"{1e3 * s:.0f}")),
    ("ratio", _number("first_token_ratio", 2)),
)
_COSTS: tuple[tuple[str, Cell], ...] = (
    ("what", _plain("what")),
    ("dtype", _plain("dtype")),
    ("ms", lambda row: _each(_seconds(row), lambda s: f"{1e3 * s:.1f}")),
    ("share", _percent("share")),
)
_TARGETS: tuple[tuple[str, Cell], ...] = (
    ("target", _plain("target")),
    ("limit", lambda row: f"{'>=' if row['at_least'] else '<='} {row['limit']:.2g}"),
    ("measured", lambda row: "-" if row["value"] is None else f"{row['value']:.3g}"),
    ("met", lambda row: {None: "not measured", True: "yes", False: "no"}[row["met"]]),
)


def _each(values: JSON, shown: Callable[[float], str]) -> str:
    return ", ".join(f"{name} {shown(value)}" for name, value in values.items())


def _seconds(row: JSON) -> JSON:
    return {name[:-2]: value for name, value in row.items() if name.endswith("_s")}
