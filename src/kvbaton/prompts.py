"""From what an agent is asked to the ids that its model reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvbaton.conversation import Conversation
from kvbaton.engines.transformers.chat import ChatFormat
from kvbaton.errors import EmptyInput, InputError
from kvbaton.types import JSON, Baton, Role, Span

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Prompt:
    """Ids to answer to, of which a baton or an own cache may cover the beginning."""

    ids: tuple[int, ...]
    spans: tuple[Span, ...]
    messages: tuple[JSON, ...]
    opens_reasoning: bool = False

    def behind(self, known: Conversation) -> Prompt:
        """The whole prompt when these ids go on in a conversation."""
        return Prompt(
            (*known.ids, *self.ids),
            (*known.spans, *self.spans),
            (*known.messages, *self.messages),
            self.opens_reasoning,
        )


@dataclass(frozen=True, slots=True)
class PromptWriter:
    """Writes prompts for one agent: with its system prompt, shared preamble and tools."""

    chat: ChatFormat
    system: str | None = None
    preamble: str | None = None
    tools: Sequence[Mapping[str, Any]] | None = None

    def fresh(self, prompt: str | None, messages: Messages | None) -> Prompt:
        """The beginning of a conversation, from a prompt or from messages.

        Raises
        ------
        InputError
            Both or neither are given, or the template refuses the messages.
        EmptyInput
            They are blank.
        """
        if (prompt is None) == (messages is None):
            raise InputError("give a prompt or messages, one of the two")
        if prompt is not None:
            return self.render(self._asked(prompt))
        if not messages:
            raise EmptyInput("there are no messages")
        return self.render(messages)

    def _asked(self, prompt: str) -> list[JSON]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, user_turn(prompt)]

    def render(self, messages: Messages) -> Prompt:
        """Whole messages, behind the shared preamble if there is one."""
        given = [dict(message) for message in messages]
        if self.preamble is not None:
            rendered = self.chat.render_shared(self.preamble, None, given)
        else:
            rendered = self.chat.render(given, tools=self.tools)
        return Prompt(rendered.ids, rendered.spans, tuple(given), rendered.opens_reasoning)

    def going_on(self, ids: Sequence[int], new: Sequence[JSON]) -> Prompt:
        """Only what is new: closes the last turn of ``ids``, adds messages, opens the next."""
        suffix = self.chat.suffix(ids, new, tools=self.tools)
        return Prompt(suffix.ids, suffix.spans, tuple(new), suffix.opens_reasoning)

    def behind_preamble(self, said: str, messages: Messages | None) -> Prompt:
        """The agent's own role and instruction behind the shared preamble.

        Raises
        ------
        InputError
            The agent has no preamble.
        """
        if self.preamble is None:
            raise InputError(
                "the receiver has no shared preamble", hint="give the agent the same Context"
            )
        return self.render(messages or self._asked(said))

    def behind_baton(self, baton: Baton, said: str, *, same_tokenizer: bool) -> Prompt:
        """The sender's conversation and, behind it, the agent's role and instruction.

        The baton's ids are the truth; under another tokenizer they mean nothing, so its messages
        are rendered again.

        Raises
        ------
        EmptyInput
            The receiver adds no tokens.
        """
        words = baton.transcript
        turn = self.chat.handoff_turn(self.system, said, tools=self.tools)
        if not same_tokenizer:
            return self.render([*words.messages, *turn])
        asked = self.going_on(words.ids, turn)
        return Prompt(
            words.ids + asked.ids,
            (*baton.manifest.spans, *asked.spans),
            (*words.messages, *asked.messages),
            asked.opens_reasoning,
        )

    def two_system_prompts(self, baton: Baton) -> bool:
        """Whether the sender's conversation and the agent both have a system prompt."""
        roles = {span.role for span in baton.manifest.spans}
        return bool(self.system) and not roles.isdisjoint((Role.SYSTEM, Role.SHARED))


def user_turn(text: str) -> JSON:
    """One user turn.

    Raises
    ------
    EmptyInput
        The text is blank.
    """
    if not text.strip():
        raise EmptyInput("there is nothing to read: the text is blank")
    return {"role": "user", "content": text}
