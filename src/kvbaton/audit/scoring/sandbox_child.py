"""The innermost process of :mod:`kvbaton.audit.scoring.sandbox`: here the code runs.

Reads code, tests and a token from standard input, and writes the token where the tests ran to
their end.  The code shares this interpreter, so nothing that it can reach may hold the token: no
module, no local variable of a frame below it, no closure.  The steps of the run lie only in an
iterator that functions in C go through; the hook's constants are defaults of a function that only
the interpreter has.  Imports nothing but the standard library, and not ``ctypes``.
"""

from __future__ import annotations

import ast
import builtins
import json
import operator
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import starmap
from types import ModuleType
from typing import Any

_REFUSED = (
    "os.chdir", "os.chmod", "os.chown", "os.exec", "os.fork", "os.forkpty", "os.kill",
    "os.killpg", "os.link", "os.mkdir", "os.posix_spawn", "os.putenv", "os.remove", "os.rename",
    "os.rmdir", "os.symlink", "os.system", "os.truncate", "os.utime", "subprocess.", "socket.",
    "shutil.", "ctypes.", "signal.pthread_kill", "_thread.", "resource.", "syslog.",
    "code.__new__", "cpython.", "gc.", "sys._current_", "sys.addaudithook", "sys.monitoring.",
    "sys.setprofile", "sys.settrace",
)  # fmt: skip
_UNSAFE = ("_ctypes", "_ctypes_test", "_testcapi", "_testinternalcapi", "_testlimitedcapi",
           "_interpreters", "_xxsubinterpreters")  # fmt: skip
"""Modules of the standard library that reach memory."""


def _hook() -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook that refuses what the code has no business to do.

    Its code can be seen in a traceback, and the builtins can be replaced; so it looks up nothing,
    and has no variable that lives longer than one call.
    """
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    kept = (writing, os.devnull, _device_of("/proc"), os.stat, type, str, int, PermissionError)

    def refuse(
        event: str,
        details: tuple[Any, ...],
        refused: tuple[str, ...] = _REFUSED,
        unsafe: tuple[str, ...] = _UNSAFE,
        kept: tuple[Any, ...] = kept,
    ) -> None:
        writing, nowhere, processes, state, kind, text, whole, error = kept
        if event == "open":
            path, flags = details[0], details[2]
            if kind(flags) is whole and flags & writing:
                if kind(path) is not text or path != nowhere:
                    raise error("files are not written here")
            elif processes is not None and state(path).st_dev == processes:
                raise error("processes are not read here")  # their memory, ours among them
        elif event == "import":
            if details[0].rpartition(".")[2] in unsafe:
                raise error("modules that reach memory are not imported here")
        elif event.startswith(refused):
            raise error(f"{event} is not allowed here")

    return refuse


def _device_of(path: str) -> int | None:
    with suppress(OSError):
        return os.stat(path).st_dev  # noqa: PTH116  (pathlib takes long to import)
    return None


def _whole(code: str) -> ast.Module:
    """The code without the lines at its end that were cut off."""
    lines = code.split("\n")
    for cut in range(len(lines)):
        try:
            return ast.parse("\n".join(lines[: len(lines) - cut]))
        except SyntaxError:
            continue
    return ast.parse(code)


def _steps(source: int, answer: int) -> Iterator[tuple[Any, ...]]:
    """What is called, in this order: no frame and no module has it while the code runs.

    The tests get the builtins as they were before the code.
    """
    with open(source, "rb", buffering=0) as file:
        job = json.loads(file.read())
    module = sys.modules["answer"] = ModuleType("answer")
    names = vars(module)
    steps = (
        (sys.addaudithook, _hook()),
        (exec, compile(_whole(job["code"]), "answer", "exec", dont_inherit=True), names),
        (operator.setitem, names, "__builtins__", dict(vars(builtins))),
        (exec, compile(job["tests"], "tests", "exec", dont_inherit=True), names),
        (os.write, answer, job["token"].encode()),
    )
    return iter(steps)


def main() -> None:
    """Run one job; what the code prints goes nowhere."""
    source, answer = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    try:
        deque(starmap(operator.call, _steps(source, answer)), maxlen=0)
    except BaseException as caught:  # noqa: BLE001
        os.write(answer, f"failed: {type(caught).__name__}: {str(caught)[:200]}".encode())
    os._exit(0)


if __name__ == "__main__":
    main()
