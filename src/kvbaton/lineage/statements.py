"""Statements that are needed often, built once: building one takes longer than running it.

Parameters: ``domain`` (``of_domain`` in updates, where that would be a column), ``names`` (a
list), and whatever a statement names besides.
"""

from __future__ import annotations

from sqlalchemy import BindParameter, bindparam, func, insert, select, update

from kvbaton.lineage.tables import counters, edges, events, moves, nodes

_DOMAIN: BindParameter[str] = bindparam("domain")
_NAMES: BindParameter[list[str]] = bindparam("names", expanding=True)

ADD_NODES, ADD_EDGES, ADD_EVENTS = insert(nodes), insert(edges), insert(events)

KNOWN_NODES = select(nodes.c.id).where(nodes.c.domain == _DOMAIN, nodes.c.id.in_(_NAMES))
"""Those of some ids that are recorded."""

KNOWN_RECORDS = select(events.c.once).where(events.c.domain == _DOMAIN, events.c.once.in_(_NAMES))
"""Those of some records' names that are written."""

BUILT_ON = select(edges.c.parent).where(edges.c.domain == _DOMAIN, edges.c.parent.in_(_NAMES))
"""Those of some ids that something builds on."""

MARKS = select(
    nodes.c.id,
    nodes.c.sequence,
    nodes.c.stale_sequence,
    nodes.c.stale_ref,
    nodes.c.stale_ref_sequence,
    nodes.c.stale_why,
).where(nodes.c.domain == _DOMAIN, nodes.c.id.in_(_NAMES), nodes.c.stale_sequence.is_not(None))
"""The marks of those of some nodes that are stale, with the nodes' sequence."""

COUNT = (
    update(counters)
    .where(counters.c.domain == bindparam("of_domain"))
    .values(value=counters.c.value + bindparam("count"))
)
COUNTED = select(counters.c.value).where(counters.c.domain == _DOMAIN)
"""The ledger's sequence in a domain."""

_REF: BindParameter[str] = bindparam("ref")
_BATON: BindParameter[str] = bindparam("baton")
_OF_REF = (moves.c.domain == _DOMAIN, moves.c.ref == _REF)
_IS_BATON = (nodes.c.domain == _DOMAIN, nodes.c.id == _BATON)
FRESHNESS = select(
    select(func.max(moves.c.ref_sequence)).where(*_OF_REF).scalar_subquery(),
    select(moves.c.baton)
    .where(*_OF_REF, moves.c.ref_sequence == bindparam("ref_sequence"))
    .scalar_subquery(),
    select(nodes.c.stale_why).where(*_IS_BATON).scalar_subquery(),
    COUNTED.scalar_subquery(),
    select(nodes.c.id).where(*_IS_BATON).scalar_subquery(),
)
"""Where ``ref`` stands, which baton is its ``ref_sequence``-th head, why ``baton`` is stale, the
ledger's sequence, and whether the baton is recorded: what is read before the first token."""
