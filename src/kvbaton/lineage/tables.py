"""The ledger's tables.  ``docs/spec/ledger.md`` says what each column is.

Nothing here belongs to one dialect: texts, integers of 64 bits, and keys.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, MetaData, String, Table, Text, UniqueConstraint

VERSION = "0001"
"""The newest migration."""

metadata = MetaData()

ledger = Table("ledger", metadata, Column("identity", String(32), primary_key=True))
"""One row, made with the tables: which ledger this is."""

counters = Table(
    "counters",
    metadata,
    Column("domain", String(64), primary_key=True),
    Column("value", BigInteger, nullable=False),
)

nodes = Table(
    "nodes",
    metadata,
    Column("domain", String(64), primary_key=True),
    Column("id", String(200), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("label", String(200), nullable=False),
    Column("agent", String(200), nullable=False),
    Column("model", String(200), nullable=False),
    Column("function", String(64), nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("codec", String(200), nullable=False),
    Column("fidelity", String(16), nullable=False),
    Column("hops_exact", BigInteger, nullable=False),
    Column("hops_lossy", BigInteger, nullable=False),
    Column("store", Text, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("facts", Text, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("stale_sequence", BigInteger),
    Column("stale_ref", String(128)),
    Column("stale_ref_sequence", BigInteger),
    Column("stale_why", Text),
    Index("nodes_by_function", "domain", "function"),
    Index("nodes_by_sequence", "domain", "sequence"),
)

edges = Table(
    "edges",
    metadata,
    Column("domain", String(64), primary_key=True),
    Column("child", String(200), primary_key=True),
    Column("parent", String(200), primary_key=True),
    Column("place", BigInteger, nullable=False),
    # The child is in it, or SQLite would rather walk down through all edges of the domain.
    Index("edges_by_parent", "domain", "parent", "child"),
)

moves = Table(
    "moves",
    metadata,
    Column("domain", String(64), primary_key=True),
    Column("ref", String(128), primary_key=True),
    Column("ref_sequence", BigInteger, primary_key=True),
    Column("baton", String(200), nullable=False),
    Column("moved_ms", BigInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Index("moves_by_baton", "domain", "baton"),
)
"""Every head that a ref has had; the last is where it stands."""

events = Table(
    "events",
    metadata,
    Column("domain", String(64), primary_key=True),
    Column("sequence", BigInteger, primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("node", String(200), nullable=False),
    Column("ref", String(128), nullable=False),
    Column("ref_sequence", BigInteger, nullable=False),
    Column("detail", Text, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("once", String(64)),
    UniqueConstraint("domain", "once", name="events_once"),
)
"""The log; ``once`` names a record, so that it is written exactly once."""
