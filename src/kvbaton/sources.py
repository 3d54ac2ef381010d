"""What of a turn is handed off: all of it, its preamble, or chosen spans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from kvbaton.alignment.slicing import require_sliceable
from kvbaton.backing import Source
from kvbaton.conversation import Turn, clip
from kvbaton.engines.base import Engine
from kvbaton.errors import InputError, SliceError
from kvbaton.policy.fitting import Importance
from kvbaton.prompts import packed_spans
from kvbaton.types import BlockScores, Mode, Span, TokenRun

Spans = Literal["prompt", "generated", "all", "turn"] | Sequence[tuple[int, int] | TokenRun]
"""What a slice is made of."""

QUERIES = 32
"""Last tokens whose attention tells what matters."""


def whole_source(turn: Turn, mode: Mode) -> tuple[Source, tuple[Span, ...]]:
    """A turn's whole context, or the preamble at its head, with its spans.

    Raises
    ------
    InputError
        There is no preamble.
    """
    tokens, cached = turn.tokens, turn.cached
    if mode is Mode.SHARED_PREFIX:
        tokens = cached = turn.conversation.shared_tokens
        if tokens == 0:
            raise InputError("this conversation has no shared preamble", hint="give the agent one")
    return turn.conversation.source(tokens, cached), clip(turn.conversation.spans, tokens)


def slice_source(
    engine: Engine, turn: Turn, spans: Spans, *, private: bool
) -> tuple[Source, tuple[Span, ...]]:
    """Chosen spans of a turn, one behind the other.

    Raises
    ------
    SliceError
        The model's cache cannot be sliced, or the spans are no slice of the turn.
    """
    require_sliceable(engine.layout)
    runs = turn.runs(spans, private=private)
    source = turn.conversation.source(turn.tokens, turn.cached, runs)
    if source.packed_cached == 0:
        raise SliceError("the slice has no keys and values yet", at="$.spans")
    return source, packed_spans(turn.spans, runs)


def computed_alone(engine: Engine, source: Source) -> Source:
    """The same tokens, computed from nothing but themselves."""
    ids, cached = source.packed_ids, source.packed_cached
    cache = engine.new_cache(cached)
    engine.forward(cache, ids[:cached])
    return Source(cache, cached, ids, parents=source.parents)


def importance_of(engine: Engine, source: Source) -> BlockScores:
    """How much attention the last tokens pay to blocks of those that have KV."""
    ids, cached = source.ids[: source.cached], source.cached
    shares = engine.attention_importance(source.cache, ids, queries=min(QUERIES, cached))
    blocks = Importance.of_tokens(shares.sum(0).tolist())
    top = max(blocks.scores) or 1.0
    scores = tuple(round(255 * score / top) for score in blocks.scores)
    return BlockScores(blocks.block_tokens, scores)
