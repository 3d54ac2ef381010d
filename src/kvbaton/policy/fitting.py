"""Fitting the window: which positions of a baton stay when not all of them find room.

Pure and decided before anything is loaded, so that only what stays is read.  What stays moves
together: runs keep their order, and the first of them (the attention sinks, without which a model
loses its footing: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023)
does not move at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from kvbaton.errors import InputError
from kvbaton.types import Deny, Move, Reason, ReasonCode, Role, Span, TokenRun

SINKS = 4
"""Positions at the beginning that always stay."""
BLOCK_TOKENS = 16
"""Positions that are kept or dropped together by importance: single ones tear sentences apart."""
RECENT_SHARE = 0.25
"""Share of the kept positions that are the newest ones, when the rest is kept by importance."""
HEAD_SHARE = 0.5
"""Largest share of the kept positions that a shared or system prompt may take."""


class FitStrategy(StrEnum):
    """What to do when context and new tokens exceed the window."""

    REFUSE = "refuse"
    DROP_OLDEST = "drop-oldest"
    IMPORTANCE = "importance"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Importance:
    """Scores of consecutive blocks of ``block_tokens`` positions from position 0 on.

    Larger is more important; only their order counts.  Positions behind the last block have no
    score and stay only as the newest ones.

    Raises
    ------
    InputError
        A block of no tokens, or a score that is not a number.
    """

    block_tokens: int
    scores: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.block_tokens < 1:
            raise InputError("a block holds at least one token", at="$.importance.block_tokens")
        for index, score in enumerate(self.scores):
            if math.isnan(score):
                raise InputError("a score must be a number", at=f"$.importance.scores[{index}]")

    @classmethod
    def of_tokens(cls, scores: Sequence[float], *, block_tokens: int = BLOCK_TOKENS) -> Importance:
        """Blocks from a score per position, such as its share of attention: their means.

        Raises
        ------
        InputError
            A block of no tokens, or a score that is not a number.
        """
        if block_tokens < 1:
            return cls(block_tokens, ())
        cut = range(0, len(scores), block_tokens)
        return cls(block_tokens, tuple(fmean(scores[i : i + block_tokens]) for i in cut))


@dataclass(frozen=True, slots=True)
class Overflow:
    """What would have to fit.

    Parameters
    ----------
    context_tokens
        Positions of the baton that could be attached.
    new_tokens
        Tokens that will be fed behind them: pending ones and the receiver's own.
    room_tokens
        Room for generation.
    max_tokens
        The model's window.
    spans
        The baton's spans; a shared or system prompt at its beginning stays if it fits.
    sinks
        Positions at the beginning that always stay; None chooses.
    importance
        What the sender recorded, if it did.
    summary, summary_tokens
        The sender's summary, and its length in the receiver's tokens.
    fixed
        Why positions of this model cannot be moved; empty where they can.

    Raises
    ------
    InputError
        A negative number.
    """

    context_tokens: int
    new_tokens: int
    room_tokens: int
    max_tokens: int
    spans: tuple[Span, ...] = ()
    sinks: int | None = None
    importance: Importance | None = None
    summary: str = ""
    summary_tokens: int = 0
    fixed: str = ""

    def __post_init__(self) -> None:
        for name in ("context_tokens", "new_tokens", "room_tokens", "max_tokens", "sinks"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InputError(f"{name} must not be negative, and is {value}", at=f"$.{name}")

    @property
    def budget(self) -> int:
        """Positions of the context that find room."""
        return self.max_tokens - self.new_tokens - self.room_tokens

    @property
    def sizes(self) -> str:
        """The numbers in words."""
        return (
            f"{self.context_tokens} tokens of context, {self.new_tokens} new ones and room for "
            f"{self.room_tokens} do not fit the model's window of {self.max_tokens}"
        )


@dataclass(frozen=True, slots=True)
class Fit:
    """Which positions of the baton stay, and where they will stand.

    ``moves`` ascend and stand one behind the other from position 0 on; ``reason`` is None where
    everything fits as it is.  Where ``summary`` is given it takes the place of the whole context,
    as text, and nothing of the cache is loaded.
    """

    strategy: FitStrategy
    moves: tuple[Move, ...]
    reason: Reason | None = None
    summary: str = ""

    @property
    def tokens(self) -> int:
        """Positions that stay."""
        return sum(move.run.count for move in self.moves)

    @property
    def moved(self) -> bool:
        """Whether any position will stand elsewhere; then the cache is an approximate one."""
        return any(move.to != move.run.first for move in self.moves)

    def kept(self, ids: Sequence[int]) -> tuple[int, ...]:
        """The ids of the positions that stay, in order."""
        return tuple(i for m in self.moves for i in ids[m.run.first : m.run.stop])

    def needs(self, run: TokenRun) -> bool:
        """Whether anything of a run stays: other segments need not be read."""
        return any(m.run.first < run.stop and run.first < m.run.stop for m in self.moves)


def fit(overflow: Overflow, strategy: FitStrategy | str = FitStrategy.REFUSE) -> Fit | Deny:
    """Decide what stays.

    ``refuse`` asks only that context and new tokens fit, as generation ends at the window; the
    others make room for generation as well.

    Returns
    -------
    Fit or Deny
        ``Deny`` with ``WINDOW_EXCEEDED`` where the strategy cannot make it fit.

    Raises
    ------
    InputError
        No such strategy.
    """
    wanted = _strategy(strategy)
    refused = wanted is FitStrategy.REFUSE
    if overflow.context_tokens <= overflow.budget + (overflow.room_tokens if refused else 0):
        whole = TokenRun(0, overflow.context_tokens)
        return Fit(wanted, (Move(whole, 0),) if whole.count else ())
    if refused:
        return _deny(overflow.sizes)
    if wanted is FitStrategy.SUMMARY:
        return _summarized(overflow)
    return _cut(overflow, wanted)


def _strategy(strategy: FitStrategy | str) -> FitStrategy:
    try:
        return FitStrategy(strategy)
    except ValueError:
        raise InputError(
            f"unknown way to fit the window: {strategy!r}",
            hint=f"known: {', '.join(s.value for s in FitStrategy)}",
        ) from None


def _deny(sentence: str) -> Deny:
    return Deny(Reason(ReasonCode.WINDOW_EXCEEDED, sentence))


def _summarized(overflow: Overflow) -> Fit | Deny:
    if not overflow.summary:
        return _deny(
            f"{overflow.sizes}, and the baton carries no summary; its sender can write one: "
            "hand_off(turn, summary=...)"
        )
    if overflow.summary_tokens > overflow.budget:
        return _deny(f"{overflow.sizes}, and neither does the summary: {overflow.summary_tokens}")
    sentence = (
        f"{overflow.sizes}: the sender's summary of {overflow.summary_tokens} tokens stands for "
        "the context, as text"
    )
    reason = Reason(ReasonCode.WINDOW_FITTED, f"summary: {sentence}")
    return Fit(FitStrategy.SUMMARY, (), reason, overflow.summary)


def _cut(overflow: Overflow, strategy: FitStrategy) -> Fit | Deny:
    if overflow.fixed:
        return _deny(f"{overflow.sizes}, and none can be dropped: {overflow.fixed}")
    head = _head(overflow)
    if overflow.budget <= head:
        return _deny(
            f"{overflow.sizes}, and {max(overflow.budget, 0)} tokens of context are not more than "
            f"the first {head}, which always stay"
        )
    scores = overflow.importance if strategy is FitStrategy.IMPORTANCE else None
    runs = _by_importance(overflow, head, scores) if scores else _newest(overflow, head)
    moves = tuple(_one_behind_the_other(runs))
    sentence = f"{strategy}: {overflow.sizes}: {_what_stays(runs, head, overflow)}"
    if strategy is FitStrategy.IMPORTANCE and scores is None:
        sentence += " (the oldest were dropped, as the baton records no importance)"
    return Fit(strategy, moves, Reason(ReasonCode.WINDOW_FITTED, sentence))


def _what_stays(runs: Sequence[TokenRun], head: int, overflow: Overflow) -> str:
    newest = overflow.context_tokens - max(runs[-1].first, head)
    between = overflow.budget - head - newest
    middle = f", {between} between by importance" if between else ""
    dropped = overflow.context_tokens - overflow.budget
    return f"{dropped} were dropped, the first {head}{middle} and the newest {newest} stay"


def _head(overflow: Overflow) -> int:
    """Positions at the beginning that stay whatever happens."""
    if overflow.sinks is not None:
        return min(overflow.sinks, overflow.context_tokens)
    prompt = 0
    for span in overflow.spans:
        if span.role not in (Role.SHARED, Role.SYSTEM) or span.run.first != prompt:
            break
        prompt = span.run.stop
    fits = prompt <= HEAD_SHARE * overflow.budget
    return min(max(SINKS, prompt if fits else 0), overflow.context_tokens)


def _newest(overflow: Overflow, head: int) -> list[TokenRun]:
    count = overflow.budget - head
    return _runs(range(head), range(overflow.context_tokens - count, overflow.context_tokens))


def _by_importance(overflow: Overflow, head: int, importance: Importance) -> list[TokenRun]:
    """The head, the newest, the best blocks while they fit whole; the rest goes to the newest."""
    context, budget = overflow.context_tokens, overflow.budget
    recent = max(1, int(RECENT_SHARE * (budget - head)))
    kept = set(range(head)) | set(range(context - recent, context))
    size, scores = importance.block_tokens, importance.scores
    order = sorted(range(len(scores)), key=lambda block: (-scores[block], -block))
    for block in order:
        wanted = set(range(block * size, min((block + 1) * size, context))) - kept
        if len(kept) + len(wanted) > budget:
            break
        kept |= wanted
    position = context
    while len(kept) < budget:
        position -= 1
        kept.add(position)
    return _runs(sorted(kept))


def _runs(*positions: Iterable[int]) -> list[TokenRun]:
    """Ascending positions as the longest possible runs."""
    runs: list[TokenRun] = []
    for position in (p for several in positions for p in several):
        if runs and runs[-1].stop == position:
            runs[-1] = TokenRun(runs[-1].first, runs[-1].count + 1)
        else:
            runs.append(TokenRun(position, 1))
    return runs


def _one_behind_the_other(runs: Sequence[TokenRun]) -> Iterable[Move]:
    to = 0
    for run in runs:
        yield Move(run, to)
        to += run.count
