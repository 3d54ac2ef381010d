"""A stand-in for the ``os`` and ``fcntl`` modules whose n-th watched call fails."""

import errno
import fcntl
import os
from contextlib import contextmanager
from pathlib import Path

from kvbaton.stores import (
    directory,
    directory_account,
    directory_files,
    directory_reader,
    lease_files,
)

WATCHED = {
    "chmod", "close", "fchmod", "fstat", "fsync", "ftruncate", "mkdir", "open", "pread", "preadv",
    "pwrite", "rename", "scandir", "stat", "statvfs", "unlink", "utime", "writev", "flock",
}  # fmt: skip


class FailingCalls:
    """Counts watched calls; the n-th raises ``OSError(code)`` or, with ``short``, does half."""

    def __init__(self, module, state):
        self._module = module
        self._state = state

    def __getattr__(self, name):
        real = getattr(self._module, name)
        return self._watch(name, real) if name in WATCHED else real

    def _watch(self, name, real):
        def call(*args, **kwargs):
            if not self._state.due(name, args):
                return real(*args, **kwargs)
            if self._state.short:
                return real(args[0], [args[1][0][: max(1, args[1][0].nbytes // 2)]], *args[2:])
            if name == "close":
                real(*args)  # the kernel lets go of the descriptor even when it reports an error
            raise OSError(self._state.code, os.strerror(self._state.code), "/secret/path")

        return call


class State:
    """Which call fails, how, and whether it came to that."""

    def __init__(self, nth, code, short=False):
        self.nth, self.code, self.short = nth, code, short
        self.seen = 0
        self.fired = ""

    def due(self, name, args):
        """Whether this call is the one."""
        if self.short and name not in ("writev", "preadv"):
            return False
        if name == "close" and Path(f"/proc/self/fd/{args[0]}").readlink().parent.name != "tmp":
            return False  # closing what was opened for reading reports nothing
        if name == "flock" and args[1] == fcntl.LOCK_UN:
            return False
        self.seen += 1
        if self.seen != self.nth:
            return False
        self.fired = name
        return True


@contextmanager
def nth_call_fails(monkeypatch, nth, code=errno.EIO, *, short=False):
    """Let the n-th watched system call of a directory store fail."""
    state = State(nth, code, short)
    with monkeypatch.context() as patch:
        for module in (
            directory,
            directory_files,
            directory_account,
            directory_reader,
            lease_files,
        ):
            patch.setattr(module, "os", FailingCalls(os, state))
        for module in (directory_files, directory_account, lease_files):
            patch.setattr(module, "fcntl", FailingCalls(fcntl, state))
        yield state


def open_descriptors():
    """Targets of this process's descriptors that lie in a store."""
    targets = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            targets.append(str(link.readlink()))
        except FileNotFoundError:
            continue  # the descriptor that lists them
    return sorted(targets)
