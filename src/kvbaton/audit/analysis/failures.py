"""What could not be done, equal failures together."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kvbaton.audit.analysis.result import FailedRow
from kvbaton.audit.analysis.runs import Run
from kvbaton.types import JSON


def failed_rows(runs: Sequence[Run]) -> list[FailedRow]:
    """One row for all failures that differ in nothing but the unit and numbers in the sentence."""
    alike: dict[tuple[str, ...], list[JSON]] = {}
    for run in runs:
        for record in run.of_kind("failed"):
            pattern = re.sub(r"\d+", "0", _text(record, "sentence"))
            told = (_text(record, name) for name in ("treatment", "what", "code"))
            alike.setdefault((run.pair, *told, pattern), []).append(record)
    rows = []
    for (pair, treatment, what, code, _), some in sorted(alike.items()):
        first = min(some, key=lambda record: _text(record, "unit"))
        rows.append(
            FailedRow(
                pair=pair,
                treatment=treatment,
                what=what,
                code=code,
                sentence=_text(first, "sentence"),
                count=len(some),
                unit=_text(first, "unit"),
            )
        )
    return rows


def failures_told(rows: Sequence[FailedRow]) -> list[str]:
    """A sentence that names what failed; none where nothing did."""
    parts: dict[str, set[str]] = {}
    for row in rows:
        parts.setdefault(row["treatment"], set()).add(row["what"])
    named = []
    for treatment, several in sorted(parts.items()):
        whats = ", ".join(sorted(several - {""}))
        named.append(f"{treatment} ({whats})" if whats else treatment)
    return [f"These could not be run on every unit: {'; '.join(named)}."] if named else []


def _text(record: JSON, name: str) -> str:
    return str(record.get(name) or "")
