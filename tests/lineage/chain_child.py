"""One agent in a process of its own, told what to do by lines of JSON on its standard input.

``NAME STORE LEDGER FOLDER``; each command is answered by one line.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.relay.conftest import SEGMENT_TOKENS, make_engine

from kvbaton.agent import Agent
from kvbaton.errors import KvbatonError
from kvbaton.following import Following
from kvbaton.lineage.keeper import LedgerKeeper
from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.watching import Watch
from kvbaton.relay import Relay
from kvbaton.seals import TrustDomain
from kvbaton.stores import open_store
from kvbaton.wire.digests import DomainKeys

PATIENCE_S = 30.0


class Child:
    """The agent and what it is told."""

    def __init__(self, name: str, store: str, ledger: str, folder: str) -> None:
        domain = TrustDomain("local", DomainKeys(bytes(range(32))))
        relay = Relay(make_engine(), open_store(store), domain, segment_tokens=SEGMENT_TOKENS)
        self.url = ledger
        self.keeper = LedgerKeeper(
            ledger, "local", Path(folder) / "spool", seen=Path(folder) / f"seen-{name}"
        )
        self.agent = Agent(
            name, relay.engine, relay, stream=False, following=Following(self.keeper, name)
        )
        self.heard: dict[str, float] = {}
        self.watch: Watch | None = None

    def plan(self, said: str) -> Any:
        """Begin anew, and hand off as ``plan``; the baton's id, and when the ref had moved."""
        self.agent.forget()
        turn = self.agent.run(said, max_new_tokens=4)
        baton = self.agent.hand_off(turn, ref="plan")
        return {"answer": turn.receipt.id, "baton": baton.id, "moved_s": time.time()}

    def go_on(self, baton: str, stale: str, messages: Any = None) -> Any:
        """Take a baton, and hand the result off; receipt, onward baton and an artefact."""
        turn = self.agent.take(
            baton, *([] if messages else ["Go on"]), max_new_tokens=4, stale=stale,
            messages=messages,
        )  # fmt: skip
        onward = self.agent.hand_off(turn)
        artefact = self.agent.artefact(f"{self.agent.name}.md", turn)
        return {"receipt": turn.receipt.to_json(), "baton": onward.id, "artefact": artefact}

    def flush(self) -> Any:
        """Write what waits."""
        return self.keeper.flush(PATIENCE_S)

    def hold(self, *names: str) -> Any:
        """Hear when one of these becomes stale."""
        self.watch = self.watch or Watch(lambda: Ledger(self.url, "local"))
        for name in names:
            self.watch.hold(name, lambda node: self.heard.update({node.id: time.time()}))
        return True

    def told(self, count: int) -> Any:
        """What has become stale, once that is so many."""
        end = time.monotonic() + PATIENCE_S
        while len(self.heard) < count and time.monotonic() < end:
            time.sleep(0.01)
        return self.heard


def main() -> None:
    """Serve until standard input ends."""
    child = Child(*sys.argv[1:])
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            found = getattr(child, name)(*arguments)
        except KvbatonError as error:
            found = {"error": type(error).__name__, "said": error.sentence}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
