"""Offsets and scales of groups, as they are stored.

=======  ========================================  =====================================
kind     stored, in this order                     bytes per group (with offset, without)
=======  ========================================  =====================================
``f32``  offsets, scales: float32                  8, 4
``f16``  offsets, scales: float16                  4, 2
``u8``   a float32 per head, offsets, scale codes  2 (``channel``, ``tensor``: 3), 1
=======  ========================================  =====================================

``u8`` quantizes the parameters once more (double quantization, Dettmers et al. 2023).  A scale is
the head's largest times ``2 ** (-code / 16)``, and 255 stands for 0.  An offset of groups of
channels is a code too, in 1/255 of the group's range, which has to reach to zero: one byte is
enough there.  Keys have channels far from zero, so the offsets of their groups stay float16.

Rounding: scales to nearest, so that encoding again does not drift; float16 offsets downwards, so
that the smallest number of a group is not cut; ``u8`` scales to the next larger but for 0.3%.
float16 has no numbers below 2**-24: groups whose scales are smaller lose them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from kvbaton.codecs.groups import Grid
from kvbaton.errors import Fault

if TYPE_CHECKING:
    import torch

KINDS = ("f32", "f16", "u8")
ZERO_CODE = 255
_STEPS_PER_OCTAVE = 16
_SLACK = 1.0 + 3 * 2.0**-10
"""A scale that is just above a code's takes it: else what was rounded to bfloat16 in between would
take the next, 4% larger one, and grow at every hop."""


@dataclass(frozen=True)
class Ranges:
    """Where each group's codes begin, and how far apart they are: float32, ``Grid.shape``."""

    offsets: torch.Tensor
    scales: torch.Tensor


def stored_bytes(kind: str, grid: Grid, *, offsets: bool) -> int:
    """Bytes of the parameters of all groups."""
    if not grid.count:
        return 0
    if kind != "u8":
        return grid.count * (4 if kind == "f32" else 2) * (2 if offsets else 1)
    of_offset = (1 if grid.axis == "token" else 2) if offsets else 0
    return 4 * grid.shape[0] + grid.count * (1 + of_offset)


def store(
    low: torch.Tensor, high: torch.Tensor, levels: int | torch.Tensor, kind: str, axis: str
) -> tuple[torch.Tensor, Ranges]:
    """Stored bytes of ranges ``low`` to ``high`` of ``levels`` steps, and what they are read as."""
    if kind == "f32":
        ranges = Ranges(low, over(high - low, levels))
        return _bytes(ranges.offsets, ranges.scales), ranges
    if kind == "f16":
        offsets = floor_half(low)
        scales = over(high - offsets.float(), levels).half()
        return _bytes(offsets, scales), Ranges(offsets.float(), scales.float())
    if axis == "token":
        return _store_coded(low.clamp(max=0), high.clamp(min=0), levels)
    offsets = floor_half(low)
    heads, codes, scales = _coded_scales(over(high - offsets.float(), levels))
    return _bytes(heads, offsets, codes), Ranges(offsets.float(), scales)


def _store_coded(low: torch.Tensor, high: torch.Tensor, levels: int) -> tuple[torch.Tensor, Ranges]:
    import torch

    heads, codes, scales = _coded_scales(over(high - low, levels))
    step = offset_step(scales, levels)
    below = torch.where(step > 0, -low / step, 0.0).round().clamp(0, 255)
    return _bytes(heads, below.to(torch.uint8), codes), Ranges(-(below * step), scales)


def store_scales(scales: torch.Tensor, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Stored bytes of scales alone, and the scales that they are read as."""
    if kind == "f32":
        return _bytes(scales), scales
    if kind == "f16":
        half = scales.half()
        return _bytes(half), half.float()
    heads, codes, rounded = _coded_scales(scales)
    return _bytes(heads, codes), rounded


def load(data: torch.Tensor, kind: str, grid: Grid, levels: int) -> Ranges:
    """Inverse of :func:`store`: parameters from their bytes ``[stored_bytes]`` uint8."""
    import torch

    if kind != "u8":
        dtype = torch.float32 if kind == "f32" else torch.float16
        offsets, scales = data.view(dtype).float().view(2, *grid.shape)
        return Ranges(offsets, scales)
    coded = grid.axis == "token"
    heads, middle = 4 * grid.shape[0], grid.count * (1 if coded else 2)
    scales = _read_coded(data[:heads], data[heads + middle :], grid)
    offsets = data[heads : heads + middle]
    if coded:
        return Ranges(-(offsets.view(grid.shape).float() * offset_step(scales, levels)), scales)
    return Ranges(offsets.clone().view(torch.float16).float().view(grid.shape), scales)


def load_scales(data: torch.Tensor, kind: str, grid: Grid) -> torch.Tensor:
    """Inverse of :func:`store_scales`."""
    import torch

    if kind != "u8":
        dtype = torch.float32 if kind == "f32" else torch.float16
        return data.view(dtype).float().view(grid.shape)
    heads = 4 * grid.shape[0]
    return _read_coded(data[:heads], data[heads:], grid)


def bad_parameters(ranges: Ranges, levels: int | torch.Tensor) -> tuple[str, Fault] | None:
    """What is wrong with parameters: numbers that are not finite, or scales below zero."""
    import torch

    highest = ranges.offsets + ranges.scales * levels
    if not bool((torch.isfinite(ranges.scales) & torch.isfinite(ranges.offsets)).all()):
        return "scales or offsets that are not finite", Fault.NOT_FINITE
    if bool((ranges.scales < 0).any()):
        return "scales below zero", Fault.OUT_OF_RANGE
    if not bool(torch.isfinite(highest).all()):
        return "scales beyond float32", Fault.OUT_OF_RANGE
    return None


def floor_half(numbers: torch.Tensor) -> torch.Tensor:
    """The largest float16 that is not above each float32."""
    import torch

    half = numbers.half()
    bits = half.view(torch.int16)
    below = torch.where(bits > 0, bits - 1, torch.where(bits == 0, -32767, bits + 1))
    stepped = torch.where(half.float() > numbers, below.to(torch.int16), bits)
    return stepped.view(torch.float16)


def over(numbers: torch.Tensor, number: float | torch.Tensor) -> torch.Tensor:
    """Numbers over one number or others, rounded once; GPUs multiply by a plain one's inverse."""
    import torch

    if isinstance(number, torch.Tensor):
        return numbers / number
    return numbers / torch.full((), number, dtype=numbers.dtype, device=numbers.device)


def inverses(scales: torch.Tensor) -> torch.Tensor:
    """One over each scale; 0 for scales of 0, and for those so small that there is no inverse."""
    import torch

    return torch.where(scales >= torch.finfo(torch.float32).tiny, 1.0 / scales, 0.0)


def offset_step(scales: torch.Tensor, levels: int) -> torch.Tensor:
    """What one code of a coded offset is worth: 1/255 of the group's range."""
    return scales * _ratio(levels)


def _ratio(levels: int) -> float:
    import numpy as np

    return float(np.float32(levels) / np.float32(255))


@cache
def scale_table() -> torch.Tensor:
    """``2 ** (-code / 16)`` of every scale code, float32; 0 for the last."""
    import torch

    exponents = torch.arange(256, dtype=torch.float64) / -_STEPS_PER_OCTAVE
    table = torch.exp2(exponents).float()
    table[ZERO_CODE] = 0.0
    return table


@cache
def scale_thresholds() -> torch.Tensor:
    """Ascending: up to where each code, from 255 down, is large enough."""
    return (scale_table() * _SLACK).flip(0).contiguous()


def _coded_scales(
    scales: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Largest of each head, codes, and the scales that these are read as."""
    import torch

    largest = scales.flatten(1).amax(1)
    ratio = torch.where(scales > 0, scales / largest[:, None, None], 0.0)
    thresholds = scale_thresholds().to(scales.device)
    codes = 255 - torch.searchsorted(thresholds, ratio.contiguous(), right=False)
    codes = codes.clamp(0, 255)
    table = scale_table().to(scales.device)
    return largest, codes.to(torch.uint8), largest[:, None, None] * table[codes]


def _read_coded(heads: torch.Tensor, codes: torch.Tensor, grid: Grid) -> torch.Tensor:
    import torch

    largest = heads.view(torch.float32)[:, None, None]
    table = scale_table().to(codes.device)
    return largest * table[codes.view(grid.shape).long()]


def _bytes(*parts: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.cat([part.contiguous().view(-1).view(torch.uint8) for part in parts])
