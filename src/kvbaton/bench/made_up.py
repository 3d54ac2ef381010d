"""Manifests and measured speeds that are made up: nothing behind them was computed.

They are as large as those of SmolLM2-135M, so that whatever signs, parses or decides has the work
of real ones.
"""

from __future__ import annotations

import hashlib

from kvbaton.policy.gates import TakeContext
from kvbaton.policy.speeds import EXACT_CODEC, CodecSpeed, Knot, Line, Speeds, Spread, StoreSpeed
from kvbaton.types import (
    EXACT,
    FunctionId,
    Hops,
    KVLayout,
    LayerKind,
    LayerLayout,
    Manifest,
    Mode,
    Role,
    RopeSpec,
    SegmentRef,
    SegmentSpan,
    Span,
    Terms,
    TokenRun,
    Transcript,
)
from kvbaton.wire.digests import DomainKeys
from kvbaton.wire.transcript import encode_transcript

STORE = "dir:///nowhere"
SEGMENT_TOKENS = 256
MAX_TOKENS = 8192
_LAYERS, _HEADS, _DIM, _VOCABULARY = 30, 3, 64, 49152
_NEW_TOKENS = 24


def digest(name: str) -> str:
    """64 hexadecimal digits for a name, the same each time."""
    return hashlib.sha256(name.encode()).hexdigest()


FUNCTION = FunctionId(
    digest("function"),
    tuple((name, digest(name)) for name in ("config", "rope", "template", "tokenizer", "weights")),
)
LAYOUT = KVLayout(
    "BF16",
    (LayerLayout(LayerKind.FULL, _HEADS, _DIM, _DIM),) * _LAYERS,
    (RopeSpec("default", "half", _DIM, 10_000.0, 1.0, digest("table")),),
)
TOKEN_BYTES = LAYOUT.cache_bytes(1)
SPEEDS = Speeds(
    host=digest("host"),
    function=FUNCTION.digest,
    model="made-up",
    created_s=0,
    layers=_LAYERS,
    token_bytes=TOKEN_BYTES,
    prefill=tuple(Knot(2**n, 1e-3 * 2**n) for n in range(4, 14)),
    pair_s=1e-8,
    generate_s=0.02,
    overhead=Line(1e-3, 1e-7),
    opening=Line(0.0, 1e-4),
    verify=Line(0.0, 2e-10),
    probe=Line(1e-4, 1e-6),
    attach=Line(0.0, 1e-6),
    align=Line(0.0, 1e-6),
    recompute=Line(0.0, 1e-3),
    codecs={
        EXACT_CODEC: CodecSpeed(Line(), Line(0.0, 1e-6), TOKEN_BYTES),
        "compact": CodecSpeed(Line(), Line(0.0, 4e-6), TOKEN_BYTES / 3),
    },
    stores={"dir": StoreSpeed(1e-4, 1e-5, 5e9, 2e9)},
    text_spread=Spread(0.9, 1.1),
    cache_spread=Spread(0.9, 1.2),
)
"""A measurement such as ``kvbaton policy calibrate`` makes."""


def words(tokens: int, number: int) -> Transcript:
    """A transcript of so many tokens, another one for each number."""
    ids = tuple((7919 * i + 104_729 * number) % _VOCABULARY for i in range(tokens))
    text = f"Message {number}: " + "a door has a key. " * (tokens // 5)
    return Transcript(ids, text, ({"role": "user", "content": text},))


def manifest_of(
    said: Transcript, blob: bytes, keys: DomainKeys, *, number: int, parents: tuple[str, ...] = ()
) -> Manifest:
    """The manifest of a transcript whose last token is pending; ``blob`` are its bytes."""
    cached = len(said.ids) - 1
    starts = range(0, cached, SEGMENT_TOKENS)
    runs = [TokenRun(first, min(SEGMENT_TOKENS, cached - first)) for first in starts]
    return Manifest(
        function=FUNCTION,
        domain="local",
        sender="planner",
        mode=Mode.CONTINUE,
        created_ms=1_800_000_000_000 + number,
        cached_tokens=cached,
        pending_tokens=1,
        token_digest=keys.token_digest(said.ids),
        transcript=keys.transcript_address(blob),
        transcript_bytes=len(blob),
        spans=(Span(Role.TASK, TokenRun(0, cached)), Span(Role.GENERATED, TokenRun(cached, 1))),
        segments=tuple(
            SegmentRef(
                digest(f"{number}/{run.first}"),
                SegmentSpan(run.first, run.count),
                run.count * TOKEN_BYTES,
            )
            for run in runs
        ),
        fidelity=EXACT,
        hops=Hops(exact=len(parents)),
        parents=parents,
        terms=Terms(instruction="Write the code.", round=1),
        producer=(("engine", "transformers"), ("model", "made-up"), ("threads", "1")),
    )


def listing(tokens: int, keys: DomainKeys, *, number: int = 0) -> Manifest:
    """The manifest of a made-up context."""
    said = words(tokens, number)
    return manifest_of(said, encode_transcript(said), keys, number=number)


def receiving(manifest: Manifest) -> TakeContext:
    """A receiver of the same model that adds a turn."""
    return TakeContext(
        function=FUNCTION,
        layout=LAYOUT,
        max_tokens=MAX_TOKENS,
        prompt_tokens=manifest.cached_tokens + _NEW_TOKENS,
        reusable_tokens=manifest.cached_tokens,
        room_tokens=256,
        free_memory_bytes=1 << 34,
        model="made-up",
        standing="current",
    )
