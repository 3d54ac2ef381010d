"""The process between :mod:`kvbaton.audit.scoring.sandbox` and the code that it runs.

Reads a job from standard input, limits itself, starts ``sandbox_child.py`` as a new interpreter
under these limits, and tells how that went.  It alone knows by which word the child says that the
tests ran to their end.  It is also why the child has no trace of ``ctypes``, with which code could
read that word.  Imports nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
from typing import Any

_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_PR_SET_PDEATHSIG = 1
_NOBODY = 65534
_FAILED = b"failed: "


def _limit(job: dict[str, Any]) -> list[str]:
    """Limit this process; returns what could not be limited."""
    missing = _apart()
    if os.getuid() == 0 and not _as_nobody():
        missing.append("processes")
    for name, kind, most in (
        ("memory", resource.RLIMIT_AS, job["memory_bytes"]),
        ("processor", resource.RLIMIT_CPU, job["cpu_s"]),
        ("files", resource.RLIMIT_FSIZE, 0),
        ("core", resource.RLIMIT_CORE, 0),
    ):
        try:
            resource.setrlimit(kind, (most, most))
        except (ValueError, OSError):
            missing.append(name)
    return missing


def _apart() -> list[str]:
    """Go on in a child without a network that takes all of its own children with it."""
    library = ctypes.CDLL(None)
    unshare = getattr(library, "unshare", None)
    apart = _CLONE_NEWNET | _CLONE_NEWPID
    if unshare is None or all(unshare(kinds) for kinds in (apart, apart | _CLONE_NEWUSER)):
        return ["network", "grandchildren"]
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        os._exit(code if code >= 0 else 128 - code)
    library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return []


def _as_nobody() -> bool:
    """Become nobody for good, unless nobody could not start the interpreter or read its library."""
    try:
        os.setegid(_NOBODY)
        os.seteuid(_NOBODY)
    except OSError:
        return False
    needed = ((sys.executable, os.X_OK), (os.__file__, os.R_OK), (sys.argv[1], os.R_OK))
    try:
        enough = all(os.access(path, how, effective_ids=True) for path, how in needed)
    finally:
        os.seteuid(0)
        os.setegid(0)
    if enough:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    return enough


def _alone() -> None:
    """Between fork and exec: the child starts no process."""
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def _judged(said: bytes, token: bytes, status: int) -> dict[str, Any]:
    """Whether the tests ran to their end, and what went wrong where they did not."""
    if said == token:
        return {"passed": True, "note": ""}
    if said.startswith(_FAILED):
        return {"passed": False, "note": said.removeprefix(_FAILED).decode("utf-8", "replace")}
    note = f"the code ended the process before its tests (status {status})"
    return {"passed": False, "note": note}


def main() -> None:
    """Have one job done by the script that the command line names."""
    job = json.loads(sys.stdin.buffer.read())
    missing = _limit(job)
    token = os.urandom(16).hex()
    inside = {"code": job["code"], "tests": job["tests"], "token": token}
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", "-X", "utf8", sys.argv[1]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=_alone,  # noqa: PLW1509
    )
    said, _ = child.communicate(json.dumps(inside).encode())
    told = _judged(said[: job["answer_bytes"]], token.encode(), child.returncode)
    sys.stdout.write(json.dumps({**told, "missing": missing}))


if __name__ == "__main__":
    main()
