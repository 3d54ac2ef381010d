"""What a forked child does with what its parent has open: nothing.

No thread came along, locks may be held by threads that are not there, and files and connections
are the parent's.  The child forgets them, without writing, unlocking, removing or closing what
the parent still uses, and makes its own when it needs one.

SQLite needs more: what it knows of its locks is common to all connections of a process, and a
child that inherits a connection believes in locks that it does not hold.  So there is none while
a process forks: who uses one is waited for, and all are closed.  A child that was forked amid a
use all the same leaves SQLite alone.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from kvbaton.errors import LedgerUnavailable

FORK_WAIT_S = 2.0
"""How long a fork waits for those who use SQLite just now."""


class Forked(Protocol):
    """What has something open that a child must not use."""

    def forget(self) -> None:
        """In a forked child: let go of all that is the parent's.  Raises nothing, takes no lock."""
        ...


class Closable(Protocol):
    """What holds connections of SQLite, and opens new ones when it needs them."""

    def close(self) -> None:
        """Let go of all connections."""
        ...


class Gate:
    """Those who use SQLite, and those who fork, keep apart."""

    def __init__(self) -> None:
        self._closable: weakref.WeakSet[Closable] = weakref.WeakSet()
        self._is_child = False
        self._begin()

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._users: dict[int, int] = {}
        """How deep each thread is in it."""
        self._forking = 0

    def add(self, closable: Closable) -> None:
        """Have its connections closed before each fork; only a weak reference is kept."""
        self._closable.add(closable)

    @contextmanager
    def passed(self) -> Iterator[None]:
        """Nobody forks inside of the block.

        Raises
        ------
        LedgerUnavailable
            This process is a child that was forked amid such a block.
        """
        thread = threading.get_ident()
        with self._changed:
            if self._is_child:
                raise LedgerUnavailable(
                    "this process was forked amid a use of the ledger",
                    hint="its records are written by others; fork earlier, or start processes anew",
                )
            depth = self._users.get(thread, 0)
            if not depth:
                self._changed.wait_for(lambda: not self._forking)
            self._users[thread] = depth + 1
        try:
            yield
        finally:
            with self._changed:
                self._users[thread] -= 1
                if not self._users[thread]:
                    del self._users[thread]
                self._changed.notify_all()

    def shut(self) -> None:
        """Before a fork: wait for those who are inside, and close all connections."""
        thread, until_s = threading.get_ident(), time.monotonic() + FORK_WAIT_S
        with self._changed:
            self._forking += 1
            self._changed.wait_for(
                lambda: not set(self._users) - {thread}, until_s - time.monotonic()
            )
            free = not self._users
        if free:
            for one in list(self._closable):
                one.close()

    def open(self) -> None:
        """In the parent, behind a fork."""
        with self._changed:
            self._forking -= 1
            self._changed.notify_all()

    def forget(self) -> None:
        """In the child: whoever was inside is not there, but his connection is."""
        self._is_child = self._is_child or bool(self._users)
        self._begin()


GATE = Gate()
"""This process's."""

_open: weakref.WeakSet[Forked] = weakref.WeakSet()


def forget_when_forked(one: Forked) -> None:
    """Have it forget what is the parent's in every child; only a weak reference is kept."""
    _open.add(one)


def leave_alone(*things: object) -> None:
    """Keep objects as they are until the process ends, and beyond its clean-up: to close an SQLite
    connection in a child may wait for a lock that no thread there holds."""
    for thing in things:
        if thing is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _forget_all() -> None:
    GATE.forget()
    for one in list(_open):
        one.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=GATE.shut, after_in_parent=GATE.open, after_in_child=_forget_all)
