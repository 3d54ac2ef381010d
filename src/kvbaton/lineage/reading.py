"""Questions to the ledger: where refs stand, what is fresh, who builds on what."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, literal, select

from kvbaton.errors import InputError, UnknownNode, UnknownRef
from kvbaton.lineage.connection import Database
from kvbaton.lineage.records import (
    Event,
    EventKind,
    Freshness,
    Graph,
    Head,
    Node,
    NodeKind,
    Stale,
    Standing,
)
from kvbaton.lineage.statements import COUNTED, FRESHNESS
from kvbaton.lineage.tables import edges, events, moves, nodes

CHUNK = 400
"""Ids in one statement: databases limit how many parameters it may have."""
_FEWEST_DIGITS = 8


class Questions:
    """What can be asked of one trust domain's part of a ledger.

    Parameters
    ----------
    database
        Of the newest version.
    domain
        The trust domain; nothing of another one is seen.
    """

    def __init__(self, database: Database, domain: str) -> None:
        self.database, self.domain = database, domain

    # -- refs -------------------------------------------------------------------------------------

    def sequence(self) -> int:
        """The ledger's own sequence: how many changes there have been."""
        with self.database.reading() as connection:
            return self._sequence(connection)

    def head(self, ref: str) -> Head:
        """Where a ref stands.

        Raises
        ------
        UnknownRef
            It has not been moved yet.
        """
        with self.database.reading() as connection:
            found = self._head(connection, ref)
        if found is None:
            raise UnknownRef(
                f"there is no ref {ref[:128]!r}", hint="kvbaton ledger refs lists them"
            )
        return found

    def heads(self) -> list[Head]:
        """Where all refs stand, by name."""
        with self.database.reading() as connection:
            as_of = self._sequence(connection)
            last = (
                select(moves.c.ref, func.max(moves.c.ref_sequence).label("newest"))
                .where(moves.c.domain == self.domain)
                .group_by(moves.c.ref)
                .subquery()
            )
            asked = (
                select(moves)
                .join(last, (moves.c.ref == last.c.ref) & (moves.c.ref_sequence == last.c.newest))
                .where(moves.c.domain == self.domain)
                .order_by(moves.c.ref)
            )
            return [_head_of(row, as_of) for row in connection.execute(asked)]

    def history(self, ref: str) -> list[Head]:
        """All heads that a ref has had, oldest first."""
        with self.database.reading() as connection:
            as_of = self._sequence(connection)
            asked = (
                select(moves)
                .where(moves.c.domain == self.domain, moves.c.ref == ref)
                .order_by(moves.c.ref_sequence)
            )
            return [_head_of(row, as_of) for row in connection.execute(asked)]

    def moves(self, ref: str, *, since_ms: int) -> int:
        """How often a ref has been moved since a time, by the clocks of those who did it."""
        asked = (
            select(func.count())
            .select_from(moves)
            .where(moves.c.domain == self.domain, moves.c.ref == ref, moves.c.moved_ms >= since_ms)
        )
        with self.database.reading() as connection:
            return int(connection.execute(asked).scalar_one())

    def freshness(self, baton: str, ref: str = "", ref_sequence: int = 0) -> Freshness:
        """Whether a baton's context is the current one: one statement, for the way to the first
        token.

        Parameters
        ----------
        baton
            Its id.
        ref, ref_sequence
            The ref that its manifest names, and which of its heads it says to be; without one
            only the marks of the baton itself count.
        """
        given = {"domain": self.domain, "ref": ref, "ref_sequence": ref_sequence, "baton": baton}
        with self.database.reading() as connection:
            head, holder, why, as_of, there = connection.execute(FRESHNESS, given).one()
        return _freshness(baton, ref, ref_sequence, head, holder, why, as_of or 0, there)

    # -- nodes ------------------------------------------------------------------------------------

    def node(self, name: str) -> Node:
        """A node by its id, or by a part of it that only one id begins with.

        Raises
        ------
        UnknownNode
            There is none.
        InputError
            Several begin so.
        """
        with self.database.reading() as connection:
            exact = list(self._nodes(connection, nodes.c.id == name))
            if exact:
                return exact[0]
            begins = nodes.c.id.startswith(name, autoescape=True)
            found = list(self._nodes(connection, begins, limit=2))
        if not found or len(name) < _FEWEST_DIGITS:
            raise UnknownNode(
                f"the ledger knows nothing of id {name[:80]!r}", hint="kvbaton ledger log"
            )
        if len(found) > 1:
            raise InputError(f"several ids begin with {name[:80]!r}", hint="give more of it")
        return found[0]

    def nodes(
        self, *, kind: NodeKind | None = None, stale: bool | None = None, limit: int | None = 1000
    ) -> list[Node]:
        """Nodes, newest first."""
        conditions: list[ColumnElement[bool]] = []
        if kind is not None:
            conditions.append(nodes.c.kind == kind.value)
        if stale is not None:
            mark = nodes.c.stale_sequence
            conditions.append(mark.is_not(None) if stale else mark.is_(None))
        with self.database.reading() as connection:
            return list(self._nodes(connection, *conditions, limit=limit, newest=True))

    def stale_among(self, names: Iterable[str]) -> list[Node]:
        """Those of these nodes that are stale, oldest first."""
        with self.database.reading() as connection:
            return [node for node in self._sorted(connection, names) if node.stale is not None]

    def ancestors(self, name: str) -> list[Node]:
        """All that a node was made from, as far as it was recorded, oldest first."""
        with self.database.reading() as connection:
            return self._sorted(connection, self._above(connection, [name]))

    def descendants(self, name: str) -> list[Node]:
        """All that builds on a node, oldest first."""
        with self.database.reading() as connection:
            return self._sorted(connection, self._below(connection, [name]))

    def impact(self, function: str) -> list[Node]:
        """What an upgrade of a function voids: all that it made, and all that builds on that.

        Parameters
        ----------
        function
            Digest of the function id, or its first 8 digits or more.

        Raises
        ------
        InputError
            It is shorter.
        """
        if len(function) < _FEWEST_DIGITS:
            raise InputError(f"a function id needs {_FEWEST_DIGITS} digits at least")
        with self.database.reading() as connection:
            asked = select(nodes.c.id).where(
                nodes.c.domain == self.domain,
                nodes.c.function.startswith(function, autoescape=True),
            )
            made = set(connection.execute(asked).scalars())
            return self._sorted(connection, made | self._below(connection, sorted(made)))

    def graph(self, root: str | None = None) -> Graph:
        """Nodes and edges, with the refs that stand on them: of all, or of what is above and below
        one node.

        Raises
        ------
        UnknownNode
            There is no such node.
        """
        wanted: set[str] | None = None
        name = None if root is None else self.node(root).id
        with self.database.reading() as connection:
            if name is not None:
                wanted = {name} | self._above(connection, [name]) | self._below(connection, [name])
                found = self._sorted(connection, wanted)
            else:
                found = list(self._nodes(connection))
        return Graph(tuple(found), tuple(self.heads()), name)

    # -- the log ----------------------------------------------------------------------------------

    def log(
        self, *, since: int = 0, limit: int = 1000, node: str = "", ref: str = ""
    ) -> list[Event]:
        """Events behind a sequence, oldest first."""
        asked = (
            select(events)
            .where(events.c.domain == self.domain, events.c.sequence > since)
            .order_by(events.c.sequence)
            .limit(limit)
        )
        if node:
            asked = asked.where(events.c.node == node)
        if ref:
            asked = asked.where(events.c.ref == ref)
        with self.database.reading() as connection:
            return [_event_of(row) for row in connection.execute(asked)]

    # -- inside of a connection ------------------------------------------------------------------

    def _sequence(self, connection: Connection) -> int:
        return int(connection.execute(COUNTED, {"domain": self.domain}).scalar() or 0)

    def _head(self, connection: Connection, ref: str) -> Head | None:
        asked = (
            select(moves)
            .where(moves.c.domain == self.domain, moves.c.ref == ref)
            .order_by(moves.c.ref_sequence.desc())
            .limit(1)
        )
        row = connection.execute(asked).one_or_none()
        return None if row is None else _head_of(row, self._sequence(connection))

    def _nodes(
        self,
        connection: Connection,
        *conditions: ColumnElement[bool],
        limit: int | None = None,
        newest: bool = False,
    ) -> Iterator[Node]:
        order = nodes.c.sequence.desc() if newest else nodes.c.sequence
        asked = self._asked(*conditions).order_by(order, nodes.c.id).limit(limit)
        return iter(self._read(connection, asked))

    def _sorted(self, connection: Connection, names: Iterable[str]) -> list[Node]:
        """Nodes of these ids, by their sequence; ids that were never recorded are left out."""
        found: list[Node] = []
        for some in chunks(sorted(names)):
            # Not sorted by the database: SQLite would go through all nodes in that order.
            found += self._read(connection, self._asked(nodes.c.id.in_(some)))
        return sorted(found, key=lambda node: (node.sequence, node.id))

    def _asked(self, *conditions: ColumnElement[bool]) -> Select[Any]:
        return select(nodes).where(nodes.c.domain == self.domain, *conditions)

    def _read(self, connection: Connection, asked: Select[Any]) -> list[Node]:
        """The nodes that a statement finds, with their parents."""
        rows = connection.execute(asked).all()
        parents = self._parents(connection, [row.id for row in rows])
        return [_node_of(row, parents.get(row.id, ())) for row in rows]

    def _parents(self, connection: Connection, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {}
        for some in chunks(names):
            asked = (
                select(edges.c.child, edges.c.parent)
                .where(edges.c.domain == self.domain, edges.c.child.in_(some))
                .order_by(edges.c.child, edges.c.place)
            )
            for child, parent in connection.execute(asked):
                found.setdefault(child, []).append(parent)
        return {child: tuple(parents) for child, parents in found.items()}

    def _below(self, connection: Connection, names: Sequence[str]) -> set[str]:
        """Ids of all that builds on these, without them unless they build on each other."""
        return self._walk(connection, names, edges.c.parent, edges.c.child)

    def _above(self, connection: Connection, names: Sequence[str]) -> set[str]:
        """Ids of all that these were made from."""
        return self._walk(connection, names, edges.c.child, edges.c.parent)

    def _walk(
        self, connection: Connection, names: Sequence[str], here: Any, there: Any
    ) -> set[str]:
        """Ids that can be reached along edges, by one recursive statement for each chunk."""
        reached: set[str] = set()
        for some in chunks(names):
            first = select(there.label("id")).where(edges.c.domain == self.domain, here.in_(some))
            walk = first.cte("walk", recursive=True)
            onward = select(there).where(edges.c.domain == literal(self.domain), here == walk.c.id)
            reached.update(connection.execute(select(walk.union(onward).c.id)).scalars())
        return reached


def chunks(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Pieces of a sequence that fit into one statement each."""
    return (names[i : i + CHUNK] for i in range(0, len(names), CHUNK))


def _head_of(row: Any, as_of: int) -> Head:
    return Head(row.ref, row.ref_sequence, row.baton, row.moved_ms, as_of)


def _event_of(row: Any) -> Event:
    return Event(
        sequence=row.sequence,
        kind=EventKind(row.kind),
        node=row.node,
        ref=row.ref,
        ref_sequence=row.ref_sequence,
        detail=json.loads(row.detail),
        created_ms=row.created_ms,
    )


_PLAIN = (
    "id", "label", "agent", "model", "function", "tokens", "size_bytes", "codec", "fidelity",
    "hops_exact", "hops_lossy", "store", "expires_ms", "created_ms", "sequence",
)  # fmt: skip
"""Columns that are fields of a node as they are."""


def _node_of(row: Any, parents: tuple[str, ...]) -> Node:
    stale = None
    if row.stale_sequence is not None:
        stale = Stale(
            row.stale_sequence, row.stale_ref or "", row.stale_ref_sequence or 0, row.stale_why
        )
    plain = {name: getattr(row, name) for name in _PLAIN}
    facts = json.loads(row.facts)
    return Node(**plain, kind=NodeKind(row.kind), parents=parents, facts=facts, stale=stale)


def _freshness(
    baton: str,
    ref: str,
    ref_sequence: int,
    head: int | None,
    holder: str | None,
    why: str | None,
    as_of: int,
    known: str | None,
) -> Freshness:
    """Stale where the baton is marked, or the ref has moved on; current where it is the head, or
    where it is known and nothing marks it."""
    # A ref that is behind the baton was never moved to it, or the ledger is an old one.
    if ref and head is not None and head >= ref_sequence:
        if holder != baton:
            why = why or f"{ref} has another baton as its {ref_sequence}"
        elif head > ref_sequence:
            why = why or f"{ref} has moved on from {ref_sequence} to {head}"
        elif why is None:
            return Freshness(Standing.CURRENT, ref, ref_sequence, head, as_of)
    if why is not None:
        return Freshness(Standing.STALE, ref, ref_sequence, head or 0, as_of, why)
    standing = Standing.CURRENT if known is not None and not ref else Standing.UNKNOWN
    return Freshness(standing, ref, ref_sequence, head or 0, as_of)
