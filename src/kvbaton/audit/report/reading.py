"""A result read with care: what is absent, null or not finite is None, and text is harmless."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

Bounds = tuple[float, float]

_BEYOND = 1e100
"""No audit measures this; NaN and infinity are not below it either."""

_UNSEEN = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})
_JOINERS = frozenset("\u200c\u200d")
"""Invisible, but words of some languages and pictures need them."""


class Fields:
    """A JSON object whose values may be missing or of another kind than promised.

    Every method takes the path of keys to a value below this one; no keys mean the value itself.
    """

    def __init__(self, value: object) -> None:
        self._value = value

    def _at(self, path: tuple[str, ...]) -> object:
        value = self._value
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def number(self, *path: str) -> float | None:
        """The finite number there, or None."""
        return finite(self._at(path))

    def count(self, *path: str) -> int:
        """The number there as a count; 0 where there is none."""
        return round(self.number(*path) or 0)

    def interval(self, *path: str) -> Bounds | None:
        """The two finite numbers there in order, or None."""
        value = self._at(path)
        if not isinstance(value, list | tuple) or len(value) != 2:
            return None
        low, high = finite(value[0]), finite(value[1])
        return None if low is None or high is None else (min(low, high), max(low, high))

    def text(self, *path: str) -> str:
        """The text there with everything visible; empty where there is none."""
        value = self._at(path)
        return visible_text(value) if isinstance(value, str) else ""

    def yes(self, *path: str) -> bool | None:
        """The truth value there, or None."""
        value = self._at(path)
        return value if isinstance(value, bool) else None

    def fields(self, *path: str) -> Fields:
        """The object there; an empty one where there is none."""
        return Fields(self._at(path))

    def items(self, *path: str) -> list[tuple[str, Fields]]:
        """Names and values of the object there, in its order."""
        value = self._at(path)
        found = value.items() if isinstance(value, Mapping) else ()
        return [(visible_text(str(name)), Fields(one)) for name, one in found]

    def rows(self, *path: str) -> list[Fields]:
        """The objects of the list there."""
        value = self._at(path)
        listed = value if isinstance(value, list | tuple) else ()
        return [Fields(one) for one in listed]

    def texts(self, *path: str) -> list[str]:
        """The texts of the list there; those that are empty are left out."""
        return [text for row in self.rows(*path) if (text := row.text())]

    def numbers(self, *path: str) -> list[float]:
        """The finite numbers of the list there."""
        found = (row.number() for row in self.rows(*path))
        return [value for value in found if value is not None]


def finite(value: object) -> float | None:
    """``value`` as a float if it is a number that can be shown and drawn, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if abs(number) < _BEYOND else None


def visible_text(text: str) -> str:
    """Text in which nothing is hidden: what cannot be seen is named, such as ``⟨U+202E⟩``.

    Line ends, tabs and the joiners that writing needs stay.
    """
    return "".join(c if _is_plain(c) else f"\u27e8U+{ord(c):04X}\u27e9" for c in text)


def _is_plain(character: str) -> bool:
    if character in "\n\t" or character in _JOINERS:
        return True
    return unicodedata.category(character) not in _UNSEEN
