"""Which token a V of layer 0 belongs to: how far from the expected one is another token.

V of layer 0 depends on nothing but the token's id, so what a cache holds can be compared with
what its ids give.  The differences of honest caches come from rounding and from codecs; other
tokens lie further away.  Figures are in ``docs/guides/probes.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbaton.errors import Fault, FormatError

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
NOISE_DEVIATIONS = 6.0
"""Standard deviations by which the norm of a token's noise may exceed its level.  The norm of n
normal numbers has a relative deviation of 1 / sqrt(2 n); one head may hold most of a token."""
TELLING = 0.5
"""Part of a token's norm up to which a limit still tells tokens apart: those that have nothing in
common are about 1.4 norms away.  A limit is made of what the sender states, so without a bound of
its own the check could be talked out of seeing anything."""
NO_VALUE = 1e-3
"""Part of a usual norm below which a token has as good as no V, so that nothing can be told."""


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

        Raises
        ------
        FormatError
            ``NOT_COMPARABLE``: so much may lie between them that tokens cannot be told apart.
        """
        if through is None and held.dtype == expected.dtype and held.equal(expected):
            return None  # the same machine and kernel: no norms are needed
        size = token_norms(expected)
        slack = self._slack(expected)
        if through is None:
            _require_telling(slack, size)
            return _first_beyond(held, expected, slack)
        error = token_norms(through.float() - expected.float())
        if self.lost or self.noise:
            # After noise or another codec the codes are others: only the distance counts.
            _require_telling(slack + 2 * error, size)
            return _first_beyond(held, expected, slack + 2 * error)
        _require_telling(slack + CODES * error, size)
        apart = _first_beyond(held, expected, slack + 2 * error)
        return apart if apart is not None else _first_beyond(held, through, slack + CODES * error)

    def _slack(self, expected: torch.Tensor) -> torch.Tensor:
        """What rounding, codecs before and noise may do to each token, besides its own chain."""
        relative = LOSSLESS[self.dtype] + LOST_MARGIN * self.lost
        if self.noise:
            relative += self.noise * (1 + NOISE_DEVIATIONS / math.sqrt(2 * expected.shape[-1]))
        return relative * token_norms(expected)


def _require_telling(limits: torch.Tensor, size: torch.Tensor) -> None:
    heavy = size > NO_VALUE * size.median()
    if bool(((limits > TELLING * size) & heavy).any()):
        raise FormatError(
            "so much of the values may be lost that tokens cannot be told apart",
            fault=Fault.NOT_COMPARABLE,
        )


def token_norms(values: torch.Tensor) -> torch.Tensor:
    """Norm ``[n]`` float32 of each token's V ``[kv_heads, n, v_dim]``, over all heads."""
    norms: torch.Tensor = values.float().norm(dim=(0, 2))
    return norms


def _first_beyond(held: torch.Tensor, wanted: torch.Tensor, limits: torch.Tensor) -> int | None:
    """Index of the first token that lies beyond its limit; a NaN is further away than any."""
    wrong = ~(token_norms(held.float() - wanted.float()) <= limits)
    return int(wrong.nonzero()[0]) if bool(wrong.any()) else None
