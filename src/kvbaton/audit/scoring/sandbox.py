"""Runs the code of an answer with its tests in a process of its own, under limits.

Two processes are started, new interpreters without site packages, environment or inherited
descriptors, in an empty folder, in a session of their own that is killed when the time is over.
The first (``sandbox_guard.py``) takes from itself, and so from the second:

- time of the processor, memory, and the writing of files (``setrlimit``);
- new processes and threads (``setrlimit``, which does not bind root: a process of root first
  becomes nobody, where nobody may read the standard library);
- the network, where the kernel lets it leave its namespace; processes that it started in spite of
  all are then killed with it, and otherwise those of its session and of its folder.

The second (``sandbox_child.py``) runs the code, and refuses by an audit hook of the interpreter:
opening files for writing, removing and renaming them, sockets, processes, threads, signals, calls
into C libraries, tracing, and the search for objects and memory.

The tests have passed only if the second process then says a random word that the first one chose.
The code finds that word in no module and no frame, so ending the process, by whatever status, is
no pass.  What remains:

- The code and its tests share an interpreter.  Code can be written for the tests instead of the
  question: a result that is equal to everything passes ``assert f(1) == 2``, and so does a
  function of the standard library that the code replaced and the tests rely on.  Tests that check
  types first are harder to please.
- Code that breaks the interpreter's memory can find the word.

This is a limit on resources and on accidents.  It is no security boundary: the code can read what
its user can read, and a fault of the kernel or of the interpreter is a way out.  Run code that you
do not trust at all in a virtual machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from kvbaton.errors import InputError

_GUARD = Path(__file__).with_name("sandbox_guard.py")
_CHILD = Path(__file__).with_name("sandbox_child.py")
_NOTE_CHARACTERS = 200
_SWEEPS = 20
_STRAYS = "grandchildren"
_UNKNOWN = (_STRAYS,)
"""Missing where the process did not live to tell: then we look for ourselves."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the code may use.

    Parameters
    ----------
    wall_s
        Seconds until it is killed.
    cpu_s
        Seconds of the processor.
    memory_bytes
        Address space.
    answer_bytes
        Of what the process may tell us; what the code prints is thrown away.
    """

    wall_s: float = 10.0
    cpu_s: int = 5
    memory_bytes: int = 1 << 30
    answer_bytes: int = 4096


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the tests ended.

    Parameters
    ----------
    passed
        They ran to their end.
    note
        The error, or why there is none to tell.
    missing
        Limits that this system did not grant: ``memory``, ``processes``,
        ``network``, ``grandchildren`` (those that left the session) ...
    """

    passed: bool
    note: str = ""
    missing: tuple[str, ...] = ()


def run_tests(code: str, tests: str, *, limits: Limits | None = None) -> Outcome:
    """Run code and then tests.

    Raises
    ------
    InputError
        This system has no such limits, or no process can be started.
    """
    if os.name != "posix":
        raise InputError("code is only run where processes can be limited: on Linux or macOS")
    limits = limits or Limits()
    job = {"code": code, "tests": tests, **asdict(limits)}
    with tempfile.TemporaryDirectory(prefix="kvbaton-code-") as folder:
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", "-X", "utf8", str(_GUARD), str(_CHILD)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
                start_new_session=True,
            )
        except OSError as error:
            raise InputError(f"no process can be started: {error.strerror or error}") from error
        said = _listen(process, json.dumps(job).encode(), limits.wall_s)
        if said is None:
            found = Outcome(
                passed=False, note=f"stopped after {limits.wall_s:g} s", missing=_UNKNOWN
            )
        else:
            found = _outcome(said, process.returncode)
        if _STRAYS in found.missing:
            _sweep(folder)
    return found


def _sweep(folder: str) -> None:
    """Kill what the code left running in its folder, and what that starts meanwhile."""
    for _ in range(_SWEEPS):
        left = [
            process
            for process in psutil.process_iter(["cwd"])
            if process.info["cwd"] and Path(process.info["cwd"]).is_relative_to(folder)
        ]
        if not left:
            return
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=1)


def _listen(process: subprocess.Popen[bytes], job: bytes, wall_s: float) -> bytes | None:
    """What the process tells; None where it did not end in time.  Its session does not survive."""
    try:
        return process.communicate(job, timeout=wall_s)[0]
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.communicate()


def _outcome(said: bytes, status: int) -> Outcome:
    try:
        told = json.loads(said)
    except ValueError:
        return Outcome(
            passed=False, note=f"the limits ended it (status {status})", missing=_UNKNOWN
        )
    return Outcome(told["passed"], told["note"][:_NOTE_CHARACTERS], tuple(told["missing"]))
