"""A2, replay: an older baton is passed off as the current one.

Attacked: a receiver that takes whatever is authentic.  The attacker keeps the planner's first
baton and serves it after the plan has changed: to a running receiver, to one that has just been
started, and to one whose sender claims another number for it.  The ref has moved on, so it is
refused, or labelled where the receiver wants that; and nobody moves a ref back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from attacks.scene import DOMAIN, Finding, Scene, main, outcome
from kvbaton.deciding import PolicySource
from kvbaton.errors import KvbatonError
from kvbaton.following import Following, baton_node
from kvbaton.lineage.keeper import LedgerKeeper
from kvbaton.policy.policy_files import parse_policy
from kvbaton.types import Baton

WARY = parse_policy({"rules": {"stale": "refuse", "known_freshness": True}})
"""What cannot be shown to be current is refused."""


def attack(folder: Path) -> Sequence[Finding]:
    """The first of two plans, to receivers that may know no better."""
    scene = Scene(folder)
    with keeper_in(folder) as keeper:
        old, new = planned(scene, keeper), planned(scene, keeper)
        coder = scene.agent("coder", following=Following(keeper, "coder"))
        findings = [
            Finding("the newest", "used", outcome(coder, new.id, stale="refuse")),
            Finding("the older one", "superseded stale", outcome(coder, old.id, stale="refuse")),
            Finding("the older one, to who asks for the newer", "used",
                    outcome(coder, old.id, stale="fetch")),
            Finding("the older one, to who goes on", "superseded stale", outcome(coder, old.id)),
            Finding("the ref moved back", "input-error", moved_back(keeper, old)),
        ]  # fmt: skip
    with keeper_in(folder) as keeper:  # as another process sees it
        coder = scene.agent("coder", following=Following(keeper, "coder"))
        coder.relay.deciding.source = PolicySource(WARY)
        signer = scene.ring.signer("planner", DOMAIN)
        same = scene.forge(replace(old.manifest, sequence=2), signer)
        beyond = scene.forge(replace(old.manifest, sequence=9), signer)
        return [
            *findings,
            Finding("the newest, after a restart", "used", outcome(coder, new.id)),
            Finding("the older one, after a restart", "superseded stale", outcome(coder, old.id)),
            Finding("the older one, signed anew as the newest", "superseded stale",
                    outcome(coder, same)),
            Finding("the older one, signed anew as one that never was", "superseded stale",
                    outcome(coder, beyond)),
        ]  # fmt: skip


def keeper_in(folder: Path) -> LedgerKeeper:
    """A way to the scene's ledger, as a process of its own has it."""
    url = f"sqlite:///{folder}/ledger/ledger.db"
    return LedgerKeeper(url, DOMAIN, folder / "spool", seen=folder / "seen", retry_s=0.0)


def planned(scene: Scene, keeper: LedgerKeeper) -> Baton:
    """One more state of the plan."""
    planner = scene.agent("planner", following=Following(keeper, "planner"))
    return planner.hand_off(planner.run("You plan", max_new_tokens=5), ref="plan")


def moved_back(keeper: LedgerKeeper, old: Baton) -> str:
    """What comes of moving the ref to a baton that it has left."""
    try:
        keeper.move("plan", baton_node(old, (), ""), expected=2)
    except KvbatonError as error:
        return error.code
    return "moved"


if __name__ == "__main__":
    raise SystemExit(main(attack, __doc__))
