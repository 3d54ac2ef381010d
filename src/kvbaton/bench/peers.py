"""The two long-lived processes of ``bench ttft``, seen from the one that gives the commands."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from contextlib import suppress
from types import TracebackType
from typing import IO, Any, Self

from kvbaton import errors
from kvbaton.errors import KvbatonError
from kvbaton.types import JSON

GRACE_S = 5.0
"""How long a process may take to end by itself."""


class Peer:
    """One process that has a model loaded and does as it is told, one command at a time.

    A context manager: the process ends with the block, whatever happens in it.
    """

    def __init__(self, role: str) -> None:
        self.role = role
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvbaton.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            encoding="utf-8",
        )

    def send(self, command: str, **arguments: Any) -> None:
        """Give a command without waiting for its answer."""
        try:
            stdin = _open_pipe(self._process.stdin)
            stdin.write(json.dumps({"do": command, "with": arguments}) + "\n")
            stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def answer(self) -> JSON:
        """Wait for the answer to the last command.

        Raises
        ------
        KvbatonError
            What went wrong there, as the same class where it has one; or the process ended.
        """
        line = _open_pipe(self._process.stdout).readline()
        if not line:
            raise self._ended()
        said = json.loads(line)
        if "error" in said:
            raise _again(*said["error"])
        answer: JSON = said["ok"]
        return answer

    def do(self, command: str, **arguments: Any) -> JSON:
        """Give a command and wait for its answer."""
        self.send(command, **arguments)
        return self.answer()

    def _ended(self) -> KvbatonError:
        code = self._process.wait()
        self._said.seek(0)
        lines = self._said.read().decode("utf-8", "replace").strip().splitlines()
        return KvbatonError(
            f"the {self.role}'s process ended with code {code}",
            hint=f"its last words: {lines[-1][:400]}" if lines else "it said nothing",
        )

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # what was not read belonged to a process that is gone
                self._process.stdin.close()
        try:
            self._process.wait(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._said.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._process.kill()
        self.close()


def _open_pipe(pipe: IO[str] | None) -> IO[str]:
    if pipe is None:
        raise KvbatonError("the process has no pipe")
    return pipe


def _again(code: str, sentence: str, at: str, hint: str) -> KvbatonError:
    """An error of the other process as one of this process."""
    name = "".join(part.capitalize() for part in code.split("-"))
    kind = getattr(errors, name, KvbatonError)
    if kind in (errors.BatonRefused, errors.FormatError):
        kind = KvbatonError
    again: KvbatonError = kind(sentence, at=at, hint=hint)
    return again
