"""Chat messages, checked once, and the rewrites for templates that lack a role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvbaton.engines.transformers.tools import calls_text, normal_calls, result_text
from kvbaton.errors import InputError
from kvbaton.types import JSON, Role

SEPARATOR = "\n\n"
"""Stands between the parts of one message."""

_ROLES = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.TASK,
    "tool": Role.TOOL,
    "assistant": Role.GENERATED,
}


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a message's content with the role of who said it."""

    role: Role
    text: str


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message of a conversation; its content is the parts, joined by ``SEPARATOR``.

    ``fields`` are the further fields that templates read, such as ``tool_calls``.
    """

    role: str
    parts: tuple[Part, ...]
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_system(self) -> bool:
        """Whether this is a system prompt."""
        return _ROLES.get(self.role) is Role.SYSTEM

    @property
    def content(self) -> str:
        """The whole text."""
        return SEPARATOR.join(part.text for part in self.parts)

    @property
    def role_of_markup(self) -> Role:
        """Role of the message's last part, and of the markup behind it."""
        role = self.parts[-1].role
        return role_of(self.role) if role is Role.SHARED else role

    def with_parts(self, *parts: Part) -> ChatMessage:
        """The same message with other content."""
        return replace(self, parts=parts)

    def as_json(self, marks: Mapping[int, str] | None = None) -> JSON:
        """The message as templates read it, with ``marks[j]`` behind part ``j``."""
        behind = marks or {}
        content = SEPARATOR.join(p.text + behind.get(j, "") for j, p in enumerate(self.parts))
        return {"role": self.role, "content": content, **self.fields}


def user_message(text: str) -> ChatMessage:
    """A user's turn."""
    return ChatMessage("user", (Part(Role.TASK, text),))


def role_of(name: str) -> Role:
    """Span role of a message's role; a role that no template standardizes is history."""
    return _ROLES.get(name, Role.HISTORY)


def parse_messages(messages: Sequence[Mapping[str, Any]]) -> list[ChatMessage]:
    """Check messages as a caller gives them.

    ``content`` is a string, a list of ``{"type": "text", "text": ...}``, or absent where there
    are ``tool_calls``.

    Raises
    ------
    InputError
        A message that is not of this form, with its place; or none at all.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InputError("messages must be a list of objects", at="$.messages")
    if not messages:
        raise InputError("there are no messages", at="$.messages")
    return [_parse(message, at=f"$.messages[{i}]") for i, message in enumerate(messages)]


def _parse(message: Any, *, at: str) -> ChatMessage:
    if not isinstance(message, Mapping):
        raise InputError("a message must be an object", at=at)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InputError("a message needs a role", at=f"{at}.role")
    fields = {k: v for k, v in message.items() if k not in ("role", "content") and v is not None}
    if "tool_calls" in fields:
        fields["tool_calls"] = normal_calls(fields["tool_calls"], at=f"{at}.tool_calls")
    content = message.get("content")
    if content is None and not fields.get("tool_calls"):
        raise InputError("a message needs content", at=f"{at}.content")
    text = _text(content, at=f"{at}.content")
    return ChatMessage(role, (Part(role_of(role), text),), fields)


def _text(content: Any, *, at: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return _encodable(content, at=at)
    if not isinstance(content, Sequence):
        raise InputError("content must be a string or a list of text parts", at=at)
    return "".join(_text_part(part, at=f"{at}[{i}]") for i, part in enumerate(content))


def _text_part(part: Any, *, at: str) -> str:
    if not isinstance(part, Mapping) or part.get("type") != "text":
        raise InputError("only text parts are supported", at=at)
    text = part.get("text")
    if not isinstance(text, str):
        raise InputError("a text part needs a text", at=f"{at}.text")
    return _encodable(text, at=at)


def _encodable(text: str, *, at: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"text that is not Unicode: {error.reason}", at=at) from error
    return text


# --- rewrites ------------------------------------------------------------------------------------


def fold_system(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Put every system message at the head of the user turn that follows it.

    One that no user turn follows becomes a user turn.
    """
    folded: list[ChatMessage] = []
    waiting: tuple[Part, ...] = ()
    for message in messages:
        if message.is_system:
            waiting += message.parts
        elif waiting and message.role == "user":
            folded.append(message.with_parts(*waiting, *message.parts))
            waiting = ()
        elif waiting:
            folded += [ChatMessage("user", waiting), message]
            waiting = ()
        else:
            folded.append(message)
    return [*folded, ChatMessage("user", waiting)] if waiting else folded


def inline_calls(message: ChatMessage) -> ChatMessage:
    """Write an assistant's tool calls into its text."""
    calls = message.fields.get("tool_calls")
    if not calls:
        return message
    fields = {k: v for k, v in message.fields.items() if k != "tool_calls"}
    parts = tuple(part for part in message.parts if part.text)
    written = Part(Role.GENERATED, calls_text(calls))
    return ChatMessage(message.role, (*parts, written), fields)


def inline_results(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Turn tool results into user turns, joined with each other and with the user turn that
    follows, so that users and assistants still alternate."""
    turned: list[ChatMessage] = []
    joining = False
    for message in messages:
        is_result = message.role == "tool"
        parts = (Part(Role.TOOL, result_text(message.content)),) if is_result else message.parts
        if joining and (is_result or message.role == "user"):
            turned[-1] = turned[-1].with_parts(*turned[-1].parts, *parts)
        else:
            turned.append(ChatMessage("user", parts) if is_result else message)
        joining = is_result
    return turned
