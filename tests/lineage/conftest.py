"""A ledger of its own for every test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvbaton.lineage.ledger import Ledger


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Where the test's ledger lies."""
    return f"sqlite:///{tmp_path}/ledger/ledger.db"


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    """An empty ledger."""
    with Ledger(url, "local") as opened:
        yield opened
