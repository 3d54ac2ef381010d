"""Drawing a graph as text: a tree in which every node stands once, whole, and its parents' other
lines point to it.

Names come from elsewhere: whatever could move a cursor, turn the direction of text or end a line
is spelled out.  ``picture`` draws the same as SVG; ``Graph.to_json`` is for programs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvbaton.lineage.layering import drawn_parents, require_no_cycle
from kvbaton.lineage.records import Graph, Node, NodeKind

MAX_DEPTH = 24
"""Levels of a tree; what is deeper begins a tree of its own."""
STALE = "STALE"
_FEWEST_DIGITS = 12
_MOST_CHARACTERS = 48
_DIGEST = re.compile(r"[0-9a-f]{32,}")


def draw_text(graph: Graph) -> str:
    """The graph as lines of text, each with an end; empty for a graph without nodes.

    Children stand below their first parent, in the order of the ledger.  ``[ref@3]`` is a head of
    a ref; stale nodes say so, and why.

    Raises
    ------
    LineageCycle
        A node descends from itself.
    """
    require_no_cycle(graph)
    return "".join(f"{line}\n" for line in _Drawing(graph).lines())


@dataclass(frozen=True, slots=True)
class Caption:
    """A node in words, ready to be shown: ``name`` is short, ``facts`` are a few words each, and
    ``stale`` is a sentence, empty for what is not stale."""

    name: str
    kind: str
    label: str
    facts: tuple[str, ...]
    heads: tuple[str, ...]
    stale: str


def captions(graph: Graph) -> dict[str, Caption]:
    """A caption for each node's id."""
    names = short_names([node.id for node in graph.nodes])
    heads: dict[str, list[str]] = {}
    for head in graph.heads:
        heads.setdefault(head.baton, []).append(shown(f"{head.ref}@{head.sequence}"))
    return {
        node.id: Caption(
            name=names[node.id],
            kind=node.kind.value,
            label=shown(node.label),
            facts=tuple(_facts(node)),
            heads=tuple(heads.get(node.id, ())),
            stale="" if node.stale is None else shown(node.stale.why),
        )
        for node in graph.nodes
    }


def _facts(node: Node) -> Iterator[str]:
    if node.agent:
        yield shown(node.agent)
    if node.model:
        yield shown(node.model)
    if node.tokens:
        yield f"{node.tokens:,} tokens"
    if node.fidelity:
        lossy = node.codec not in ("", "raw")
        yield shown(f"{node.fidelity} ({node.codec})" if lossy else node.fidelity)
    if node.kind is NodeKind.BATON and node.hops_lossy:
        yield f"{node.hops_lossy} lossy hops"


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Ids as they are shown: of digests and long names the first digits, as many as tell them
    apart."""
    digits = _FEWEST_DIGITS
    long = {name for name in names if len(name) > _MOST_CHARACTERS or _DIGEST.fullmatch(name)}
    while len({name[:digits] for name in long}) < len(long):
        digits += 4
    return {name: shown(name[:digits] if name in long else name) for name in names}


def shown(text: str) -> str:
    r"""Text from elsewhere on one line: what is not printable becomes ``\x1b`` or ``\u202e``."""
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    point = ord(character)
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}"


class _Drawing:
    """One graph on its way to lines."""

    def __init__(self, graph: Graph) -> None:
        self._nodes = {node.id: node for node in graph.nodes}
        self._captions = captions(graph)
        self._parents = drawn_parents(graph)
        self._children: dict[str, list[str]] = {name: [] for name in self._nodes}
        for name in sorted(self._nodes, key=self._order):
            for parent in self._parents[name]:
                self._children[parent].append(name)
        roots = [name for name, parents in self._parents.items() if not parents]
        self._roots = sorted(roots, key=self._order)

    def lines(self) -> Iterator[str]:
        """All lines; a tree per root, then what was too deep for its tree."""
        waiting = self._roots
        while waiting:
            deeper: list[str] = []
            for root in waiting:
                yield from self._tree(root, deeper)
            waiting = deeper

    def _order(self, name: str) -> tuple[int, str]:
        return self._nodes[name].sequence, name

    def _tree(self, root: str, deeper: list[str]) -> Iterator[str]:
        """A node and what was made from it, without recursion: chains may be long."""
        yield self._line(root)
        open_ones = [("", iter(self._branches(root)))]
        while open_ones:
            indent, branches = open_ones[-1]
            found = next(branches, None)
            if found is None:
                open_ones.pop()
                continue
            name, parent, last = found
            corner = f"{indent}{'└─' if last else '├─'} "
            if self._parents[name][0] != parent:
                first = self._captions[self._parents[name][0]].name
                yield f"{corner}→ {self._captions[name].name} (drawn under {first})"
            elif len(open_ones) == MAX_DEPTH:
                deeper.append(name)
                yield f"{corner}→ {self._captions[name].name} (drawn further down)"
            else:
                yield corner + self._line(name)
                inner = f"{indent}{'   ' if last else '│  '}"
                open_ones.append((inner, iter(self._branches(name))))

    def _branches(self, parent: str) -> list[tuple[str, str, bool]]:
        """Children with their parent, and whether they are the last."""
        several = self._children[parent]
        return [(name, parent, i == len(several)) for i, name in enumerate(several, start=1)]

    def _line(self, name: str) -> str:
        caption = self._captions[name]
        parts = [f"{caption.name}  {caption.kind}"]
        parts += [f'"{caption.label}"'] if caption.label else []
        parts += [", ".join(caption.facts)] if caption.facts else []
        parts += [f"[{head}]" for head in caption.heads]
        unknown = self._elsewhere(name)
        parts += [f"from {', '.join(unknown)} (not drawn)"] if unknown else []
        parts += [f"{STALE}: {caption.stale}"] if caption.stale else []
        return "  ".join(parts)

    def _elsewhere(self, name: str) -> list[str]:
        """Parents that are not drawn: not recorded yet, or neither above nor below the node that
        was asked for."""
        outside = [p for p in dict.fromkeys(self._nodes[name].parents) if p not in self._nodes]
        known: Mapping[str, str] = short_names(outside)
        return [known[parent] for parent in outside]
