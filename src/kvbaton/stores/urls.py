"""Store URLs: ``scheme://location?option=value``, or a plain path for the directory store."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote

from kvbaton.errors import InputError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?", re.IGNORECASE | re.ASCII)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_size(text: str) -> int:
    """Bytes in ``"1500"``, ``"2GB"`` (powers of 1000) or ``"2GiB"`` (powers of 1024).

    Raises
    ------
    InputError
        The text is not a size, or it is not positive.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InputError(f"not a size: {text[:40]!r}", hint="write 500MB, 2GB or 2GiB")
    number, unit = match.group(1), (match.group(2) or "").upper()
    base = 1024 if unit.endswith("I") else 1000
    size_bytes = int(float(number) * base ** _POWERS[unit[:1]]) if unit else int(float(number))
    if size_bytes <= 0:
        raise InputError(f"a size must be positive: {text[:40]!r}")
    return size_bytes


@dataclass(frozen=True, slots=True)
class StoreURL:
    """A store URL in its parts.

    ``scheme`` is in lower case, ``location`` is percent-decoded, ``options`` are the pairs of the
    query in order, each name once.
    """

    scheme: str
    location: str
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, url: str | os.PathLike[str]) -> StoreURL:
        """Split a URL, or a plain path (which has no options) into a ``dir`` URL.

        Raises
        ------
        InputError
            It is empty, has a NUL or a malformed query, or is a plain path with a ``?``.
        """
        text = os.fspath(url)
        if not text or "\0" in text:
            raise InputError("a store URL is empty or has a NUL in it")
        match = _URL.fullmatch(text)
        if match is None:
            return cls._from_path(text)
        location, _, query = match.group(2).partition("?")
        return cls(
            match.group(1).lower(), unquote(location, errors="surrogateescape"), _parse_query(query)
        )

    @classmethod
    def _from_path(cls, text: str) -> StoreURL:
        if "?" in text:
            raise InputError(
                f"a plain path cannot have options: {text[:80]!r}",
                hint="write dir:///absolute/path?max_bytes=2GB",
            )
        return cls("dir", str(Path(text).expanduser().absolute()))

    def option(self, name: str) -> str | None:
        """Value of an option, or None."""
        return dict(self.options).get(name)

    def size_option(self, name: str) -> int | None:
        """Value of an option that is a size, in bytes, or None.

        Raises
        ------
        InputError
            The value is not a size.
        """
        value = self.option(name)
        return None if value is None else parse_size(value)

    def allow_options(self, *names: str) -> None:
        """Refuse every option but these.

        Raises
        ------
        InputError
            The URL has another option; it is named, with the ones that exist.
        """
        unknown = [name for name, _ in self.options if name not in names]
        if unknown:
            known = ", ".join(names) or "none"
            raise InputError(
                f'{self.scheme}:// has no option "{unknown[0]}"', hint=f"its options: {known}"
            )

    def __str__(self) -> str:
        query = "&".join(f"{quote(n, safe='')}={quote(v, safe='')}" for n, v in self.options)
        location = quote(self.location, errors="surrogateescape")
        return f"{self.scheme}://{location}" + (f"?{query}" if query else "")


def _parse_query(query: str) -> tuple[tuple[str, str], ...]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise InputError(f"not options: {query[:80]!r}", hint="write ?name=value") from error
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        raise InputError(f"an option is given twice: {query[:80]!r}")
    return tuple(pairs)
