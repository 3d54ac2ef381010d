"""Several processes and one ledger."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.records import EventKind

_RACER = """
import json, sys
from kvbaton.errors import RefConflict
from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.records import Node, NodeKind
url, name, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
won = []
with Ledger(url, "local") as ledger:
    sys.stdin.readline()
    stands = 0
    while stands < rounds:
        baton = Node(f"{name}-{stands + 1}", NodeKind.BATON)
        try:
            ledger.move("plan", baton, expected=stands)
            won.append(stands + 1)
        except RefConflict:
            pass
        stands = ledger.head("plan").sequence
print(json.dumps(won))
"""


def racers(url: str, count: int, rounds: int) -> list[subprocess.Popen[str]]:
    """Processes that wait for a line, and then race for each number of a ref."""
    command = [sys.executable, "-c", _RACER, url]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return [
        subprocess.Popen([*command, f"p{number}", str(rounds)], **pipes) for number in range(count)
    ]


def test_each_number_of_a_ref_is_won_once(url: str, tmp_path: Path) -> None:
    """However many race, every compare-and-set has one winner, and the history is theirs."""
    rounds = 30
    running = racers(url, 3, rounds)  # all of them make the ledger, too
    outs = [process.communicate("go\n", timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    won = [json.loads(out) for out in outs]
    assert sorted(number for several in won for number in several) == list(range(1, rounds + 1))
    with Ledger(url, "local") as ledger:
        history = {head.sequence: head.baton for head in ledger.history("plan")}
        assert history == {
            number: f"p{racer}-{number}" for racer, several in enumerate(won) for number in several
        }
        log = ledger.log(limit=10_000)
        assert [event.sequence for event in log] == list(range(1, ledger.sequence() + 1))
        assert sum(event.kind is EventKind.MOVED for event in log) == rounds
