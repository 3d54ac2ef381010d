"""Where the first tokens of a model lie: measured once, kept beside its calibration records."""

from __future__ import annotations

import json
import os
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from kvbaton.errors import Fault, FormatError, InputError

if TYPE_CHECKING:
    from kvbaton.probes.first_tokens import WatchRange

FOLDER = "watch"


def store_watch_range(limits: WatchRange, function: str, data_dir: Path) -> Path:
    """Keep the range of a function, by its digest; the file is there whole or not at all.

    Raises
    ------
    InputError
        The folder cannot be written.
    """
    folder = data_dir / FOLDER
    target, partial = folder / f"{function}.json", folder / f".{function}.{os.getpid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial.write_text(range_text(limits), encoding="ascii")
        partial.replace(target)
    except OSError as error:
        raise InputError(
            f"the range of first tokens cannot be kept: {error.strerror or error}", at=str(folder)
        ) from error
    return target


def range_text(limits: WatchRange) -> str:
    """The text of a range's file."""
    return json.dumps(limits.to_json(), indent=1, sort_keys=True) + "\n"


def stored_watch_range(function: str, data_dir: Path) -> WatchRange | None:
    """The range of a function's digest: measured here before, or shipped with kvbaton.

    Raises
    ------
    FormatError
        There is a file of that name, and it is something else; ``at`` names it.
    """
    name = f"{function}.json"
    for place in (data_dir / FOLDER / name, files("kvbaton").joinpath("data", FOLDER, name)):
        if place.is_file():
            return _read(place.read_text(encoding="utf-8"), str(place))
    return None


def _read(text: str, at: str) -> WatchRange:
    from kvbaton.probes.first_tokens import WatchRange

    try:
        return WatchRange.from_json(json.loads(text))
    except (ValueError, FormatError) as error:
        raise FormatError(
            "the file holds no range of first tokens",
            fault=Fault.UNKNOWN_FORMAT,
            at=at,
            hint="delete it, and measure again",
        ) from error
