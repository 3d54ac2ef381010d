"""Which token a V of layer 0 belongs to: how far from the expected one is another token.

V of layer 0 depends on nothing but the token's id, so what a cache holds can be compared with
what its ids give.  The differences of honest caches come from rounding and from codecs; other
tokens lie further away.  Figures are in ``docs/guides/probes.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

LOSSLESS: dict[str, float] = {"BF16": 0.01, "F16": 0.005, "F32": 0.003, "F64": 0.003}
"""Relative difference of a token's V that rounding explains, by the cache's dtype: more than ten
times what was measured for kernels and batches of all kinds, and room for TF32 on a GPU."""
CODES = 1.3
"""Part of a codec's own error by which two encodings of nearly equal V may differ: where a number
or a scale lies between two codes, rounding decides.  Measured with every number of 20,000 tokens
moved by up to one unit in its last place: at most 1.24."""
LOST_MARGIN = 2.0
"""Times the measured error of a codec through which V went before it was stored losslessly."""
UNKNOWN_LOSS = 0.05
"""Relative error that is granted where a codec has lost something and no record says how much."""
NOISE_MARGIN = 2.0
"""Times the level of noise: the norm of a token's noise hardly ever exceeds it."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """What may lie between a held and an expected V besides rounding.

    Parameters
    ----------
    dtype
        The cache's, by its safetensors name.
    lost
        Relative error of a codec through which V went before; 0 where there was none.
    noise
        Relative level of noise that was added on purpose; 0 for none.
    """

    dtype: str
    lost: float = 0.0
    noise: float = 0.0

    def first_other(
        self,
        held: torch.Tensor,
        expected: torch.Tensor,
        through: torch.Tensor | None = None,
    ) -> int | None:
        """Index of the first token whose V is not the expected one; None if all are.

        Parameters
        ----------
        held, expected
            V ``[kv_heads, n, v_dim]``: of the cache, and what the ids give.
        through
            ``expected`` after the codec chain of the segment; None where that loses nothing.
            What is held must be nearly that: equal V have equal codes.
        """
        if through is None and held.dtype == expected.dtype and held.equal(expected):
            return None  # the same machine and kernel: no norms are needed
        size = token_norms(expected)
        rounding = (LOSSLESS[self.dtype] + LOST_MARGIN * self.lost) * size
        if self.noise:
            typical = size.square().mean().sqrt()
            rounding = rounding + NOISE_MARGIN * self.noise * size.maximum(typical)
        if through is None:
            return _first_beyond(held, expected, rounding)
        error = token_norms(through.float() - expected.float())
        apart = _first_beyond(held, expected, rounding + 2 * error)
        if apart is not None or self.lost or self.noise:
            # After noise or another codec the codes are others: only the distance counts.
            return apart
        return _first_beyond(held, through, rounding + CODES * error)


def token_norms(values: torch.Tensor) -> torch.Tensor:
    """Norm ``[n]`` float32 of each token's V ``[kv_heads, n, v_dim]``, over all heads."""
    norms: torch.Tensor = values.float().norm(dim=(0, 2))
    return norms


def _first_beyond(held: torch.Tensor, wanted: torch.Tensor, limits: torch.Tensor) -> int | None:
    """Index of the first token that lies beyond its limit; a NaN is further away than any."""
    wrong = ~(token_norms(held.float() - wanted.float()) <= limits)
    return int(wrong.nonzero()[0]) if bool(wrong.any()) else None
