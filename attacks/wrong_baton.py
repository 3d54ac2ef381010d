"""A5, wrong baton: valid, but for another audience, another conversation, another trust domain.

Attacked: a receiver that believes whatever is signed.  The attacker is an agent with a key of its
own, holds tickets that were made out to others, and passes on what another domain has signed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from attacks.scene import (
    DOMAIN,
    LONG,
    Finding,
    Scene,
    acquaintance,
    main,
    outcome,
    raised,
    stranger,
)
from kvbaton.seals import Grant, Signer
from kvbaton.seals.tickets import issue
from kvbaton.stores import Key, Kind
from kvbaton.types import Baton


def attack(folder: Path) -> Sequence[Finding]:
    """Batons and tickets of others."""
    scene = Scene(folder)
    sender, turn = scene.turn()
    baton = sender.hand_off(turn)
    other = scene.baton(prompt=f"Hi {LONG}")
    scene.trust.require(DOMAIN, tickets=True)
    critics = acquaintance(scene, Grant("critic", DOMAIN))

    def take(tried: str, wanted: str, ticket: str | None, name: str = "coder") -> Finding:
        return Finding(tried, wanted, outcome(scene.agent(name), baton.id, ticket=ticket))

    mine = sender.ticket(baton, "coder")
    findings = [
        take("no ticket where one is asked for", "not-trusted ticket-missing", None),
        take("the critic with the coder's ticket", "not-trusted ticket-audience", mine, "critic"),
        take("a ticket for another baton", "not-trusted ticket-other-baton",
             sender.ticket(other, "coder")),
        take("a ticket by another agent's key in its own name", "not-trusted signer-not-sender",
             pass_of(baton, "critic", critics)),
        take("a ticket by another agent's key in the sender's name",
             "not-trusted signer-not-sender", pass_of(baton, "planner", critics)),
        take("a ticket by a stranger's key", "not-trusted ticket-invalid",
             pass_of(baton, "planner", stranger())),
        take("a ticket for another domain", "not-trusted domain-differs",
             pass_of(baton, "planner", scene.ring.signer("planner", DOMAIN), domain="elsewhere")),
        take("a baton in a ticket's place", "not-trusted ticket-invalid", baton_as_ticket(baton)),
        take("the coder with its own ticket, which nobody has spent", "used", mine),
    ]  # fmt: skip
    scene.trust.require(DOMAIN, tickets=False)
    return [*findings, *other_places(scene, baton, other)]


def other_places(scene: Scene, baton: Baton, other: Baton) -> list[Finding]:
    """Another conversation under the id that was asked for; what another domain has signed."""
    scene.put(Key(Kind.BATON, baton.id), other.envelope)
    found = outcome(scene.agent("coder"), baton.id)
    scene.put(Key(Kind.BATON, baton.id), baton.envelope)
    ambassador = acquaintance(scene, Grant("planner", "elsewhere"))
    abroad = replace(baton.manifest, domain="elsewhere")
    foreign = scene.forge(abroad, ambassador)
    local = scene.forge(replace(abroad, created_ms=1), scene.ring.signer("planner", DOMAIN))
    return [
        Finding("another conversation under this id", "not-trusted other-baton", found),
        Finding("another domain's baton, its key known here", "not-trusted domain-differs",
                outcome(scene.agent("coder"), foreign)),
        Finding("the same without messages", "not-trusted domain-differs",
                raised(scene.agent("coder"), foreign)),
        Finding("another domain's baton by a key of this one", "not-trusted signer-not-sender",
                outcome(scene.agent("coder"), local)),
    ]  # fmt: skip


def pass_of(baton: Baton, issuer: str, signer: Signer, *, domain: str = DOMAIN) -> str:
    """A ticket for the coder that lasts for ever, by whoever signs it."""
    return issue(
        baton.id, issuer=issuer, audience="coder", domain=domain, uses=0, signer=signer,
        not_before_ms=0, expires_ms=1 << 62,
    )  # fmt: skip


def baton_as_ticket(baton: Baton) -> str:
    """The baton's own envelope, spelled as tickets are."""
    import base64

    return base64.urlsafe_b64encode(baton.envelope).decode("ascii").rstrip("=")


if __name__ == "__main__":
    raise SystemExit(main(attack, __doc__))
