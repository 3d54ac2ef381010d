"""A9, KV of another text, or poisoned tensors, under a valid signature.

Attacked: the bond between tokens and tensors.  The attacker is a trusted sender: signature, digests
and ids are right, the keys and values are not.  The check of layer 0 refuses V that is not that of
the tokens, at any position.  What it cannot notice (later layers) is for the windows of a critical
take, and for the documentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attacks.scene import LONG, Finding, Scene, by_text, main, outcome
from kvbaton.backing import Source
from kvbaton.types import Baton


def attack(folder: Path) -> Sequence[Finding]:
    """Another text, one token of it, and values that were changed in layer 0."""
    scene = Scene(folder)
    baton = scene.baton()
    refused = "kv-unusable kv-other-tokens"
    findings = [Finding("KV of its own text", "used", outcome(scene.agent("coder"), baton.id))]
    other = signed_as(scene, baton, f"Hi {LONG}")
    findings.append(Finding("KV of another text", refused, taken(scene, other)))
    cached = baton.manifest.cached_tokens
    for position in (1, 15, 16, cached // 2, cached - 1):
        wrong = one_token(scene, baton, position)
        findings.append(Finding(f"another token at {position}", refused, taken(scene, wrong)))
    for tried, layer, factor in (
        ("values of layer 0 doubled at one position", 0, 2.0),
        ("values of layer 0 at nought", 0, 0.0),
    ):
        poisoned = changed(scene, baton, layer, factor)
        findings.append(Finding(tried, refused, taken(scene, poisoned)))
    return findings


def taken(scene: Scene, baton: Baton) -> str:
    """Outcome of a take; where the ids were prefilled, the answer is that of the text."""
    agent = scene.agent("coder")
    said = outcome(agent, baton.id)
    known = agent.conversation
    answered = () if known is None else tuple(known.ids[-4:])
    return said if answered == by_text(baton) else f"{said}, but another answer"


def signed_as(scene: Scene, baton: Baton, prompt: str) -> Baton:
    """The KV of a prompt under the ids of a baton, signed by its sender."""
    ids, cached = baton.transcript.ids, baton.manifest.cached_tokens
    sender = scene.agent("planner", stream=False)
    cache = sender.engine.new_cache(cached + 1)
    others = sender.writer.fresh(prompt, None).ids
    sender.engine.forward(cache, (others * 2)[:cached])
    return handed_off(scene, cache, cached, ids)


def one_token(scene: Scene, baton: Baton, position: int) -> Baton:
    """The baton's own KV, but for one token."""
    ids, cached = baton.transcript.ids, baton.manifest.cached_tokens
    wrong = list(ids[:cached])
    wrong[position] = 20 if wrong[position] != 20 else 21
    engine = scene.agent("planner").engine
    cache = engine.new_cache(cached + 1)
    engine.forward(cache, wrong)
    return handed_off(scene, cache, cached, ids)


def changed(scene: Scene, baton: Baton, layer: int, factor: float) -> Baton:
    """The baton's own KV with the values at one position of a layer multiplied."""
    ids, cached = baton.transcript.ids, baton.manifest.cached_tokens
    engine = scene.agent("planner").engine
    cache = engine.new_cache(cached + 1)
    engine.forward(cache, ids[:cached])
    _, values = cache.layer_view(layer, cached // 2, 1)
    values *= factor
    return handed_off(scene, cache, cached, ids)


def handed_off(scene: Scene, cache: Any, cached: int, ids: tuple[int, ...]) -> Baton:
    """A cache under some ids, by a relay that believes its own sender."""
    relay = scene.agent("planner").relay
    return relay.hand_off(Source(cache, cached, ids), sender="planner", text="")


if __name__ == "__main__":
    raise SystemExit(main(attack, __doc__))
