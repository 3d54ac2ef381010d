"""From what an agent is asked to the ids that its model reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvbaton.conversation import Conversation
from kvbaton.engines.transformers.chat import ChatFormat
from kvbaton.errors import EmptyInput, InputError
from kvbaton.types import JSON, Baton, Mode, Role, Span, TokenRun, Transcript

Messages = Sequence[Mapping[str, Any]]

_TOLD_ROLES = ("user", "assistant", "tool")
"""Roles that somebody else's messages keep."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Ids to answer to, of which a baton or an own cache may cover the beginning.

    The first ``known`` were there before: earlier turns, or what was taken over.
    """

    ids: tuple[int, ...]
    spans: tuple[Span, ...]
    messages: tuple[JSON, ...]
    opens_reasoning: bool = False
    known: int = 0

    def behind(self, known: Conversation) -> Prompt:
        """The whole prompt when these ids go on in a conversation."""
        return Prompt(
            (*known.ids, *self.ids),
            (*known.spans, *self.spans),
            (*known.messages, *self.messages),
            self.opens_reasoning,
            len(known.ids),
        )


@dataclass(frozen=True, slots=True)
class Hung:
    """A slice in a receiver's prompt: ``runs`` of a baton stand at ``first``, then what closes
    their last turn."""

    baton: Baton
    runs: tuple[TokenRun, ...]
    first: int
    closing: tuple[int, ...]

    @property
    def stop(self) -> int:
        """One past its last position, what closes it included."""
        return self.first + sum(run.count for run in self.runs) + len(self.closing)


@dataclass(frozen=True, slots=True)
class SlicePrompt(Prompt):
    """A prompt of the receiver's own beginning, ``own_tokens`` long, slices and a new turn."""

    own_tokens: int = 0
    slices: tuple[Hung, ...] = ()


ROLES = frozenset({"assistant", "developer", "system", "tool", "user"})
"""Roles of messages that templates know."""


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
        are rendered again.  What comes from another trust domain is never more than text; see
        :meth:`retold`.

        Raises
        ------
        EmptyInput
            The receiver adds no tokens.
        """
        words = baton.transcript
        turn = self.chat.handoff_turn(self.system, said, tools=self.tools)
        if baton.manifest.export is not None or not (same_tokenizer or words.messages):
            return self.retold(words, said)
        if not same_tokenizer:
            told = [{**one, "role": _known_role(one["role"])} for one in words.messages]
            return self.render([*told, *turn])
        asked = self.going_on(words.ids, turn)
        return Prompt(
            words.ids + asked.ids,
            (*baton.manifest.spans, *asked.spans),
            (*words.messages, *asked.messages),
            asked.opens_reasoning,
            len(words.ids),
        )

    def retold(self, words: Transcript, said: str) -> Prompt:
        """A conversation that comes as mere text, begun anew in the agent's own format.

        Its messages stand behind the agent's own system prompt; a system prompt among them counts
        as a user's words, and no special token in them opens or closes a turn.  Without messages
        the text stands in the agent's first turn, before the instruction.

        Raises
        ------
        EmptyInput
            The receiver adds no tokens.
        """
        own = self.chat.handoff_turn(None, said)
        told = [_as_told(message, self.chat) for message in words.messages]
        if not told:
            told = [{"role": "user", "content": self.chat.plain(words.text)}]
        system = [{"role": "system", "content": self.system}] if self.system else []
        return self.render([*system, *_one_by_one([*told, *own])])

    def prefill_only(self, prompt: str | None, messages: Messages | None) -> Prompt:
        """What ``fresh`` gives, without the opening of an answer."""
        if prompt is not None and messages is None:
            messages = self._asked(prompt)
        if not messages:
            raise EmptyInput("there is nothing to read")
        given = [dict(message) for message in messages]
        if self.preamble is not None:
            raise InputError(
                "a prompt behind a shared preamble cannot be read without being answered",
                hint="use an agent without a context, or run it with max_new_tokens=1",
            )
        rendered = self.chat.render(given, tools=self.tools, add_generation_prompt=False)
        return Prompt(rendered.ids, rendered.spans, tuple(given))

    def behind_slices(self, batons: Sequence[Baton], said: str) -> SlicePrompt:
        """The agent's own beginning, the slices in the order in which they are given, its turn.

        Raises
        ------
        EmptyInput
            The receiver adds no tokens.
        """
        own = self.chat.leading(self.system, self.preamble, tools=self.tools)
        ids, spans = list(own.ids), list(own.spans)
        messages: list[JSON] = [{"role": "system", "content": self.system}] if self.system else []
        hung = []
        for baton in batons:
            first, runs = len(ids), shown_runs(baton)
            chosen = [i for run in runs for i in baton.transcript.ids[run.first : run.stop]]
            ids += chosen
            spans += packed_spans(baton.manifest.spans, runs, first=first)
            closing = self.chat.close(chosen)
            if closing:
                spans.append(Span(Role.HISTORY, TokenRun(len(ids), len(closing))))
            ids += closing
            hung.append(Hung(baton, runs, first, closing))
            messages.append({"role": "user", "content": self.chat.text_of(chosen)})
        turn = self.chat.handoff_turn(None, said)
        asked = self.going_on(ids, turn)
        return SlicePrompt(
            (*ids, *asked.ids),
            (*spans, *asked.spans),
            (*messages, *asked.messages),
            asked.opens_reasoning,
            len(ids),
            own_tokens=len(own.ids),
            slices=tuple(hung),
        )

    def slices_as_text(self, batons: Sequence[Baton], said: str) -> Prompt:
        """The same for another tokenizer, to which the slices' ids mean nothing."""
        texts = [self.chat.plain(baton.transcript.text) for baton in batons]
        return self.render(self._asked("\n\n".join([*texts, said]).strip()))

    def two_system_prompts(self, baton: Baton) -> bool:
        """Whether the sender's conversation and the agent both have a system prompt."""
        roles = {span.role for span in baton.manifest.spans}
        return bool(self.system) and not roles.isdisjoint((Role.SYSTEM, Role.SHARED))


def shown_runs(baton: Baton) -> tuple[TokenRun, ...]:
    """What of a baton hangs behind another beginning: a slice whole, of others what is not private.

    Raises
    ------
    SliceError
        Everything in it is private.
    """
    tokens = len(baton.transcript.ids)
    if baton.manifest.mode is Mode.SLICE or not baton.manifest.spans:
        return (TokenRun(0, tokens),)
    from kvbaton.alignment.slicing import by_role

    return by_role(baton.manifest.spans)


def packed_spans(
    spans: Sequence[Span], runs: Sequence[TokenRun], *, first: int = 0
) -> tuple[Span, ...]:
    """The spans of chosen runs, one behind the other from position ``first`` on."""
    packed = []
    for run in runs:
        for span in spans:
            start = max(span.run.first, run.first)
            count = min(span.run.stop, run.stop) - start
            if count > 0:
                distance = first - run.first
                place = TokenRun(start + distance, count)
                packed.append(Span(span.role, place, span.shift + distance))
        first += run.count
    return tuple(packed)


def _known_role(role: str) -> str:
    """A role that templates know: what else stands there is somebody's words at most."""
    return role if role in ROLES else "user"


def _as_told(message: JSON, chat: ChatFormat) -> JSON:
    """A message of somebody else's conversation, as words and not as orders."""
    told: JSON = {key: _plain(value, chat) for key, value in message.items() if key != "role"}
    role = message["role"]
    return {"role": role if role in _TOLD_ROLES else "user", **told}


def _plain(value: Any, chat: ChatFormat) -> Any:
    """Every text in a JSON value without special tokens."""
    if isinstance(value, str):
        return chat.plain(value)
    if isinstance(value, Mapping):
        return {chat.plain(str(key)): _plain(item, chat) for key, item in value.items()}
    return [_plain(item, chat) for item in value] if isinstance(value, list | tuple) else value


def _one_by_one(messages: Sequence[JSON]) -> list[JSON]:
    """User turns that follow each other as one: many templates want them to alternate."""
    turns: list[JSON] = []
    for message in messages:
        both = turns and turns[-1]["role"] == message["role"] == "user"
        if both and isinstance(turns[-1]["content"], str) and isinstance(message["content"], str):
            joined = "\n\n".join((turns[-1]["content"], message["content"]))
            turns[-1] = {"role": "user", "content": joined.strip()}
        else:
            turns.append(message)
    return turns


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
