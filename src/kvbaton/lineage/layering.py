"""Where the nodes of a drawn graph stand: in layers, each right of all that it was made from.

The steps of Sugiyama, Tagawa and Toda ("Methods for Visual Understanding of Hierarchical System
Structures", 1981): layers by the longest path, long edges cut by bends, crossings reduced by
barycentres, and places as near to the neighbours' as the distances allow.  Nothing is random: the
same graph has the same drawing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvbaton.errors import LineageCycle
from kvbaton.lineage.records import Graph

MOST_BENDS = 20_000
"""Bends of long edges; where there would be more, they go straight."""
_SWEEPS = 4
_NODE_ROOM, _BEND_ROOM = 1.0, 0.3


@dataclass(frozen=True, slots=True)
class Point:
    """A place: the layer from 0 on, and how far down in it, where a node takes 1."""

    layer: int
    down: float


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of nodes, and the points of each edge from parent to child, both ends included."""

    places: Mapping[str, Point]
    edges: Mapping[tuple[str, str], tuple[Point, ...]]
    layers: int
    height: float


Vertex = str | tuple[str, str, int]
"""A node, or a bend of the edge from a parent to a child in a layer."""


def layered(graph: Graph) -> Layout:
    """Where everything stands.  Parents that are not among the nodes are left out.

    Raises
    ------
    LineageCycle
        A node descends from itself.
    """
    parents = drawn_parents(graph)
    layer_of = _layers(graph, parents)
    above, below = _links(parents, layer_of)
    rows = _rows(above, below, layer_of)
    down = _spread(rows, above, below)
    # rounded, so that sums in another order would be the same drawing
    places = {v: Point(i, round(down[v], 3)) for i, row in enumerate(rows) for v in row}
    edges = {
        (parent, child): _points(parent, child, places, layer_of)
        for child, several in parents.items()
        for parent in several
    }
    named = {v: place for v, place in places.items() if isinstance(v, str)}
    height = max((place.down for place in places.values()), default=0.0) + _NODE_ROOM
    return Layout(named, edges, len(rows), height)


def drawn_parents(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Parents of each node that are among the nodes, each once."""
    there = {node.id for node in graph.nodes}
    return {
        node.id: tuple(parent for parent in dict.fromkeys(node.parents) if parent in there)
        for node in graph.nodes
    }


def require_no_cycle(graph: Graph) -> None:
    """Refuse a graph in which a node descends from itself; a ledger records none.

    Raises
    ------
    LineageCycle
        One does.
    """
    _layers(graph, drawn_parents(graph))


def _layers(graph: Graph, parents: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The longest path to each node from one without parents, in topological order."""
    order = {node.id: (node.sequence, node.id) for node in graph.nodes}
    children: dict[str, list[str]] = {name: [] for name in parents}
    waiting = {name: len(several) for name, several in parents.items()}
    for child, several in parents.items():
        for parent in several:
            children[parent].append(child)
    ready = [order[name] for name, count in waiting.items() if not count]
    heapq.heapify(ready)
    found: dict[str, int] = {}
    while ready:
        name = heapq.heappop(ready)[1]
        found[name] = 1 + max((found[parent] for parent in parents[name]), default=-1)
        for child in children[name]:
            waiting[child] -= 1
            if not waiting[child]:
                heapq.heappush(ready, order[child])
    if len(found) < len(parents):
        raise LineageCycle("this descends from itself", at=min(parents.keys() - found.keys()))
    return found


def _links(
    parents: Mapping[str, Sequence[str]], layer_of: Mapping[str, int]
) -> tuple[dict[Vertex, list[Vertex]], dict[Vertex, list[Vertex]]]:
    """Neighbours of nodes and bends in the layers before and behind."""
    above: dict[Vertex, list[Vertex]] = {name: [] for name in layer_of}
    below: dict[Vertex, list[Vertex]] = {name: [] for name in layer_of}
    pairs = [(parent, child) for child in layer_of for parent in parents[child]]
    bends = sum(layer_of[child] - layer_of[parent] - 1 for parent, child in pairs)
    for parent, child in pairs:
        chain: list[Vertex] = [parent]
        if bends <= MOST_BENDS:
            chain += [(parent, child, i) for i in range(layer_of[parent] + 1, layer_of[child])]
        chain.append(child)
        for left, right in pairwise(chain):
            below.setdefault(left, []).append(right)
            above.setdefault(right, []).append(left)
    return above, below


def _rows(
    above: Mapping[Vertex, list[Vertex]],
    below: Mapping[Vertex, list[Vertex]],
    layer_of: Mapping[str, int],
) -> list[list[Vertex]]:
    """The vertices of each layer, in an order with few crossings."""
    rows: list[list[Vertex]] = [[] for _ in range(1 + max(layer_of.values(), default=-1))]
    for vertex in above:
        rows[layer_of[vertex] if isinstance(vertex, str) else vertex[2]].append(vertex)
    for sweep in range(_SWEEPS):
        backwards = bool(sweep % 2)
        near = below if backwards else above
        place = {v: i for row in rows for i, v in enumerate(row)}
        for row in reversed(rows) if backwards else rows:
            row.sort(key=_barycentre(near, place))
            place |= {v: i for i, v in enumerate(row)}
    return rows


def _barycentre(
    near: Mapping[Vertex, list[Vertex]], place: Mapping[Vertex, int]
) -> Callable[[Vertex], float]:
    """The mean place of a vertex's neighbours; its own where it has none there."""

    def mean(vertex: Vertex) -> float:
        several = near.get(vertex, [])
        if not several:
            return float(place[vertex])
        return sum(place[other] for other in several) / len(several)

    return mean


def _spread(
    rows: Sequence[Sequence[Vertex]],
    above: Mapping[Vertex, list[Vertex]],
    below: Mapping[Vertex, list[Vertex]],
) -> dict[Vertex, float]:
    """How far down each vertex stands: near its neighbours, in the order of its layer."""
    down: dict[Vertex, float] = {}
    for row in rows:
        down |= dict(zip(row, _offsets(row), strict=True))
    for sweep in range(_SWEEPS):
        backwards = bool(sweep % 2)
        near = below if backwards else above
        for row in reversed(rows) if backwards else rows:
            wanted = [_mean(down, near.get(v, []), down[v]) for v in row]
            down |= dict(zip(row, _apart(row, wanted), strict=True))
    least = min(down.values(), default=0.0)
    return {vertex: value - least for vertex, value in down.items()}


def _mean(down: Mapping[Vertex, float], several: Sequence[Vertex], own: float) -> float:
    return sum(down[v] for v in several) / len(several) if several else own


def _offsets(row: Sequence[Vertex]) -> list[float]:
    """The closest places that a row could have, from 0 on."""
    found, last = list[float](), 0.0
    for i, vertex in enumerate(row):
        room = _room(vertex)
        last = last + (room + _room(row[i - 1])) / 2 if i else 0.0
        found.append(last)
    return found


def _room(vertex: Vertex) -> float:
    return _NODE_ROOM if isinstance(vertex, str) else _BEND_ROOM


def _apart(row: Sequence[Vertex], wanted: Sequence[float]) -> list[float]:
    """The places nearest to the wanted ones, in squares, that keep order and distances.

    Without the distances this is a regression to an ascending sequence, which pooling adjacent
    violators solves.
    """
    offsets = _offsets(row)
    pools: list[tuple[float, int]] = []  # sums and counts
    for want, offset in zip(wanted, offsets, strict=True):
        total, count = want - offset, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            before = pools.pop()
            total, count = total + before[0], count + before[1]
        pools.append((total, count))
    means = [total / count for total, count in pools for _ in range(count)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]


def _points(
    parent: str, child: str, places: Mapping[Vertex, Point], layer_of: Mapping[str, int]
) -> tuple[Point, ...]:
    between = range(layer_of[parent] + 1, layer_of[child])
    bends = [places[parent, child, i] for i in between if (parent, child, i) in places]
    return places[parent], *bends, places[child]
