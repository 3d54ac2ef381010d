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
from kvbaton.policy.filters import Passed, Redact, Ruling, TextFilter, run_filters
from kvbaton.prompts import packed_spans
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
    runs: Sequence[TokenRun] | None = None,
    own: Sequence[str] = (),
) -> Redacted:
    """The text of a turn, as it may be handed off.

    Parameters
    ----------
    filters
        Asked for each span, for what is left of the whole, and for every text in the messages.
    private
        Keep what :data:`PRIVATE_ROLES` said.
    runs
        Only these of the turn's tokens; then there are no messages.
    own
        Texts that are cut wherever they stand, unless ``private``: an agent's own system prompt
        stands in its turn where the conversation had begun before.

    Raises
    ------
    Filtered
        A filter refused something, was not content with its own redaction, or nothing is left.
    """
    ids, spans = _chosen(turn, runs)
    dropped = () if private else PRIVATE_ROLES
    work = _Redaction(engine, filters, () if private else own)
    for span in spans:
        part = ids[span.run.first : span.run.stop]
        if span.role in dropped:
            work.drop(span.role, part)
        else:
            work.keep(span.role, part)
    whole = runs is None
    return work.finish(turn.messages if whole else (), without=dropped)


class _Redaction:
    """What has been kept so far, and what was taken out."""

    def __init__(self, engine: Engine, filters: Sequence[TextFilter], own: Sequence[str]) -> None:
        self._chat, self._filters = engine.chat, list(filters)
        texts = tuple(text.strip() for text in own if text.strip())
        if texts:
            self._filters.insert(0, Cut(Role.SYSTEM.value, texts))
        self._ids: list[int] = []
        self._spans: list[Span] = []
        self._roles: list[str] = []
        self._names: list[str] = []
        self._thoughts: list[str] = []

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
        left = self._filtered(text)
        if left != text:
            ids = self._chat.ids_of(left, joined=bool(self._ids)) if left else ()
        if ids:
            self._spans.append(Span(role, TokenRun(len(self._ids), len(ids))))
            self._ids.extend(ids)

    def finish(self, messages: Sequence[Mapping[str, Any]], *, without: Sequence[Role]) -> Redacted:
        """Ask the filters for the whole as well: a pattern may reach over the end of a span."""
        ids, spans = tuple(self._ids), tuple(self._spans)
        text = self._chat.text_of(ids)
        left = self._filtered(text)
        if left != text:
            ids = self._chat.ids_of(left) if left else ()
            spans = (Span(Role.HISTORY, TokenRun(0, len(ids))),)
            text = self._chat.text_of(ids)
            if self._filtered(text) != text:
                raise Filtered("a filter is not content with what it has redacted itself")
        if not ids or not text.strip():
            raise Filtered("nothing is left of the text")
        told = tuple(self._message(one, without) for one in messages if not _is_of(one, without))
        removed = tuple(dict.fromkeys((*self._roles, *self._names)))
        return Redacted(Transcript(ids, text, told), spans, removed)

    def _filtered(self, text: str) -> str:
        found = run_filters(self._filters, text)
        if found.refusal is not None:
            raise Filtered(found.reasons[-1].sentence)
        self._names.extend(found.redacted)
        return found.text

    def _message(self, message: Mapping[str, Any], without: Sequence[Role]) -> JSON:
        hidden = _REASONING_FIELDS if Role.REASONING in without else ()
        thinks = bool(hidden) and message["role"] == "assistant"
        return {
            key: value if key == "role" else self._value(value, thinks=thinks)
            for key, value in message.items()
            if key not in hidden
        }

    def _value(self, value: Any, *, thinks: bool) -> Any:
        """A JSON value whose texts hold only what may leave."""
        if isinstance(value, str):
            if thinks:
                value = _MARKED.sub("", value)
                for said in self._thoughts:
                    value = value.replace(said, "", 1)
            return self._filtered(value)
        if isinstance(value, Mapping):
            return {
                self._filtered(str(key)): self._value(item, thinks=thinks)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._value(item, thinks=thinks) for item in value]
        return value


def _is_of(message: Mapping[str, Any], roles: Sequence[Role]) -> bool:
    """Whether a message is a system prompt, and those are left out."""
    return Role.SYSTEM in roles and message["role"] in _SYSTEM_NAMES


def _chosen(turn: Turn, runs: Sequence[TokenRun] | None) -> tuple[tuple[int, ...], list[Span]]:
    """Ids of a turn, or of some of its runs, and spans that cover all of them."""
    ids = tuple(turn.conversation.ids[: turn.tokens])
    spans = turn.spans
    if runs is not None:
        ids = tuple(i for run in runs for i in ids[run.first : run.stop])
        spans = packed_spans(turn.spans, runs)
    return ids, list(_without_gaps(spans, len(ids)))


def _without_gaps(spans: Sequence[Span], tokens: int) -> Iterator[Span]:
    """Spans, and history where there is none."""
    done = 0
    for span in (*spans, Span(Role.HISTORY, TokenRun(tokens, 0))):
        if span.run.first > done:
            yield Span(Role.HISTORY, TokenRun(done, span.run.first - done))
        if span.run.count:
            yield span
        done = max(done, span.run.stop)
