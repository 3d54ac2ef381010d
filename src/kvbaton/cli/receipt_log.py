"""Receipts that a command is given: one as JSON, or a log with one a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from kvbaton import settings
from kvbaton.cli.inputs import read_text
from kvbaton.cli.output import Output
from kvbaton.errors import InputError
from kvbaton.types import JSON

FEWEST_DIGITS = 8
MAX_LINE_BYTES = 1 << 20

ReceiptsOption = Annotated[
    Path | None,
    typer.Option(
        "--receipts",
        metavar="FILE",
        help="A log with one receipt a line; by default the settings' own (KVBATON_RECEIPTS).",
    ),
]


def log_path(given: Path | None) -> Path:
    """The log that is named, or the settings' own.

    Raises
    ------
    InputError
        Neither is there.
    """
    path = given or settings.from_environment().receipts
    if path is None:
        raise InputError(
            "receipts are not logged here", hint="set KVBATON_RECEIPTS, or name a log: --receipts"
        )
    return path


def read_log(output: Output, path: Path) -> list[JSON]:
    """The receipts of a log, in their order; a warning says how many lines are none.

    Raises
    ------
    InputError
        The file cannot be read.
    """
    found, bad = [], 0
    for receipt in _lines(path):
        if receipt is None:
            bad += 1
        else:
            found.append(receipt)
    if bad:
        output.warn(f"{bad} lines of {path.name} are no receipts, and were passed over")
    return found


def _lines(path: Path) -> Iterator[JSON | None]:
    """Each line's receipt; None for a line that is none."""
    try:
        with path.open("rb") as file:
            while raw := file.readline(MAX_LINE_BYTES + 1):
                whole = raw.endswith(b"\n") or len(raw) <= MAX_LINE_BYTES
                if raw.strip():
                    yield _receipt_in(raw) if whole else None
                while not whole:  # the rest of a line that is too long
                    rest = file.readline(MAX_LINE_BYTES)
                    whole = not rest or rest.endswith(b"\n")
    except OSError as error:
        raise InputError(
            f"the receipts cannot be read: {error.strerror or error}", at=str(path)
        ) from error


def _receipt_in(raw: bytes) -> JSON | None:
    try:
        value = json.loads(raw, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and isinstance(value.get("id"), str) else None


def read_receipt(path: str) -> JSON:
    """One receipt as a JSON object, by itself or as a command printed it; ``-`` is standard input.

    Raises
    ------
    InputError
        It cannot be read, or is no JSON object.
    """
    text = read_text(path, what="receipt")
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the receipt is not JSON: {error}", at=path) from error
    if not isinstance(value, dict):
        raise InputError("the receipt is no JSON object", at=path)
    inner = value.get("receipt")
    return inner if isinstance(inner, dict) else value


def find_receipt(receipts: list[JSON], name: str) -> JSON | None:
    """The receipt of an id, or of its first 8 digits or more; None where there is none.

    Raises
    ------
    InputError
        Several receipts begin so.
    """
    exact = [one for one in receipts if one["id"] == name]
    if exact:
        return exact[-1]
    begin = [one for one in receipts if one["id"].startswith(name)]
    if len(name) < FEWEST_DIGITS or not begin:
        return None
    if len({one["id"] for one in begin}) > 1:
        raise InputError(f"several receipts begin with {name[:80]!r}", hint="give more of it")
    return begin[-1]


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
