"""Files that a command is given: text and chat messages; ``-`` is standard input."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NoReturn

from kvbaton.errors import EmptyInput, InputError
from kvbaton.types import JSON

STDIN = "-"


def read_text(path: str, *, what: str) -> str:
    """The text of a file; a byte order mark is dropped.

    Parameters
    ----------
    path
        A path, or ``-``.
    what
        What the text is, as errors call it.

    Raises
    ------
    InputError
        It cannot be read, or is not UTF-8; ``at`` names the file and, there, the byte.
    EmptyInput
        There is nothing but white space.
    """
    name = "standard input" if path == STDIN else path
    try:
        data = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
    except OSError as error:
        raise InputError(
            f"the {what} cannot be read: {error.strerror or error}", at=name
        ) from error
    try:
        text = data.decode("utf-8").removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")
    except UnicodeDecodeError as error:
        raise InputError(
            f"the {what} is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}",
            at=f"{name}:{error.start}",
            hint="convert it, for example with iconv -t utf-8",
        ) from error
    if not text.strip():
        raise EmptyInput(f"the {what} is empty", at=name)
    return text


def read_messages(path: str) -> list[JSON]:
    """Chat messages from a JSON file: a list of objects with ``role`` and ``content``.

    Raises
    ------
    InputError
        Not JSON, or not a list of objects with a role; ``at`` is the file or the path into it.
    EmptyInput
        There are none.
    """
    text = read_text(path, what="messages file")
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the messages file is not JSON: {error}", at=path) from error
    if not isinstance(value, list):
        raise InputError("the messages file must hold a list of messages", at="$")
    if not value:
        raise EmptyInput("the messages file holds no messages", at="$")
    for index, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InputError("a message is an object with a role", at=f"$[{index}]")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def once_from_stdin(**paths: str | None) -> None:
    """Refuse two files that are both standard input.

    Raises
    ------
    InputError
        More than one of the named paths is ``-``.
    """
    named: list[Any] = [f"--{name}" for name, path in paths.items() if path == STDIN]
    if len(named) > 1:
        raise InputError(f"{' and '.join(named)} cannot both be standard input")
