"""Reading tables strictly: every key is known, has its type, and a wrong one is named by path."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from kvbaton.errors import PipelineError

_BARE = re.compile(r"[A-Za-z0-9_-]{1,80}")
_TYPES = {bool: "a boolean", int: "an integer", float: "a number", str: "a string"}


class Table:
    """A table of a TOML file with its path and the keys that it may have.

    Parameters
    ----------
    value
        What the file has there.
    at
        Its path, such as ``$.agents[1]``.
    known
        Keys that are allowed.

    Raises
    ------
    PipelineError
        It is no table, or has a key that is not known.
    """

    def __init__(self, value: Any, at: str, known: Sequence[str]) -> None:
        if not isinstance(value, Mapping):
            raise wrong_type(value, "a table", at)
        self.at = at
        self._value, self._known = value, known
        for key in value:
            if key not in known:
                raise PipelineError(
                    f"unknown key {str(key)[:80]!r}", at=self.path(key), hint=closest(key, known)
                )

    def __contains__(self, key: str) -> bool:
        return key in self._value

    def path(self, key: Any) -> str:
        """Path of a key."""
        return (
            f"{self.at}.{key}"
            if _BARE.fullmatch(str(key))
            else f"{self.at}[{json.dumps(str(key)[:80])}]"
        )

    def raw(self, key: str) -> Any:
        """The value of a key, unchecked.

        Raises
        ------
        PipelineError
            The key is missing.
        """
        if key not in self._value:
            raise PipelineError(f"{key!r} is missing", at=self.at)
        return self._value[key]

    def text(self, key: str, default: str | None = None, *, filled: bool = False) -> str:
        """A string; ``filled`` refuses a blank one."""
        if default is not None and key not in self._value:
            return default
        return as_text(self.raw(key), self.path(key), filled=filled)

    def choice(self, key: str, options: Sequence[str], default: str) -> str:
        """One of several words."""
        said = self.text(key, default)
        if said not in options:
            raise PipelineError(
                f"{said[:80]!r} is not known here", at=self.path(key), hint=closest(said, options)
            )
        return said

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of filled strings; empty where the key is missing."""
        if key not in self._value:
            return ()
        return tuple(as_text(item, at, filled=True) for item, at in self.items(key))

    def items(self, key: str) -> Iterator[tuple[Any, str]]:
        """Items of a list with their paths."""
        value, at = self.raw(key), self.path(key)
        if not isinstance(value, list):
            raise wrong_type(value, "a list", at)
        return ((item, f"{at}[{index}]") for index, item in enumerate(value))

    def number(
        self, key: str, default: float, *, at_least: float, at_most: float = math.inf
    ) -> float:
        """A finite number within bounds, both included."""
        value = self._value.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong_type(value, "a number", self.path(key))
        return _within(value, at_least, at_most, self.path(key))

    def integer(self, key: str, default: int, *, at_least: int, at_most: float = math.inf) -> int:
        """An integer within bounds, both included."""
        value = self._value.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type(value, "an integer", self.path(key))
        _within(value, at_least, at_most, self.path(key))
        return value


def _within(value: float, at_least: float, at_most: float, at: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        raise PipelineError("the number is too large", at=at) from None
    if not math.isfinite(number) or not at_least <= value <= at_most:
        below = "" if math.isinf(at_most) else f" and at most {at_most}"
        raise PipelineError(f"must be at least {at_least}{below}, not {value}", at=at)
    return number


def as_text(value: Any, at: str, *, filled: bool = False) -> str:
    """A string.

    Raises
    ------
    PipelineError
        It is none, or it is blank where it must not be.
    """
    if not isinstance(value, str):
        raise wrong_type(value, "a string", at)
    if filled and not value.strip():
        raise PipelineError("must not be blank", at=at)
    return value


def wrong_type(value: Any, wanted: str, at: str) -> PipelineError:
    """The error for a value of another type."""
    kinds = {**_TYPES, list: "a list", dict: "a table"}
    found = kinds.get(type(value), type(value).__name__)
    return PipelineError(f"must be {wanted}, not {found}", at=at)


def closest(word: object, known: Sequence[str]) -> str:
    """A hint: what may have been meant, and what there is."""
    close = get_close_matches(str(word)[:80], known, n=1, cutoff=0.6)
    meant = f"did you mean {close[0]}? " if close else ""
    return f"{meant}known: {', '.join(known)}" if known else meant
