"""The other end of :mod:`kvbaton.audit.scoring.sandbox`: imports nothing but the standard library.

Reads a job from standard input, limits itself, runs the code and then the tests, and tells how it
went.  What the code prints goes nowhere.
"""

from __future__ import annotations

import ast
import ctypes
import json
import os
import resource
import signal
import sys
from typing import Any

_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_PR_SET_PDEATHSIG = 1
_NOBODY = 65534
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_REFUSED = (
    "os.chmod", "os.chown", "os.exec", "os.fork", "os.forkpty", "os.kill", "os.killpg", "os.link",
    "os.mkdir", "os.posix_spawn", "os.putenv", "os.remove", "os.rename", "os.rmdir", "os.symlink",
    "os.system", "os.truncate", "os.utime", "subprocess.", "socket.", "shutil.", "ctypes.",
    "signal.pthread_kill", "_thread.", "resource.", "syslog.",
)  # fmt: skip


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
        ("processes", resource.RLIMIT_NPROC, 0),
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
    """Become nobody for good, unless nobody could not even import the standard library."""
    try:
        os.setegid(_NOBODY)
        os.seteuid(_NOBODY)
    except OSError:
        return False
    try:
        readable = os.access(os.__file__, os.R_OK, effective_ids=True)
    finally:
        os.seteuid(0)
        os.setegid(0)
    if readable:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    return readable


def _refuse(event: str, details: tuple[Any, ...]) -> None:
    """Audit hook: what the code has no business to do."""
    if event == "open":
        path, _, flags = details
        if isinstance(flags, int) and flags & _WRITING and path != os.devnull:
            raise PermissionError("files are not written here")
    elif event.startswith(_REFUSED):
        raise PermissionError(f"{event} is not allowed here")


def _whole(code: str) -> ast.Module:
    """The code without the lines at its end that were cut off."""
    lines = code.split("\n")
    for cut in range(len(lines)):
        try:
            return ast.parse("\n".join(lines[: len(lines) - cut]))
        except SyntaxError:
            continue
    return ast.parse(code)


def main() -> None:
    """Run one job."""
    job = json.loads(sys.stdin.buffer.read())
    answer = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    missing, error = _limit(job), ""
    sys.addaudithook(_refuse)
    try:
        names: dict[str, Any] = {"__name__": "answer"}
        exec(compile(_whole(job["code"]), "answer", "exec"), names)  # noqa: S102
        exec(compile(job["tests"], "tests", "exec"), names)  # noqa: S102
    except BaseException as caught:  # noqa: BLE001
        error = f"{type(caught).__name__}: {str(caught)[:200]}"
    told = {"token": job["token"], "error": error, "missing": missing}
    os.write(answer, json.dumps(told).encode())
    os._exit(0)


if __name__ == "__main__":
    main()
