"""Which token comes next: greedy, or drawn by a seeded generator of its own.

All arithmetic of drawing runs on the CPU in float64 and the draw itself is one uniform number, so
that a seed gives the same tokens in every process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvbaton.errors import InputError

_FIRST_LOOK = 1024


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
    repetition_penalty
        Logits of tokens that occurred are divided by it where positive, multiplied where
        negative (CTRL, Keskar et al. 2019); 1 changes nothing.

    Raises
    ------
    InputError
        A value out of range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        _require(math.isfinite(self.temperature) and self.temperature >= 0, "temperature", ">= 0")
        _require(0 < self.top_p <= 1, "top_p", "in (0, 1]")
        _require(_is_int(self.top_k) and self.top_k >= 0, "top_k", "an integer >= 0")
        seed_ok = self.seed is None or (_is_int(self.seed) and 0 <= self.seed < 2**63)
        _require(seed_ok, "seed", "an integer from 0 to 2^63 - 1")
        penalty = self.repetition_penalty
        _require(math.isfinite(penalty) and penalty > 0, "repetition_penalty", "> 0")

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
    """Chooses the tokens of one answer; its generator is its own."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self._generator = torch.Generator("cpu")
        if sampling.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(sampling.seed)

    def __call__(self, logits: torch.Tensor, context: Sequence[int] = ()) -> int:
        """Choose a token by ``logits`` ``[vocab]``; ties go to the lowest id.

        ``context`` are the ids that the repetition penalty applies to.

        Raises
        ------
        InputError
            Logits that are not one row, or without a finite maximum.
        """
        if logits.dim() != 1 or logits.numel() == 0:
            raise InputError(f"logits must have the shape [vocab], not {list(logits.shape)}")
        scores = self._penalized(logits, context)
        best = int(torch.argmax(scores))
        if not bool(torch.isfinite(scores[best])):
            raise InputError("the model's logits are not finite")
        return best if self.sampling.is_greedy else self._draw(scores)

    def candidates(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids that can be drawn, most probable first, and their probabilities (float64).

        ``scores`` are logits ``[vocab]``; temperature, then top-k, then top-p.
        """
        scaled = scores.detach().to("cpu", torch.float64)
        scaled = (scaled - scaled.max()) / self.sampling.temperature
        top_k, top_p = self.sampling.top_k, self.sampling.top_p
        if top_k:
            ids = _largest(scaled, top_k)
            return _nucleus(ids, torch.softmax(scaled[ids], 0), top_p)
        probabilities = torch.softmax(scaled, 0)
        if top_p == 1:
            return torch.arange(scaled.numel()), probabilities
        ids = _largest(scaled, _FIRST_LOOK)
        if float(probabilities[ids].sum()) < top_p:
            ids = _largest(scaled, scaled.numel())
        return _nucleus(ids, probabilities[ids], top_p)

    def _draw(self, scores: torch.Tensor) -> int:
        ids, probabilities = self.candidates(scores)
        cumulative = torch.cumsum(probabilities, 0)
        uniform = torch.rand(1, generator=self._generator, dtype=torch.float64)
        index = torch.searchsorted(cumulative, uniform * cumulative[-1], right=True)
        return int(ids[min(int(index), ids.numel() - 1)])

    def _penalized(self, logits: torch.Tensor, context: Sequence[int]) -> torch.Tensor:
        penalty = self.sampling.repetition_penalty
        if penalty == 1 or not context:
            return logits
        seen = torch.tensor(sorted(set(context)), device=logits.device)
        scores = logits.float().clone()
        old = scores[seen]
        scores[seen] = torch.where(old > 0, old / penalty, old * penalty)
        return scores


def _largest(values: torch.Tensor, k: int) -> torch.Tensor:
    """Ids of the ``k`` largest values, descending; of equal ones the lowest ids come first."""
    ids = torch.arange(values.numel())
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
