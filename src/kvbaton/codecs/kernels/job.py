"""What a kernel is told about K or V of a layer: integers in one array, by these places."""

from __future__ import annotations

(
    HEADS, TOKENS, DIM, EXACT, TILE, GROUP, AXIS, BITS, KIND, SYMMETRIC, ROTARY, PAIRING, BLOCK,
    PARAMETERS, CODES, COUNT_PER_HEAD, PACKED_PER_HEAD, TABLE,
) = range(18)  # fmt: skip
SIZE = 18
THRESHOLDS, BEYOND, NORM, TURNS = 256, 512, 514, 520
"""Places in a kernel's table of floats, behind the scales: thresholds of scales, one that every
scale is below, the Hadamard transform's norm, and cosines."""
CHANNEL_AXIS, TOKEN_AXIS = 0, 1
