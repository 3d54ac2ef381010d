"""A6, endless data: objects that would take memory or time without end.

Attacked: whatever reads a length and believes it.  The attacker has the store, and for some of it
the key of a trusted sender as well, so that the wrong lengths are signed.  Every length is held to
a limit before memory is taken for it, and a store that drips is given up at the deadline.
"""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.wire.samples import header_file, spell, taken_apart

from attacks.scene import DOMAIN, Finding, Scene, by_text, main, outcome, plain_answer
from kvbaton.agent import Agent
from kvbaton.codecs import CodecChain, Raw, Zstd, uniform
from kvbaton.stores import Key, Kind
from kvbaton.testing import Do, FaultyStore, StoreFault
from kvbaton.types import Baton
from kvbaton.wire.digests import range_digest

MEMORY_BYTES = 128 << 20
"""What a take of a tiny baton may take at most, whatever the baton says: a manifest may have 6 MiB,
and as objects of the interpreter that is 73 MiB."""
HUGE_BYTES = 1 << 40
BOMB_BYTES = 256 << 20
_LIMIT = 1 << 30


def attack(folder: Path) -> Sequence[Finding]:
    """Lengths that lie, in every object that a take reads, and a store that drips."""
    scene = Scene(folder)
    baton = scene.baton()
    plain_answer()
    corrupt, malformed = "kv-unusable segment-corrupt", "not-trusted envelope-malformed"
    envelope = Key(Kind.BATON, baton.id)
    words = Key(Kind.TRANSCRIPT, baton.manifest.transcript)
    first = Key(Kind.SEGMENT, baton.manifest.segments[0].address)
    sealed = scene.store.get(first, limit_bytes=_LIMIT)
    findings = [Finding("the honest baton", "used", frugal(scene, baton.id))]
    for tried, key, data, size, wanted in (
        ("a manifest of 1 TiB", envelope, b"", HUGE_BYTES, "unavailable manifest-corrupt"),
        ("a manifest nested a million deep", envelope, b"[" * 1_000_000, 0, malformed),
        ("a manifest with a million fields", envelope, wide(1_000_000), 0, malformed),
        ("a transcript of 1 TiB", words, b"", HUGE_BYTES, "unavailable transcript-corrupt"),
        ("a segment of 1 TiB", first, sealed, HUGE_BYTES, corrupt),
        ("a header of 2**63 bytes", first, (2**63).to_bytes(8, "little") + sealed[8:], 0, corrupt),
        ("a header of 4 MiB of brackets", first, brackets(4 << 20), 0, corrupt),
    ):
        honest = scene.store.get(key, limit_bytes=_LIMIT)
        plant(scene, key, data, size)
        findings.append(Finding(tried, wanted, frugal(scene, baton.id)))
        scene.put(key, honest)
    return [*findings, *signed_lengths(scene), drip(scene, baton)]


def frugal(scene: Scene, baton: str, **options: Any) -> str:
    """Outcome of a take; named where it took more memory than it may."""
    agent = scene.agent("coder", **options)
    tracemalloc.start()
    try:
        said = outcome(agent, baton)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    if peak_bytes > MEMORY_BYTES:
        return f"{said}, with {peak_bytes >> 20} MiB of memory"
    return said


def plant(scene: Scene, key: Key, data: bytes, size_bytes: int) -> None:
    """Put bytes in an object's place; the file ends in a hole that takes no room on the disk."""
    scene.put(key, data or b"{")
    if size_bytes:
        path = scene.folder / "store" / key.kind.value / key.name[:2] / key.name
        with path.open("r+b") as file:
            file.truncate(size_bytes)


def wide(fields: int) -> bytes:
    """An envelope with many fields that nobody knows, as long as an envelope may be."""
    return spell({f"{i:x}": 0 for i in range(fields)})[: 6 << 20]


def brackets(size_bytes: int) -> bytes:
    """A segment's header that nests without end."""
    return (size_bytes - 8).to_bytes(8, "little") + b"[" * (size_bytes - 8)


# --- lengths that a trusted sender has signed ---------------------------------------------------


def signed_lengths(scene: Scene) -> list[Finding]:
    """Segments with right addresses and digests, listed by a manifest with a right signature."""
    chains = CodecChain((Raw(), Zstd())), CodecChain((Raw(), Zstd()))
    plan = uniform("squeezed", *chains, 4)
    baton = scene.agent("planner", plan=plan)
    honest = baton.hand_off(baton.run("Hello there, you plan and code. " * 4, max_new_tokens=9))
    return [
        Finding("an honest compressed baton", "used", frugal(scene, honest.id)),
        Finding(
            "a frame that says that it holds 1 TiB", "kv-unusable segment-corrupt",
            frugal(scene, bomb(scene, honest, stated_size)),
        ),
        Finding(
            f"a compressed layer of {BOMB_BYTES >> 20} MiB", "kv-unusable segment-corrupt",
            frugal(scene, bomb(scene, honest, long_layer)),
        ),
        Finding(
            "a header with 30,000 layers, as many as it holds", "kv-unusable segment-corrupt",
            frugal(scene, bomb(scene, honest, many_layers)),
        ),
    ]  # fmt: skip


Change = Callable[[Any, dict[str, Any], bytearray], int]


def bomb(scene: Scene, honest: Baton, change: Change) -> str:
    """The honest baton with its first segment changed, addressed and signed anew; its id."""
    ref = honest.manifest.segments[0]
    raw = scene.store.get(Key(Kind.SEGMENT, ref.address), limit_bytes=_LIMIT)
    description, table, body = taken_apart(raw)
    changed = bytearray(body)
    size_bytes = change(description, table, changed)
    data = header_file(description, table, bytes(changed))
    start = 8 + int.from_bytes(data[:8], "little")
    address = scene.domain.keys.segment_address(data[:start])
    size_bytes = start + (size_bytes or len(changed))
    plant(scene, Key(Kind.SEGMENT, address), data, size_bytes)
    mine = replace(ref, address=address, size_bytes=size_bytes)
    listing = replace(honest.manifest, segments=(mine, *honest.manifest.segments[1:]))
    return scene.forge(listing, scene.ring.signer("planner", DOMAIN))


def stated_size(description: Any, table: dict[str, Any], body: bytearray) -> int:
    """Say in the frame of layer 0's keys that it holds 1 TiB (RFC 8878, section 3.1.1)."""
    start, stop = table["layer.0000.k"]["data_offsets"]
    body[start:stop] = (
        b"\x28\xb5\x2f\xfd\xe0" + HUGE_BYTES.to_bytes(8, "little") + b"\0" * (stop - start - 13)
    )
    place = description["ranges"][0]
    place["digest"] = range_digest(body[place["start"] : place["stop"]])
    return 0


def long_layer(description: Any, table: dict[str, Any], body: bytearray) -> int:
    """Make the last layer's values so long that reading them would take the machine's memory."""
    last = description["ranges"][-1]
    name = f"layer.{last['layer']:04d}.v"
    start = table[name]["data_offsets"][0]
    stop = start + BOMB_BYTES
    table[name] = {"data_offsets": [start, stop], "dtype": "U8", "shape": [BOMB_BYTES]}
    table.pop(f"{name}-pad", None)
    if pad := -stop % 64:
        entry = {"data_offsets": [stop, stop + pad], "dtype": "U8", "shape": [pad]}
        table[f"{name}-pad"] = entry
    last["stop"] = stop + -stop % 64
    return int(last["stop"])


def many_layers(description: Any, table: dict[str, Any], body: bytearray) -> int:
    """As many layers as a header has room for."""
    layer = description["layout"]["layers"][0]
    description["layout"]["layers"] = [layer] * 30_000
    return 0


# --- a store that drips -------------------------------------------------------------------------


def drip(scene: Scene, baton: Baton) -> Finding:
    """Every read of a segment takes a while: past the deadline the ids are prefilled."""
    never = threading.Event()

    def wait(_: Key | None) -> None:
        never.wait(0.1)

    slow = FaultyStore(scene.store, StoreFault("read", Do(wait), kind=Kind.SEGMENT))
    agent: Agent = scene.agent("coder", store=slow)
    said = outcome(agent, baton.id, deadline_s=0.5)
    known = agent.conversation
    if known is None or tuple(known.ids[-4:]) != by_text(baton):
        said += ", but another answer"
    return Finding("a store that drips", "kv-unusable deadline", said)


if __name__ == "__main__":
    raise SystemExit(main(attack, __doc__))
