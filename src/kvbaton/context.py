r"""The preamble that several agents share, in one fixed serialization.

The same context gives the same text in every process, so that agents in ``shared-prefix`` mode
begin with the same token ids.  Sections stand in this order, and an empty one is left out::

    # Shared context

    ## Tools
    {"description": ..., "name": "search"}

    ## Documents
    ### Title
    Text of the document.

    ## Notes
    - First note.

    ## Facts
    - key: value

Tools are one line of JSON each, with sorted keys, in the order of their names; documents are in
the order of their titles and facts in the order of their keys (by code point); notes keep the
order in which they are given.  Line ends become ``\n``; white space around a text is dropped.
An agent's role is no part of the context: it comes behind it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import blake3

from kvbaton.errors import InputError

_TITLE = "# Shared context"


@dataclass(frozen=True, slots=True, init=False)
class Context:
    """What all agents know, as text.

    Parameters
    ----------
    tools
        JSON schemas; each has a ``name``, or a ``function`` that has one.
    documents
        Title -> text.
    notes
        Sentences whose order matters.
    facts
        Key -> value; values other than strings of one line are written as JSON.

    Attributes
    ----------
    text
        The serialization; empty for an empty context.  It neither begins nor ends with white
        space, so that no template can trim it.

    Raises
    ------
    InputError
        Something that cannot be serialized in one way only, with its place.
    """

    text: str

    def __init__(
        self,
        *,
        tools: Iterable[Mapping[str, Any]] = (),
        documents: Mapping[str, str] | None = None,
        notes: Sequence[str] = (),
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(notes, str):
            raise InputError("notes must be a list of strings", at="$.notes")
        sections = {
            "Tools": _tool_lines(tools),
            "Documents": _document_blocks(documents or {}),
            "Notes": [f"- {_text(n, at=f'$.notes[{i}]')}" for i, n in enumerate(notes)],
            "Facts": _fact_lines(facts or {}),
        }
        blocks = [
            f"## {name}\n" + ("\n\n" if name == "Documents" else "\n").join(entries)
            for name, entries in sections.items()
            if entries
        ]
        text = "\n\n".join([_TITLE, *blocks]).rstrip() if blocks else ""
        object.__setattr__(self, "text", text)

    @property
    def digest(self) -> str:
        """BLAKE3-256 (hex) of the text in UTF-8."""
        return blake3.blake3(self.text.encode()).hexdigest()

    def __bool__(self) -> bool:
        return bool(self.text)


def _tool_lines(tools: Iterable[Mapping[str, Any]]) -> list[str]:
    named: dict[str, str] = {}
    for index, tool in enumerate(tools):
        at = f"$.tools[{index}]"
        name = _tool_name(tool, at=at)
        if name in named:
            raise InputError(f"there are two tools named {name!r}", at=at)
        named[name] = _json(tool, at=at)
    return [named[name] for name in sorted(named)]


def _tool_name(tool: Any, *, at: str) -> str:
    if not isinstance(tool, Mapping):
        raise InputError("a tool must be a JSON schema", at=at)
    function = tool.get("function", tool)
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name:
        raise InputError("a tool needs a name", at=at)
    return name


def _document_blocks(documents: Mapping[str, str]) -> list[str]:
    texts = _by_line(documents, at="$.documents")
    return [f"### {title}\n{_text(text, at=f'$.documents[{title!r}]')}" for title, text in texts]


def _fact_lines(facts: Mapping[str, Any]) -> list[str]:
    lines = []
    for key, value in _by_line(facts, at="$.facts"):
        at = f"$.facts[{key!r}]"
        said = _text(value, at=at) if isinstance(value, str) else value
        one_line = isinstance(said, str) and "\n" not in said
        lines.append(f"- {key}: {said if one_line else _json(said, at=at)}")
    return lines


def _by_line(entries: Mapping[str, Any], *, at: str) -> list[tuple[str, Any]]:
    """Entries sorted by their names, each of which must be one line of its own."""
    if not isinstance(entries, Mapping):
        raise InputError("must be an object", at=at)
    named: dict[str, Any] = {}
    for name, value in entries.items():
        line = _text(name, at=at)
        if not line or "\n" in line:
            raise InputError(f"a name must be one line, not {name!r}", at=at)
        if line in named:
            raise InputError(f"two names differ in white space only: {line!r}", at=at)
        named[line] = value
    return sorted(named.items())


def _text(value: Any, *, at: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"must be a string, not {type(value).__name__}", at=at)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"text that is not Unicode: {error.reason}", at=at) from error
    return value.replace("\r\n", "\n").replace("\r", "\n").strip()


def _json(value: Any, *, at: str) -> str:
    """JSON with sorted keys on one line; keys must be strings, so that sorting is total."""
    _require_string_keys(value, at=at)
    try:
        text = json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}", at=at) from error
    return text


def _require_string_keys(value: Any, *, at: str) -> None:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Mapping):
            if not all(isinstance(key, str) for key in item):
                raise InputError("the keys of an object must be strings", at=at)
            waiting += item.values()
        elif isinstance(item, list | tuple):
            waiting += item
