"""Small files of what was measured: written whole or not at all, found beside what is shipped."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from kvbaton.errors import InputError, KvbatonError


def keep(target: Path, text: str, *, what: str) -> Path:
    """Write a file of ASCII text into a folder that only its owner can read.

    Parameters
    ----------
    what
        What it is, as an error calls it.

    Raises
    ------
    InputError
        The folder cannot be written.
    """
    folder = target.parent
    partial = folder / f".{target.name[:64]}.{os.getpid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial.write_text(text, encoding="ascii")
        partial.replace(target)
    except OSError as error:
        raise InputError(
            f"{what} cannot be kept: {error.strerror or error}", at=str(folder)
        ) from error
    return target


def kept(folder: str, name: str, data_dir: Path) -> tuple[str, str] | None:
    """Text and place of a file: measured here before, or shipped with kvbaton; None without one."""
    for place in (data_dir / folder / name, files("kvbaton").joinpath("data", folder, name)):
        if place.is_file():
            return place.read_text(encoding="utf-8"), str(place)
    return None


def read_toml_text(
    path: Path, what: str, be: str, *, limit_bytes: int, error: type[KvbatonError]
) -> str:
    """The text of a TOML file that somebody has written by hand.

    Parameters
    ----------
    what, be
        How an error calls it: ``"the filters", "are"``.
    error
        What is raised where it cannot be read, is too large, or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(limit_bytes + 1)
        if len(raw) > limit_bytes:
            raise error(f"{what} {be} larger than {limit_bytes} bytes: {path}")
        return raw.decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as cause:
        raise error(f"{what} cannot be read: {path}: {cause.strerror}") from cause
    except UnicodeDecodeError as cause:
        raise error(f"{what} {be} not UTF-8: {path}: {cause.reason}") from cause
    except ValueError as cause:  # a name with a NUL in it
        raise error(f"{what} cannot be read: {cause}") from cause
