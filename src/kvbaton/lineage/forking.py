"""What a forked child does with what its parent has open: nothing.

No thread came along, locks may be held by threads that are not there, and files and connections
are the parent's.  The child forgets them, without writing, unlocking, removing or closing what
the parent still uses, and makes its own when it needs one.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Protocol


class Forked(Protocol):
    """What has something open that a child must not use."""

    def forget(self) -> None:
        """In a forked child: let go of all that is the parent's.  Raises nothing, takes no lock."""
        ...


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
    for one in list(_open):
        one.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
