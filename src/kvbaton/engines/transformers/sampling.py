"""Which token comes next: greedy, or drawn by a seeded generator of its own.

Probabilities are computed in float64 and the draw itself is one uniform number from the CPU, so
that a seed gives the same tokens in every process.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kvbaton.errors import InputError

_FIRST_LOOK = 1024
"""Tokens to look at first for top-p; sorting a whole vocabulary costs more than the draw."""
_WITHOUT_FLOAT64 = ("mps",)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen.

    Parameters
    ----------
    temperature
        0 is greedy; otherwise logits are divided by it.
    top_p
        Draw from the most probable tokens whose probabilities reach this sum, in (0, 1].
    top_k
        Draw from that many most probable tokens; 0 is no limit.
    seed
        0 to 2^63 - 1; None draws a new one.

    Raises
    ------
    InputError
        A value out of range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None

    def __post_init__(self) -> None:
        _require(math.isfinite(self.temperature) and self.temperature >= 0, "temperature", ">= 0")
        _require(0 < self.top_p <= 1, "top_p", "in (0, 1]")
        _require(_is_int(self.top_k) and self.top_k >= 0, "top_k", "an integer >= 0")
        seed_ok = self.seed is None or (_is_int(self.seed) and 0 <= self.seed < 2**63)
        _require(seed_ok, "seed", "an integer from 0 to 2^63 - 1")

    @property
    def is_greedy(self) -> bool:
        """Whether nothing is drawn."""
        return self.temperature == 0


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _require(condition: bool, name: str, what: str) -> None:  # noqa: FBT001
    if not condition:
        raise InputError(f"{name} must be {what}", at=f"$.sampling.{name}")


class Sampler:
    """Chooses the tokens of one answer; its generator is its own.

    Parameters
    ----------
    sampling
        How tokens are chosen.
    device
        Where candidates are picked out: that of the logits.
    """

    def __init__(self, sampling: Sampling, device: torch.device | str = "cpu") -> None:
        self.sampling = sampling
        wanted = torch.device(device)
        self._device = torch.device("cpu") if wanted.type in _WITHOUT_FLOAT64 else wanted
        self._generator = torch.Generator("cpu")
        if sampling.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(sampling.seed)

    def __call__(self, logits: torch.Tensor) -> int:
        """Choose a token by ``logits`` ``[vocab]``; ties go to the lowest id.

        Raises
        ------
        InputError
            Logits that are not one row, or without a finite maximum.
        """
        if logits.dim() != 1 or logits.numel() == 0:
            raise InputError(f"logits must have the shape [vocab], not {list(logits.shape)}")
        best = int(torch.argmax(logits))
        if not bool(torch.isfinite(logits[best])):
            raise InputError("the model's logits are not finite")
        return best if self.sampling.is_greedy else self._draw(logits)

    def candidates(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids that can be drawn, and their probabilities (float64).

        ``logits`` ``[vocab]`` go through temperature, then top-k, then top-p.  With either limit
        the most probable ids come first; without, all ids come in ascending order.
        """
        scaled = logits.detach().to(self._device, torch.float64)
        scaled = (scaled - scaled.max()) / self.sampling.temperature
        top_k, top_p = self.sampling.top_k, self.sampling.top_p
        if top_k:
            ids = _largest(scaled, top_k)
            return _nucleus(ids, torch.softmax(scaled[ids], 0), top_p)
        probabilities = torch.softmax(scaled, 0)
        if top_p == 1:
            return torch.arange(scaled.numel(), device=scaled.device), probabilities
        ids = _largest(scaled, _FIRST_LOOK)
        if float(probabilities[ids].sum()) < top_p:
            ids = _largest(scaled, scaled.numel())
        return _nucleus(ids, probabilities[ids], top_p)

    def _draw(self, logits: torch.Tensor) -> int:
        ids, probabilities = self.candidates(logits)
        cumulative = torch.cumsum(probabilities, 0).cpu()
        uniform = torch.rand(1, generator=self._generator, dtype=torch.float64)
        index = torch.searchsorted(cumulative, uniform * cumulative[-1], right=True)
        return int(ids[min(int(index), ids.numel() - 1)])


def _largest(values: torch.Tensor, k: int) -> torch.Tensor:
    """Ids of the ``k`` largest values, descending; of equal ones the lowest ids come first."""
    ids = torch.arange(values.numel(), device=values.device)
    if k < values.numel():
        threshold = torch.topk(values, k).values[-1]
        ids = ids[values >= threshold]
    order = torch.sort(values[ids], descending=True, stable=True).indices
    return ids[order][:k]


def _nucleus(
    ids: torch.Tensor, probabilities: torch.Tensor, top_p: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The shortest beginning whose probabilities reach ``top_p``, renormalized."""
    before = torch.cumsum(probabilities, 0) - probabilities
    kept = max(1, int((before < top_p).sum()))
    chosen = probabilities[:kept]
    return ids[:kept], chosen / chosen.sum()
