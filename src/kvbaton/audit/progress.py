"""What people are told while an audit runs."""

from __future__ import annotations

import time
from collections.abc import Callable

Told = Callable[[str], None]


class Progress:
    """Says what is under way, and about how long it will take."""

    def __init__(self, told: Told) -> None:
        self._told, self.left, self._done, self._start = told, 0, 0, time.monotonic()

    def say(self, label: str) -> None:
        """Tell what is under way."""
        self._told(label)

    def skip(self, trials: int) -> None:
        """So many trials cannot be done."""
        self.left = max(0, self.left - trials)

    def step(self, label: str) -> None:
        """One trial is done."""
        self._done, self.left = self._done + 1, max(0, self.left - 1)
        left_s = (time.monotonic() - self._start) / self._done * self.left
        minutes = f"{left_s / 60:.0f} min" if left_s >= 90 else f"{left_s:.0f} s"
        self._told(f"{label}, about {minutes} left")
