"""Clipping by minimal squared error: a range that leaves out outliers where that pays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbaton.codecs.groups import Grid

if TYPE_CHECKING:
    import torch

SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6)
"""Shares of the full range that are tried."""


def clipped(
    body: torch.Tensor, low: torch.Tensor, high: torch.Tensor, levels: int, grid: Grid
) -> tuple[torch.Tensor, torch.Tensor]:
    """The range ``low`` to ``high`` of each group, narrowed around its middle.

    Parameters
    ----------
    body
        ``[heads, tokens, dim]`` float32.
    low, high
        Smallest and largest number of each group, ``grid.shape``.
    levels
        Steps between them.
    """
    import torch

    middle, reach = (low + high) / 2, (high - low) / 2
    best, least = torch.ones_like(low), torch.full_like(low, torch.inf)
    for share in SHARES:
        error = _squared_error(body, middle - share * reach, middle + share * reach, levels, grid)
        better = error < least
        best, least = torch.where(better, share, best), torch.where(better, error, least)
    return middle - best * reach, middle + best * reach


def _squared_error(
    body: torch.Tensor, low: torch.Tensor, high: torch.Tensor, levels: int, grid: Grid
) -> torch.Tensor:
    """Sum of squares in each group."""
    import torch

    scale = ((high - low) / levels).clamp(min=torch.finfo(torch.float32).tiny)
    offsets, scales = grid.spread(low), grid.spread(scale)
    codes = ((body - offsets) / scales).round().clamp(0, levels)
    return grid.reduced((codes * scales + offsets - body).square(), torch.sum)
