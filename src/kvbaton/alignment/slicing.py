"""Which tokens become a slice: pure functions on spans and token ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Literal

from kvbaton.errors import SliceError
from kvbaton.types import KVLayout, LayerKind, Role, Span, TokenRun

Selection = Literal["prompt", "generated", "all"]
Range = TokenRun | tuple[int, int]
"""A run of tokens, or the first position and one past the last."""

PRIVATE_ROLES = frozenset((Role.SYSTEM, Role.REASONING))
"""Roles that a slice leaves out unless they are asked for."""
_SPOKEN = frozenset((Role.GENERATED, Role.REASONING))


def slice_refusal(layout: KVLayout) -> str | None:
    """Why a cache of this layout cannot be sliced; None if it can."""
    window = next((i for i, s in enumerate(layout.layers) if s.kind is not LayerKind.FULL), None)
    if window is not None:
        return (
            f"layer {window} attends to a window and keeps its last positions only, so a slice "
            "of it cannot be cut out or put elsewhere"
        )
    if all(spec.rope < 0 for spec in layout.layers):
        return (
            "its positions are not rotary (learned or ALiBi), so keys cannot be moved to another "
            "place"
        )
    return None


def require_sliceable(layout: KVLayout) -> None:
    """Raise ``SliceError`` with the reason where a cache of this layout cannot be sliced."""
    reason = slice_refusal(layout)
    if reason is not None:
        raise SliceError(f"this model's cache cannot be sliced: {reason}", at="$.layers")


# -- ranges -----------------------------------------------------------------------------------


def as_runs(ranges: Sequence[Range], *, tokens: int) -> tuple[TokenRun, ...]:
    """Ranges of a sequence of ``tokens`` positions as runs; neighbours become one.

    Raises
    ------
    SliceError
        There is none, one is empty or reaches outside, or they overlap or are not in the order
        of the sequence.
    """
    if not ranges:
        raise SliceError("a slice needs at least one range of tokens", at="$.spans")
    runs = [_as_run(item, index, tokens) for index, item in enumerate(ranges)]
    for index, (before, run) in enumerate(pairwise(runs), start=1):
        if run.first >= before.stop:
            continue
        overlaps = run.stop > before.first
        wrong = "overlaps" if overlaps else "lies before"
        raise SliceError(
            f"range {_shown(run)} {wrong} {_shown(before)}, which is given before it",
            at=_at(index),
            hint="give each token once, in the order of the sequence",
        )
    return tuple(_joined(runs))


def _as_run(item: Range, index: int, tokens: int) -> TokenRun:
    first, stop = (item.first, item.stop) if isinstance(item, TokenRun) else item
    strange = next((b for b in (first, stop) if type(b) is not int), None)
    if strange is not None:
        raise SliceError(f"{strange!r} is not a position", at=_at(index))
    run = TokenRun(first, stop - first)
    if run.count <= 0:
        raise SliceError(f"range {_shown(run)} is empty", at=_at(index))
    if first < 0 or stop > tokens:
        raise SliceError(
            f"range {_shown(run)} reaches outside of a sequence of {tokens} tokens", at=_at(index)
        )
    return run


def _shown(run: TokenRun) -> str:
    return f"{run.first}:{run.stop}"


def _at(index: int) -> str:
    return f"$.spans[{index}]"


def _joined(runs: Iterable[TokenRun]) -> Iterator[TokenRun]:
    """Ascending runs, those that touch each other as one."""
    held: TokenRun | None = None
    for run in runs:
        if held is not None and run.first == held.stop:
            held = TokenRun(held.first, held.count + run.count)
            continue
        if held is not None:
            yield held
        held = run
    if held is not None:
        yield held


# -- roles ------------------------------------------------------------------------------------


def by_role(
    spans: Sequence[Span],
    selection: Selection = "all",
    *,
    prompt_tokens: int | None = None,
    private: frozenset[Role] = PRIVATE_ROLES,
) -> tuple[TokenRun, ...]:
    """Runs of a turn by role.

    Parameters
    ----------
    spans
        Of the cached positions, in their order.
    selection
        ``prompt`` is what the model was given, ``generated`` what it said, ``all`` both.
    prompt_tokens
        Length of the prompt: what was said before it is a part of it.  By default what was
        said is told by role alone.
    private
        Roles that are left out.

    Raises
    ------
    SliceError
        An unknown selection, or nothing is left of it.
    """
    if selection not in ("prompt", "generated", "all"):
        raise SliceError(
            f"there is no selection {selection!r}", at="$.spans", hint="prompt, generated or all"
        )
    shown = [span for span in _split_at(spans, prompt_tokens) if span.role not in private]
    wanted = [s.run for s in shown if _is_wanted(s, selection, prompt_tokens)]
    if not wanted:
        left_out = ", ".join(sorted(private)) or "none"
        raise SliceError(
            f"nothing is left of the selection {selection!r}",
            at="$.spans",
            hint=f"roles that are left out: {left_out}",
        )
    return tuple(_joined(wanted))


def _split_at(spans: Sequence[Span], position: int | None) -> Iterator[Span]:
    """Spans of which none reaches over a position."""
    for span in spans:
        run = span.run
        if position is None or not run.first < position < run.stop:
            yield span
            continue
        yield Span(span.role, TokenRun(run.first, position - run.first), span.shift)
        yield Span(span.role, TokenRun(position, run.stop - position), span.shift)


def _is_wanted(span: Span, selection: Selection, prompt_tokens: int | None) -> bool:
    if selection == "all":
        return True
    if prompt_tokens is None:
        said = span.role in _SPOKEN
    else:
        said = span.run.first >= prompt_tokens
    return said is (selection == "generated")


# -- importance ------------------------------------------------------------------------


def by_importance(
    scores: Sequence[float], keep: int, *, sinks: int = 4, recent: int = 16, first: int = 0
) -> tuple[TokenRun, ...]:
    """The most important tokens of a stretch, as runs in the order of the sequence.

    Parameters
    ----------
    scores
        Importance of each token of the stretch.
    keep
        Tokens to keep, in all.
    sinks, recent
        Of these, so many are the first and the last ones, whatever their scores.
    first
        Position of the stretch's first token.

    Raises
    ------
    SliceError
        ``keep`` is none or more than there are, or too few for the sinks and the recent ones.
    """
    count = len(scores)
    if not 0 < keep <= count:
        raise SliceError(f"{keep} of {count} tokens cannot be kept", at="$.keep")
    if min(sinks, recent) < 0 or (sinks + recent > keep and keep < count):
        raise SliceError(
            f"{sinks} first and {recent} last tokens are more than the {keep} to keep",
            at="$.keep",
        )
    fixed = {i for i in range(count) if i < sinks or i >= count - recent}
    others = sorted((i for i in range(count) if i not in fixed), key=lambda i: (-scores[i], i))
    kept = sorted(fixed.union(others[: max(0, keep - len(fixed))]))
    return tuple(_joined(TokenRun(first + i, 1) for i in kept))
