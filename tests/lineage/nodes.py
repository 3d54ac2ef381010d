"""Nodes for tests."""

from __future__ import annotations

from kvbaton.lineage.records import Entry, Node, NodeKind


def baton(name: str, *parents: str, function: str = "") -> Node:
    """A baton."""
    return Node(name, NodeKind.BATON, parents=parents, agent="planner", function=function)


def answer(name: str, *parents: str) -> Node:
    """An answer."""
    return Node(name, NodeKind.ANSWER, parents=parents)


def entry(name: str, *parents: str, once: str = "") -> Entry:
    """An artefact to record."""
    return Entry(Node(name, NodeKind.ARTEFACT, parents=parents), once)
