"""A turn as text, without what may not leave: the content of a baton that carries no cache.

Whole spans of private roles are left out, filters redact the rest, and what is left is tokenized
where it has changed.  The cache itself cannot be redacted: later tokens have attended to whatever
is taken out of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvbaton.conversation import Turn
from kvbaton.engines.base import Engine
from kvbaton.errors import Filtered
from kvbaton.policy.filters import FilterOutcome, Passed, Redact, Ruling, TextFilter, run_filters
from kvbaton.prompts import ROLES
from kvbaton.types import JSON, Role, Span, TokenRun, Transcript

PRIVATE_ROLES = (Role.SYSTEM, Role.SHARED, Role.REASONING)
"""What no other trust domain gets: system prompts, the preamble that opens them, reasoning."""

_SYSTEM_NAMES = ("system", "developer")
_REASONING_FIELDS = ("reasoning", "reasoning_content", "thinking")
_MARKED = re.compile(r"<think>.*?</think>|\A(?:(?!<think>).)*</think>|<think>.*\Z", re.DOTALL)
"""Reasoning in a message: whole, opened before it began, or cut off."""
_MARKS = re.compile(r"</?think>")


@dataclass(frozen=True, slots=True)
class Redacted:
    """What is left of a turn: ids, text and messages, and whose words they are.

    ``removed`` names the roles that were left out, then the filters that took something out.
    """

    words: Transcript
    spans: tuple[Span, ...]
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cut:
    """A filter that takes known texts out, wherever they stand."""

    name: str
    texts: tuple[str, ...]

    def __call__(self, text: str) -> Ruling:
        """Look for all of them."""
        left, count = text, 0
        for known in self.texts:
            count += left.count(known)
            left = left.replace(known, "")
        return Redact(left, count) if count else Passed()


def redacted_content(
    engine: Engine,
    turn: Turn,
    filters: Sequence[TextFilter] = (),
    *,
    private: bool = False,
    part: tuple[Sequence[int], Sequence[Span]] | None = None,
    own: Sequence[str] = (),
) -> Redacted:
    """The text of a turn, as it may be handed off.

    Parameters
    ----------
    filters
        Asked for each span, for what is left of the whole, and for every text in the messages.
    private
        Keep what :data:`PRIVATE_ROLES` said.
    part
        Ids and spans of a part of the turn; then there are no messages.
    own
        Texts that are cut wherever they stand, unless ``private``: an agent's own system prompt
        stands in its turn where the conversation had begun before.

    Raises
    ------
    Filtered
        A filter refused something, was not content with its own redaction, or nothing is left.
    """
    ids, spans = (turn.conversation.ids[: turn.tokens], turn.spans) if part is None else part
    dropped = () if private else PRIVATE_ROLES
    work = _Redaction(engine, filters, () if private else own, whole=private)
    for span in _without_gaps(spans, len(ids)):
        said = ids[span.run.first : span.run.stop]
        if span.role in dropped:
            work.drop(span.role, said)
        else:
            work.keep(span.role, said)
    told = turn.messages if part is None else ()
    return work.finish([one for one in told if not _is_of(one, dropped)])


def gated_words(
    engine: Engine, words: Transcript, filters: Sequence[TextFilter], *, same_tokenizer: bool = True
) -> tuple[Transcript, FilterOutcome]:
    """What filters leave of a whole transcript: of its text and of every text in its messages.

    The text that is asked about is decoded from the ids, where they mean something here: what a
    transcript says that they stand for is not believed.  Where something was taken out, the ids
    are the tokenizer's for what is left.

    Parameters
    ----------
    same_tokenizer
        Whether the ids are those of the engine's tokenizer.

    Returns
    -------
    Transcript, FilterOutcome
        The transcript itself where everything passed.

    Raises
    ------
    Filtered
        A filter refused something, was not content with its own redaction, or nothing is left.
    """
    sieve = _Sieve(filters)
    text = engine.chat.text_of(words.ids) if same_tokenizer else words.text
    left = sieve.text(text)
    messages = tuple(sieve.message(one) for one in words.messages)
    if not sieve.counts:
        return words, FilterOutcome(text)
    ids, left = sieve.tokenized(engine, left)
    return Transcript(ids, left, messages), sieve.outcome(left)


class _Sieve:
    """Puts texts and messages through filters; keeps the names of those that took something out.

    ``thoughts`` are cut out of what assistants say, with all that is marked as reasoning, unless
    it is None.
    """

    def __init__(self, filters: Sequence[TextFilter], thoughts: list[str] | None = None) -> None:
        self._filters, self._thoughts = filters, thoughts
        self.counts: dict[str, int] = {}

    def outcome(self, text: str) -> FilterOutcome:
        """All that was taken out."""
        return FilterOutcome(text, tuple(self.counts), tuple(self.counts.values()))

    def text(self, text: str) -> str:
        """What is left of a text."""
        found = run_filters(self._filters, text)
        if found.refusal is not None:
            raise Filtered(found.reasons[-1].sentence)
        for name, count in zip(found.redacted, found.counts, strict=True):
            self.counts[name] = self.counts.get(name, 0) + count
        return found.text

    def tokenized(self, engine: Engine, left: str) -> tuple[tuple[int, ...], str]:
        """Ids of what is left, and their text, with which the filters must be content."""
        ids = engine.chat.ids_of(left) if left.strip() else ()
        if not ids:
            raise Filtered("nothing is left of the text")
        text = engine.chat.text_of(ids)
        if not run_filters(self._filters, text).passed:
            raise Filtered("a filter is not content with what it has redacted itself")
        return ids, text

    def message(self, message: Mapping[str, Any]) -> JSON:
        """What is left of a message; a role that is known stays."""
        thinks = self._thoughts is not None
        hidden = _REASONING_FIELDS if thinks else ()
        return {
            key: value
            if key == "role" and value in ROLES
            else self._value(value, thinks=thinks and message["role"] == "assistant")
            for key, value in message.items()
            if key not in hidden
        }

    def _value(self, value: Any, *, thinks: bool) -> Any:
        """A JSON value whose texts hold only what may be passed on."""
        if isinstance(value, str):
            return self.text(self._spoken(value) if thinks else value)
        if isinstance(value, Mapping):
            return {
                self.text(str(key)): self._value(item, thinks=thinks) for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._value(item, thinks=thinks) for item in value]
        if isinstance(value, bool) or value is None:
            return value
        spelled = str(value)  # a template prints numbers like any text
        left = self.text(spelled)
        return value if left == spelled else left

    def _spoken(self, text: str) -> str:
        """What somebody said without what they thought."""
        text = _MARKED.sub("", text)
        for said in self._thoughts or ():
            text = text.replace(said, "", 1)
        return text


class _Redaction:
    """What of a turn has been kept so far, and what was taken out."""

    def __init__(
        self, engine: Engine, filters: Sequence[TextFilter], own: Sequence[str], *, whole: bool
    ) -> None:
        texts = tuple(text.strip() for text in own if text.strip())
        first = [Cut(Role.SYSTEM.value, texts)] if texts else []
        self._engine, self._chat = engine, engine.chat
        self._thoughts: list[str] = []
        self._sieve = _Sieve([*first, *filters], None if whole else self._thoughts)
        self._ids: list[int] = []
        self._spans: list[Span] = []
        self._roles: list[str] = []

    def drop(self, role: Role, ids: Sequence[int]) -> None:
        """Leave a span out.  Reasoning that nothing marks in a message is known by its words."""
        self._roles.append(role.value)
        if role is not Role.REASONING:
            return
        said = _MARKS.sub("", self._chat.text_of(ids, skip_special=True)).strip()
        if said:
            self._thoughts.append(said)

    def keep(self, role: Role, ids: Sequence[int]) -> None:
        """Keep of a span what the filters leave."""
        text = self._chat.text_of(ids)
        left = self._sieve.text(text)
        if left != text:
            ids = self._chat.ids_of(left, joined=bool(self._ids)) if left else ()
        if ids:
            self._spans.append(Span(role, TokenRun(len(self._ids), len(ids))))
            self._ids.extend(ids)

    def finish(self, messages: Sequence[Mapping[str, Any]]) -> Redacted:
        """Ask the filters for the whole as well: a pattern may reach over the end of a span."""
        ids, spans = tuple(self._ids), tuple(self._spans)
        text = self._chat.text_of(ids)
        left = self._sieve.text(text)
        if left != text or not text.strip():
            ids, text = self._sieve.tokenized(self._engine, left)
            spans = (Span(Role.HISTORY, TokenRun(0, len(ids))),)
        told = tuple(self._sieve.message(one) for one in messages)
        removed = tuple(dict.fromkeys((*self._roles, *self._sieve.counts)))
        return Redacted(Transcript(ids, text, told), spans, removed)


def _is_of(message: Mapping[str, Any], roles: Sequence[Role]) -> bool:
    """Whether a message is a system prompt, and those are left out."""
    return Role.SYSTEM in roles and message["role"] in _SYSTEM_NAMES


def _without_gaps(spans: Sequence[Span], tokens: int) -> Iterator[Span]:
    """Spans, and history where there is none."""
    done = 0
    for span in (*spans, Span(Role.HISTORY, TokenRun(tokens, 0))):
        if span.run.first > done:
            yield Span(Role.HISTORY, TokenRun(done, span.run.first - done))
        if span.run.count:
            yield span
        done = max(done, span.run.stop)
