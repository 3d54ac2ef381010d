"""Many questions behind one cache at once.

Every question sees the cache and itself, none sees another one: they stand side by side at the
same positions, kept apart by the mask; what they begin with alike is fed once.  In exact arithmetic
the answers are those of asking one by one; the cache is read once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kvbaton.errors import EmptyInput, WindowExceeded
from kvbaton.types import common_prefix


@torch.inference_mode()
def greedy_answers(
    engine: Any, cache: Any, questions: Sequence[Sequence[int]], *, new_tokens: int
) -> list[tuple[int, ...]]:
    """The most likely next tokens behind each question; the cache is left as it was.

    Parameters
    ----------
    cache
        What all questions have before them.
    questions
        Ids of each, fed behind the cache.
    new_tokens
        At most so many are decoded; a token that ends a turn ends an answer, and is left out.

    Raises
    ------
    EmptyInput
        A question has no ids.
    WindowExceeded
        The longest one and its answer do not fit the model's window.
    """
    start = _require_askable(engine, cache, questions, new_tokens)
    asked = _SideBySide(engine, cache, start)
    try:
        logits = asked.feed(questions, alike=_alike(questions))
        found: list[list[int]] = [[] for _ in questions]
        open_ones = set(range(len(questions)))
        for step in range(new_tokens):
            chosen = [int(token) for token in logits.argmax(-1)]
            for number in sorted(open_ones):
                if chosen[number] in engine.chat.stop_ids:
                    open_ones.discard(number)
                else:
                    found[number].append(chosen[number])
            if not open_ones or step == new_tokens - 1:
                break
            logits = asked.feed([[token] for token in chosen])
    finally:
        cache.take_back(start)
    return [tuple(ids) for ids in found]


@torch.inference_mode()
def forced_logits(
    engine: Any, cache: Any, several: Sequence[Sequence[int]], *, positions: Sequence[int]
) -> list[torch.Tensor]:
    """What the model says at the last positions of texts that stand side by side behind a cache.

    The cache is left as it was.

    Parameters
    ----------
    several
        Ids of each text: a question and an answer that is put into the model's mouth.
    positions
        How many of the last positions of each count.

    Returns
    -------
    list of Tensor
        Logits ``[positions, vocab]`` float32 of each text.

    Raises
    ------
    EmptyInput
        A text has no ids, or fewer than positions.
    WindowExceeded
        The longest one does not fit the model's window.
    """
    start = _require_askable(engine, cache, several, 0)
    if any(not 1 <= count <= len(ids) for ids, count in zip(several, positions, strict=True)):
        raise EmptyInput("there are fewer ids than positions to look at")
    alike = max(
        0, min(_alike(several), *(len(i) - c for i, c in zip(several, positions, strict=True)))
    )
    try:
        logits = _SideBySide(engine, cache, start).feed(several, alike=alike, last=positions)
    finally:
        cache.take_back(start)
    return list(logits.split(list(positions)))


def _require_askable(
    engine: Any, cache: Any, several: Sequence[Sequence[int]], new_tokens: int
) -> int:
    """The cache's length, if all of them fit behind it."""
    if not several or not all(several):
        raise EmptyInput("there is no question to feed")
    start: int = cache.length
    if start + max(map(len, several)) + new_tokens > engine.max_tokens:
        raise WindowExceeded(f"{start} tokens and a question do not fit the model's window")
    return start


def _alike(questions: Sequence[Sequence[int]]) -> int:
    """How many ids all questions begin with alike; each keeps one of its own."""
    first, *others = questions
    alike = min(map(len, questions)) - 1
    return min((common_prefix(first[:alike], other[:alike]) for other in others), default=0)


class _SideBySide:
    """Feeds ids of several questions in one pass; knows whose each position of the cache is."""

    def __init__(self, engine: Any, cache: Any, start: int) -> None:
        self._engine, self._cache = engine, cache
        self._owner = torch.full((start,), -1, device=engine.device)
        self._position = torch.arange(start, device=engine.device)
        self._lengths: list[int] = []
        self._start = start

    def feed(
        self,
        several: Sequence[Sequence[int]],
        *,
        alike: int = 0,
        last: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """Logits ``[n, vocab]`` float32 behind the last id of each, or the ``last`` few of each.

        The first ``alike`` ids are the same for all of them.
        """
        ids = list(several[0][:alike])
        owners, positions = [-1] * alike, list(range(self._start, self._start + alike))
        looked_at: list[int] = []
        if not self._lengths:
            self._lengths = [self._start + alike] * len(several)
        for number, new in enumerate(several):
            own = new[alike:]
            first = self._lengths[number]
            ids.extend(own)
            owners.extend([number] * len(own))
            positions.extend(range(first, first + len(own)))
            self._lengths[number] += len(own)
            looked_at.extend(range(len(ids) - (last[number] if last else 1), len(ids)))
        return self._run(
            ids, self._tensor(owners), self._tensor(positions), self._tensor(looked_at)
        )

    def _tensor(self, numbers: Sequence[int]) -> torch.Tensor:
        return torch.tensor(list(numbers), device=self._engine.device)

    def _run(
        self,
        ids: Sequence[int],
        owner: torch.Tensor,
        position: torch.Tensor,
        looked_at: torch.Tensor,
    ) -> torch.Tensor:
        engine = self._engine
        self._owner = torch.cat((self._owner, owner))
        self._position = torch.cat((self._position, position))
        mine = (self._owner == -1) | (self._owner == owner[:, None])
        seen = mine & (self._position <= position[:, None])
        mask = torch.zeros(seen.shape, dtype=engine.dtype, device=engine.device)
        mask = mask.masked_fill_(~seen, torch.finfo(engine.dtype).min)
        output = engine.model(
            input_ids=self._tensor(ids)[None],
            position_ids=position[None],
            attention_mask=mask[None, None],
            use_cache=True,
            logits_to_keep=looked_at,
            **{engine.cache_argument: self._cache},
        )
        logits: torch.Tensor = output.logits[0].float()
        return logits
