"""The first tables."""

import secrets
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def _text(name: str, length: int, *, key: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.String(length), primary_key=key, nullable=False)


def _number(name: str, *, key: bool = False, absent: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger, primary_key=key, nullable=absent)


def upgrade() -> None:
    """Make them."""
    ledger = op.create_table("ledger", _text("identity", 32, key=True))
    op.bulk_insert(ledger, [{"identity": secrets.token_hex(16)}])
    op.create_table("counters", _text("domain", 64, key=True), _number("value"))
    op.create_table(
        "nodes",
        _text("domain", 64, key=True),
        _text("id", 200, key=True),
        _text("kind", 16),
        _text("label", 200),
        _text("agent", 200),
        _text("model", 200),
        _text("function", 64),
        _number("tokens"),
        _number("size_bytes"),
        _text("codec", 200),
        _text("fidelity", 16),
        _number("hops_exact"),
        _number("hops_lossy"),
        sa.Column("store", sa.Text, nullable=False),
        _number("expires_ms"),
        _number("created_ms"),
        sa.Column("facts", sa.Text, nullable=False),
        _number("sequence"),
        _number("stale_sequence", absent=True),
        sa.Column("stale_ref", sa.String(128)),
        _number("stale_ref_sequence", absent=True),
        sa.Column("stale_why", sa.Text),
    )
    op.create_index("nodes_by_function", "nodes", ["domain", "function"])
    op.create_index("nodes_by_sequence", "nodes", ["domain", "sequence"])
    op.create_table(
        "edges",
        _text("domain", 64, key=True),
        _text("child", 200, key=True),
        _text("parent", 200, key=True),
        _number("place"),
    )
    op.create_index("edges_by_parent", "edges", ["domain", "parent", "child"])
    op.create_table(
        "moves",
        _text("domain", 64, key=True),
        _text("ref", 128, key=True),
        _number("ref_sequence", key=True),
        _text("baton", 200),
        _number("moved_ms"),
        _number("sequence"),
    )
    op.create_index("moves_by_baton", "moves", ["domain", "baton"])
    op.create_table(
        "events",
        _text("domain", 64, key=True),
        _number("sequence", key=True),
        _text("kind", 16),
        _text("node", 200),
        _text("ref", 128),
        _number("ref_sequence"),
        sa.Column("detail", sa.Text, nullable=False),
        _number("created_ms"),
        sa.Column("once", sa.String(64)),
        sa.UniqueConstraint("domain", "once", name="events_once"),
    )
