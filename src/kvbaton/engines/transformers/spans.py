"""Which token says what: from pieces of text to spans of token positions."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby

from kvbaton.engines.transformers.pieces import LaidOut, Piece
from kvbaton.types import Role, Span, TokenRun

THINK, THOUGHT = "<think>", "</think>"
_REASONING = re.compile(f"{THINK}.*?(?:{THOUGHT}|\\Z)", re.DOTALL)


def token_spans(starts: Sequence[int], laid_out: LaidOut, *, first: int = 0) -> tuple[Span, ...]:
    """Spans that partition the positions ``first`` to ``first + len(starts) - 1``.

    ``starts`` are the places in the text where the tokens begin; a token that reaches over the
    end of a piece belongs to the piece in which it begins.  Every piece that holds a token gives
    one span; ``<think>`` blocks of an assistant turn are spans of their own.
    """
    pieces = list(_split_reasoning(laid_out))
    stops = [piece.stop for piece in pieces]
    owners = (bisect_right(stops, start) for start in accumulate(starts, max))
    spans: list[Span] = []
    for owner, group in groupby(min(owner, len(pieces) - 1) for owner in owners):
        size = len(list(group))
        spans.append(Span(pieces[owner].role, TokenRun(first, size)))
        first += size
    return tuple(spans)


def _split_reasoning(laid_out: LaidOut) -> Iterator[Piece]:
    start = 0
    for piece in laid_out.pieces:
        if piece.role is Role.GENERATED:
            yield from _reasoning_pieces(laid_out.text, start, piece.stop)
        else:
            yield piece
        start = piece.stop


def _reasoning_pieces(text: str, start: int, stop: int) -> Iterator[Piece]:
    cursor = start
    for found in _REASONING.finditer(text[start:stop]):
        if start + found.start() > cursor:
            yield Piece(Role.GENERATED, start + found.start())
        closed = found[0].endswith(THOUGHT)
        cursor = start + found.end() if closed else stop
        yield Piece(Role.REASONING, cursor)
    if cursor < stop:
        yield Piece(Role.GENERATED, stop)
