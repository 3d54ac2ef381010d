"""A section of the page: words first, then charts, then tables."""

from __future__ import annotations

from dataclasses import dataclass

from kvbaton.audit.report.charts.canvas import Chart
from kvbaton.audit.report.tables import Table


@dataclass(frozen=True, slots=True)
class Section:
    """What stands under one heading.

    Parameters
    ----------
    name
        Unique on the page: where links lead to.
    heading
        A few words.
    words
        Paragraphs.
    charts
        Side by side where there is room.
    points
        A list below the paragraphs.
    tables
        Shown at once.
    folded
        Shown when they are opened.
    """

    name: str
    heading: str
    words: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
    folded: tuple[Table, ...] = ()


def present(*charts: Chart | None) -> tuple[Chart, ...]:
    """Those charts that could be drawn."""
    return tuple(chart for chart in charts if chart is not None)


def filled(*tables: Table | None) -> tuple[Table, ...]:
    """Those tables that have rows."""
    return tuple(one for one in tables if one is not None and one.rows)


def said(*sentences: str) -> tuple[str, ...]:
    """Those sentences that say something."""
    return tuple(sentence for sentence in sentences if sentence)
