"""A4, mix and match: parts of several batons, each of them signed, put together anew.

Attacked: the bond between a manifest and what it lists.  The attacker has the store, two honest
batons of one sender, and later the sender's key as well.  A part in another's place is refused
where it lies, and where the manifest itself is put together anew, its ids say what the KV is not.
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
    by_text,
    main,
    outcome,
    stranger,
)
from kvbaton.seals import Grant
from kvbaton.stores import Key, Kind
from kvbaton.types import Baton, Manifest

_LIMIT = 1 << 30


def attack(folder: Path) -> Sequence[Finding]:
    """Parts of ``other`` in the place of those of ``mine``."""
    scene = Scene(folder)
    mine, other = scene.baton(), scene.baton(prompt=f"Hi {LONG}")
    findings = [
        Finding("both as they are", "used used", f"{taken(scene, mine)} {taken(scene, other)}")
    ]
    for position in range(len(mine.manifest.segments)):
        swapped = _Swap(scene, Kind.SEGMENT, address(mine, position), address(other, position))
        tried = f"the other's segment {position}"
        findings.append(swapped(tried, "kv-unusable segment-corrupt", mine))
    words = _Swap(scene, Kind.TRANSCRIPT, mine.manifest.transcript, other.manifest.transcript)
    findings.append(words("the other's transcript", "unavailable transcript-corrupt", mine))
    envelope = _Swap(scene, Kind.BATON, mine.id, other.id)
    findings.append(envelope("the other's manifest", "not-trusted other-baton", mine))
    coder = acquaintance(scene, Grant("coder", DOMAIN))
    for tried, signer, wanted in (
        ("a manifest that lists both, by a stranger", stranger(), "not-trusted unknown-key"),
        ("by another agent's key", coder, "not-trusted signer-not-sender"),
        (
            "by the sender's own key",
            scene.ring.signer("planner", DOMAIN),
            "kv-unusable segment-contradicts",
        ),
    ):
        name = scene.forge(mixed(mine, other), signer)
        findings.append(Finding(tried, wanted, outcome(scene.agent("coder"), name)))
    return findings


class _Swap:
    """Puts one object in another's place for one take."""

    def __init__(self, scene: Scene, kind: Kind, place: str, source: str) -> None:
        self.scene, self.key = scene, Key(kind, place)
        self.honest = scene.store.get(self.key, limit_bytes=_LIMIT)
        self.wrong = scene.store.get(Key(kind, source), limit_bytes=_LIMIT)

    def __call__(self, tried: str, wanted: str, baton: Baton) -> Finding:
        self.scene.put(self.key, self.wrong)
        try:
            return Finding(tried, wanted, taken(self.scene, baton))
        finally:
            self.scene.put(self.key, self.honest)


def taken(scene: Scene, baton: Baton) -> str:
    """Outcome of a take by id; where the ids were prefilled, the answer is that of the text."""
    agent = scene.agent("coder")
    said = outcome(agent, baton.id)
    known = agent.conversation
    answered = () if known is None else tuple(known.ids[-4:])
    if said.startswith("kv-unusable") and answered != by_text(baton):
        return f"{said}, but another answer"
    return said


def address(baton: Baton, position: int) -> str:
    """Where a segment of a baton lies."""
    return baton.manifest.segments[position].address


def mixed(mine: Baton, other: Baton) -> Manifest:
    """A manifest of ``mine`` whose second segment is the other's."""
    segments = list(mine.manifest.segments)
    segments[1] = replace(segments[1], address=address(other, 1))
    return replace(mine.manifest, segments=tuple(segments))


if __name__ == "__main__":
    raise SystemExit(main(attack, __doc__))
