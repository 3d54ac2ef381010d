"""Everything between chat messages and token ids.

Token ids are the truth: a conversation is never rendered again.  It begins with ``render`` (or
``opening``), goes on with sampled ids, and each further turn is a ``suffix`` of ids that is
appended to what is there.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import dropwhile, takewhile
from typing import Any

from kvbaton.engines.transformers.messages import (
    SEPARATOR,
    ChatMessage,
    Part,
    fold_system,
    parse_messages,
    user_message,
)
from kvbaton.engines.transformers.pieces import LaidOut, Piece, alike, unused_word
from kvbaton.engines.transformers.spans import THINK, token_spans
from kvbaton.engines.transformers.stream import TextStream, decode, special_ids, special_tokens
from kvbaton.engines.transformers.template import PLAIN_STOPS, ChatTemplate
from kvbaton.engines.transformers.tools import tools_text
from kvbaton.errors import EmptyInput, InputError, UnsupportedModel
from kvbaton.types import JSON, Role, Span

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]

_ANCHORS = ("a", ".", "0", "\n")
_SPACES = ("\N{LOWER ONE EIGHTH BLOCK}", "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}")

PLAIN_ROUNDS = 8
"""How often special tokens are taken out of a foreign text before nothing that opens one stays."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """Ids, the text they stand for, and spans that partition their positions.

    The first position is 0 for a whole conversation, and the length of the conversation for a
    suffix.
    """

    ids: tuple[int, ...]
    text: str
    spans: tuple[Span, ...]

    @property
    def shared_tokens(self) -> int:
        """How many of the ids are common to all agents that share the preamble."""
        return sum(span.run.count for span in self.spans if span.role is Role.SHARED)

    @property
    def opens_reasoning(self) -> bool:
        """Whether the text ends inside of a ``<think>`` block."""
        return bool(self.spans) and self.spans[-1].role is Role.REASONING


@dataclass(frozen=True, slots=True)
class Suffix(Rendered):
    """Ids to append to a conversation.  ``closed`` is the number of ids of the template's text
    that the conversation already ended with, so that they were left out."""

    closed: int = 0


class ChatFormat:
    """A model's chat format: its template and its tokenizer.

    Parameters
    ----------
    tokenizer
        A fast tokenizer of Hugging Face transformers.
    template
        Jinja source to use instead of the tokenizer's own template.
    generation_config
        The model's; its ``eos_token_id`` adds to ``stop_ids``.
    options
        Further variables for the template, such as ``enable_thinking``.

    Raises
    ------
    UnsupportedModel
        The tokenizer cannot say which text a token stands for.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        template: str | None = None,
        generation_config: Any = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise UnsupportedModel("the tokenizer has no fast form (tokenizer.json)")
        self.tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer, template=template, options=options)
        self._eos = eos_ids(generation_config, tokenizer)

    # --- properties of the format --------------------------------------------------------------

    @property
    def has_template(self) -> bool:
        """False for a base model, which gets the plain format of ``template.PLAIN_TEMPLATE``."""
        return not self._template.is_plain

    @property
    def has_system_role(self) -> bool:
        """False where a system prompt goes to the head of the first user turn."""
        return self._template.has_system_role

    @property
    def default_system_prompt(self) -> str | None:
        """What the template writes when the conversation has no system prompt."""
        return self._template.default_system_prompt

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a turn, ascending: the model's own and the one the template writes."""
        special = special_ids(self.tokenizer)
        closing = [i for i in self._encode(self._template.closing)[0] if i in special]
        return tuple(sorted({*self._eos, *closing[:1]}))

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Texts that end a turn in the plain format; empty where there is a template."""
        return PLAIN_STOPS if self._template.is_plain else ()

    def starts_with_system(self, messages: Messages) -> bool:
        """Whether a conversation begins with a system prompt, given or the template's default."""
        return parse_messages(messages)[0].is_system or self.default_system_prompt is not None

    # --- messages to ids -----------------------------------------------------------------------

    def render(
        self, messages: Messages, *, tools: Tools | None = None, add_generation_prompt: bool = True
    ) -> Rendered:
        """Render a whole conversation.

        Raises
        ------
        InputError
            Messages that are malformed, or that the template refuses.
        """
        fitted, known = self._template.fit(parse_messages(messages), tools=tools)
        return self._rendered(
            self._template.lay_out(fitted, tools=known, add_generation_prompt=add_generation_prompt)
        )

    def opening(self, system: str | None, user: str, *, tools: Tools | None = None) -> Rendered:
        """Render the beginning of a conversation, ready for the assistant's first words."""
        return self.render([*_system(system), {"role": "user", "content": user}], tools=tools)

    def render_shared(self, preamble: str, role: str | None, messages: Messages) -> Rendered:
        """Render a conversation that begins with a preamble which several agents share.

        The preamble, without white space around it, opens the system prompt; the agent's role
        and the system prompt of ``messages`` come behind it.  Where the template has no system
        role they open the first user turn.  The first ``shared_tokens`` ids depend on the
        preamble only: the text is tokenized apart on either side of the preamble's end.

        Raises
        ------
        EmptyInput
            The preamble is blank.
        InputError
            The template does not keep the preamble at the head, or refuses the messages.
        """
        shared = preamble.strip()
        if not shared:
            raise EmptyInput("the shared preamble is blank")
        head = self._shared_head(shared)
        given = parse_messages([*_system(role), *messages])
        laid_out = self._lay_out_shared(shared, given)
        kept = laid_out.pieces[:1] == (Piece(Role.SHARED, len(head)),)
        if not kept or not laid_out.text.startswith(head):
            raise InputError("the chat template does not keep the shared preamble at the head")
        return self._rendered(laid_out, split=len(head))

    def suffix(
        self, conversation_ids: Sequence[int], new_messages: Messages, *, tools: Tools | None = None
    ) -> Suffix:
        """Ids that close the assistant's turn, add messages and open its next turn.

        The conversation ends with a sampled turn, whole or cut off; what it already holds of the
        turn's closing is not repeated, and any stop token closes a turn.  ``tools`` are those the
        conversation was opened with.  A system prompt among the messages goes to the user turn
        behind it.  Nothing before the new messages is rendered again, so a template that would
        rewrite earlier turns changes nothing.

        Raises
        ------
        EmptyInput
            There are no new messages.
        InputError
            Messages that are malformed, or that the template refuses in this place.
        """
        if not new_messages:
            raise EmptyInput("there are no new messages")
        new = fold_system(parse_messages(new_messages))
        if new[0].role == "assistant":
            raise InputError(
                "an assistant turn cannot follow an assistant turn", at="$.messages[0]"
            )
        word = unused_word([part.text for message in new for part in message.parts]) + "qZ"
        before = [user_message("U"), ChatMessage("assistant", (Part(Role.GENERATED, word),))]
        fitted, known = self._template.fit([*before, *new], tools=tools)
        laid_out = self._template.lay_out(fitted, tools=known)
        behind = _behind(laid_out, word)
        opening = behind.text.find(next((p.text for p in new[0].parts), ""))
        return self._suffix(conversation_ids, behind, opening)

    def close(self, conversation_ids: Sequence[int]) -> tuple[int, ...]:
        """Ids that close the last turn of a conversation; none where it is closed.

        Raises
        ------
        InputError
            The template does not show where a turn ends.
        """
        if not conversation_ids:
            return ()
        closing, _ = self._encode(self._template.closing, joined=True)
        return tuple(closing[self._closed(conversation_ids, closing, closing) :])

    def leading(
        self, system: str | None, preamble: str | None, *, tools: Tools | None = None
    ) -> Rendered:
        """What stands before the first turn of any conversation with this system prompt.

        Empty where the template writes nothing there.

        Raises
        ------
        InputError
            The template refuses the system prompt.
        """
        default = self.default_system_prompt if preamble is None else None
        asked = [*_system(system or default), {"role": "user", "content": "U"}]
        if preamble is not None:
            whole = self.render_shared(preamble, None, asked)
        else:
            whole = self.render(asked, tools=tools, add_generation_prompt=False)
        before = (Role.SYSTEM, Role.SHARED)
        spans = tuple(takewhile(lambda span: span.role in before, whole.spans))
        tokens = spans[-1].run.stop if spans else 0
        return Rendered(whole.ids[:tokens], self.text_of(whole.ids[:tokens]), spans)

    def handoff_turn(
        self, system: str | None, instruction: str, *, tools: Tools | None = None
    ) -> list[JSON]:
        """The turn with which a receiver goes on in a sender's conversation.

        The receiver's own system prompt and tools go into this user turn, because the
        conversation already has begun.

        Raises
        ------
        EmptyInput
            There is nothing to say.
        """
        parts = [system or "", tools_text(tools) if tools else "", instruction]
        content = SEPARATOR.join(part for part in parts if part.strip())
        if not content:
            raise EmptyInput("the receiver adds no tokens: its instruction is blank")
        return [{"role": "user", "content": content}]

    # --- ids to text ---------------------------------------------------------------------------

    def text_of(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """Text of ``ids``."""
        return decode(self.tokenizer, ids, skip_special=skip_special)

    def ids_of(self, text: str, *, joined: bool = False) -> tuple[int, ...]:
        """Ids of a text as it is, markup in it included.

        ``joined`` text goes on after other text: no space is put before its first word.

        Raises
        ------
        InputError
            Text that the tokenizer cannot encode.
        """
        return tuple(self._encode(text, joined=joined)[0])

    def plain(self, text: str) -> str:
        """A text without this model's special tokens: nothing in it opens or closes a turn."""
        marks = sorted(map(str, special_tokens(self.tokenizer)), key=len, reverse=True)
        if not marks:
            return text
        pattern = re.compile("|".join(map(re.escape, marks)))
        for _ in range(PLAIN_ROUNDS):  # what is taken out may leave another mark behind
            left = pattern.sub("", text)
            if left == text:
                return text
            text = left
        for opening in {mark[0] for mark in marks}:  # nested on purpose: nothing may begin one
            text = text.replace(opening, "")
        return text

    def text_stream(self) -> TextStream:
        """A detokenizer for one answer."""
        return TextStream(self.tokenizer)

    def answer_spans(
        self, ids: Sequence[int], *, first: int, inside_reasoning: bool = False
    ) -> tuple[Span, ...]:
        """Spans of a sampled answer that begins at position ``first``.

        ``inside_reasoning`` says that the prompt ended inside of a ``<think>`` block.
        """
        stream = TextStream(self.tokenizer, skip_special=False)
        starts, text = [], THINK if inside_reasoning else ""
        for token_id in ids:
            starts.append(len(text))
            text += stream.push(token_id)
        text += stream.finish()
        whole = LaidOut(text, (Piece(Role.GENERATED, len(text) + 1),))
        return token_spans(starts, whole, first=first)

    # --- parts -----------------------------------------------------------------------------------

    def _shared_head(self, shared: str) -> str:
        """The text up to the preamble's end, as every conversation must begin."""
        laid_out = self._lay_out_shared(shared, [user_message("U")])
        stops = [piece.stop for piece in laid_out.pieces[:1] if piece.role is Role.SHARED]
        head = laid_out.text[: stops[0]] if stops else ""
        if not head.endswith(shared):
            raise InputError("the chat template rewrites the shared preamble")
        return head

    def _lay_out_shared(self, shared: str, given: Sequence[ChatMessage]) -> LaidOut:
        rest = list(dropwhile(lambda message: message.is_system, given))
        leading = given[: len(given) - len(rest)]
        parts = (Part(Role.SHARED, shared), *(part for m in leading for part in m.parts))
        if self._template.keeps_system_first:
            messages = [ChatMessage("system", parts), *rest]
        elif rest and rest[0].role == "user":
            messages = [rest[0].with_parts(*parts, *rest[0].parts), *rest[1:]]
        else:
            raise InputError("the conversation must begin with a user turn", at="$.messages")
        return self._template.lay_out(self._template.fit(messages)[0])

    def _rendered(self, laid_out: LaidOut, *, split: int = 0) -> Rendered:
        ids, starts = self._encode(laid_out.text[:split])
        more_ids, more_starts = self._encode(laid_out.text[split:], joined=split > 0)
        starts += [split + start for start in more_starts]
        return Rendered(tuple(ids + more_ids), laid_out.text, token_spans(starts, laid_out))

    def _suffix(self, conversation: Sequence[int], behind: LaidOut, opening: int) -> Suffix:
        ids, starts = self._encode(behind.text, joined=True)
        ends = [*starts[1:], len(behind.text)]
        closing = alike(self._template.closing, behind.text)
        closing_ids = ids[: bisect_right(ends, closing)]
        opening_ids = ids[: bisect_right(ends, max(closing, opening))]
        closed = self._closed(conversation, closing_ids, opening_ids)
        begin = starts[closed] if closed < len(starts) else len(behind.text)
        spans = token_spans(starts[closed:], behind, first=len(conversation))
        return Suffix(tuple(ids[closed:]), behind.text[begin:], spans, closed)

    def _closed(self, conversation: Sequence[int], closing: list[int], opening: list[int]) -> int:
        """How many ids of the closing, and of the opening behind it, are already there."""
        ends = [i + 1 for i, id_ in enumerate(closing) if id_ in self.stop_ids]
        if ends and conversation and conversation[-1] in self.stop_ids:
            return ends[0]
        tail = list(conversation[-len(opening) :]) if opening else []
        return next((k for k in range(len(tail), 0, -1) if tail[-k:] == opening[:k]), 0)

    def _encode(self, text: str, *, joined: bool = False) -> tuple[list[int], list[int]]:
        """Ids of ``text`` and where each begins in it.

        ``joined`` text goes on after other text: a tokenizer that puts a space before the first
        word of a text must not do so there.
        """
        if joined and self._adds_space:
            for anchor in _ANCHORS:
                ids, starts = self._encode(anchor + text)
                size = len(self._encode(anchor)[0])
                if len(ids) == size or starts[size] >= len(anchor) > starts[size - 1]:
                    return ids[size:], [max(0, s - len(anchor)) for s in starts[size:]]
            raise InputError("the tokenizer joins the text with whatever stands before it")
        try:
            encoded = self.tokenizer(
                text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
            )
        except (TypeError, ValueError) as error:
            raise InputError(f"text that the tokenizer cannot encode: {error}") from error
        return list(encoded["input_ids"]), [start for start, _ in encoded["offset_mapping"]]

    @cached_property
    def _adds_space(self) -> bool:
        tokens = self.tokenizer.convert_ids_to_tokens(self._encode("a")[0])
        return str(tokens[0])[:1] in _SPACES


def eos_ids(generation_config: Any, tokenizer: Any) -> tuple[int, ...]:
    """Ids that end an answer, ascending: the generation config's and the tokenizer's."""
    configured = getattr(generation_config, "eos_token_id", None)
    several = configured if isinstance(configured, list | tuple) else [configured]
    return tuple(sorted({int(i) for i in (*several, tokenizer.eos_token_id) if i is not None}))


def _system(text: str | None) -> list[JSON]:
    return [{"role": "system", "content": text}] if text and text.strip() else []


def _behind(laid_out: LaidOut, word: str) -> LaidOut:
    """What is laid out behind the only occurrence of ``word``."""
    if laid_out.text.count(word) != 1:
        raise InputError("the chat template does not show an assistant's words exactly once")
    start = laid_out.text.index(word) + len(word)
    pieces = (Piece(p.role, p.stop - start) for p in laid_out.pieces if p.stop > start)
    return LaidOut(laid_out.text[start:], tuple(pieces))
