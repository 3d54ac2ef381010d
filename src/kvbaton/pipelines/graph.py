"""What agents and edges must be together: one beginning, one baton each, no way round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvbaton.errors import PipelineError
from kvbaton.pipelines.schema import ANSWERS, AgentSpec, Edge, Pipeline
from kvbaton.pipelines.tables import closest
from kvbaton.types import Mode


def in_running_order(pipeline: Pipeline, edge_paths: Sequence[str]) -> Pipeline:
    """The pipeline with its agents in the order in which they run.

    Parameters
    ----------
    pipeline
        Agents and edges as in the file.
    edge_paths
        Path into the file of each edge.

    Raises
    ------
    PipelineError
        A name is unknown or given twice, a receiver has two senders or nothing to read, an agent
        is never reached, or batons go round in a circle.
    """
    names = _names(pipeline.agents)
    for edge, at in zip(pipeline.edges, edge_paths, strict=True):
        _check_ends(edge, names, at)
        _check_words(pipeline, edge, at)
    _check_senders(pipeline.edges, edge_paths)
    _check_moments(pipeline.edges, edge_paths)
    places = {edge.receiver: at for edge, at in zip(pipeline.edges, edge_paths, strict=True)}
    return replace(pipeline, agents=_sorted(pipeline, names, places))


def _names(agents: Sequence[AgentSpec]) -> Mapping[str, int]:
    if not agents:
        raise PipelineError("a pipeline needs an agent", at="$.agents")
    names: dict[str, int] = {}
    for index, agent in enumerate(agents):
        if agent.name in names:
            raise PipelineError(
                f"two agents are called {agent.name!r}", at=f"$.agents[{index}].name"
            )
        names[agent.name] = index
    return names


def _check_ends(edge: Edge, names: Mapping[str, int], at: str) -> None:
    ends = [(edge.sender, "from"), (edge.receiver, "to"), *((name, "join") for name in edge.join)]
    for name, key in ends:
        if name not in names:
            raise PipelineError(
                f"no agent is called {name[:80]!r}", at=f"{at}.{key}", hint=closest(name, [*names])
            )
    if edge.sender == edge.receiver:
        raise PipelineError(f"{edge.sender!r} would hand off to itself", at=f"{at}.to")
    if edge.receiver in edge.join:
        raise PipelineError(f"{edge.receiver!r} cannot read its own answer", at=f"{at}.join")
    if len(set(edge.join)) < len(edge.join):
        raise PipelineError("an answer is joined twice", at=f"{at}.join")


def _check_words(pipeline: Pipeline, edge: Edge, at: str) -> None:
    """The receiver must get something to read, and placeholders something to stand for."""
    task = next(agent.task for agent in pipeline.agents if agent.name == edge.receiver)
    said = edge.instruction + task
    if not said.strip():
        raise PipelineError(
            f"{edge.receiver!r} would add no tokens",
            at=f"{at}.instruction",
            hint="give the edge an instruction, or the agent a task",
        )
    if ANSWERS in said and not edge.join:
        raise PipelineError(
            f"{ANSWERS} is read, and no answers are joined",
            at=f"{at}.join",
            hint='join = ["name of an agent"]',
        )
    if edge.mode is Mode.SHARED_PREFIX and pipeline.context is None:
        raise PipelineError(
            "there is no shared context to hand over", at=f"{at}.mode", hint="add [context]"
        )


def _check_senders(edges: Sequence[Edge], paths: Sequence[str]) -> None:
    """An agent goes on from one baton, or from slices of several senders."""
    first: dict[str, Edge] = {}
    senders: set[tuple[str, str]] = set()
    for edge, at in zip(edges, paths, strict=True):
        before = first.setdefault(edge.receiver, edge)
        pair = edge.sender, edge.receiver
        sliced = edge.mode is before.mode is Mode.SLICE
        if (before is not edge and not sliced) or pair in senders:
            raise PipelineError(
                f"{edge.receiver!r} already takes a baton from {before.sender!r}",
                at=f"{at}.to",
                hint="an agent goes on from one baton, or from slices of several senders; name "
                "the other agents in 'join' to read their answers as text",
            )
        senders.add(pair)


def _check_moments(edges: Sequence[Edge], paths: Sequence[str]) -> None:
    """A sender's turn ends once, so its edges must agree about when."""
    first = {edge.sender: edge.hand_off_when for edge in reversed(edges)}
    for edge, at in zip(edges, paths, strict=True):
        if edge.hand_off_when != first[edge.sender]:
            raise PipelineError(
                f"the edges from {edge.sender!r} disagree about when to hand off",
                at=f"{at}.hand_off_when",
            )


def _sorted(
    pipeline: Pipeline, names: Mapping[str, int], places: Mapping[str, str]
) -> tuple[AgentSpec, ...]:
    """Agents so that each comes behind what it reads; ties keep the order of the file."""
    needs: dict[str, set[str]] = {}
    for edge in pipeline.edges:
        needs.setdefault(edge.receiver, set()).update((edge.sender, *edge.join))
    starts = [agent for agent in pipeline.agents if agent.name not in needs]
    for agent in starts[1:]:
        raise PipelineError(
            f"no edge leads to {agent.name!r}",
            at=f"$.agents[{names[agent.name]}]",
            hint=f"the pipeline begins with {starts[0].name!r}; only that one takes no baton",
        )
    _check_beginning(starts)
    done: list[AgentSpec] = []
    ran: set[str] = set()
    while len(done) < len(names):
        free = [a for a in pipeline.agents if a.name not in ran and needs.get(a.name, set()) <= ran]
        if not free:
            around = _cycle(next(a.name for a in pipeline.agents if a.name not in ran), needs, ran)
            raise PipelineError(f"a cycle: {' waits for '.join(around)}", at=places[around[0]])
        done.append(free[0])
        ran.add(free[0].name)
    return tuple(done)


def _cycle(name: str, needs: Mapping[str, set[str]], ran: set[str]) -> list[str]:
    """The names along a cycle, the first again at the end, found from somebody who waits."""
    path: list[str] = []
    while name not in path:
        path.append(name)
        name = min(needs[name] - ran)
    return [*path[path.index(name) :], name]


def _check_beginning(starts: Sequence[AgentSpec]) -> None:
    if not starts:
        raise PipelineError("every agent takes a baton: a cycle", at="$.edges")
    if not starts[0].task.strip():
        raise PipelineError(f"{starts[0].name!r} begins, and has no task", at="$.agents")
    if ANSWERS in starts[0].task:
        raise PipelineError(f"{starts[0].name!r} begins: there are no answers yet", at="$.agents")
