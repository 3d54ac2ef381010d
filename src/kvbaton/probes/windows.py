"""Windows: runs of tokens computed anew on top of a received cache, and compared.

What a token's K and V are depends on everything before it, so a window that agrees says that the
cache agrees there with its tokens, as far as the limits of honest differences can see.  Places
are drawn by the receiver, from the operating system's randomness: a sender cannot know them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kvbaton.kinds import Importance
from kvbaton.types import JSON, TokenRun

if TYPE_CHECKING:
    from kvbaton.engines.base import Engine
    from kvbaton.probes.limits import WindowLimits

WINDOW_TOKENS = 16
CRITICAL_WINDOWS = 8
"""Windows at random places; the last tokens are one more."""
LONE, LONE_DIFFERENCE = 5.0, 0.9
"""A single position alone is odd at so many times its limit, or at a difference that nothing is
left of: in bfloat16 one honest token in some ten thousand goes its own way.  Two are odd at their
limit."""
BEGINNING = 4
"""First positions, of which some take all attention that has no other place.  Which ones do is
decided by the last bits in bfloat16 (differences of 0.45 were measured between honest caches), so
they are held to ``LONE_DIFFERENCE`` only, and left out of runs."""
SHORTEST_RUN = 8
"""Tokens that a run must have for its mean to be compared: fewer average out too little."""


@dataclass(frozen=True, slots=True)
class WindowReport:
    """What the windows showed.

    Parameters
    ----------
    windows
        The runs of positions that were computed anew.
    rows
        Positions in them, each counted once.
    ratio
        The largest difference in multiples of what is honest: of runs' means, of the second worst
        position, and of a lone one by a wider limit.  Up to 1 is honest; infinite for NaN.
    name, layer, position
        Where that was: ``k`` or ``v``; the position is the first of the run where a run's mean
        was the worst.
    of_run
        Whether a run's mean was the worst, or a single token.
    seconds
        Wall seconds.
    """

    windows: tuple[TokenRun, ...]
    rows: int
    ratio: float
    name: str
    layer: int
    position: int
    of_run: bool
    seconds: float

    @property
    def odd(self) -> bool:
        """Whether a difference is beyond its limit."""
        return not self.ratio <= 1.0

    def sentence(self) -> str:
        """The worst of it, for people."""
        what = "run from position" if self.of_run else "position"
        return (
            f"{self.name.upper()} of layer {self.layer} at {what} {self.position} differs from "
            f"what the tokens give by {self.ratio:.2g} times what is honest"
        )

    def to_json(self) -> JSON:
        """As ``--json`` prints it."""
        return {
            "rows": self.rows,
            "windows": [[run.first, run.stop] for run in self.windows],
            "ratio": self.ratio,
            "name": self.name,
            "layer": self.layer,
            "position": self.position,
            "of_run": self.of_run,
            "odd": self.odd,
            "seconds": self.seconds,
        }


def choose_windows(
    tokens: int, importance: Importance, rng: random.Random | None = None
) -> tuple[TokenRun, ...]:
    """Runs of a cache of ``tokens`` positions to compute anew, ascending; they may overlap.

    None for an ordinary take.  For a critical one eight runs of 16 tokens at random places, each
    equally likely, and the last 16; all of a cache that is not longer than that.

    Parameters
    ----------
    rng
        Draws the places; by default the operating system does.
    """
    if importance is Importance.ORDINARY or tokens <= 0:
        return ()
    if tokens <= WINDOW_TOKENS * (CRITICAL_WINDOWS + 1):
        starts = range(0, tokens, WINDOW_TOKENS)
        return tuple(TokenRun(s, min(WINDOW_TOKENS, tokens - s)) for s in starts)
    drawn = rng or random.SystemRandom()
    last = tokens - WINDOW_TOKENS
    # Runs may begin before the first position and end behind the last one, and are cut there, so
    # that the ends are as likely to be seen as the middle.
    starts_at = [drawn.randint(1 - WINDOW_TOKENS, tokens - 1) for _ in range(CRITICAL_WINDOWS)]
    runs = [_cut(start, tokens) for start in starts_at] + [TokenRun(last, WINDOW_TOKENS)]
    return tuple(sorted(runs, key=lambda run: (run.first, run.count)))


def _cut(start: int, tokens: int) -> TokenRun:
    first = max(0, start)
    return TokenRun(first, min(start + WINDOW_TOKENS, tokens) - first)


def rows_of(windows: Sequence[TokenRun]) -> list[int]:
    """The positions of all windows, ascending, each once."""
    return sorted({row for run in windows for row in range(run.first, run.stop)})


def run_means(
    differences: torch.Tensor, windows: Sequence[TokenRun], *, behind: int = 0
) -> torch.Tensor:
    """Mean of each run ``[2, layers, runs]`` of differences ``[2, layers, rows]``.

    Only positions from ``behind`` on count, and runs of fewer than eight are left out.
    """
    place = {row: index for index, row in enumerate(rows_of(windows))}
    means = [
        differences[:, :, place[run.first] : place[run.first] + run.count].mean(2)
        for run in _long(windows, behind)
    ]
    return torch.stack(means, dim=2) if means else differences[:, :, :0]


def _long(windows: Sequence[TokenRun], behind: int) -> list[TokenRun]:
    """What of the windows stands from a position on, where it is long enough."""
    firsts = [max(run.first, behind) for run in windows]
    cut = [TokenRun(f, r.stop - f) for f, r in zip(firsts, windows, strict=True)]
    return [run for run in cut if run.count >= SHORTEST_RUN]


def examine(
    engine: Engine,
    cache: Any,
    ids: Sequence[int],
    windows: Sequence[TokenRun],
    limits: WindowLimits,
) -> WindowReport:
    """Compute windows anew and compare them; the cache is the same afterwards.

    Parameters
    ----------
    ids
        Ids of all positions of the cache.
    windows
        At least one.

    Raises
    ------
    EmptyInput
        There are no windows.
    UnsupportedLayout
        Positions of such a cache cannot be computed again.
    """
    started = time.perf_counter()
    rows = rows_of(windows)
    found = engine.window_differences(cache, ids, rows)
    token, run = (limit[:, :, None] for limit in limits.tensors())
    lone = (LONE * token).clamp_max(LONE_DIFFERENCE).maximum(token)
    early = torch.tensor(rows) < BEGINNING
    ordinary = found.masked_fill(early, 0.0)
    worst = max(
        _second(ordinary / token),
        _worst(ordinary / lone),
        _worst(found / torch.where(early, LONE_DIFFERENCE, torch.inf)),
        key=_ratio,
    )
    means = _worst(run_means(found, windows, behind=BEGINNING) / run)
    of_run = means is not None and (worst is None or means[0] > worst[0])
    ratio, name, layer, index = (means if of_run else worst) or (0.0, 0, 0, 0)
    return WindowReport(
        windows=tuple(windows),
        rows=len(rows),
        ratio=ratio,
        name="kv"[name],
        layer=layer,
        position=_long(windows, BEGINNING)[index].first if of_run else rows[index],
        of_run=of_run,
        seconds=time.perf_counter() - started,
    )


_Worst = tuple[float, int, int, int] | None


def _ratio(worst: _Worst) -> float:
    return 0.0 if worst is None else worst[0]


def _second(ratios: torch.Tensor) -> _Worst:
    """The worst of all positions but the worst one."""
    if ratios.shape[2] < 2:
        return None
    first = _worst(ratios)
    rest = ratios.clone()
    if first is not None:
        rest[:, :, first[3]] = 0.0
    return _worst(rest)


def _worst(ratios: torch.Tensor) -> _Worst:
    """The largest of ``[2, layers, n]`` and where it is; a NaN is larger than any."""
    if not ratios.numel():
        return None
    ratios = ratios.nan_to_num(nan=float("inf"), posinf=float("inf"))
    flat = int(ratios.argmax())
    name, layer, index = torch.unravel_index(torch.tensor(flat), ratios.shape)
    return float(ratios.flatten()[flat]), int(name), int(layer), int(index)
