"""A2 and C8, replay: a single-use ticket is used again, after a restart or by many at once.

Attacked: the store's memory of what is spent.  The attacker has a ticket that was used, and starts
processes of its own over the same directory, one after another or all at the same moment; or it
copies the store's objects to another place, without what is spent.  Exactly one take per use.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from attacks.scene import Finding, Scene, main, outcome
from kvbaton.types import BatonRef

ROOT = Path(__file__).resolve().parents[1]
RACERS = 6


def attack(folder: Path) -> Sequence[Finding]:
    """Replays in this process, in others, and from a copy of the store."""
    scene = Scene(folder)
    scene.trust.require("local", tickets=True)
    sender, turn = scene.turn()
    baton = sender.hand_off(turn)
    once = sender.ticket(baton, "coder")
    first = outcome(scene.agent("coder"), baton.id, ticket=once)
    again = outcome(scene.agent("coder"), baton.id, ticket=once)
    restarted = run_child("take", folder, baton.id, "coder", once)
    fresh = run_child("take", folder, baton.id, "coder", sender.ticket(baton, "coder"))
    return [
        Finding("a ticket, used once", "used", first),
        Finding("the same ticket again", "not-trusted ticket-spent", again),
        Finding("again after a restart", "not-trusted ticket-spent", restarted),
        Finding("another ticket after a restart", "used", fresh),
        race(folder, baton.id, sender.ticket(baton, "coder"), uses=1),
        race(folder, baton.id, sender.ticket(baton, "coder", uses=2), uses=2),
        copied(scene, baton.id, once),
    ]


def race(folder: Path, baton: str, ticket: str, *, uses: int) -> Finding:
    """Processes that use one ticket at the same moment."""
    racers = [start_child("open", folder, baton, "coder", ticket) for _ in range(RACERS)]
    for one in racers:
        if one.stdout is None or one.stdout.readline() != "ready\n":
            raise RuntimeError("a process did not start")
    for one in racers:
        if one.stdin is not None:
            one.stdin.write("go\n")
            one.stdin.flush()
    found = Counter(json.loads(one.communicate()[0]) for one in racers)
    wanted = f"{uses} opened, {RACERS - uses} ticket-spent"
    said = f"{found['opened']} opened, {found['ticket-spent']} ticket-spent"
    return Finding(f"{RACERS} processes race for {uses} use(s)", wanted, said)


def copied(scene: Scene, baton: str, ticket: str) -> Finding:
    """A copy of the store that has forgotten what is spent: the receiver's own store has not."""
    copy = scene.folder / "copy"
    shutil.copytree(scene.folder / "store", copy)
    shutil.rmtree(copy / "spent")
    found = outcome(scene.agent("coder"), BatonRef(baton, f"dir://{copy}"), ticket=ticket)
    return Finding("a copy of the store without what is spent", "not-trusted ticket-spent", found)


def start_child(what: str, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """A process that runs a part of ``child.py``."""
    return subprocess.Popen(
        [sys.executable, "-m", "attacks.child", what, str(folder), *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def run_child(what: str, folder: Path, *arguments: str) -> str:
    """What a process of its own says came of it."""
    printed, _ = start_child(what, folder, *arguments).communicate()
    return str(json.loads(printed.splitlines()[-1]))


if __name__ == "__main__":
    raise SystemExit(main(attack, __doc__))
