"""Codes of 2 to 8 bits, packed tightly as planes of 8, 4, 2 or 1 bits.

A run of ``n`` codes becomes one plane after the other, lowest bits first.  In a plane of width
``w`` byte ``j`` holds the codes ``j``, ``j + size``, ``j + 2 size``, ... from its low bits up, with
``size = ceil(n w / 8)``: neighbours in a byte lie far apart, so packing and unpacking work on
whole vectors.  Missing codes at the end are zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

WIDTHS: dict[int, tuple[int, ...]] = {
    2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 7: (4, 2, 1), 8: (8,),
}  # fmt: skip
"""Bits per code -> widths of its planes, lowest bits first."""


def packed_bytes(count: int, bits: int) -> int:
    """Bytes of a run of ``count`` codes."""
    return sum(-(-count * width // 8) for width in WIDTHS[bits])


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Bytes ``[..., packed_bytes(n, bits)]`` of codes ``[..., n]``, both uint8."""
    import torch

    planes, shift = [], 0
    for width in WIDTHS[bits]:
        part = (codes >> shift) & ((1 << width) - 1)
        planes.append(_pack_plane(part, width))
        shift += width
    return torch.cat(planes, dim=-1)


def _pack_plane(part: torch.Tensor, width: int) -> torch.Tensor:
    from torch.nn.functional import pad

    per_byte = 8 // width
    size = -(-part.shape[-1] // per_byte)
    rows = pad(part, (0, per_byte * size - part.shape[-1])).unflatten(-1, (per_byte, size))
    packed = rows[..., 0, :].clone()
    for i in range(1, per_byte):
        packed |= rows[..., i, :] << (width * i)
    return packed


def unpack(data: torch.Tensor, count: int, bits: int) -> torch.Tensor:
    """Inverse of :func:`pack`: codes ``[..., count]`` of bytes ``[..., packed_bytes]``."""
    import torch

    codes = torch.zeros((*data.shape[:-1], count), dtype=torch.uint8, device=data.device)
    start = shift = 0
    for width in WIDTHS[bits]:
        size = -(-count * width // 8)
        plane = data[..., start : start + size]
        parts = [(plane >> (width * i)) & ((1 << width) - 1) for i in range(8 // width)]
        codes |= torch.cat(parts, dim=-1)[..., :count] << shift
        start, shift = start + size, shift + width
    return codes
