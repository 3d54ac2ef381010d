"""Small documents that the tests of this folder build, break and read."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

from kvbaton.types import (
    EncodedLayer,
    Fidelity,
    FunctionId,
    Hops,
    KVLayout,
    LayerKind,
    LayerLayout,
    Manifest,
    Mode,
    Role,
    RopeSpec,
    SealedSegment,
    SegmentKind,
    SegmentRef,
    SegmentSpan,
    Span,
    StoredTensor,
    Terms,
    TokenRun,
    Transcript,
)
from kvbaton.wire.binding import run_digests
from kvbaton.wire.digests import DomainKeys
from kvbaton.wire.prefix import PrefixRecord
from kvbaton.wire.segment import seal_segment
from kvbaton.wire.transcript import encode_transcript

SECRET = bytes(range(32))
KEYS = DomainKeys(SECRET)
FUNCTION = "f0" * 32
IDS = (1, 17, 300, 70_000, 4_294_967_295, 2)
RAW = ({"name": "raw"},)
ROPE = RopeSpec(
    kind="yarn",
    pairing="half",
    rotary_dim=2,
    base=10_000.0,
    attention_factor=1.25,
    table="0e" * 32,
    parameters=(
        ("factor", 4.0),
        ("long", (1.0, 1.5)),
        ("original", 4096),
        ("truncate", "no"),
    ),
)
LAYOUT = KVLayout(
    dtype="BF16",
    layers=(
        LayerLayout(LayerKind.FULL, kv_heads=1, k_dim=2, v_dim=2),
        LayerLayout(LayerKind.WINDOW, kv_heads=2, k_dim=2, v_dim=4, window=4),
        LayerLayout(LayerKind.FULL, kv_heads=1, k_dim=2, v_dim=2),
    ),
    ropes=(ROPE,),
)
"""Two full layers around one with a window of four."""

PRODUCER = (("engine", "tiny"), ("threads", "1"))


def bfloat16(first: int, count: int) -> bytes:
    """The integers from ``first`` on as bfloat16: the upper half of their float32."""
    return b"".join(struct.pack("<f", float(first + i))[2:] for i in range(count))


def stored(name: str, heads: int, tokens: int, dim: int, first: int) -> StoredTensor:
    """A bfloat16 tensor that counts from ``first`` on."""
    data = bfloat16(first, heads * tokens * dim)
    return StoredTensor(name, "BF16", (heads, tokens, dim), memoryview(data))


def encoded(
    layer: int, span: SegmentSpan, run: TokenRun, layout: KVLayout = LAYOUT
) -> EncodedLayer:
    """A raw layer whose keys count from its index on, its values from 100 more."""
    spec = layout.layers[layer]
    return EncodedLayer(
        span=span,
        layer=layer,
        run=run,
        k_codec=RAW,
        v_codec=RAW,
        tensors=(
            stored("k", spec.kv_heads, run.count, spec.k_dim, layer),
            stored("v", spec.kv_heads, run.count, spec.v_dim, layer + 100),
        ),
    )


def seal(layers: list[EncodedLayer], layout: KVLayout = LAYOUT) -> SealedSegment:
    """The layers as a segment of ``IDS`` in the domain of ``KEYS``."""
    ((token_digest, prefix_key),) = run_digests(KEYS, FUNCTION, IDS, [layers[0].span])
    return seal_segment(
        layers,
        keys=KEYS,
        function=FUNCTION,
        layout=layout,
        token_digest=token_digest,
        prefix_key=prefix_key,
        producer=PRODUCER,
    )


def run_segment() -> SealedSegment:
    """Layers 0 and 2 at positions 0 to 4; every tensor has 20 bytes and 44 of padding."""
    span = SegmentSpan(0, 5)
    return seal([encoded(layer, span, TokenRun(0, 5)) for layer in (0, 2)])


def window_segment() -> SealedSegment:
    """Layer 1 at positions 2 to 4: one less than its window."""
    span = SegmentSpan(2, 3, SegmentKind.WINDOW)
    return seal([encoded(1, span, TokenRun(2, 3))])


def file_bytes(segment: SealedSegment) -> bytes:
    """The file that a store would hold."""
    return b"".join(segment.parts)


def reference(segment: SealedSegment) -> SegmentRef:
    """The segment as a manifest lists it."""
    return SegmentRef(segment.address, segment.header.span, segment.header.size_bytes)


TRANSCRIPT = Transcript(
    ids=IDS,
    text='Pass the "baton" \u2014 \u63a5\u529b \U0001f3c3.',
    messages=(
        {"role": "system", "content": "You plan."},
        {"role": "assistant", "content": None, "tool_calls": [{"temperature": 0.5, "n": 2}]},
    ),
)


def manifest() -> Manifest:
    """Five cached tokens in a run and a window segment, and one pending token."""
    data = encode_transcript(TRANSCRIPT)
    return Manifest(
        function=FunctionId(FUNCTION, (("dtype", "bfloat16"), ("weights", "a1" * 32))),
        domain="local",
        sender="planner",
        mode=Mode.CONTINUE,
        created_ms=1_795_910_400_000,
        cached_tokens=5,
        pending_tokens=1,
        token_digest=KEYS.token_digest(IDS),
        transcript=KEYS.transcript_address(data),
        transcript_bytes=len(data),
        spans=(Span(Role.SYSTEM, TokenRun(0, 2)), Span(Role.GENERATED, TokenRun(2, 4))),
        segments=(reference(run_segment()), reference(window_segment())),
        fidelity=Fidelity(),
        hops=Hops(exact=1),
        parents=("5e" * 32,),
        terms=Terms(instruction="Write the code.", goal="A rate limiter", round=1),
        producer=PRODUCER,
        ref="plan/main",
        sequence=3,
    )


def prefix_record() -> PrefixRecord:
    """The record of the run segment."""
    segment = run_segment()
    size_bytes = segment.header.size_bytes
    return PrefixRecord(FUNCTION, segment.address, size_bytes, 0, IDS[:5], "local", "planner")


# --- breaking things -----------------------------------------------------------------------------

Change = Callable[[Any], None]


def spell(value: Any) -> bytes:
    """Canonical spelling of anything that JSON can hold, even what the product refuses."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


def header_file(description: Any, table: dict[str, Any], body: bytes) -> bytes:
    """A segment file around a description and a tensor table, both of which may be wrong."""
    text = spell({"__metadata__": {"kvbaton": spell(description).decode()}, **table})
    return framed(text, body)


def framed(text: bytes, body: bytes) -> bytes:
    """A segment file around the header's JSON."""
    text += b" " * (-(8 + len(text)) % 64)
    return len(text).to_bytes(8, "little") + text + body


def taken_apart(data: bytes) -> tuple[Any, dict[str, Any], bytes]:
    """Description, tensor table and body of a segment file."""
    length = 8 + int.from_bytes(data[:8], "little")
    table = json.loads(data[8:length])
    description = json.loads(table.pop("__metadata__")["kvbaton"])
    return description, table, data[length:]
