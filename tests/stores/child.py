"""A real child process that works on a store, stops where it is told, and can be killed there."""

import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import kvbaton.errors

_SOURCE = str(Path(kvbaton.errors.__file__).parents[1])
_PRELUDE = f"""
import os, sys
sys.path.insert(0, {_SOURCE!r})
from kvbaton.stores import DirectoryStore, Key, Kind, directory, directory_files

def stop():
    print("stopped", flush=True)
    sys.stdin.read()

def segment(number):
    return Key(Kind.SEGMENT, f"{{number:064x}}")
"""


@contextmanager
def child(script, *arguments):
    """A process that runs ``script`` after a prelude with ``stop()``; killed at the end."""
    command = [sys.executable, "-c", _PRELUDE + script, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        try:
            yield running
        finally:
            running.kill()


def wait_until_stopped(running):
    """Return when the child has reached ``stop()``."""
    assert running.stdout.readline() == b"stopped\n"


def kill(running):
    """SIGKILL, and wait until the kernel has taken everything from it."""
    running.kill()
    assert running.wait() == -signal.SIGKILL
