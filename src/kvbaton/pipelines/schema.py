"""What a pipeline file says, as value objects: agents, and how batons go between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvbaton.types import Mode

DTYPES: Mapping[str, str] = {
    "bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64",
}  # fmt: skip
"""dtypes of weights and cache that a pipeline can ask for -> their safetensors names."""
INPUT = "{input}"
"""Placeholder for the input document in a task or an instruction."""
ANSWERS = "{answers}"
"""Placeholder for the answers that an edge joins."""


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """How an agent's tokens are chosen; the defaults are greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class HandOffWhen:
    """When a sender's turn ends in a hand-off: ``end``, ``tool-call`` or ``marker``.

    A marker or a tool call that never comes leaves the end of the turn.
    """

    kind: str = "end"
    marker: str = ""


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """One agent.  ``task`` is what it is always asked; ``system`` is its own system prompt."""

    name: str
    system: str = ""
    task: str = ""
    max_new_tokens: int = 128
    stop: tuple[str, ...] = ()
    sampling: SamplingSpec = field(default_factory=SamplingSpec)


@dataclass(frozen=True, slots=True)
class Edge:
    """One baton: from a sender to one receiver.

    ``join`` names agents whose answers stand as text in the receiver's new turn.  ``spans`` is
    what a slice is made of.
    """

    sender: str
    receiver: str
    mode: Mode = Mode.CONTINUE
    instruction: str = ""
    join: tuple[str, ...] = ()
    spans: str = "generated"
    hand_off_when: HandOffWhen = field(default_factory=HandOffWhen)


@dataclass(frozen=True, slots=True)
class ContextSpec:
    """The preamble that all agents share.  ``title`` heads the input document in it; an empty one
    leaves the document out."""

    title: str = ""
    notes: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A whole pipeline.

    ``agents`` stand in the order in which they run: a sender before its receivers, otherwise as
    in the file.  The first is the only one that takes no baton.  ``document`` is the text of the
    input; it is empty as long as none has been read.
    """

    name: str
    agents: tuple[AgentSpec, ...]
    edges: tuple[Edge, ...] = ()
    description: str = ""
    model: str | None = None
    dtype: str | None = None
    profile: str | None = None
    input: Path | None = None
    context: ContextSpec | None = None
    document: str = ""

    def edges_to(self, agent: str) -> Sequence[Edge]:
        """The edges that bring an agent its batons, in the order of the file: none for the first
        agent, several where slices are joined."""
        return [edge for edge in self.edges if edge.receiver == agent]

    def edges_from(self, agent: str) -> Sequence[Edge]:
        """Edges on which an agent hands off, in the order of the file."""
        return [edge for edge in self.edges if edge.sender == agent]

    @property
    def reads_input(self) -> bool:
        """Whether the input document is in a task, in an instruction or in the shared context."""
        said = [agent.task for agent in self.agents] + [edge.instruction for edge in self.edges]
        in_context = self.context is not None and bool(self.context.title)
        return in_context or any(INPUT in text for text in said)
