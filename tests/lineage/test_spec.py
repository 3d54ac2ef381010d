"""`docs/spec/ledger.md` says what the tables are."""

from __future__ import annotations

import re
from pathlib import Path

from kvbaton import errors
from kvbaton.lineage import records
from kvbaton.lineage.records import EventKind, NodeKind
from kvbaton.lineage.tables import VERSION, metadata

PAGE = (Path(__file__).parents[2] / "docs" / "spec" / "ledger.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """Cells of the table under a heading."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def names(cell: str) -> set[str]:
    """Names in a cell that are columns: in backquotes, and not values in brackets."""
    outside = re.sub(r"\([^)]*\)", "", cell)
    return {name.strip() for part in re.findall(r"`([^`]+)`", outside) for name in part.split(",")}


def test_every_table_and_column_is_listed() -> None:
    """With its key, and no other."""
    listed = {cells[0].strip("`"): cells[1:] for cells in rows("Tables")}
    assert set(listed) == set(metadata.tables)
    for name, table in metadata.tables.items():
        key, others = (names(cell) for cell in listed[name])
        assert key == {column.name for column in table.primary_key}
        assert others == {column.name for column in table.columns} - key
    assert f"version {VERSION}" in PAGE.splitlines()[0]


def test_kinds_are_listed() -> None:
    """Of nodes and of events."""
    for kinds in (NodeKind, EventKind):
        spelled = ", ".join(f"`{kind.value}`" for kind in kinds)
        assert f"`kind` ({spelled})" in PAGE


def test_limits_are_those_of_the_tables() -> None:
    """Every limit on the page is the length of a column."""
    limits = {cells[0]: int(cells[1].split()[0]) for cells in rows("Limits")}
    columns = {c.name: c.type for t in metadata.tables.values() for c in t.columns}
    lengths = {name: getattr(kind, "length", None) for name, kind in columns.items()}
    wide = limits["id, label, agent, model, codec"]
    assert [lengths[n] for n in ("id", "label", "agent", "model", "codec")] == 5 * [wide]
    assert wide == records.MAX_LABEL
    assert lengths["ref"] == limits["ref"]
    narrow = limits["`once`, domain, `function`"]
    assert [lengths[name] for name in ("once", "domain", "function")] == 3 * [narrow]


def test_errors_are_those_of_the_ledger() -> None:
    """Every error of the tree has its row, and there is no other."""
    spelled = {
        code for cells in rows("Ways in which a ledger can fail") for code in names(cells[0])
    }
    below = [errors.LedgerError, *errors.LedgerError.__subclasses__()]
    kinds = [*below, errors.UnknownRef, errors.UnknownNode]
    assert spelled == {kind.__new__(kind).code for kind in kinds}
