"""Faults that are well formed: W1, W2, W6, W9 as an agent meets them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attacks.scene import DOMAIN, LONG, Scene, by_text, engine, outcome
from tests.wire.samples import header_file, taken_apart

from kvbaton.codecs import CodecChain, Int, uniform
from kvbaton.engines.transformers.identity import function_id
from kvbaton.stores import Key, Kind
from kvbaton.testing import FaultyStore
from kvbaton.types import Baton, Transcript
from kvbaton.wire.digests import range_digest
from kvbaton.wire.transcript import encode_transcript

RECORD = "ca" * 32


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """A store, keys and agents of the test's own."""
    return Scene(tmp_path)


def answered(scene: Scene, baton: Baton, store: Any = None, **options: Any) -> str:
    """Outcome of a take by id, whose answer must be that of the baton's ids."""
    agent = scene.agent("coder", store=store or scene.store, **options)
    said = outcome(agent, baton.id)
    assert tuple(agent.conversation.ids[-4:]) == by_text(baton)
    return said


def test_w1_storage_that_was_reused(scene: Scene) -> None:
    """Every file of an old baton now holds what a newer one has: never the newer one's answer."""
    old, new = scene.baton(), scene.baton(prompt=f"Hi {LONG}")
    for mine, other in zip(old.manifest.segments, new.manifest.segments, strict=False):
        data = scene.store.get(Key(Kind.SEGMENT, other.address), limit_bytes=1 << 30)
        scene.put(Key(Kind.SEGMENT, mine.address), data)
    assert by_text(old) != by_text(new)
    assert answered(scene, old) == "kv-unusable segment-corrupt"


def parts() -> list[str]:
    """The parts of the tiny model's identity that say what its cache means."""
    return [name for name, _ in engine().function.parts if name != "tokenizer"]


@pytest.mark.parametrize("part", parts())
def test_w2_any_part_of_the_identity(scene: Scene, part: str) -> None:
    """Weights, RoPE, dtype, template, adapter: refused by the manifest, no segment is opened."""
    baton = scene.baton()
    other = function_id(dict(engine().function.parts) | {part: "another"})
    listing = replace(baton.manifest, function=other)
    name = scene.forge(listing, scene.ring.signer("planner", DOMAIN))
    watched = FaultyStore(scene.store)
    agent = scene.agent("coder", store=watched)
    assert outcome(agent, name) == "kv-unusable function-differs"
    assert watched.count("open", Kind.SEGMENT) == 0
    assert tuple(agent.conversation.ids[-4:]) == by_text(baton)


@pytest.mark.parametrize("bits", [b"\x00\x7c", b"\x00\xfc", b"\x00\x7e"])
def test_w6_scales_out_of_range(scene: Scene, bits: bytes) -> None:
    """Infinite or undefined scales (float16) under right digests and a right signature."""
    chains = [CodecChain((Int(bits=8, axis=axis, group=8),)) for axis in ("channel", "token")]
    options: dict[str, Any] = {"calibrations": lambda function: frozenset({RECORD})}
    plan = uniform("eight", *chains, 4).calibrated(RECORD)
    sender = scene.agent("planner", plan=plan, system="You plan", **options)
    baton = sender.hand_off(sender.run(LONG, max_new_tokens=9))
    assert outcome(scene.agent("coder", **options), baton.id) == "used"
    ref = baton.manifest.segments[0]
    raw = scene.store.get(Key(Kind.SEGMENT, ref.address), limit_bytes=1 << 30)
    description, table, body = taken_apart(raw)
    changed = bytearray(body)
    place = description["ranges"][0]
    changed[place["start"] : place["start"] + 2] = bits  # offsets and scales come first
    place["digest"] = range_digest(changed[place["start"] : place["stop"]])
    data = header_file(description, table, bytes(changed))
    head = data[: 8 + int.from_bytes(data[:8], "little")]
    address = scene.domain.keys.segment_address(head)
    scene.put(Key(Kind.SEGMENT, address), data)
    refs = (replace(ref, address=address), *baton.manifest.segments[1:])
    signer = scene.ring.signer("planner", DOMAIN)
    name = scene.forge(replace(baton.manifest, segments=refs), signer)
    agent = scene.agent("coder", **options)
    assert outcome(agent, name) == "kv-unusable segment-corrupt"
    assert tuple(agent.conversation.ids[-4:]) == by_text(baton)


def other_ids(ids: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
    """Ids that are cut, longer, or in another order."""
    return [
        ("one less", ids[:-1]),
        ("one more", (*ids, 20)),
        ("two swapped", (*ids[:5], ids[6], ids[5], *ids[7:])),
        ("the first one missing", ids[1:]),
    ]


def test_w9_other_ids_under_the_same_cache(scene: Scene) -> None:
    """The transcript names other ids than the manifest was made for: as good as not there; and
    where manifest and transcript agree, the segments' own token digests do not."""
    baton = scene.baton()
    keys, signer = scene.domain.keys, scene.ring.signer("planner", DOMAIN)
    for tried, ids in other_ids(baton.transcript.ids):
        blob = encode_transcript(Transcript(ids, "", ()))
        place = {"transcript": keys.transcript_address(blob), "transcript_bytes": len(blob)}
        scene.put(Key(Kind.TRANSCRIPT, place["transcript"]), blob)
        only_there = scene.forge(replace(baton.manifest, **place), signer)
        said = outcome(scene.agent("coder"), only_there)
        assert said == "unavailable transcript-corrupt", tried
        if len(ids) != len(baton.transcript.ids):
            continue
        digest = keys.token_digest(ids)
        both = scene.forge(replace(baton.manifest, token_digest=digest, **place), signer)
        said = outcome(scene.agent("coder"), both)
        assert said == "kv-unusable segment-contradicts", tried
