"""A13, time of check and time of use: a file changes between verification and use.

Attacked: a reader that verifies one copy and uses another.  The attacker rewrites files in place
while they are being read: after the header, between two layer ranges, after every single read.
Bytes are hashed where nobody else can write, so what was changed is never used.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from attacks.scene import Finding, Scene, by_text, main, outcome
from kvbaton.stores import Key, Kind
from kvbaton.testing import Do, FaultyStore, StoreFault
from kvbaton.types import Baton

LEGITIMATE = ("segment-corrupt", "segment-missing", "store-error")
"""What a file that is being rewritten may look like: wrong, empty, too short."""


def attack(folder: Path) -> Sequence[Finding]:
    """Files rewritten in place at every moment of a take."""
    scene = Scene(folder)
    baton = scene.baton()
    findings = [Finding("nobody writes", "used", taken(scene, baton, FaultyStore(scene.store)))]
    segments, layers = len(baton.manifest.segments), 4
    for nth in range(1, segments + segments * layers + 1):
        path = path_of(scene, Kind.SEGMENT, baton.manifest.segments[0].address)
        findings.append(rewritten(scene, baton, path, Kind.SEGMENT, nth))
    for kind, name in (
        (Kind.BATON, baton.id),
        (Kind.TRANSCRIPT, baton.manifest.transcript),
    ):
        findings.append(rewritten(scene, baton, path_of(scene, kind, name), kind, 1))
    findings.append(flipped_meanwhile(scene, baton))
    return findings


def rewritten(scene: Scene, baton: Baton, path: Path, kind: Kind, nth: int) -> Finding:
    """All bytes of a file are turned over right before the n-th read of its kind.

    What had been read before is used if it was right; what comes later is not.
    """
    honest = path.read_bytes()

    def rewrite(_: Key | None) -> None:
        path.write_bytes(bytes(byte ^ 0x55 for byte in honest))

    try:
        store = FaultyStore(scene.store, StoreFault("read", Do(rewrite), kind=kind, nth=nth))
        found = taken(scene, baton, store)
    finally:
        path.write_bytes(honest)
    wanted = {
        Kind.BATON: "not-trusted envelope-malformed",
        Kind.TRANSCRIPT: "unavailable transcript-corrupt",
    }
    segments = len(baton.manifest.segments)
    last_read = segments + 3 * segments + 1  # headers, then segment 0 first in each layer
    expected = wanted.get(kind, "used" if nth > last_read else "kv-unusable segment-corrupt")
    return Finding(f"{kind.value} rewritten before read {nth}", expected, found)


def flipped_meanwhile(scene: Scene, baton: Baton) -> Finding:
    """A writer that never rests: each take is right or by text, and the answer is always right."""
    path = path_of(scene, Kind.SEGMENT, baton.manifest.segments[1].address)
    honest, stop = path.read_bytes(), threading.Event()

    def write() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            wrong = bytearray(honest)
            wrong[turn * 97 % len(honest)] ^= 0xFF
            path.write_bytes(wrong if turn % 2 else honest)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        found = {taken(scene, baton, FaultyStore(scene.store)) for _ in range(20)}
    finally:
        stop.set()
        writer.join()
        path.write_bytes(honest)
    right = {"used", *(f"kv-unusable {why}" for why in LEGITIMATE)}
    odd = sorted(found - right)
    return Finding("a writer that never rests", "never wrong", ", ".join(odd) or "never wrong")


def taken(scene: Scene, baton: Baton, store: FaultyStore) -> str:
    """Outcome of a take; the answer must be that of the text whenever the ids are known."""
    agent = scene.agent("coder", store=store)
    said = outcome(agent, baton.id)
    known = agent.conversation
    answered = () if known is None else tuple(known.ids[-4:])
    if said.startswith(("used", "kv-unusable")) and answered != by_text(baton):
        return f"{said}, but another answer"
    return said


def path_of(scene: Scene, kind: Kind, name: str) -> Path:
    """Where a directory store keeps an object."""
    return scene.folder / "store" / kind.value / name[:2] / name


if __name__ == "__main__":
    raise SystemExit(main(attack, __doc__))
