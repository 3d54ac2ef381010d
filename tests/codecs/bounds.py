"""How far quantizers may change a number, worked out from their definitions."""

from __future__ import annotations

import torch

from kvbaton.codecs.grouped import Grouped
from kvbaton.codecs.groups import Grid
from kvbaton.codecs.integer import Int

HALF_TINY = 2.0**-25
"""Half the least float16."""
HALF_ULP = {"f32": 2.0**-24, "f16": 2.0**-11, "u8": 2.0**-11}


def reach(tensor: torch.Tensor, codec: Grouped) -> tuple[torch.Tensor, torch.Tensor]:
    """Least and largest number of each element's group."""
    grid = Grid(codec.axis, codec.group, *tensor.shape)
    low, high = grid.reduced(tensor, torch.amin), grid.reduced(tensor, torch.amax)
    return grid.spread(low).expand(tensor.shape), grid.spread(high).expand(tensor.shape)


def int_bound(tensor: torch.Tensor, codec: Int) -> torch.Tensor:
    """The larger bound of groups that begin at the first token, or behind the exact ones."""
    bound = _int_bound(tensor, codec)
    behind = bound[:, codec.first :]
    if behind.numel():
        behind.copy_(behind.maximum(_int_bound(tensor[:, codec.first :], codec)))
    return bound


def _int_bound(tensor: torch.Tensor, codec: Int) -> torch.Tensor:
    """Half a step, and what storing the parameters adds to it.

    The step is the range over the number of steps.  Symmetric ranges are twice the largest
    magnitude.  A coded offset needs a range that reaches to zero, and may cut 1/510 of it; a
    coded scale is up to 1/16 octave larger, or 0.3% smaller; a half-precision offset lies up to
    an ulp lower.
    """
    low, high = reach(tensor, codec)
    largest = torch.maximum(high, -low)
    if codec.symmetric:
        low, high = -largest, largest
    elif codec.scales == "u8" and codec.axis == "token":
        low, high = low.clamp(max=0), high.clamp(min=0)
    levels = (1 << codec.bits) - 1
    step = (high - low + 4 * HALF_ULP[codec.scales] * largest) / levels
    if codec.scales == "u8":
        step = step * 2 ** (1 / 16)
    cut = step * levels * (3 * 2.0**-10 if codec.scales == "u8" else 2 * HALF_ULP[codec.scales])
    if codec.scales == "f16":
        cut = cut + levels * HALF_TINY
    if codec.scales == "u8" and not codec.symmetric:
        cut = cut + step * levels / 510
    return step / 2 + cut + 2.0**-23 * largest
