"""What has been measured already: one line of JSON per measurement, kept as soon as it is known."""

from __future__ import annotations

import json
from pathlib import Path

from kvbaton.errors import Fault, FormatError, InputError
from kvbaton.types import JSON

FORMAT = "kvbaton fidelity journal 1"


class Journal:
    """Measurements by key, in memory and, where a file is named, in it.

    A run that was interrupted goes on where it was: what the file holds is not measured again.

    Parameters
    ----------
    function
        Digest of the function that is measured; a file of another one is refused.
    path
        The file, made on the first measurement; None keeps nothing.

    Raises
    ------
    FormatError
        The file is something else, or holds measurements of another function.
    InputError
        The file cannot be read.
    """

    def __init__(self, function: str, path: Path | None = None) -> None:
        self.function, self.path = function, path
        self.found: dict[str, JSON] = {}
        if path is not None and path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        try:
            lines = path.read_text(encoding="ascii").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"the measurements cannot be read: {error}", at=str(path)) from error
        try:
            head, *entries = [json.loads(line) for line in _whole(lines)]
            if (head["format"], head["function"]) != (FORMAT, self.function):
                raise KeyError(head["format"])
            self.found = {entry["key"]: entry["value"] for entry in entries}
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(
                "the file holds no measurements of this model in this dtype",
                fault=Fault.UNKNOWN_FORMAT,
                at=str(path),
                hint="name another file",
            ) from error

    def keep(self, key: str, value: JSON) -> None:
        """Enter a measurement.

        Raises
        ------
        InputError
            The file cannot be written.
        """
        self.found[key] = value
        if self.path is None:
            return
        lines = [{"key": key, "value": value}]
        if not self.path.exists():
            lines.insert(0, {"format": FORMAT, "function": self.function})
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="ascii") as file:
                file.writelines(json.dumps(line, sort_keys=True) + "\n" for line in lines)
        except OSError as error:
            raise InputError(
                f"the measurement cannot be kept: {error.strerror or error}", at=str(self.path)
            ) from error


def _whole(lines: list[str]) -> list[str]:
    """The lines without a last one that was cut off when its writer died."""
    return lines if not lines or lines[-1].endswith("}") else lines[:-1]
