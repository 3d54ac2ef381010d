"""A12, better claims: fewer hops, a better fidelity, less noise, fewer signers than there were.

Attacked: receivers that act on what a baton says of its past.  The attacker is ``coder`` with its
own trusted key: it took a lossy, noisy baton, and hands it on as something better.  Hops and
fidelity are computed anew from the verified parents; where a parent is missing, the worst counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attacks.scene import DOMAIN, Finding, Scene, main, outcome
from kvbaton.agent import Agent
from kvbaton.codecs import CodecChain, Int, uniform
from kvbaton.stores import Key, Kind
from kvbaton.types import EXACT, Baton, Hops, Manifest

RECORD = "ca" * 32


def attack(folder: Path) -> Sequence[Finding]:
    """A child that claims better than its parent allows, one claim at a time."""
    scene = Scene(folder)
    parent, child = line(scene)
    signer = scene.ring.signer("coder", DOMAIN)
    findings = [Finding("the honest child", "used", outcome(receiver(scene), child.id))]
    _, noisy = line(scene, noise=0.001)
    findings.append(Finding("a noisy one", "used", outcome(receiver(scene), noisy.id)))
    for tried, listing in [*claims(child.manifest), *noises(noisy.manifest)]:
        name = scene.forge(listing, signer)
        findings.append(
            Finding(tried, "not-trusted claims-too-good", outcome(receiver(scene), name))
        )
    modest = replace(child.manifest, hops=Hops(exact=7, lossy=7))
    told = outcome(receiver(scene), scene.forge(modest, signer))
    findings.append(Finding("worse than its parents allow", "kv-unusable lossy-hops", told))
    scene.store.delete(Key(Kind.BATON, parent.id))
    opened = receiver(Scene(folder)).relay.open(child.id)
    counted = (opened.manifest.hops.lossy, opened.manifest.fidelity.kind.value)
    worst = "worst" if counted == (1_000_000, "approximate") else str(counted)
    findings.append(Finding("the parent removed", "worst", worst))
    findings.append(
        Finding("the warning", "parent-missing", " ".join(w.code.value for w in opened.warnings))
    )
    return findings


def receiver(scene: Scene) -> Agent:
    """One that takes lossy caches."""
    return scene.agent("critic", calibrations=lambda function: frozenset({RECORD}))


def line(scene: Scene, **options: Any) -> tuple[Baton, Baton]:
    """A lossy baton of the planner's, and the coder's that descends from it."""
    chains = [CodecChain((Int(bits=8, axis=axis, group=8),)) for axis in ("channel", "token")]
    plan = uniform("eight", *chains, 4).calibrated(RECORD)
    known = {"calibrations": lambda function: frozenset({RECORD}), "plan": plan}
    planner = scene.agent("planner", system="You plan", **known)
    turn = planner.run("Hello there, you plan and code. " * 4, max_new_tokens=9)
    parent = planner.hand_off(turn, **options)
    coder = scene.agent("coder", **known)
    return parent, coder.hand_off(coder.take(parent.id, "Go on", max_new_tokens=9))


def claims(honest: Manifest) -> list[tuple[str, Manifest]]:
    """Manifests that are well formed, each with one claim that is too good."""
    text_only = replace(honest, segments=(), fidelity=EXACT, hops=Hops())
    refs = tuple(replace(ref, fidelity=EXACT) for ref in honest.segments)
    return [
        ("fewer lossy hops", replace(honest, hops=replace(honest.hops, lossy=0))),
        ("fewer hops of any kind", replace(honest, hops=Hops())),
        ("a better fidelity", replace(honest, fidelity=EXACT, segments=refs)),
        ("no signers", replace(honest, signers=())),
        ("other signers", replace(honest, signers=("0e" * 32,))),
        ("no signers, as text only", replace(text_only, signers=())),
    ]


def noises(honest: Manifest) -> list[tuple[str, Manifest]]:
    """The same of noise."""
    return [
        ("less noise", replace(honest, noise=honest.noise / 2)),
        ("no noise", replace(honest, noise=0.0)),
    ]


if __name__ == "__main__":
    raise SystemExit(main(attack, __doc__))
