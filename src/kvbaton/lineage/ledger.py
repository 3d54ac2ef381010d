"""The ledger: batons are immutable commits, refs are moved by compare-and-set, and what builds on
a head that has been replaced is stale.

Every change is one transaction, and takes the next numbers of the ledger's own sequence inside of
it: order comes from there, never from a clock.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Self

from sqlalchemy import Connection, Select, insert, select, update
from sqlalchemy.exc import IntegrityError

from kvbaton.errors import InputError, LineageCycle, RefConflict, UnknownNode
from kvbaton.lineage.connection import WAIT_S, Database
from kvbaton.lineage.migrate import identity_of, require_newest
from kvbaton.lineage.reading import Questions, chunks
from kvbaton.lineage.records import (
    Entry,
    EventKind,
    Head,
    Marked,
    Node,
    NodeKind,
    Stale,
    require_ref,
)
from kvbaton.lineage.statements import (
    ADD_EDGES,
    ADD_EVENTS,
    ADD_NODES,
    BUILT_ON,
    COUNT,
    KNOWN_NODES,
    KNOWN_RECORDS,
    MARKS,
)
from kvbaton.lineage.tables import counters, moves, nodes
from kvbaton.types import JSON

Heard = Callable[[int], None]
"""Called with the ledger's sequence after a change by this handle."""


class Ledger(Questions):
    """One trust domain's part of a ledger, to ask and to change.  A context manager.

    May be used by several threads and processes at once.

    Parameters
    ----------
    url
        ``sqlite:////absolute/path.db``, or that of another database.
    domain
        The trust domain.
    wait_s
        How long a change waits for those of others.
    must_exist
        Refuse to make one where there is none, or none any more.
    now_ms
        Milliseconds since the epoch, for what is shown.

    Raises
    ------
    InputError
        The URL names no database that could be used.
    LedgerVersion
        Its tables are of another version.
    LedgerUnavailable
        It is locked, cannot be reached, or is not there although it must be.
    LedgerError
        It cannot be used.
    """

    def __init__(
        self,
        url: str,
        domain: str,
        *,
        wait_s: float = WAIT_S,
        must_exist: bool = False,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        database = Database(url, wait_s=wait_s, must_exist=must_exist)
        try:
            require_newest(database)
        except BaseException:
            database.close()
            raise
        super().__init__(database, domain)
        self._now_ms = now_ms
        self._heard: list[Heard] = []

    @cached_property
    def identity(self) -> str:
        """The random name that it was given when it was made: 32 hexadecimal digits.

        One that was made anew in its place has another; a copy has the same.

        Raises
        ------
        LedgerError
            It cannot be read.
        """
        return identity_of(self.database)

    # -- changes ----------------------------------------------------------------------------------

    def record(self, entries: Iterable[Entry]) -> int:
        """Record nodes; those that were recorded before are left as they are.

        Returns
        -------
        int
            How many were new.

        Raises
        ------
        LineageCycle
            One would descend from itself; none of them was recorded.
        LedgerUnavailable
            The database cannot be used now; none was recorded, and it can be tried again.
        """
        several = list(entries)
        if not several:
            return 0
        with self.database.writing() as connection:
            new = self._new(connection, several)
            if self._in_order(connection, new):
                self._record_all(connection, new)
            else:
                for entry in new:
                    self._record(connection, entry)
            sequence = self._sequence(connection)
        self._tell(sequence)
        return len(new)

    def move(self, ref: str, baton: Node, *, expected: int) -> Head:
        """Record a baton as the new head of a ref, if the ref still stands where it is expected.

        What builds on the heads before it is stale from now on; what builds on the new head is
        not, also where that continues an old one.

        Parameters
        ----------
        expected
            Number of the head that is replaced; 0 for a ref that has none.

        Raises
        ------
        RefConflict
            The ref stands elsewhere; nothing was changed.
        InputError
            The name cannot be used, the node is no baton, or it has been head already.
        LineageCycle, LedgerUnavailable
            See :meth:`record`.
        """
        require_ref(ref)
        if baton.kind is not NodeKind.BATON:
            raise InputError("only a baton can be the head of a ref", at=baton.id)
        with self.database.writing() as connection:
            # The counter's row is taken first: where reads take no lock, it is what decides.
            sequence = self._next(connection)
            before = self._head(connection, ref)
            _require_head(ref, before, expected)
            self._require_never_head(connection, baton.id)
            if self._new(connection, [Entry(baton)]):
                self._record(connection, Entry(baton))
            moved_ms = self._now_ms()
            row = {
                "domain": self.domain,
                "ref": ref,
                "ref_sequence": expected + 1,
                "baton": baton.id,
                "moved_ms": moved_ms,
                "sequence": sequence,
            }
            connection.execute(insert(moves).values(row))
            detail = {"from": None if before is None else before.baton}
            self._log(connection, sequence, EventKind.MOVED, baton.id, detail, ref, expected + 1)
            if before is not None:
                self._supersede(connection, before, baton.id)
            as_of = self._sequence(connection)
        self._tell(as_of)
        return Head(ref, expected + 1, baton.id, moved_ms, as_of)

    def withdraw(self, name: str, *, why: str) -> Marked:
        """Mark a node, and all that was built on it, as stale; once more changes nothing.

        Raises
        ------
        UnknownNode
            There is no such node.
        LedgerUnavailable
            The database cannot be used now; nothing was changed.
        """
        with self.database.writing() as connection:
            if not list(self._nodes(connection, nodes.c.id == name)):
                raise UnknownNode(f"the ledger knows nothing of id {name[:80]!r}")
            affected = {name} | self._below(connection, [name])
            sequence = self._next(connection)
            stale = Stale(sequence, "", 0, f"{name[:16]} was withdrawn: {why}"[:500])
            marked = self._mark(connection, affected, stale)
            detail = {"why": why[:500], "marked": len(marked)}
            self._log(connection, sequence, EventKind.WITHDRAWN, name, detail)
            found = self._sorted(connection, affected)
        self._tell(sequence)
        return Marked(sequence, marked, tuple(found))

    def on_change(self, heard: Heard) -> None:
        """Call somebody after each change by this handle; others' are found by polling."""
        self._heard.append(heard)

    def close(self) -> None:
        """Let go of the database."""
        self._heard.clear()
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def _tell(self, sequence: int) -> None:
        for heard in list(self._heard):
            heard(sequence)

    # -- inside of a transaction ------------------------------------------------------------------

    def _next(self, connection: Connection, count: int = 1) -> int:
        """The next number of the ledger's sequence; the last of ``count``.  Until the end of the
        transaction nobody else gets one."""
        given = {"of_domain": self.domain, "count": count}
        if connection.execute(COUNT, given).rowcount == 0:
            try:
                with connection.begin_nested():
                    connection.execute(insert(counters).values(domain=self.domain, value=count))
            except IntegrityError:  # somebody else was first
                return self._next(connection, count)
        return self._sequence(connection)

    def _log(
        self,
        connection: Connection,
        sequence: int,
        kind: EventKind,
        node: str,
        detail: Mapping[str, Any],
        ref: str = "",
        ref_sequence: int = 0,
    ) -> None:
        row = self._event(sequence, kind, node, detail, ref, ref_sequence)
        connection.execute(ADD_EVENTS, row)

    def _event(
        self,
        sequence: int,
        kind: EventKind,
        node: str,
        detail: Mapping[str, Any],
        ref: str = "",
        ref_sequence: int = 0,
        once: str = "",
    ) -> dict[str, Any]:
        return {
            "domain": self.domain,
            "sequence": sequence,
            "kind": kind.value,
            "node": node,
            "ref": ref,
            "ref_sequence": ref_sequence,
            "detail": _text(detail),
            "created_ms": self._now_ms(),
            "once": once or None,
        }

    def _new(self, connection: Connection, entries: Sequence[Entry]) -> list[Entry]:
        """The entries that are not there yet, each once."""
        there = self._known(connection, KNOWN_NODES, [entry.node.id for entry in entries])
        written = self._known(connection, KNOWN_RECORDS, [e.once for e in entries if e.once])
        new: dict[str, Entry] = {}
        for entry in entries:
            if entry.node.id not in there and entry.once not in written:
                new.setdefault(entry.node.id, entry)
        return list(new.values())

    def _known(
        self, connection: Connection, asked: Select[tuple[str]], names: Sequence[str]
    ) -> set[str]:
        found: set[str] = set()
        for some in chunks(names):
            given = {"domain": self.domain, "names": some}
            found.update(connection.scalars(asked, given))
        return found

    def _in_order(self, connection: Connection, entries: Sequence[Entry]) -> bool:
        """Whether nothing that is there, or stands before it, builds on any of them: then there
        can be no cycle, and nobody else to mark."""
        awaited: set[str] = set()
        for entry in entries:
            awaited.update(entry.node.parents)
            if entry.node.id in awaited:
                return False
        return not self._known(connection, BUILT_ON, [e.node.id for e in entries])

    def _record_all(self, connection: Connection, entries: Sequence[Entry]) -> None:
        """Record nodes on which nothing builds yet, all at once."""
        if not entries:
            return
        marks = self._marks(connection, {p for entry in entries for p in entry.node.parents})
        order = {name: place for place, name in enumerate(marks)}
        first = self._next(connection, len(entries)) - len(entries) + 1
        rows, links, lines = [], [], []
        for sequence, entry in enumerate(entries, start=first):
            node = entry.node
            stale = _first_mark(node, order, marks)
            if stale is not None:
                marks[node.id] = stale
            rows.append(_row(self.domain, node, sequence, stale))
            links += _links(self.domain, node)
            lines.append(self._line(entry, sequence))
        connection.execute(ADD_NODES, rows)
        if links:
            connection.execute(ADD_EDGES, links)
        connection.execute(ADD_EVENTS, lines)

    def _marks(self, connection: Connection, names: Collection[str]) -> dict[str, Stale]:
        """The marks of those of these nodes that are stale, by the nodes' sequence."""
        found: list[Any] = []
        for some in chunks(sorted(names)):
            given = {"domain": self.domain, "names": some}
            found += connection.execute(MARKS, given).all()
        found.sort(key=lambda row: (row.sequence, row.id))
        return {
            row.id: Stale(
                row.stale_sequence, row.stale_ref or "", row.stale_ref_sequence or 0, row.stale_why
            )
            for row in found
        }

    def _line(self, entry: Entry, sequence: int) -> dict[str, Any]:
        node = entry.node
        detail = {"kind": node.kind.value, "agent": node.agent, "label": node.label}
        return self._event(sequence, EventKind.RECORDED, node.id, detail, once=entry.once)

    def _record(self, connection: Connection, entry: Entry) -> None:
        node = entry.node
        self._require_no_cycle(connection, node)
        stale = self._inherited(connection, node)
        sequence = self._next(connection)
        connection.execute(ADD_NODES, _row(self.domain, node, sequence, stale))
        if node.parents:
            connection.execute(ADD_EDGES, _links(self.domain, node))
        connection.execute(ADD_EVENTS, self._line(entry, sequence))
        if stale is not None:  # what was recorded before it, out of order
            self._mark(connection, self._below(connection, [node.id]), stale)

    def _require_no_cycle(self, connection: Connection, node: Node) -> None:
        if not node.parents:
            return
        if node.id in node.parents or set(node.parents) & self._below(connection, [node.id]):
            raise LineageCycle("this would descend from itself", at=node.id)

    def _inherited(self, connection: Connection, node: Node) -> Stale | None:
        """What builds on something stale is so from the beginning."""
        return next(iter(self._marks(connection, set(node.parents)).values()), None)

    def _require_never_head(self, connection: Connection, baton: str) -> None:
        asked = select(moves.c.ref).where(moves.c.domain == self.domain, moves.c.baton == baton)
        ref = connection.execute(asked).scalar()
        if ref is not None:
            raise InputError(
                f"this baton has been the head of {ref!r} already",
                at=baton,
                hint="hand the context off again: that makes a new baton",
            )

    def _supersede(self, connection: Connection, before: Head, baton: str) -> None:
        """Mark the head before and what builds on it, but for the new head and what builds on
        that."""
        kept = {baton} | self._below(connection, [baton])
        going = ({before.baton} | self._below(connection, [before.baton])) - kept
        sequence = self._next(connection)
        why = f"{before.ref} has moved on from {before.sequence}"
        marked = self._mark(connection, going, Stale(sequence, before.ref, before.sequence, why))
        self._log(
            connection,
            sequence,
            EventKind.STALE,
            before.baton,
            {"marked": len(marked), "why": why},
            before.ref,
            before.sequence,
        )

    def _mark(self, connection: Connection, names: Iterable[str], stale: Stale) -> tuple[str, ...]:
        """Mark nodes that are not yet marked; their ids."""
        marked: list[str] = []
        for some in chunks(sorted(names)):
            fresh = (
                nodes.c.domain == self.domain,
                nodes.c.id.in_(some),
                nodes.c.stale_sequence.is_(None),
            )
            marked += connection.execute(select(nodes.c.id).where(*fresh)).scalars()
            connection.execute(update(nodes).where(*fresh).values(_stale_row(stale)))
        return tuple(marked)


def _require_head(ref: str, found: Head | None, expected: int) -> None:
    stands = 0 if found is None else found.sequence
    if stands == expected:
        return
    where = "has no head yet" if found is None else f"stands at {stands} ({found.baton[:16]})"
    raise RefConflict(
        f"the ref {where}, not at {expected}: it was not moved",
        at=ref,
        hint="take the newer context, then hand off again",
    )


def _row(domain: str, node: Node, sequence: int, stale: Stale | None) -> dict[str, Any]:
    left_out = ("parents", "facts", "kind", "stale", "sequence")
    plain = {n: getattr(node, n) for n in node.__dataclass_fields__ if n not in left_out}
    return plain | {
        "domain": domain,
        "kind": node.kind.value,
        "facts": _text(node.facts),
        "sequence": sequence,
        **_stale_row(stale),
    }


def _links(domain: str, node: Node) -> list[dict[str, Any]]:
    return [
        {"domain": domain, "child": node.id, "parent": parent, "place": place}
        for place, parent in enumerate(dict.fromkeys(node.parents))
    ]


def _first_mark(node: Node, order: Mapping[str, int], marks: Mapping[str, Stale]) -> Stale | None:
    """The mark that a node inherits: of its parents that are recorded, the earliest marked one."""
    marked = [parent for parent in node.parents if parent in marks]
    return marks[min(marked, key=lambda p: order.get(p, len(order)))] if marked else None


def _stale_row(stale: Stale | None) -> dict[str, Any]:
    return {
        "stale_sequence": None if stale is None else stale.sequence,
        "stale_ref": None if stale is None else stale.ref,
        "stale_ref_sequence": None if stale is None else stale.ref_sequence,
        "stale_why": None if stale is None else stale.why,
    }


def _text(value: Mapping[str, JSON]) -> str:
    return json.dumps(dict(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
