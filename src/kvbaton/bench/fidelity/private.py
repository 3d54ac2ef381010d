"""Mode ``questions``: private facts asked by text, by whole batons, and by slices of all kinds.

Each document is read and summed up once by a sender whose system prompt holds codes that the
document does not have.  Ten codes of the document are asked behind every cache, and, where it
matters, those of the system prompt as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from kvbaton.agent import Agent
from kvbaton.alignment.recompute import DEFAULT_CHOOSER, Repair
from kvbaton.backing import Source
from kvbaton.bench.fidelity.answers import greedy_answers
from kvbaton.bench.fidelity.session import Row, Session, Task
from kvbaton.bench.fidelity.splice import DEADLINE_S, UnshiftedRelay, hang
from kvbaton.bench.given import given_ids, put_into_its_mouth
from kvbaton.bench.questions import FACTS, Document, Fact, make_document, own_system_prompt
from kvbaton.conversation import Turn
from kvbaton.errors import BatonRefused
from kvbaton.joining import own_beginning
from kvbaton.prompts import SlicePrompt
from kvbaton.relay import Checks, Relay
from kvbaton.sources import Spans
from kvbaton.taking import refused
from kvbaton.types import JSON, Baton, Mode, TokenRun

NEW_TOKENS = 6
"""A space, four digits and what ends the answer."""
_ROOM = 800
"""Positions for all questions side by side, and their answers."""
_IMPOSTOR = 400
"""Number of a document that nobody is asked about."""

Ask = Callable[[Fact], tuple[int, ...]]
"""The ids that ask for a fact behind a cache."""


@dataclass(frozen=True, slots=True)
class Asking:
    """One way to have a document behind which questions are asked.

    Parameters
    ----------
    mode
        Of the row.
    spans
        What the sender hands off: ``prompt``, ``generated`` or ``all``.
    by_text
        Prefill the same ids as text.
    private
        Let the slice include the sender's system prompt.
    side
        Ask about the first few documents only.
    """

    mode: str
    spans: str = "prompt"
    profile: str = "exact"
    fraction: float | None = None
    by_text: bool = False
    private: bool = False
    side: bool = False

    @property
    def name(self) -> str:
        """In the journal."""
        how = "text" if self.by_text else f"{self.fraction or 0:g}"
        how += f"-{DEFAULT_CHOOSER}" if self.fraction else ""
        return f"{self.mode}-{self.spans}-{how}{'-private' if self.private else ''}"

    @property
    def asks_private(self) -> bool:
        """Whether the codes of the sender's system prompt are asked as well."""
        plain = self.spans == "prompt" and self.profile == "exact"
        return plain and self.mode in ("slice", "slice-clean")

    @property
    def truth(self) -> Asking:
        """The same ids by text."""
        if self.mode == "continue":
            return Asking("continue", self.spans, by_text=True)
        return Asking("slice", self.spans, by_text=True, private=self.private)


def askings(session: Session) -> list[Asking]:
    """Everything that is asked: what the targets are about, then what is asked aside."""
    scope = session.scope
    wanted = ("exact", scope.hop_profile, "tiny")
    whole = [Asking("continue", "all", name) for name in scope.profiles if name in wanted]
    main = [
        Asking("slice", by_text=True),
        Asking("slice", fraction=0.0),
        Asking("slice-unshifted", fraction=0.0),
        Asking("slice-mismatched", fraction=0.0),
    ]
    aside = [
        *(Asking("slice-recompute", fraction=share) for share in scope.fractions),
        Asking("slice-clean", fraction=0.0),
        *(Asking("slice", spans, by_text=True) for spans in ("generated", "all")),
        *(Asking("slice", spans, fraction=0.0) for spans in ("generated", "all")),
        Asking("slice", "prompt", scope.hop_profile, fraction=0.0),
        Asking("slice", "prompt", by_text=True, private=True),
        Asking("slice", "prompt", fraction=0.0, private=True),
        Asking("continue", "all", by_text=True),
        *whole,
    ]
    return [*main, *(replace(asking, side=True) for asking in aside)]


class Reading:
    """A sender that has read a document and summed it up, and a receiver that asks about it."""

    def __init__(self, session: Session, number: int) -> None:
        self.session, self.engine, scope = session, session.engine, session.scope
        self.document = _document(session, number)
        self.sender = session.agent("sender", session.relay(), self.document.system)
        self.turn = summed_up(self.sender, self.document)
        own = own_system_prompt(self._count, tokens=scope.prefix_tokens)
        self.receiver = session.agent("receiver", session.relay(), own)

    def _count(self, text: str) -> int:
        return len(self.engine.tokenizer.encode(text, add_special_tokens=False))

    def asked(self, asking: Asking) -> JSON:
        """How many codes are found behind a document that is there in one way."""
        cache, ask = self.ready(asking)
        facts = self.document.facts
        private = self.document.private if asking.asks_private else ()
        asked = (*facts, *private)
        answers = greedy_answers(
            self.engine, cache, [ask(fact) for fact in asked], new_tokens=NEW_TOKENS
        )
        right = [
            fact.code in self.engine.chat.text_of(ids)
            for fact, ids in zip(asked, answers, strict=True)
        ]
        return {
            "tokens": cache.length,
            "right": sum(right[: len(facts)]),
            "asked": len(facts),
            "private_right": sum(right[len(facts) :]),
            "private_asked": len(private),
        }

    # -- caches to ask behind -------------------------------------------------------------------

    def ready(self, asking: Asking) -> tuple[Any, Ask]:
        """A cache, and the ids that ask for a fact behind it."""
        kind = UnshiftedRelay if asking.mode == "slice-unshifted" else Relay
        lying = asking.mode == "slice-mismatched"
        relay = self.session.relay(asking.profile, kind=kind, checks=Checks(tokens=not lying))
        sender = self.session.agent("sender", relay, self.document.system)
        if asking.mode == "continue":
            return self._whole(asking, sender)
        baton = self._slice(asking, sender)
        writer = self.receiver.writer
        prompt = writer.behind_slices([baton], self.document.facts[0].question)
        cache = self._by_text(prompt) if asking.by_text else self._hung(asking, relay, prompt)

        def ask(fact: Fact) -> tuple[int, ...]:
            ids = writer.behind_slices([baton], fact.question).ids
            return self._opened(ids[cache.length :], fact)

        return cache, ask

    def _opened(self, ids: Sequence[int], fact: Fact) -> tuple[int, ...]:
        """A question with the words that begin its answer."""
        opening = self.engine.tokenizer.encode(fact.opening, add_special_tokens=False)
        return (*ids, *opening)

    def _whole(self, asking: Asking, sender: Agent) -> tuple[Any, Ask]:
        """The whole baton, as a receiver without a role of its own goes on from it."""
        baton = sender.hand_off(self.turn, plan=sender.relay.plan)
        words, cached = baton.transcript.ids, baton.manifest.cached_tokens
        if asking.by_text:
            cache = self.engine.new_cache(cached + _ROOM)
            self.engine.forward(cache, words[:cached])
        else:
            taken = sender.relay.take(
                baton, prompt_tokens=len(words), reusable=cached, room=_ROOM, deadline_s=DEADLINE_S
            )
            cache = taken.cache
            if cache is None:
                raise refused(taken.reasons[0])
        writer = self.session.agent("receiver", sender.relay).writer

        def ask(fact: Fact) -> tuple[int, ...]:
            wanted = writer.behind_baton(baton, fact.question, same_tokenizer=True)
            return self._opened(wanted.ids[cached:], fact)

        return cache, ask

    def _slice(self, asking: Asking, sender: Agent) -> Baton:
        if asking.mode == "slice-mismatched":
            return self._mislabelled(sender)
        return sender.hand_off(
            self.turn,
            spans=cast("Spans", asking.spans),
            private=asking.private,
            clean=asking.mode == "slice-clean",
        )

    def _mislabelled(self, sender: Agent) -> Baton:
        """The ids of this document with the KV of another, longer one."""
        right = sender.hand_off(self.turn, spans="prompt")
        other: Turn = self.session.kept("another", 0, self._another)
        words = right.transcript.ids
        (first, *_), talk = self.turn.runs("prompt"), other.conversation
        run = TokenRun(first.first, len(words))
        if run.stop > other.cached:
            raise BatonRefused(
                "the other document is too short to stand in for this one", reason_code="no-kv"
            )
        source = Source(talk.cache, run.stop, (*talk.ids[: run.first], *words), parts=(run,))
        return sender.relay.hand_off(
            source,
            sender="impostor",
            text=right.transcript.text,
            mode=Mode.SLICE,
            spans=right.manifest.spans,
        )

    def _another(self) -> Turn:
        """A turn about a longer document that has none of the codes."""
        document = _document(self.session, _IMPOSTOR, longer=1.5)
        sender = self.session.agent("other", self.session.relay(), document.system)
        return summed_up(sender, document)

    def _by_text(self, prompt: SlicePrompt) -> Any:
        """The receiver's beginning with the slice's ids prefilled behind it."""
        cache = self._own(prompt)
        self.engine.forward(cache, prompt.ids[cache.length : prompt.slices[-1].stop])
        return cache

    def _own(self, prompt: SlicePrompt) -> Any:
        """A copy of the receiver's own beginning, which is computed once for all."""
        tokens, relay = prompt.own_tokens, self.receiver.relay

        def make() -> Any:
            return own_beginning(relay, prompt, None, agreed=0, deadline_s=DEADLINE_S)

        first = self.session.kept("own", prompt.ids[:tokens], make)
        return own_beginning(relay, prompt, first, agreed=tokens, deadline_s=DEADLINE_S)

    def _hung(self, asking: Asking, relay: Relay, prompt: SlicePrompt) -> Any:
        cache = self._own(prompt)
        repair = Repair(asking.fraction, DEFAULT_CHOOSER) if asking.fraction else None
        hang(relay, prompt, cache, repair=repair)
        return cache


def _document(session: Session, number: int, *, longer: float = 1.0) -> Document:
    scope = session.scope

    def count(text: str) -> int:
        return len(session.engine.tokenizer.encode(text, add_special_tokens=False))

    tokens = round(longer * scope.document_tokens)
    return make_document(number, count, tokens=tokens, system_tokens=scope.before_tokens)


def summed_up(agent: Agent, document: Document) -> Turn:
    """The turn of an agent that reads a document and says its summary.

    The summary is ours: its tokens are fed behind the prompt instead of sampled ones, and the one
    that ends the turn is left pending.
    """
    turn = agent.run(document.prompt, max_new_tokens=1)
    return put_into_its_mouth(agent.engine, turn, given_ids(agent.engine, turn, document.summary))


# --- tasks and rows ----------------------------------------------------------------------------


def tasks(session: Session) -> list[Task]:
    """One measurement per document and way of asking, document by document."""
    asked = askings(session)
    return [
        _task(session, number, asking)
        for number in range(max(_documents(session, asking) for asking in asked))
        for asking in asked
        if number < _documents(session, asking)
    ]


def _documents(session: Session, asking: Asking) -> int:
    scope = session.scope
    wanted = min(scope.questions, scope.side_questions) if asking.side else scope.questions
    return -(-wanted // FACTS)


def _task(session: Session, number: int, asking: Asking) -> Task:
    def run() -> JSON:
        reading: Reading = session.kept("reading", number, lambda: Reading(session, number))
        return reading.asked(asking)

    key = (
        f"questions/{session.scope.document_tokens}/{number}/{asking.name}/"
        f"{session.plan_key(asking.profile)}"
    )
    return Task(key, f"questions about document {number + 1}: {asking.name}", run)


def rows(session: Session) -> list[JSON]:
    """One row per way of asking, over the documents that were asked both so and by text."""
    found = []
    for asking in askings(session):
        pairs = list(_pairs(session, asking))
        if pairs:
            found.append(_row(session, asking, pairs))
    return found


def _pairs(session: Session, asking: Asking) -> Iterator[tuple[JSON, JSON]]:
    for number in range(_documents(session, asking)):
        both = session.found([_task(session, number, asking), _task(session, number, asking.truth)])
        if len(both) == 2:
            yield both[0], both[1]


def _row(session: Session, asking: Asking, pairs: Sequence[tuple[JSON, JSON]]) -> JSON:
    mine, text = ([pair[side] for pair in pairs] for side in (0, 1))
    return Row(
        asking.profile,
        "text" if asking.by_text else asking.mode,
        round(sum(one["tokens"] for one in mine) / len(mine)),
        session.engine.layout.dtype,
        qa_accuracy=_share(mine, "right", "asked"),
        qa_text_accuracy=_share(text, "right", "asked"),
        recompute_fraction=asking.fraction,
        more={
            "spans": asking.spans,
            "includes_private": asking.private or asking.mode == "continue",
            "questions": sum(one["asked"] for one in mine),
            "right": sum(one["right"] for one in mine),
            "text_right": sum(one["right"] for one in text),
            "private_accuracy": _share(mine, "private_right", "private_asked"),
            "private_right": sum(one["private_right"] for one in mine),
            "private_questions": sum(one["private_asked"] for one in mine),
        },
    ).to_json()


def _share(found: Sequence[JSON], right: str, asked: str) -> float | None:
    total = sum(one[asked] for one in found)
    return sum(one[right] for one in found) / total if total else None
