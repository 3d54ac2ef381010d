"""Units, questions and task sets: the vocabulary of the audit."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from kvbaton.types import JSON


class Relevance(StrEnum):
    """How much of the sender's context the receiver needs."""

    HIGH = "high"
    LOW = "low"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Question:
    """What a receiver is asked, and how its answer is judged.

    Parameters
    ----------
    id
        Unique in its unit.
    text
        The receiver's instruction: a new user turn behind the sender's context.
    answers
        What is right; any of them counts.
    scorer
        ``exact``, ``contains``, ``f1``, ``rouge-l``, ``code``, or ``module:function`` of the
        user's own.
    opening
        Words that the receiver's answer is made to begin with; empty for none.
    max_new_tokens
        Of the answer.
    tests
        Python that must run without error behind the answer's code; for ``code`` only.
    """

    id: str
    text: str
    answers: tuple[str, ...] = ()
    scorer: str = "contains"
    opening: str = ""
    max_new_tokens: int = 16
    tests: str = ""


@dataclass(frozen=True, slots=True)
class Unit:
    """A task for a sender and a receiver.

    Parameters
    ----------
    id
        Unique in its set.
    kind
        Task kind, a stratum: ``facts``, ``tables``, ``code-symbols`` ...
    language
        ISO 639-1 code of the content.
    relevance
        How much the receiver needs of the sender's context.
    messages
        The sender's conversation as chat messages, up to and with the user message that it
        answers.
    message
        The sender's answer where it is given; empty where its model is to generate it.
    message_tokens
        At most so many tokens are generated.
    questions
        Asked of the receiver one by one, each behind the same context.
    """

    id: str
    kind: str
    messages: tuple[JSON, ...]
    questions: tuple[Question, ...]
    language: str = "en"
    relevance: Relevance = Relevance.HIGH
    message: str = ""
    message_tokens: int = 48


@dataclass(frozen=True, slots=True)
class TaskSet:
    """Units with a name and a version; ``digest`` is the BLAKE3 (hex) of the file's bytes."""

    name: str
    version: int
    units: tuple[Unit, ...]
    digest: str = ""
    seed: int = 0
    about: str = ""
    made_for: str = field(default="", compare=False)
    """Tokenizer by which lengths were counted; empty for sets that count none."""
