"""Where the first tokens of a model lie: measured once, kept beside its calibration records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from kvbaton.errors import Fault, FormatError
from kvbaton.records import keep, kept

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
    target = data_dir / FOLDER / f"{function}.json"
    return keep(target, range_text(limits), what="the range of first tokens")


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
    found = kept(FOLDER, f"{function}.json", data_dir)
    return None if found is None else _read(*found)


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
