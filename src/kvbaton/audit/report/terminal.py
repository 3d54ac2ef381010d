"""A report for a terminal: the verdict in a sentence, and a row per treatment."""

from __future__ import annotations

from collections.abc import Mapping

from kvbaton.audit.report.effects import compared
from kvbaton.audit.report.numbers import (
    DASH,
    amount_text,
    count_text,
    faster_text,
    multiple_text,
    points_text,
    share_text,
)
from kvbaton.audit.report.reading import Fields
from kvbaton.audit.report.verdict import card
from kvbaton.bench.report import Table

HEADINGS = (
    "treatment", "verdict", "first token", "end to end", "KL x noise", "flips", "right",
    "points", "moved", "fell back", "units needed",
)  # fmt: skip


def sentences(result: Mapping[str, object]) -> list[str]:
    """What is said before the table: the verdict, why, and whether content was transferred."""
    top = card(Fields(result))
    return [text for text in (top.sentence, top.content, top.pairs, top.why) if text]


def treatments_table(result: Mapping[str, object]) -> Table:
    """A row per treatment that was compared with a reference."""
    rows = tuple(_row(name, one) for name, one in compared(Fields(result)))
    return Table("Treatments against their references", HEADINGS, rows, labels=2)


def strata_table(result: Mapping[str, object]) -> Table:
    """A row per treatment and group of units; controls decide nothing, and are left out."""
    fields = Fields(result)
    controls = {n for n, one in fields.items("treatments") if one.text("role") == "control"}
    rows = tuple(
        (
            row.text("by"),
            row.text("value"),
            row.text("treatment"),
            row.text("verdict") or DASH,
            count_text(row.number("units")),
            faster_text(row.number("ttft_ratio"), row.interval("ttft_ratio_ci")),
            share_text(row.number("accuracy")),
            points_text(
                row.number("accuracy_difference_points"),
                row.interval("accuracy_difference_ci_points"),
            ),
            count_text(row.number("units_needed")),
        )
        for row in fields.rows("strata")
        if row.text("treatment") not in controls
    )
    headings = (
        "by", "group", "treatment", "verdict", "units", "first token", "right", "points",
        "units needed",
    )  # fmt: skip
    return Table("Groups of units", headings, rows, labels=4)


def _row(name: str, one: Fields) -> tuple[str, ...]:
    return (
        name,
        one.text("verdict") or DASH,
        faster_text(one.number("ttft_ratio"), one.interval("ttft_ratio_ci")),
        faster_text(one.number("e2e_ratio")),
        multiple_text(one.number("kl_multiple")),
        share_text(one.number("flips"), decimals=2),
        share_text(one.number("accuracy")),
        points_text(
            one.number("accuracy_difference_points"), one.interval("accuracy_difference_ci_points")
        ),
        amount_text(one.number("bytes_moved"), "B"),
        share_text(one.number("fallback_share")),
        count_text(one.number("units_needed")),
    )
