"""A chain of three agents in three processes whose first context is updated (acceptance)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.records import EventKind

ROOT = Path(__file__).parents[2]
LONG = "Hello there, you plan and code. " * 4
MESSAGES = [{"role": "user", "content": "Hello there"}]


class Peer:
    """An agent in another process."""

    def __init__(self, name: str, folder: Path) -> None:
        store, ledger = f"dir://{folder}/store", f"sqlite:///{folder}/ledger/ledger.db"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.lineage.chain_child", name, store, ledger, str(folder)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "ready"

    def do(self, name: str, *arguments: Any) -> Any:
        """What comes of a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([name, arguments]) + "\n")
        self.process.stdin.flush()
        return self._line()

    def _line(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the process ended: {self.process.wait()}"
        return json.loads(line)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.send_signal(signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """End it."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait()


@contextmanager
def chain(folder: Path) -> Iterator[dict[str, Peer]]:
    """Three agents, each in its process."""
    peers = {name: Peer(name, folder) for name in ("planner", "coder", "tester")}
    try:
        yield peers
    finally:
        for peer in peers.values():
            peer.close()


@pytest.mark.parametrize(
    "killed",
    [
        pytest.param("planner", marks=pytest.mark.long),
        "coder",
        pytest.param("tester", marks=pytest.mark.long),
    ],
)
def test_an_update_reaches_everybody_in_a_chain_of_three_processes(
    tmp_path: Path, killed: str
) -> None:
    """Planner -> coder -> tester; the plan is updated, one process is killed and begun again
    before anybody checks."""
    url = f"sqlite:///{tmp_path}/ledger/ledger.db"
    with chain(tmp_path) as peers:
        planner, coder, tester = peers["planner"], peers["coder"], peers["tester"]
        plan = planner.do("plan", LONG)
        code = coder.do("go_on", plan["baton"], "label")
        test = tester.do("go_on", code["baton"], "label")
        assert code["receipt"]["freshness"]["standing"] == "current"
        assert [peer.do("flush") for peer in peers.values()] == [True] * 3
        built = {
            code["receipt"]["id"], code["baton"], code["artefact"],
            test["receipt"]["id"], test["baton"], test["artefact"],
        }  # fmt: skip
        # those who hold something, in two processes, and one that is to be killed among them
        holders = [name for name in ("coder", "tester") if name != killed]
        for name in holders:
            assert peers[name].do("hold", plan["baton"], *sorted(built))

        newer = planner.do("plan", LONG + "Go on.")
        with Ledger(url, "local") as ledger:  # the very moment the ref has moved
            stale = {node.id for node in ledger.nodes(stale=True)}
            assert stale == {plan["baton"]} | built
            assert {node.id for node in ledger.descendants(plan["baton"])} == built
        peers[killed].kill()
        peers[killed] = Peer(killed, tmp_path)
        planner, coder, tester = peers["planner"], peers["coder"], peers["tester"]

        for name in holders:
            heard = peers[name].do("told", 1 + len(built))
            assert set(heard) == {plan["baton"]} | built
            print(f"{name} heard of all after {max(heard.values()) - newer['moved_s']:.3f} s")

        # each rule of the receiver, for the head itself and for what builds on it
        for held, who in ((plan["baton"], coder), (code["baton"], tester)):
            labelled = who.do("go_on", held, "label")["receipt"]
            assert labelled["outcome"] == "superseded"
            assert labelled["freshness"]["standing"] == "stale"
            assert "based on stale context" in labelled["reasons"][-1]["sentence"]
            refused = who.do("go_on", held, "refuse")
            assert refused["error"] == "Superseded"
            own = who.do("go_on", held, "refuse", MESSAGES)["receipt"]
            assert (own["outcome"], own["route"]) == ("superseded", "text")
        fetched = coder.do("go_on", plan["baton"], "fetch")["receipt"]
        assert (fetched["baton"], fetched["outcome"]) == (newer["baton"], "used")
        assert tester.do("go_on", code["baton"], "fetch")["error"] == "Superseded"
        assert [peer.do("flush") for peer in peers.values()] == [True] * 3

    with Ledger(url, "local") as ledger:
        events = ledger.log(limit=10_000)
        moved = [(e.ref_sequence, e.node) for e in events if e.kind is EventKind.MOVED]
        assert moved == [(1, plan["baton"]), (2, newer["baton"])]
        told = [e for e in events if e.kind is EventKind.STALE]
        assert [(e.ref, e.ref_sequence, e.detail["marked"]) for e in told] == [("plan", 1, 7)]
        answers = {n.id for n in ledger.descendants(plan["baton"]) if n.kind.value == "answer"}
        assert {code["receipt"]["id"], test["receipt"]["id"]} <= answers
        assert all(n.stale is not None for n in ledger.descendants(plan["baton"]))
        assert all(n.stale is None for n in ledger.descendants(newer["baton"]))
