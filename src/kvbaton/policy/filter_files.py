"""Filter files: text gates as TOML, read strictly (``docs/guides/text-gates.md``)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvbaton.errors import InputError
from kvbaton.policy.filters import ACTIONS, PatternFilter
from kvbaton.records import read_toml_text

MAX_FILE_BYTES = 1 << 20
MAX_FILTERS = 64

_TOP = ("filters",)
_FILTER = ("name", "action", "replacement", "ignore_case", "patterns")


def filters_from_toml(path: Path | str) -> tuple[PatternFilter, ...]:
    """The filters of a file, in their order.

    Raises
    ------
    InputError
        The file cannot be read, is not TOML, or holds something else than filters; ``at`` is the
        path into it.
    """
    path = Path(path)
    try:
        parsed = tomllib.loads(
            read_toml_text(path, "the filters", "are", limit_bytes=MAX_FILE_BYTES, error=InputError)
        )
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path.name} is not TOML: {error}") from error
    try:
        return parse_filters(parsed)
    except InputError as error:
        raise InputError(f"{path.name}: {error.sentence}", at=error.at, hint=error.hint) from error


def parse_filters(value: Any) -> tuple[PatternFilter, ...]:
    """Filters from the tables of a file.

    Raises
    ------
    InputError
        They are none; ``at`` is the path.
    """
    top = _table(value, "$", _TOP)
    listed = top.get("filters")
    if not isinstance(listed, list) or not 0 < len(listed) <= MAX_FILTERS:
        raise InputError(
            f"the file holds 1 to {MAX_FILTERS} [[filters]]", at="$.filters", hint="[[filters]]"
        )
    found = tuple(_filter(item, f"$.filters[{i}]") for i, item in enumerate(listed))
    names = [one.name for one in found]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise InputError(f"another filter is called {name!r}, too", at=f"$.filters[{i}].name")
    return found


def _filter(value: Any, at: str) -> PatternFilter:
    table = _table(value, at, _FILTER)
    patterns = _table(_needed(table, "patterns", at), f"{at}.patterns", None)
    for label in patterns:
        _text(patterns, label, f"{at}.patterns")
    ignore_case = table.get("ignore_case", False)
    if type(ignore_case) is not bool:
        raise _wrong("true or false", f"{at}.ignore_case")
    action = _text(table, "action", at, "redact")
    if action not in ACTIONS:
        raise InputError(
            f"{action[:80]!r} is no action", at=f"{at}.action", hint=" or ".join(ACTIONS)
        )
    name = _text(table, "name", at)
    replacement = _text(table, "replacement", at, "[redacted]")
    try:
        return PatternFilter(name, patterns, action, replacement, ignore_case)
    except InputError as error:
        raise InputError(
            error.sentence, at=at + error.at.removeprefix("$"), hint=error.hint
        ) from error


# --- reading ------------------------------------------------------------------------------------


def _table(value: Any, at: str, known: Sequence[str] | None) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong("a table", at)
    unknown = [key for key in value if known is not None and key not in known]
    if unknown:
        raise InputError(
            f"unknown key {unknown[0][:80]!r}", at=at, hint=f"known: {', '.join(known or ())}"
        )
    return value


def _needed(table: Mapping[str, Any], key: str, at: str) -> Any:
    if key not in table:
        raise InputError(f"{key!r} is missing", at=at)
    return table[key]


def _text(table: Mapping[str, Any], key: str, at: str, default: str | None = None) -> str:
    value = _needed(table, key, at) if default is None else table.get(key, default)
    if not isinstance(value, str):
        raise _wrong("a string", f"{at}.{key}")
    return value


def _wrong(wanted: str, at: str) -> InputError:
    return InputError(f"must be {wanted}", at=at)
