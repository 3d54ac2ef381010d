"""Text gates on both sides of a hand-off: before anything is exported, before anything is attached.

A filter sees the text that the tokens stand for, decoded from the ids themselves where the
receiver knows the tokenizer: the text that a transcript claims is not believed.  What the sender
says besides (instruction, summary, goal) is filtered, too, each by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvbaton.engines.base import Engine
from kvbaton.errors import Filtered
from kvbaton.policy.filters import FilterOutcome, TextFilter, run_filters
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
        found = self.outcome(self._text_of(baton))
        if found.passed:
            return baton, reasons
        return text_only_baton(self.engine, baton, found), (*reasons, *found.reasons)

    def _text_of(self, baton: Baton) -> str:
        """Everything of a transcript that could reach the model."""
        words, function = baton.transcript, self.engine.function
        if "tokenizer" not in baton.manifest.function.differing(function):
            return self.engine.chat.text_of(words.ids)
        said = [str(message.get("content") or "") for message in words.messages]
        return "\n".join([words.text, *said])


def text_only_baton(engine: Engine, baton: Baton, left: FilterOutcome) -> Baton:
    """A baton of this process with nothing but a text, in place of one whose text was redacted."""
    ids = engine.chat.ids_of(left.text)
    listing = replace(
        baton.manifest,
        function=engine.function,
        cached_tokens=0,
        pending_tokens=len(ids),
        spans=(),
        segments=(),
        redacted=left.redacted,
        importance=None,
    )
    return replace(baton, manifest=listing, transcript=Transcript(ids, left.text))


def names_of(outcomes: Sequence[FilterOutcome]) -> tuple[str, ...]:
    """Names of the filters that took something out, each once."""
    return tuple(dict.fromkeys(name for found in outcomes for name in found.redacted))
