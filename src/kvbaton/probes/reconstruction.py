"""Reading tokens from a cache: the nearest token by V of layer 0.

As a probe, the text that is read tells how much of it a cache still carries.  It is also the
simplest inversion: whoever has the K and V of a text, and the weights, has the text.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from kvbaton.types import LayerKind, SegmentKind, SegmentSpan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbaton.engines.base import Engine

QUALITY_SHARE = 0.99
"""Share of read tokens below which a cache has lost more than any shipped profile loses: they
were measured to lose none."""
SAME_TOKEN = 1e-3
"""Relative difference up to which two tokens have the same V: tokens that no training text had are
often initialized alike."""
_TOKENS_AT_ONCE = 4096
_POSITIONS_AT_ONCE = 512


@dataclass(frozen=True, slots=True)
class Reconstruction:
    """What was read from a cache.

    ``share`` is the part of the positions whose token was read rightly; tokens of the same V
    count as one.  ``first_wrong`` is the first position that was not, or None; ``text`` is what was
    read.
    """

    positions: int
    share: float
    first_wrong: int | None
    text: str

    @property
    def poor(self) -> bool:
        """Whether the cache has lost more than measured codecs lose."""
        return self.share < QUALITY_SHARE


class _Table:
    """V of layer 0 of every token of a function, flat, in the cache's dtype on the host."""

    def __init__(self, engine: Engine, vocabulary: int) -> None:
        self.function = engine.function.digest
        parts = [
            engine.first_values(range(start, min(start + _TOKENS_AT_ONCE, vocabulary)))
            for start in range(0, vocabulary, _TOKENS_AT_ONCE)
        ]
        self.rows = torch.cat([_flat(part) for part in parts])

    def nearest(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids ``[n]`` and distances ``[n]`` of the tokens nearest to flat V ``[n, width]``."""
        best = torch.full((len(values),), torch.inf)
        ids = torch.zeros(len(values), dtype=torch.long)
        for start in range(0, len(self.rows), _TOKENS_AT_ONCE):
            rows = self.rows[start : start + _TOKENS_AT_ONCE].float()
            # |a - b|^2 without |a|^2, which is the same for all tokens.
            score = rows.square().sum(1)[None] - 2 * values @ rows.T
            least, index = score.min(1)
            better = least < best
            best = torch.where(better, least, best)
            ids = torch.where(better, index + start, ids)
        return ids, (values - self.rows[ids].float()).norm(dim=1)


_tables: WeakKeyDictionary[Any, _Table] = WeakKeyDictionary()
_making = threading.Lock()


def _table(engine: Engine, vocabulary: int) -> _Table:
    """The table of an engine's function as it is now: made once."""
    with _making:
        known = _tables.get(engine)
        if known is None or known.function != engine.function.digest:
            known = _tables[engine] = _Table(engine, vocabulary)
        return known


def _flat(values: torch.Tensor) -> torch.Tensor:
    """``[kv_heads, n, v_dim]`` as ``[n, kv_heads * v_dim]``."""
    return values.transpose(0, 1).reshape(values.shape[1], -1)


def read_tokens(engine: Engine, values: torch.Tensor) -> list[int]:
    """The token nearest to each V ``[kv_heads, n, v_dim]`` of layer 0.

    Of tokens with the same V it is the first.
    """
    table = _table(engine, engine.vocabulary)
    found: list[int] = []
    for part in _flat(values.cpu()).float().split(_POSITIONS_AT_ONCE):
        found.extend(table.nearest(part)[0].tolist())
    return found


def reconstruction(engine: Engine, cache: Any, ids: Sequence[int]) -> Reconstruction:
    """Read the tokens of a cache again, and hold them against its ids.

    Where layer 0 is a window layer, those that it still holds.

    Parameters
    ----------
    ids
        Ids of all positions of the cache.
    """
    first, values = held_values(engine, cache)
    table, rows = _table(engine, engine.vocabulary), _flat(values).float()
    read: list[int] = []
    right: list[bool] = []
    wanted = torch.tensor(list(ids[first : first + len(rows)]))
    for part, expected in zip(
        rows.split(_POSITIONS_AT_ONCE), wanted.split(_POSITIONS_AT_ONCE), strict=True
    ):
        tokens, _ = table.nearest(part)
        mine, theirs = table.rows[tokens].float(), table.rows[expected].float()
        apart = (mine - theirs).norm(dim=1) > SAME_TOKEN * theirs.norm(dim=1)
        right.extend((~apart).tolist())
        read.extend(tokens.tolist())
    wrong = next((first + i for i, good in enumerate(right) if not good), None)
    share = sum(right) / len(right) if right else 1.0
    return Reconstruction(len(right), share, wrong, engine.tokenizer.decode(read))


def held_values(engine: Engine, cache: Any) -> tuple[int, torch.Tensor]:
    """The first position that layer 0 holds, and V ``[kv_heads, n, v_dim]`` from there on."""
    full = engine.layout.layers[0].kind is LayerKind.FULL
    span = SegmentSpan(0, cache.length, SegmentKind.RUN if full else SegmentKind.WINDOW)
    part = next(iter(engine.export(cache, [span])))
    return part.run.first, part.values
