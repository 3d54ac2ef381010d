"""From chat messages to text, by a model's own template, with the places where turns end.

``ChatTemplate`` runs the Jinja template of a Hugging Face tokenizer.  What a template lacks (a
system role, tools, tool results) it finds out by rendering small probes, and ``fit`` rewrites
messages into what the template does have.  A model without a template gets ``PLAIN_TEMPLATE``::

    System: You plan.

    User: Hello

    Assistant: Hi

    User: Go on

    Assistant:

Content is trimmed there, because a model begins its answer with the space behind the colon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jinja2

from kvbaton.engines.transformers.messages import (
    ChatMessage,
    Part,
    fold_system,
    inline_calls,
    inline_results,
    user_message,
)
from kvbaton.engines.transformers.pieces import (
    LaidOut,
    Piece,
    follow,
    inner_stops,
    marks_for,
    partition,
)
from kvbaton.engines.transformers.tools import tools_text
from kvbaton.errors import InputError
from kvbaton.types import JSON, Role

PLAIN_TEMPLATE = (
    "{{ plain_bos }}"
    "{% for message in messages %}"
    "{% if not loop.first %}{{ '\\n\\n' }}{% endif %}"
    "{{ message['role'] | capitalize + ': ' + message['content'] | trim }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '\\n\\nAssistant:' }}{% endif %}"
)
PLAIN_STOPS = ("\n\nUser:", "\n\nSystem:", "\n\nTool:")

_USER = user_message("U")
_RENDER_ERRORS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    KeyError,
    IndexError,
    AttributeError,
    RecursionError,
)


class ChatTemplate:
    """A tokenizer's chat template, or ``PLAIN_TEMPLATE`` where there is none.

    Parameters
    ----------
    tokenizer
        A Hugging Face tokenizer.
    template
        Jinja source to use instead of the tokenizer's own.
    options
        Further variables for the template, such as ``enable_thinking``.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        template: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._options = dict(options or {})
        self.is_plain = template is None and tokenizer.chat_template is None
        self._template = PLAIN_TEMPLATE if self.is_plain else template
        if self.is_plain:
            self._options.setdefault("plain_bos", _default_bos(tokenizer))

    # --- rendering ---------------------------------------------------------------------------

    def text(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
    ) -> str:
        """Render messages that ``fit`` the template.

        Raises
        ------
        InputError
            The template refuses the messages; the sentence holds its own words.
        """
        rendered = [message.as_json() for message in messages]
        return self._render(rendered, tools=tools, prompt=add_generation_prompt)

    def _render(
        self, messages: list[JSON], *, tools: Sequence[Mapping[str, Any]] | None, prompt: bool
    ) -> str:
        try:
            text = self._tokenizer.apply_chat_template(
                messages,
                tools=[dict(tool) for tool in tools] if tools else None,
                chat_template=self._template,
                add_generation_prompt=prompt,
                tokenize=False,
                **self._options,
            )
        except _RENDER_ERRORS as error:
            raise InputError(f"the chat template refuses the messages: {error}") from error
        return str(text)

    def _try(self, messages: Sequence[ChatMessage], **options: Any) -> str | None:
        """The rendered text, or None where the template refuses: the answer to a probe."""
        try:
            return self.text(messages, **options)
        except InputError:
            return None

    # --- what the template can do ------------------------------------------------------------

    @cached_property
    def has_system_role(self) -> bool:
        """The template shows a system message, in whatever form."""
        system = ChatMessage("system", (Part(Role.SYSTEM, "Zq1qZ"),))
        return "Zq1qZ" in (self._try([system, _USER]) or "")

    @cached_property
    def keeps_system_first(self) -> bool:
        """A system message stays at the head, however long the conversation becomes."""
        words = ("Zq1qZ", "Zq2qZ", "Zq3qZ", "Zq4qZ")
        roles = ("system", "user", "assistant", "user")
        text = self._try(
            [ChatMessage(r, (Part(Role.HISTORY, w),)) for r, w in zip(roles, words, strict=True)]
        )
        return text is not None and -1 < text.find(words[0]) < text.find(words[1])

    @cached_property
    def has_tools(self) -> bool:
        """The template announces tools."""
        function = {"name": "Zq1qZ", "description": "", "parameters": _NO_PARAMETERS}
        return "Zq1qZ" in (
            self._try([_USER], tools=[{"type": "function", "function": function}]) or ""
        )

    @cached_property
    def has_tool_calls(self) -> bool:
        """The template shows the calls of an assistant message."""
        return "Zq1qZ" in (self._try([_USER, _calling("Zq1qZ")]) or "")

    @cached_property
    def has_tool_role(self) -> bool:
        """The template shows tool results, behind a call and behind plain text."""
        result = ChatMessage("tool", (Part(Role.TOOL, "Zq2qZ"),), _RESULT_FIELDS)
        answer = ChatMessage("assistant", (Part(Role.GENERATED, "A"),))
        return all(
            "Zq2qZ" in (self._try([_USER, before, result]) or "")
            for before in (answer, _calling("Zq1qZ"))
        )

    @cached_property
    def default_system_prompt(self) -> str | None:
        """The system prompt that the template writes when the conversation has none."""
        system = ChatMessage("system", (Part(Role.SYSTEM, "Zq1qZ"),))
        given, default = self._try([system, _USER]), self._try([_USER])
        if given is None or default is None or given.count("Zq1qZ") != 1:
            return None
        before, after = given.split("Zq1qZ")
        if not (default.startswith(before) and default.endswith(after)):
            return None
        return default[len(before) : len(default) - len(after)].strip() or None

    @cached_property
    def closing(self) -> str:
        """What follows an assistant's last words when the turn ends the conversation."""
        answer = ChatMessage("assistant", (Part(Role.GENERATED, "Zq1qZ"),))
        return (self._try([_USER, answer]) or "").rpartition("Zq1qZ")[2]

    def fit(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> tuple[list[ChatMessage], Sequence[Mapping[str, Any]] | None]:
        """Rewrite messages and tools into what the template can show.

        Tools and calls become text (see ``tools``), tool results become user turns, and a system
        prompt goes to the head of the first user turn.
        """
        fitted = list(messages)
        if not self.has_tool_calls:
            fitted = [inline_calls(message) for message in fitted]
        if not self.has_tool_role:
            fitted = inline_results(fitted)
        if tools and not self.has_tools:
            fitted = self._announce(fitted, tools)
            tools = None
        if not self.has_system_role:
            fitted = fold_system(fitted)
        return fitted, tools

    def _announce(
        self, messages: list[ChatMessage], tools: Sequence[Mapping[str, Any]]
    ) -> list[ChatMessage]:
        part = Part(Role.SYSTEM, tools_text(tools))
        if messages and messages[0].is_system:
            return [messages[0].with_parts(*messages[0].parts, part), *messages[1:]]
        default = self.default_system_prompt
        parts = (part,) if default is None else (Part(Role.SYSTEM, default), part)
        return [ChatMessage("system", parts), *messages]

    # --- where turns end ---------------------------------------------------------------------

    def lay_out(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> LaidOut:
        """Render messages that ``fit``, and find where each of their parts ends in the text.

        The markup that opens a turn counts with the turn, and so does what closes it.  Where a
        template rewrites what it is given so that an end cannot be found, the text counts with
        the next part whose end can be.
        """
        text = self.text(messages, tools=tools, add_generation_prompt=add_generation_prompt)
        marks = marks_for(text, messages)
        marked = self._marked(messages, marks, tools=tools, prompt=add_generation_prompt)
        ends = dict(follow(text, marked, marks))
        stops = self._default_system_stop(text, messages)
        for index, message in enumerate(messages):
            inner = [ends.get((index, j)) for j in range(len(message.parts))]
            stops += inner_stops(message, inner)
            stop = self._turn_end(text, messages[: index + 1], tools, inner)
            stops += [] if stop is None else [(stop, message.role_of_markup)]
        if add_generation_prompt or not stops:
            stops.append((len(text), Role.GENERATED))
        pieces = partition(stops)
        if pieces:
            pieces[-1] = Piece(pieces[-1].role, len(text))
        return LaidOut(text, tuple(pieces))

    def _default_system_stop(
        self, text: str, messages: Sequence[ChatMessage]
    ) -> list[tuple[int, Role]]:
        prompt = self.default_system_prompt
        if prompt is None or messages[0].is_system or prompt not in text:
            return []
        return [(text.index(prompt) + len(prompt), Role.SYSTEM)]

    def _turn_end(
        self,
        text: str,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]] | None,
        inner: list[int | None],
    ) -> int | None:
        known = max((stop for stop in inner if stop is not None), default=None)
        alone = self._try(messages, tools=tools)
        if alone is not None and text.startswith(alone) and len(alone) >= (known or 0):
            return len(alone)
        if known is not None and text.startswith(self.closing, known):
            return known + len(self.closing)
        return known

    def _marked(
        self,
        messages: Sequence[ChatMessage],
        marks: Mapping[str, tuple[int, int]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        prompt: bool,
    ) -> str:
        """The messages rendered with a mark behind each part; empty where that is refused."""
        behind: dict[int, dict[int, str]] = {}
        for mark, (message, part) in marks.items():
            behind.setdefault(message, {})[part] = mark
        marked = [m.as_json(behind.get(i)) for i, m in enumerate(messages)]
        try:
            return self._render(marked, tools=tools, prompt=prompt)
        except InputError:
            return ""


_NO_PARAMETERS = {"type": "object", "properties": {}}
_RESULT_FIELDS = {"name": "f", "tool_call_id": "call00000"}


def _calling(name: str) -> ChatMessage:
    function = {"name": name, "arguments": {}}
    call = {"id": "call00000", "type": "function", "function": function}
    return ChatMessage("assistant", (Part(Role.GENERATED, ""),), {"tool_calls": [call]})


def _default_bos(tokenizer: Any) -> str:
    """The token that the tokenizer itself puts before a text, as text."""
    with_special = tokenizer("a")["input_ids"]
    without = tokenizer("a", add_special_tokens=False)["input_ids"]
    begins = with_special != without and with_special[:1] == [tokenizer.bos_token_id]
    return str(tokenizer.bos_token) if begins else ""
