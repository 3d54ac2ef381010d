"""Treatments: for which ids of the receiver's prompt a cache is attached, and which are run.

The sender reads a prompt P and says a message G; the receiver is asked Q behind both.  The ids
P + G + Q are the same for every treatment with content ``whole``, so that what differs between two
of them is caused by the cache alone.  Other contents have a reference of their own, which runs the
very same ids as text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from kvbaton.codecs.profiles import profile
from kvbaton.errors import InputError
from kvbaton.types import JSON

DEFAULT = ("T0", "T1", "T2", "T3", "T4", "T5")
"""Treatments of an audit that names none."""
SPANS = ("prompt", "generated", "all")


class Content(StrEnum):
    """What the receiver reads before its own turn."""

    WHOLE = "whole"
    """The sender's conversation, message and all."""
    SLICE = "slice"
    """The receiver's own beginning and, behind it, chosen spans."""
    PROMPT = "prompt"
    """The sender's prompt only: the message is never decoded."""


class Attached(StrEnum):
    """For which of these ids a cache is attached."""

    NOTHING = "nothing"
    PROMPT = "prompt"
    GENERATED = "generated"
    ALL = "all"


class Control(StrEnum):
    """Whose numbers a control has in place of the sender's."""

    OTHER = "other"
    """A cache of the same shape from another conversation."""
    ZEROED = "zeroed"
    SHUFFLED = "shuffled"
    """The sender's own, keys and values each in another order of positions."""


class Role(StrEnum):
    """What a treatment is there for."""

    REFERENCE = "reference"
    CANDIDATE = "candidate"
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Treatment:
    """One way to give a receiver its context.

    Parameters
    ----------
    name
        How records and reports call it, such as ``T3:compact``.
    label
        In words.
    content, attached
        What the receiver reads, and for what of it a cache is attached.
    reference
        Name of the treatment that runs the same ids as text.
    profile
        Codec profile of the cache.
    control
        Whose numbers it has, where they are not the sender's.
    spans
        What a slice is made of.
    repair
        Compute part of a slice again, by the default choice.
    """

    name: str
    label: str
    content: Content
    attached: Attached
    reference: str
    profile: str = "exact"
    control: Control | None = None
    spans: str = ""
    repair: bool = False

    @property
    def role(self) -> Role:
        """Reference, control or candidate."""
        if self.attached is Attached.NOTHING:
            return Role.REFERENCE
        return Role.CANDIDATE if self.control is None else Role.CONTROL

    def bookkeeping(self) -> JSON:
        """Which ids the cache stands for and which are run, in words: ``{"cache", "run"}``."""
        read = {
            Content.WHOLE: "prompt and message",
            Content.PROMPT: "prompt",
            Content.SLICE: f"own beginning and the slice ({self.spans})",
        }[self.content]
        if self.attached is Attached.NOTHING:
            return {"cache": "nothing", "run": f"{read}, question"}
        if self.content is Content.SLICE:
            again = " (part of it is computed again)" if self.repair else ""
            return {"cache": f"the slice ({self.spans}){again}", "run": "own beginning, question"}
        covered, rest = {
            Attached.PROMPT: ("prompt", "message, question"),
            Attached.GENERATED: ("message", "prompt, question"),
            Attached.ALL: (read, "question"),
        }[self.attached]
        if self.content is Content.PROMPT:
            rest = "question"
        numbers = f", with {self.control.value} numbers" if self.control else ""
        return {"cache": f"{covered}{numbers}", "run": rest}


_PLAIN = (
    Treatment("T0", "text only", Content.WHOLE, Attached.NOTHING, "T0"),
    Treatment("T1", "the prompt's KV", Content.WHOLE, Attached.PROMPT, "T0"),
    Treatment("T2", "the generated KV", Content.WHOLE, Attached.GENERATED, "T0"),
    Treatment("T3", "all KV", Content.WHOLE, Attached.ALL, "T0"),
    Treatment(
        "T4",
        "control: another conversation's KV",
        Content.WHOLE,
        Attached.ALL,
        "T0",
        control=Control.OTHER,
    ),
    Treatment(
        "T5", "control: zeroed KV", Content.WHOLE, Attached.ALL, "T0", control=Control.ZEROED
    ),
    Treatment(
        "T5-shuffled",
        "control: shuffled KV",
        Content.WHOLE,
        Attached.ALL,
        "T0",
        control=Control.SHUFFLED,
    ),
    Treatment("Z0", "the prompt as text, no message", Content.PROMPT, Attached.NOTHING, "Z0"),
    Treatment("Z", "zero-decode: the prompt's KV, no message", Content.PROMPT, Attached.ALL, "Z0"),
)
_BY_NAME = {treatment.name: treatment for treatment in _PLAIN}
KNOWN = (*_BY_NAME, "T3:PROFILE", *(f"S:{s}" for s in SPANS), "S:SPANS+repair")
"""Names, for people."""


def treatment(name: str) -> Treatment:
    """A treatment by its name.

    ``T3:PROFILE`` is T3 through a codec profile; ``S:SPANS`` a slice of ``prompt``,
    ``generated`` or ``all``, with ``+repair`` partly computed again; ``S0:SPANS`` its reference.

    Raises
    ------
    InputError
        No treatment is called so.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    kind, _, rest = name.partition(":")
    if kind == "T3" and rest:
        profile(rest)
        label = f"all KV, {rest}"
        return Treatment(name, label, Content.WHOLE, Attached.ALL, "T0", profile=rest)
    spans, plus, repair = rest.partition("+")
    if kind in ("S", "S0") and spans in SPANS and (not plus or (repair, kind) == ("repair", "S")):
        return _slice(name, spans, repair=bool(plus), by_text=kind == "S0")
    raise InputError(
        f"no treatment is called {name[:60]!r}", hint=f"known: {', '.join(KNOWN)}", at="treatments"
    )


def _slice(name: str, spans: str, *, repair: bool, by_text: bool) -> Treatment:
    reference = f"S0:{spans}"
    if by_text:
        label = f"slice of {spans} as text"
        return Treatment(name, label, Content.SLICE, Attached.NOTHING, reference, spans=spans)
    label = f"slice of {spans}, shifted{' and repaired' if repair else ''}"
    return Treatment(
        name, label, Content.SLICE, Attached.ALL, reference, spans=spans, repair=repair
    )


def expanded(names: Iterable[str]) -> tuple[Treatment, ...]:
    """Treatments by name, each once, with the references that they need; references first.

    ``T0`` is always among them: the sender's whole way by text is what a hand-off replaces.

    Raises
    ------
    InputError
        A name is not known, or there is nothing but references.
    """
    asked = [treatment(name) for name in dict.fromkeys(names)]
    if all(one.role is Role.REFERENCE for one in asked):
        raise InputError("there is no treatment besides text", at="treatments")
    wanted = {"T0": _BY_NAME["T0"]}
    wanted |= {one.reference: treatment(one.reference) for one in asked}
    return (*wanted.values(), *(one for one in asked if one.name not in wanted))
