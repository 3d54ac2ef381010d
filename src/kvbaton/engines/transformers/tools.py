"""Tool calls: how a model writes them, and how they read as plain text.

A template that knows tools renders them itself.  Where it does not, the functions ``*_text``
give the wording that is used instead; ``find_tool_call`` reads that wording back, together with
the other notations that models use.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvbaton.errors import InputError
from kvbaton.types import JSON

_OPENINGS = ("<tool_call>", "<|python_tag|>", "[TOOL_CALLS]")
_CLOSING = "</tool_call>"
_FENCE = re.compile(r"\A```(?:json)?\s*\n(?P<body>.*?)\n?```\Z", re.DOTALL)
_BUILTIN = re.compile(r"(?P<name>[A-Za-z_]\w*)\.call\((?P<arguments>[^\n]*)\)")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a model wrote into ``text[start:stop]``."""

    name: str
    arguments: JSON
    start: int = 0
    stop: int = 0

    def to_message(self, call_id: str = "call00000") -> JSON:
        """The entry of an assistant message's ``tool_calls``."""
        function = {"name": self.name, "arguments": dict(self.arguments)}
        return {"id": call_id, "type": "function", "function": function}


def find_tool_call(text: str) -> ToolCall | None:
    """The first tool call in a model's answer, or None.

    Read are ``<tool_call>{json}</tool_call>`` (also while the closing tag is still missing),
    ``[TOOL_CALLS] [{json}, ...]``, ``<|python_tag|>{json}``, ``<|python_tag|>tool.call(key=value)``
    and an answer that is one JSON object, bare or fenced.  An object is a call when it has a
    ``name`` and ``arguments`` or ``parameters``.  Text that is none of these is no error.
    """
    return next(iter(find_tool_calls(text)), None)


def find_tool_calls(text: str) -> tuple[ToolCall, ...]:
    """All tool calls in a model's answer, in order; see ``find_tool_call``."""
    tagged = tuple(_tagged_calls(text))
    if tagged:
        return tagged
    call = _bare_call(text)
    return () if call is None else (call,)


def _tagged_calls(text: str) -> Iterator[ToolCall]:
    cursor = 0
    while True:
        hits = [(at, tag) for tag in _OPENINGS if (at := text.find(tag, cursor)) >= 0]
        if not hits:
            return
        start, tag = min(hits)
        cursor = start + len(tag)
        for call in _calls_behind_tag(text, tag, start, cursor):
            cursor = call.stop
            yield call


def _calls_behind_tag(text: str, tag: str, start: int, body: int) -> Iterator[ToolCall]:
    body += len(text[body:]) - len(text[body:].lstrip())
    parsed = _json_at(text, body)
    if parsed is None:
        builtin = _BUILTIN.match(text, body) if tag == "<|python_tag|>" else None
        call = None if builtin is None else _builtin_call(builtin, start)
        if call is not None:
            yield call
        return
    value, stop = parsed
    if tag == "<tool_call>":
        rest = text[stop:]
        blank = len(rest) - len(rest.lstrip())
        stop += blank + len(_CLOSING) if rest.lstrip().startswith(_CLOSING) else 0
    for entry in value if isinstance(value, list) else [value]:
        call = _as_call(entry, start, stop)
        if call is not None:
            yield call


def _bare_call(text: str) -> ToolCall | None:
    stripped = text.strip()
    fenced = _FENCE.match(stripped)
    body = fenced["body"].strip() if fenced else stripped
    parsed = _json_at(body, 0)
    if parsed is None or parsed[1] != len(body):
        return None
    start = text.index(stripped)
    return _as_call(parsed[0], start, start + len(stripped))


def _json_at(text: str, start: int) -> tuple[Any, int] | None:
    """The JSON object or array that begins at ``start`` and where it ends; None if none does."""
    if text[start : start + 1] not in ("{", "["):
        return None
    decoder = json.JSONDecoder(parse_constant=_refuse_constant)
    try:
        return decoder.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _as_call(value: Any, start: int, stop: int) -> ToolCall | None:
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("function"), dict):
        value = value["function"]
    elif isinstance(value.get("function"), str):
        value = value | {"name": value["function"]}
    name = value.get("name")
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        parsed = _json_at(arguments.strip(), 0)
        arguments = None if parsed is None else parsed[0]
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return ToolCall(name, arguments, start, stop)


def _builtin_call(found: re.Match[str], start: int) -> ToolCall | None:
    try:
        tree = ast.parse(f"f({found['arguments']})", mode="eval").body
        if not isinstance(tree, ast.Call) or tree.args or any(k.arg is None for k in tree.keywords):
            return None
        arguments = {str(k.arg): ast.literal_eval(k.value) for k in tree.keywords}
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    return ToolCall(found["name"], arguments, start, found.end())


# --- what a template without tools is given instead ----------------------------------------------


def tools_text(tools: Sequence[Mapping[str, Any]]) -> str:
    """How tools are announced: one line of JSON each, and the notation of a call."""
    lines = "\n".join(canonical_json(tool) for tool in tools)
    return (
        "You can call these tools:\n"
        f"<tools>\n{lines}\n</tools>\n"
        "To call one, answer with\n"
        '<tool_call>\n{"name": <name of the tool>, "arguments": <object with its arguments>}\n'
        "</tool_call>"
    )


def calls_text(calls: Sequence[Mapping[str, Any]]) -> str:
    """How calls that an assistant made earlier are written."""
    return "\n".join(_call_text(call["function"]) for call in calls)


def _call_text(function: Mapping[str, Any]) -> str:
    body = canonical_json({key: function[key] for key in ("arguments", "name")})
    return f"<tool_call>\n{body}\n</tool_call>"


def result_text(content: str) -> str:
    """How a tool's result is written into a user's turn."""
    return f"<tool_response>\n{content}\n</tool_response>"


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and one space after separators.

    Raises
    ------
    InputError
        The value is not JSON.
    """
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"a tool is not JSON: {error}") from error


def normal_calls(calls: Any, *, at: str) -> list[JSON]:
    """``tool_calls`` of an assistant message in the form that templates expect: ``arguments`` is
    an object even where the caller gave it as a string of JSON.

    Raises
    ------
    InputError
        Not a list of calls.
    """
    if not isinstance(calls, Sequence) or isinstance(calls, str | bytes):
        raise InputError("tool_calls must be a list", at=at)
    return [_normal_call(call, at=f"{at}[{i}]", index=i) for i, call in enumerate(calls)]


def _normal_call(call: Any, *, at: str, index: int) -> JSON:
    if isinstance(call, ToolCall):
        return call.to_message(f"call{index:05d}")
    found = _as_call(call, 0, 0) if isinstance(call, dict) else None
    if found is None:
        raise InputError("a tool call needs a name and an object of arguments", at=at)
    return found.to_message(str(call.get("id", f"call{index:05d}")))
