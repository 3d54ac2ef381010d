"""`kvbaton ledger` where there is no ledger: it makes none, and leaves alone what is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Cli
from tests.lineage.test_opening import NO_LEDGERS, nothing, tree


@pytest.mark.parametrize("what", NO_LEDGERS)
def test_commands_that_read_make_nothing(
    tmp_path: Path, cli: Cli, what: Callable[[Path], None]
) -> None:
    """All of them are refused, and leave what is there as it is."""
    path = tmp_path / "ledger" / "ledger.db"
    what(path)
    before = tree(path.parent)
    for line in ("log", "refs", "show abababab", "graph abababab", "impact --function-id abababab",
                 "accept", "invalidate abababab --why x"):  # fmt: skip
        code = cli("ledger", *line.split(), "--ledger", path).code
        assert code == 14, line
    assert tree(path.parent) == before
    assert path.parent.exists() == (what is not nothing)
