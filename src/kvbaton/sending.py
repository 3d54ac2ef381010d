"""Handing a turn off: what of it leaves, as a cache or as text, and the notes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvbaton.choosing import Choice, Choosing
from kvbaton.conversation import Turn
from kvbaton.engines.base import Engine
from kvbaton.errors import InputError
from kvbaton.following import NO_REF, Following, Place, baton_node
from kvbaton.gating import TextGate
from kvbaton.redaction import redacted_content
from kvbaton.relay import Relay
from kvbaton.shipping import Packing
from kvbaton.sources import Spans, chosen_mode, chosen_source, importance_of, words_of
from kvbaton.types import Baton, BatonRef, Mode, Span, Terms


@dataclass(frozen=True)
class Cutting:
    """What of a turn is handed off; the fields are those of ``Agent.hand_off``."""

    mode: Mode | str | None = None
    spans: Spans | None = None
    private: bool = False
    clean: bool = False
    keep: float = 1.0

    @property
    def sliced(self) -> bool:
        """Whether spans are chosen, by name or by what else only slices have."""
        return self.spans is not None or self.private or self.clean or self.keep != 1.0


@dataclass(frozen=True)
class Sender:
    """Hands turns of one agent off.

    ``gate`` asks the filters, ``following`` notes what was handed off, ``own`` are texts of the
    agent's that no other domain may see, and ``choosing`` says how whole turns are encoded.
    """

    name: str
    relay: Relay
    gate: TextGate
    following: Following
    own: tuple[str, ...] = ()
    choosing: Choosing | None = None

    @property
    def engine(self) -> Engine:
        """The sender's model."""
        return self.relay.engine

    def hand_off(
        self,
        turn: Turn,
        cut: Cutting,
        packing: Packing,
        terms: Terms,
        *,
        importance: bool = False,
        expires_ms: int = 0,
        to_domain: str | None = None,
        place: Place = NO_REF,
    ) -> Baton:
        """See ``Agent.hand_off``."""
        said, _ = self.gate.terms(terms)
        wanted = chosen_mode(cut.mode, sliced=cut.sliced, abroad=to_domain is not None)
        if to_domain is not None:
            if place.ref:
                raise InputError("a ref stands for contexts of its own trust domain", at="$.ref")
            return self._noted(self._as_text(turn, said, to_domain, expires_ms, place), turn)
        source, shown = chosen_source(
            self.engine,
            turn,
            wanted,
            cut.spans,
            private=cut.private,
            keep=cut.keep,
            clean=cut.clean,
        )
        words, whole = words_of(self.engine, source, turn, wanted), wanted is Mode.CONTINUE
        choice = None
        if self.choosing is not None:
            self.relay.encode_by(None)
        if self.choosing is not None and whole and packing.plan is None:
            choice = self.choosing.choose(turn)
            self.relay.encode_by(choice.plan)
            if choice.by_text and self.gate.passes(words):
                return self._noted(self._as_text(turn, said, None, expires_ms, place), turn, choice)
        if not self.gate.passes(words):
            part = None if whole else (words.ids, shown)
            return self._noted(self._as_text(turn, said, None, expires_ms, place, part), turn)
        baton = self.relay.hand_off(
            source,
            sender=self.name,
            mode=wanted,
            text=words.text,
            spans=shown,
            messages=words.messages,
            terms=said,
            packing=packing,
            importance=importance_of(self.engine, source) if importance and whole else None,
            expires_ms=expires_ms,
            place=place.in_manifest,
        )
        if wanted is not Mode.SLICE and packing.plan is None and not packing.noise:
            turn.conversation.shipped(baton.manifest.segments)
        return self._noted(baton, turn, choice)

    def _as_text(
        self,
        turn: Turn,
        said: Terms,
        to_domain: str | None,
        expires_ms: int,
        place: Place,
        part: tuple[Sequence[int], Sequence[Span]] | None = None,
    ) -> Baton:
        """A baton of what the filters leave of a turn's text, or of a part of it; for another
        domain also without what is private."""
        content = redacted_content(
            self.engine,
            turn,
            self.gate.filters,
            private=to_domain is None,
            part=part,
            own=self.own,
        )
        return self.relay.hand_off_text(
            content.words,
            content.spans,
            sender=self.name,
            removed=content.removed,
            parents=turn.conversation.parents,
            signers=turn.conversation.signers,
            terms=said,
            to_domain=to_domain or "",
            expires_ms=expires_ms,
            place=place.in_manifest,
        )

    def _noted(self, baton: Baton, turn: Turn, choice: Choice | None = None) -> Baton:
        """A baton that is in the store, noted in the ledger, its ref moved to it."""
        facts = {} if choice is None else choice.to_json()
        node = baton_node(baton, turn.conversation.built_on, self.engine.name, facts)
        if baton.manifest.ref:
            self.following.move(baton, node, self.relay.store)
            turn.conversation.built_on = (baton.id,)  # what comes next builds on the new head
            return baton
        troubles = self.following.note(node)
        return replace(baton, warnings=(*baton.warnings, *troubles)) if troubles else baton


def node_of(source: Turn | Baton | BatonRef | str) -> str:
    """The id under which the ledger knows something."""
    if isinstance(source, Turn):
        return source.receipt.id
    return source if isinstance(source, str) else source.id
