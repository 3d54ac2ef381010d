"""Statements: none of those that are needed often walks through a whole table."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from sqlalchemy import Engine, event
from tests.lineage.nodes import answer, baton, entry

from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.records import Entry


def plans(url: str, ran: list[tuple[str, Any]]) -> dict[str, list[str]]:
    """How SQLite finds the rows of each statement."""
    connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    try:
        return {
            sql: [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", given)]
            for sql, given in ran
        }
    finally:
        connection.close()


@pytest.mark.parametrize("table", ["nodes", "edges", "moves", "events", "counters"])
def test_every_row_is_found_by_an_index(ledger: Ledger, url: str, table: str) -> None:
    """By more than the domain, which all rows may share; the log alone is read on from a number."""
    ran: list[tuple[str, Any]] = []

    def overhear(*said: Any) -> None:
        _, _, sql, given, _, many = said
        if sql.startswith(("SELECT", "UPDATE", "WITH")):
            ran.append((sql, given[0] if many else given))

    event.listen(Engine, "before_cursor_execute", overhear)
    try:
        ledger.move("plan", baton("b1"), expected=0)
        ledger.record([Entry(answer("a1", "b1"), "once"), entry("file", "a1")])
        ledger.move("plan", baton("b2", "b1"), expected=1)
        ledger.withdraw("a1", why="wrong")
        ledger.freshness("a1", "plan", 1)
        ledger.head("plan")
        ledger.ancestors("file")
        ledger.descendants("b1")
        ledger.stale_among(["a1", "file"])
        ledger.log(since=2)
    finally:
        event.remove(Engine, "before_cursor_execute", overhear)
    found = plans(url, ran)
    assert len(found) > 15
    steps = {step for several in found.values() for step in several if f" {table} " in f"{step} "}
    assert steps
    short = "(domain=?)"
    assert not [s for s in steps if s.startswith(f"SCAN {table}")]
    assert table == "counters" or not [s for s in steps if s.endswith(short)]
