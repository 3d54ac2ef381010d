"""What a pull reports while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Stage(StrEnum):
    """Stages of a pull, in order.  ``waiting`` is for another process that pulls the same."""

    WAITING = "waiting"
    DOWNLOADING = "downloading"
    JOINING = "joining"
    CONVERTING = "converting"
    CHECKING = "checking"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Progress:
    """One report.  ``total_bytes`` is 0 where the end is unknown; ``note`` names the thing."""

    stage: Stage
    done_bytes: int = 0
    total_bytes: int = 0
    note: str = ""


ProgressCallback = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """Report nothing."""
