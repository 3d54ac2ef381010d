"""Tables of a benchmark on the terminal, or as Markdown for a page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from kvbaton.cli.output import print_table

if TYPE_CHECKING:
    from kvbaton.bench.report import Table

MarkdownFlag = Annotated[
    bool, typer.Option("--markdown", help="Print the tables as Markdown, for a page.")
]


def show_tables(console: Console, line: str, tables: Iterable[Table], markdown: bool) -> None:
    """Print a line about the machine, and the tables."""
    console.print(line, markup=False)
    for table in tables:
        console.print()
        if markdown:
            console.print(table.markdown(), markup=False)
            continue
        console.print(table.title, style="bold", markup=False)
        right = " " * table.labels + "r" * (len(table.headings) - table.labels)
        print_table(console, table.headings, table.rows, right=right)
