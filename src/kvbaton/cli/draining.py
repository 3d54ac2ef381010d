"""Ending in order: on SIGTERM what is under way is finished, and nothing new is begun."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def drained_on_sigterm(what: str) -> Iterator[Callable[[], bool]]:
    """Whether SIGTERM has come.  The second one ends the process as it does by default.

    Parameters
    ----------
    what
        What is finished first, as the terminal is told.
    """
    asked: list[int] = []
    said = f"asked to end: finishing {what} first (SIGTERM again ends at once)\n".encode()

    def ask(number: int, frame: FrameType | None) -> None:
        del frame
        asked.append(number)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, said)  # may come amid a print

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # only the main thread may handle signals
        return
    before = signal.signal(signal.SIGTERM, ask)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGTERM, before)
