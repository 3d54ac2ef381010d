"""Text gates on both sides of a hand-off: before anything is exported, before anything is attached.

A filter sees the text that the tokens stand for, decoded from the ids themselves where the
receiver knows the tokenizer: the text that a transcript claims is not believed.  What the sender
says besides (instruction, summary, goal) is filtered, too, each by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvbaton.engines.base import Engine
from kvbaton.errors import Filtered
from kvbaton.policy.filters import FilterOutcome, TextFilter, run_filters
from kvbaton.redaction import gated_words
from kvbaton.types import Baton, Reason, Terms, Transcript

_SAID = ("instruction", "summary", "goal")


@dataclass(frozen=True)
class TextGate:
    """The filters of one agent; without any, everything passes."""

    engine: Engine
    filters: tuple[TextFilter, ...] = ()

    def outcome(self, text: str) -> FilterOutcome:
        """What the filters leave of a text.

        Raises
        ------
        Filtered
            One of them refused it.
        """
        found = run_filters(self.filters, text)
        if found.refusal is not None:
            raise Filtered(found.reasons[-1].sentence)
        return found

    def terms(self, terms: Terms) -> tuple[Terms, tuple[Reason, ...]]:
        """What may be said besides, and why it is not all that was said.

        Raises
        ------
        Filtered
            A filter refused something of it.
        """
        changed: dict[str, Any] = {}
        reasons: tuple[Reason, ...] = ()
        for name in _SAID:
            said = getattr(terms, name)
            if said and not (found := self.outcome(said)).passed:
                changed[name], reasons = found.text, (*reasons, *found.reasons)
        return (replace(terms, **changed) if changed else terms), reasons

    def arriving(self, baton: Baton) -> tuple[Baton, tuple[Reason, ...]]:
        """The baton as it may be used, and why it is not as it was.

        Where its text was redacted, it is a text-only baton of what is left.

        Raises
        ------
        Filtered
            A filter refused it: nothing of it may be used.
        """
        if not self.filters:
            return baton, ()
        terms, reasons = self.terms(baton.manifest.terms)
        if reasons:
            baton = replace(baton, manifest=replace(baton.manifest, terms=terms))
        words, found = self._left_of(baton)
        if found.passed:
            return baton, reasons
        return text_only_baton(self.engine, baton, words, found), (*reasons, *found.reasons)

    def passes(self, words: Transcript) -> bool:
        """Whether a transcript of this agent's may leave as it is, its messages included.

        Raises
        ------
        Filtered
            A filter refused it.
        """
        return not self.filters or gated_words(self.engine, words, self.filters)[1].passed

    def _left_of(self, baton: Baton) -> tuple[Transcript, FilterOutcome]:
        """What the filters leave of everything in a transcript that could reach the model."""
        differing = baton.manifest.function.differing(self.engine.function)
        return gated_words(
            self.engine,
            baton.transcript,
            self.filters,
            same_tokenizer="tokenizer" not in differing,
        )


def as_words(engine: Engine, baton: Baton) -> Baton:
    """What another trust domain has made, with nothing in its sender's instruction, summary and
    goal that opens or closes a turn: its text is retold, and these stand in turns as they are."""
    if baton.manifest.export is None:
        return baton
    terms = baton.manifest.terms
    plain: dict[str, Any] = {name: engine.chat.plain(getattr(terms, name)) for name in _SAID}
    return replace(baton, manifest=replace(baton.manifest, terms=replace(terms, **plain)))


def text_only_baton(engine: Engine, baton: Baton, words: Transcript, left: FilterOutcome) -> Baton:
    """A baton of this process with nothing but a text, in place of one whose text was redacted."""
    listing = replace(
        baton.manifest,
        function=engine.function,
        cached_tokens=0,
        pending_tokens=len(words.ids),
        spans=(),
        segments=(),
        noise=0.0,
        redacted=left.redacted,
        importance=None,
    )
    return replace(baton, manifest=listing, transcript=words)
