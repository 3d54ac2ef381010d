"""The ledgers of this process: one keeper for each, shared by all agents, closed at its end."""

from __future__ import annotations

import atexit
import hashlib
import os
import threading
from pathlib import Path

from kvbaton.lineage.keeper import LedgerKeeper

EXIT_S = 2.0
"""How long a process that ends waits for its last records; the next one writes what is left."""

_keepers: dict[tuple[str, str, Path], LedgerKeeper] = {}
_lock = threading.Lock()


def keeper_of(url: str, domain: str, folder: Path, seen: Path | None = None) -> LedgerKeeper:
    """The way of this process to a ledger.

    Parameters
    ----------
    url, domain
        The ledger's, and the trust domain.
    folder
        Where records of all ledgers wait; each has a folder of its own in it.
    seen
        Where the most that ledgers have said is kept.
    """
    key = url, domain, folder
    with _lock:
        if key not in _keepers:
            if not _keepers:
                atexit.register(close_keepers, EXIT_S)
            _keepers[key] = LedgerKeeper(url, domain, folder_of(url, domain, folder), seen=seen)
        return _keepers[key]


def folder_of(url: str, domain: str, folder: Path) -> Path:
    """The folder of one ledger and domain among those of all: its name tells nothing of either."""
    return folder / hashlib.sha256(f"{domain}\0{url}".encode()).hexdigest()[:32]


def close_keepers(timeout_s: float = EXIT_S) -> None:
    """Write what is left and let go of all ledgers; agents that are left note nothing more."""
    with _lock:
        closing = list(_keepers.values())
        _keepers.clear()
        atexit.unregister(close_keepers)
    for keeper in closing:
        keeper.close(timeout_s)


def _in_child() -> None:
    """A thread that held the lock is not there; keepers forget what is the parent's themselves."""
    global _lock  # noqa: PLW0603 - there is one per process
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
