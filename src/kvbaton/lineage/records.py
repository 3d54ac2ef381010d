"""What the ledger holds, as value objects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from kvbaton.errors import InputError
from kvbaton.types import JSON

_REF = re.compile(r"[a-z0-9][a-z0-9._/-]{0,127}")
_NO_TEXT = r"\x00-\x1f\x7f\ud800-\udfff"
"""Control characters, and halves of surrogate pairs: no database can hold those."""
_NODE = re.compile(rf"[^{_NO_TEXT}]{{1,200}}")
_TEXT = re.compile(rf"[^{_NO_TEXT}]*")
MAX_LABEL = 200
_LONGEST = {
    "label": MAX_LABEL,
    "agent": MAX_LABEL,
    "model": MAX_LABEL,
    "codec": MAX_LABEL,
    "function": 64,
    "fidelity": 16,
    "store": 4096,
}
_NUMBERS = ("tokens", "size_bytes", "hops_exact", "hops_lossy", "expires_ms", "created_ms")
_MOST = 2**63 - 1


class NodeKind(StrEnum):
    """What builds on what."""

    BATON = "baton"
    ARTEFACT = "artefact"
    """Something made from a context: a plan, a file."""
    ANSWER = "answer"
    """What an agent said; its id is the receipt's."""


class EventKind(StrEnum):
    """What happened."""

    RECORDED = "recorded"
    MOVED = "moved"
    """A ref was moved to a new head."""
    STALE = "stale"
    """Nodes were marked, because a ref was moved or one of their parents was stale."""
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class Stale:
    """Why a node is stale.

    Parameters
    ----------
    sequence
        Of the ledger, when it was marked.
    ref, ref_sequence
        The ref that was moved on, and from which of its heads; empty and 0 where something was
        withdrawn.
    why
        A sentence.
    """

    sequence: int
    ref: str
    ref_sequence: int
    why: str

    def to_json(self) -> JSON:
        """``{"sequence", "ref", "ref_sequence", "why"}``."""
        return {
            "sequence": self.sequence,
            "ref": self.ref,
            "ref_sequence": self.ref_sequence,
            "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class Node:
    """A baton, an artefact or an answer.

    Parameters
    ----------
    id
        A baton's or receipt's id, or a name of the user's own.
    parents
        Ids of what it was made from; they need not be known yet.
    agent, model, function
        Who made it, with which model; ``function`` is the digest of the function id.
    tokens, size_bytes
        Of the context, and of what is stored for it.
    codec, fidelity, hops_exact, hops_lossy
        As the manifest has them.
    store, expires_ms
        Where it lies, and when it ends (0: never), in milliseconds since the epoch.
    created_ms
        When it was made; shown, and never compared: clocks differ.
    facts
        More, without text of prompts or answers.
    sequence, stale
        As the ledger gave them; 0 and None for what is to be recorded.

    Raises
    ------
    InputError
        An id cannot be used; or the node is to be recorded, and a text or number of it is too
        long, too large, or has characters that no database can hold.
    """

    id: str
    kind: NodeKind
    label: str = ""
    parents: tuple[str, ...] = ()
    agent: str = ""
    model: str = ""
    function: str = ""
    tokens: int = 0
    size_bytes: int = 0
    codec: str = ""
    fidelity: str = ""
    hops_exact: int = 0
    hops_lossy: int = 0
    store: str = ""
    expires_ms: int = 0
    created_ms: int = 0
    facts: Mapping[str, JSON] = field(default_factory=dict)
    sequence: int = 0
    stale: Stale | None = None

    def __post_init__(self) -> None:
        for name in (self.id, *self.parents):
            require_node_id(name)
        if not self.sequence:  # what others have written is shown, whatever it is
            self._require_writable()

    def _require_writable(self) -> None:
        for field_, longest in _LONGEST.items():
            text = getattr(self, field_)
            if len(text) > longest or not _TEXT.fullmatch(text):
                raise InputError(
                    f"{field_} has at most {longest} characters, none of them control "
                    "characters or halves of surrogate pairs",
                    at=f"$.{field_}",
                )
        for field_ in _NUMBERS:
            number = getattr(self, field_)
            if type(number) is not int or not 0 <= number <= _MOST:
                raise InputError(f"{field_} is no count of 0 to 2^63 - 1", at=f"$.{field_}")

    def seen(self, sequence: int, stale: Stale | None) -> Node:
        """The node as it was recorded."""
        return replace(self, sequence=sequence, stale=stale)

    def to_json(self) -> JSON:
        """A JSON object of all fields."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return plain | {
            "kind": self.kind.value,
            "parents": list(self.parents),
            "facts": dict(self.facts),
            "stale": None if self.stale is None else self.stale.to_json(),
        }


@dataclass(frozen=True, slots=True)
class Entry:
    """A node to be recorded; ``once`` (at most 64 characters) names the record, so that writing it
    again changes nothing."""

    node: Node
    once: str = ""


@dataclass(frozen=True, slots=True)
class Head:
    """Where a ref stands: at its ``sequence``-th baton, as of the ledger's sequence ``as_of``."""

    ref: str
    sequence: int
    baton: str
    moved_ms: int
    as_of: int

    def to_json(self) -> JSON:
        """A JSON object of all fields."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


class Standing(StrEnum):
    """Whether a context is the current one."""

    CURRENT = "current"
    STALE = "stale"
    UNKNOWN = "unknown"
    """The ledger does not know the baton, or its ref."""


@dataclass(frozen=True, slots=True)
class Freshness:
    """Whether a baton is the head of its ref, and nothing that it was made from is stale.

    Parameters
    ----------
    ref, ref_sequence
        The ref that the baton names, and which of its heads it is; empty and 0 without one.
    head_sequence
        Where the ref stands; 0 where it is not known.
    as_of
        The ledger's sequence at that time.
    why
        A sentence, where it is stale.
    """

    standing: Standing
    ref: str = ""
    ref_sequence: int = 0
    head_sequence: int = 0
    as_of: int = 0
    why: str = ""

    def to_json(self) -> JSON:
        """A JSON object of all fields."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return plain | {"standing": self.standing.value}


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes, oldest first, with their parents, and where refs stand; ``root`` is the id of the
    node that was asked for."""

    nodes: tuple[Node, ...]
    heads: tuple[Head, ...]
    root: str | None = None

    def to_json(self) -> JSON:
        """``{"root", "nodes", "edges": [[child, parent]], "refs"}``."""
        return {
            "root": self.root,
            "nodes": [node.to_json() for node in self.nodes],
            "edges": [[node.id, parent] for node in self.nodes for parent in node.parents],
            "refs": [head.to_json() for head in self.heads],
        }


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the log."""

    sequence: int
    kind: EventKind
    node: str
    ref: str
    ref_sequence: int
    detail: JSON
    created_ms: int

    def to_json(self) -> JSON:
        """A JSON object of all fields."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return plain | {"kind": self.kind.value}


@dataclass(frozen=True, slots=True)
class Marked:
    """Nodes that one change made stale: ``nodes`` were not so before, ``affected`` are all that
    build on what changed."""

    sequence: int
    nodes: tuple[str, ...]
    affected: tuple[Node, ...]

    def to_json(self) -> JSON:
        """A JSON object of all fields."""
        return {
            "sequence": self.sequence,
            "nodes": list(self.nodes),
            "affected": [node.to_json() for node in self.affected],
        }


def require_ref(name: str) -> str:
    """The name of a ref, if it can be one.

    Raises
    ------
    InputError
        It cannot.
    """
    if not _REF.fullmatch(name):
        raise InputError(
            f"{name[:80]!r} is no name of a ref",
            hint="1 to 128 of a-z, 0-9, '.', '_', '/', '-', beginning with a letter or digit",
        )
    return name


def require_node_id(name: str) -> str:
    """The id of a node, if it can be one.

    Raises
    ------
    InputError
        It cannot.
    """
    if not _NODE.fullmatch(name):
        raise InputError(
            f"{name[:80]!r} is no id",
            hint="1 to 200 characters, without control characters and halves of surrogate pairs",
        )
    return name
