"""A7, one stolen agent key: what its thief can sign, and what revoking it undoes.

Attacked: everybody but the agent whose key it is.  The thief has the key file of ``coder``, the
domain's secret and the store.  It cannot speak for ``planner``.  Revoking the key voids its batons
and all that descends from them, also where the thief has removed the baton between; rotating a key
voids nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from attacks.scene import DOMAIN, Finding, Scene, main, outcome
from kvbaton.stores import Key, Kind
from kvbaton.types import Baton


def attack(folder: Path) -> Sequence[Finding]:
    """The key of ``coder``, stolen, then revoked; the key of ``planner``, rotated."""
    scene = Scene(folder)
    planned = scene.baton()
    coded = passed_on(scene, planned, "coder")
    judged = passed_on(scene, coded, "critic")
    thief = scene.ring.signer("coder", DOMAIN)
    as_planner = scene.forge(replace(planned.manifest, created_ms=1), thief)
    as_anybody = scene.forge(replace(planned.manifest, sender="*"), thief)

    def take(tried: str, wanted: str, baton: str) -> Finding:
        fresh = Scene(folder)  # a process that remembers nothing
        return Finding(tried, wanted, outcome(fresh.agent("critic"), baton))

    findings = [
        take("the coder's own baton", "used", coded.id),
        take("the critic's, which descends from it", "used", judged.id),
        take("the coder's key signs for the planner", "not-trusted signer-not-sender", as_planner),
        take("the coder's key signs for everybody", "not-trusted signer-not-sender", as_anybody),
    ]
    watcher = scene.agent("critic")
    outcome(watcher, judged.id)  # knows the whole line before the key is revoked
    scene.trust.revoke(thief.keyid)
    findings += [
        take("after its key was revoked, the coder's own", "not-trusted key-revoked", coded.id),
        take("what descends from it", "not-trusted ancestor-revoked", judged.id),
        Finding(
            "what descends from it, for who knew it before", "not-trusted ancestor-revoked",
            outcome(watcher, judged.id),
        ),
    ]  # fmt: skip
    scene.store.delete(Key(Kind.BATON, coded.id))
    findings += [
        take("with the revoked baton removed", "not-trusted ancestor-revoked", judged.id),
        take("the planner's, which came before", "used", planned.id),
    ]
    scene.ring.rotate(scene.ring.signer("planner", DOMAIN).keyid)
    anew = scene.baton()
    return [
        *findings,
        take("the planner's, after its key was rotated", "used", planned.id),
        take("the planner's, by its new key", "used", anew.id),
        Finding("the new key is another", "yes", "no" if anew.signer == planned.signer else "yes"),
    ]


def passed_on(scene: Scene, baton: Baton, name: str) -> Baton:
    """The baton taken by an agent, and handed on."""
    agent = scene.agent(name)
    turn = agent.take(baton.id, "Go on", max_new_tokens=9)
    return agent.hand_off(turn)


if __name__ == "__main__":
    raise SystemExit(main(attack, __doc__))
