"""What of a turn is handed off: all of it, its preamble, or chosen spans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from kvbaton.alignment.slicing import as_runs, by_importance, require_sliceable
from kvbaton.backing import Source, cut
from kvbaton.conversation import Turn, clip
from kvbaton.engines.base import Engine
from kvbaton.errors import InputError, SliceError
from kvbaton.policy.fitting import BLOCK_TOKENS, Importance
from kvbaton.prompts import packed_spans
from kvbaton.types import BlockScores, Mode, Span, TokenRun, Transcript

Spans = Literal["prompt", "generated", "all", "turn"] | Sequence[tuple[int, int] | TokenRun]
"""What a slice is made of."""

QUERIES = 32
"""Last tokens whose attention tells what matters."""


def mode_of(mode: Mode | str) -> Mode:
    """The mode of that name.

    Raises
    ------
    InputError
        There is none.
    """
    try:
        return Mode(mode)
    except ValueError:
        raise InputError(
            f"unknown mode {mode!r}", hint=f"known: {', '.join(m.value for m in Mode)}"
        ) from None


def chosen_mode(mode: Mode | str | None, *, sliced: bool, abroad: bool) -> Mode:
    """The mode of a hand-off: the one that is named, or what its other options ask for.

    Raises
    ------
    InputError
        It is not known, or spans are named for another mode or for another domain.
    """
    wanted = mode_of(mode) if mode is not None else Mode.SLICE if sliced else Mode.CONTINUE
    if sliced and wanted is not Mode.SLICE:
        raise InputError(f"spans are handed off in mode 'slice', not {wanted.value!r}")
    if abroad and wanted is not Mode.CONTINUE:
        raise InputError(
            f"another trust domain gets the whole text, not mode {wanted.value!r}",
            hint="leave mode and spans out",
        )
    return wanted


def chosen_source(
    engine: Engine,
    turn: Turn,
    mode: Mode,
    spans: Spans | None,
    *,
    private: bool,
    keep: float,
    clean: bool,
) -> tuple[Source, tuple[Span, ...]]:
    """What of a turn is handed off in a mode, with its spans.

    Raises
    ------
    InputError
        There is no preamble.
    SliceError
        The model's cache cannot be sliced, or the spans are no slice of the turn.
    """
    if mode is not Mode.SLICE:
        return whole_source(turn, mode)
    named = "all" if spans is None else spans
    source, shown = slice_source(engine, turn, named, private=private, keep=keep)
    return (computed_alone(engine, source) if clean else source), shown


def words_of(engine: Engine, source: Source, turn: Turn, mode: Mode) -> Transcript:
    """The transcript of what is handed off: with messages only where it is the whole turn."""
    ids = source.packed_ids
    told = tuple(map(dict, turn.messages)) if mode is Mode.CONTINUE else ()
    return Transcript(ids, engine.chat.text_of(ids), told)


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
    engine: Engine, turn: Turn, spans: Spans, *, private: bool, keep: float = 1.0
) -> tuple[Source, tuple[Span, ...]]:
    """Chosen spans of a turn, one behind the other; of them the share that is looked at most.

    Raises
    ------
    SliceError
        The model's cache cannot be sliced, or the spans are no slice of the turn.
    """
    require_sliceable(engine.layout)
    runs = turn.runs(spans, private=private)
    if keep != 1.0:
        whole = turn.conversation.source(turn.tokens, turn.cached)
        runs = important_runs(engine, whole, runs, keep)
    source = turn.conversation.source(turn.tokens, turn.cached, runs)
    if source.packed_cached == 0:
        raise SliceError("the slice has no keys and values yet", at="$.spans")
    return source, packed_spans(turn.spans, runs)


def important_runs(
    engine: Engine, source: Source, runs: Sequence[TokenRun], keep: float
) -> tuple[TokenRun, ...]:
    """The blocks of ``runs`` that the last tokens look at most, in their order.

    The first block and the last stay, and so do tokens that have no KV yet.

    Parameters
    ----------
    keep
        Share of the blocks that stay, more than 0 and at most 1.

    Raises
    ------
    SliceError
        ``keep`` is no such share.
    """
    if not 0 < keep <= 1:
        raise SliceError(f"a share lies between 0 and 1, not at {keep}", at="$.keep")
    blocks = [block for run in runs for block in cut(run.first, run.stop, BLOCK_TOKENS)]
    ids, cached = source.ids[: source.cached], source.cached
    shares = engine.attention_importance(source.cache, ids, queries=min(QUERIES, cached)).sum(0)
    scores = [
        float(shares[b.first : b.stop].mean()) if b.stop <= cached else math.inf for b in blocks
    ]
    count = max(min(2, len(blocks)), math.ceil(keep * len(blocks)))
    ends = 1 if count > 1 else 0
    kept = by_importance(scores, count, sinks=ends, recent=ends)
    chosen = [TokenRun(b.first, b.count) for run in kept for b in blocks[run.first : run.stop]]
    return as_runs(chosen, tokens=len(source.ids))


def computed_alone(engine: Engine, source: Source) -> Source:
    """The same tokens, computed from nothing but themselves."""
    ids, cached = source.packed_ids, source.packed_cached
    cache = engine.new_cache(cached)
    engine.forward(cache, ids[:cached])
    return Source(cache, cached, ids, signers=source.signers)


def importance_of(engine: Engine, source: Source) -> BlockScores:
    """How much attention the last tokens pay to blocks of those that have KV."""
    ids, cached = source.ids[: source.cached], source.cached
    shares = engine.attention_importance(source.cache, ids, queries=min(QUERIES, cached))
    blocks = Importance.of_tokens(shares.sum(0).tolist())
    top = max(blocks.scores) or 1.0
    scores = tuple(round(255 * score / top) for score in blocks.scores)
    return BlockScores(blocks.block_tokens, scores)
