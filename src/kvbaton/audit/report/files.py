"""A report on disk: each file is there whole, or as it was before."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvbaton.audit.report.charts.latency import sample_of
from kvbaton.audit.report.page import render
from kvbaton.audit.report.sheets import summary_csv, trials_csv
from kvbaton.errors import InputError


@dataclass(frozen=True, slots=True)
class Report:
    """Where a report lies; ``trials`` is None if no trials were given."""

    html: Path
    json: Path
    summary: Path
    trials: Path | None


def write_report(
    result: Mapping[str, object], folder: Path, *, trials: Sequence[Mapping[str, object]] | None
) -> Report:
    """Write ``report.html``, ``result.json``, ``summary.csv`` and, from trials, ``trials.csv``.

    Everything is made before anything is written.

    Parameters
    ----------
    result
        As ``kvbaton.audit.analysis.result.AuditResult`` describes it; what is missing or null is
        shown as missing.
    folder
        Made if it is not there.
    trials
        The records of the run; headers tell the pair of the records behind them.

    Raises
    ------
    InputError
        matplotlib is not installed, or a file cannot be written.
    """
    fields = sample_of(result, trials or ())
    page = render(fields)
    html, data = folder / "report.html", folder / "result.json"
    summary, sheet = folder / "summary.csv", folder / "trials.csv"
    texts = {html: page, data: _json(result), summary: summary_csv(fields)}
    if trials is not None:
        texts[sheet] = trials_csv(trials)
    for file, text in texts.items():
        _write(file, text)
    return Report(html, data, summary, sheet if trials is not None else None)


def _json(result: Mapping[str, object]) -> str:
    return json.dumps(_plain(result), ensure_ascii=True, allow_nan=False, indent=1) + "\n"


def _plain(value: Any) -> Any:
    """The same without numbers that JSON has no word for."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write(file: Path, text: str) -> None:
    partial = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise InputError(f"the report cannot be written: {error}", at=str(file)) from error
