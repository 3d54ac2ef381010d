"""`kvbaton ledger` where there is no ledger, which it does not make, and where others hold it."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Cli
from tests.lineage.nodes import baton
from tests.lineage.test_opening import NO_LEDGERS, nothing, tree

from kvbaton import settings
from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.seen import Seen


@pytest.mark.parametrize("what", NO_LEDGERS)
def test_commands_that_read_make_nothing(
    tmp_path: Path, cli: Cli, what: Callable[[Path], None]
) -> None:
    """All of them are refused, and leave what is there as it is."""
    path = tmp_path / "ledger" / "ledger.db"
    what(path)
    before = tree(path.parent)
    for line in ("log", "refs", "show abababab", "graph abababab", "impact --function-id abababab",
                 "accept", "migrate", "invalidate abababab --why x"):  # fmt: skip
        code = cli("ledger", *line.split(), "--ledger", path).code
        assert code == 14, line
    assert tree(path.parent) == before
    assert path.parent.exists() == (what is not nothing)


def test_reading_goes_on_while_another_process_holds_what_was_seen(
    tmp_path: Path, cli: Cli
) -> None:
    """A stopped one, say: there is a warning that the new head is not kept."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    seen = Seen(settings.from_environment().ledger_seen, url, "local")
    with Ledger(url, "local") as ledger, seen.path.with_suffix(".lock").open("w") as file:
        ledger.move("plan", baton("b1"), expected=0)
        fcntl.flock(file, fcntl.LOCK_EX)
        found = cli("ledger", "refs", "--ledger", url)
        assert (found.code, "b1" in found.out) == (0, True)
        assert "another process holds it" in found.err
        fcntl.flock(file, fcntl.LOCK_UN)
        assert cli("ledger", "refs", "--ledger", url).err == ""
    assert Seen(seen.path.parent, url, "local").newest("plan") is not None
