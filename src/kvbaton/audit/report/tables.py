"""Tables of a report: cells that say why they are empty, and what a page must know of columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvbaton.audit.report.numbers import DASH

TONES = {"pays": "good", "equivalent": "even", "better": "good", "faster": "good", "same": "even",
         "harmful": "bad", "slower": "bad", "transferred": "good", "not needed": "even",
         "lost": "bad", "gained": "good", "undecided": "open"}  # fmt: skip
"""How a verdict is tinted; the word itself always stands beside the tint."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Text of one place in a table.

    Parameters
    ----------
    text
        What stands there.
    why
        Why nothing stands there; for empty cells.
    tone
        ``good``, ``even``, ``bad``, ``open`` or empty: the tint of a verdict.
    differs
        First and last but one of the characters that differ from the text beside it; None to mark
        nothing.
    """

    text: str
    why: str = ""
    tone: str = ""
    differs: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """Headings and rows under a caption; the first ``labels`` columns are words.

    ``wordy`` tables hold sentences in every column: nothing is set flush right.
    """

    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    labels: int = 1
    wordy: bool = False

    def is_number(self, column: int) -> bool:
        """Whether a column holds numbers."""
        tinted = any(row[column].tone for row in self.rows)
        return column >= self.labels and not self.wordy and not tinted

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why cells are empty, each reason once."""
        reasons = (cell.why for row in self.rows for cell in row if cell.text == DASH and cell.why)
        return tuple(dict.fromkeys(reasons))


def cells(*parts: str | Cell) -> tuple[Cell, ...]:
    """A row."""
    return tuple(part if isinstance(part, Cell) else Cell(part) for part in parts)


def given(text: str, why: str) -> Cell:
    """A cell, with the reason if it turns out to be empty."""
    return Cell(text, why=why if text == DASH else "")


def verdict_cell(verdict: str) -> Cell:
    """A verdict with its tint; empty verdicts are dashes."""
    return Cell(verdict or DASH, why="not judged", tone=TONES.get(verdict, ""))


def table(
    caption: str,
    headings: Iterable[str],
    rows: Iterable[tuple[Cell, ...]],
    *,
    labels: int = 1,
    wordy: bool = False,
) -> Table:
    """A table from anything that can be walked."""
    return Table(caption, tuple(headings), tuple(rows), labels=labels, wordy=wordy)
