"""A3, freeze: an old copy of the ledger makes an old head the current one.

Attacked: a receiver that believes whatever the ledger says.  The attacker, who can write where the
ledger lies, puts back yesterday's copy, puts an empty one in its place, or takes it away.  What was
seen of it is kept elsewhere, so the old head stays refused, with the age of what was seen, and the
newest one is taken with a warning.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from attacks.older_baton import keeper_in, planned
from attacks.scene import DOMAIN, Finding, Scene, main, outcome
from kvbaton.errors import KvbatonError
from kvbaton.following import Following
from kvbaton.lineage.ledger import Ledger
from kvbaton.types import Baton, ReasonCode


def attack(folder: Path) -> Sequence[Finding]:
    """Two states of the plan, and three ledgers that know of one or none."""
    scene, place = Scene(folder), folder / "ledger"
    with keeper_in(folder) as keeper:
        old = planned(scene, keeper)
    shutil.copytree(place, folder / "yesterday")
    with keeper_in(folder) as keeper:
        new = planned(scene, keeper)
        coder = scene.agent("coder", following=Following(keeper, "coder"))
        findings = [Finding("the newest, as it is", "used", outcome(coder, new.id))]
    shutil.rmtree(place)
    shutil.copytree(folder / "yesterday", place)
    findings += tried(scene, "yesterday's ledger", old, new)
    shutil.rmtree(place)
    with Ledger(f"sqlite:///{place}/ledger.db", DOMAIN):
        pass
    findings += tried(scene, "an empty ledger", old, new)
    shutil.rmtree(place)
    place.write_text("taken away")
    return [*findings, *tried(scene, "no ledger", old, new)]


def tried(scene: Scene, what: str, old: Baton, new: Baton) -> Sequence[Finding]:
    """What a process that begins then does."""
    with keeper_in(scene.folder) as keeper:
        coder = scene.agent("coder", following=Following(keeper, "coder"))
        return [
            Finding(f"the old head, {what}", "superseded stale",
                    outcome(coder, old.id, stale="refuse")),
            Finding(f"the ref, {what}", "refused", asked(coder.following)),
            Finding(f"the newest, {what}", "used, warned", warned(scene, keeper, new)),
        ]  # fmt: skip


def asked(following: Following) -> str:
    """What comes of asking where the ref stands."""
    try:
        return following.head("plan")[1].id
    except KvbatonError as error:
        told = error.code != "ledger-rolled-back" or " ago" in error.sentence
        return "refused" if told else error.sentence


def warned(scene: Scene, keeper: object, new: Baton) -> str:
    """Outcome of a take of the newest, and whether the receipt warns of the ledger."""
    coder = scene.agent("coder", following=Following(keeper, "coder"))  # type: ignore[arg-type]
    receipt = coder.take(new.id, "Go on", max_new_tokens=4).receipt
    codes = [one.code for one in receipt.warnings]
    said = ", warned" if ReasonCode.LEDGER in codes else ""
    return f"{receipt.outcome.value}{said}"


if __name__ == "__main__":
    raise SystemExit(main(attack, __doc__))
