"""A receiver watches its first tokens: a cache that is grossly wrong shows in them.

Two things are compared with honest runs of the same model: how large the activations of later
layers are when the new tokens have been fed, before anything is sampled; and how sure the model
is of its first tokens (entropy of the distribution, probability of the likeliest token).  What is
noticed and what is not stands in ``docs/guides/error-control.md``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from kvbaton.errors import Fault, FormatError
from kvbaton.probes.activations import LaterActivations
from kvbaton.probes.spread import Spread
from kvbaton.types import JSON, Reason, ReasonCode

if TYPE_CHECKING:
    from kvbaton.engines.transformers.engine import TransformersEngine

FORMAT = "kvbaton first tokens 1"


@dataclass(frozen=True, slots=True)
class AlarmCount:
    """Alarms among honest runs that the limit was not set by; ``caches`` says of what kind."""

    caches: str
    alarms: int
    runs: int


@dataclass(frozen=True)
class WatchRange:
    """Where honest runs of one model lie.

    Parameters
    ----------
    tokens
        Tokens that are watched.
    layers
        Layers whose activations are measured.
    activations
        Spread of their sizes at the last position of the first forward pass.
    choices
        Spread of the mean entropy (nats) and the mean log probability of the likeliest token.
    limit
        Distance beyond which there is an alarm.
    alarm_rate
        Share of false alarms that the limit was set for.
    runs
        Honest runs that the limit was set by.
    false_alarms
        What held-out honest runs gave.
    """

    tokens: int
    layers: tuple[int, ...]
    activations: Spread
    choices: Spread
    limit: float
    alarm_rate: float
    runs: int
    false_alarms: tuple[AlarmCount, ...] = field(default=())

    def to_json(self) -> JSON:
        """As it is stored."""
        return {
            "format": FORMAT,
            "tokens": self.tokens,
            "layers": list(self.layers),
            "activations": self.activations.to_json(),
            "choices": self.choices.to_json(),
            "limit": self.limit,
            "alarm_rate": self.alarm_rate,
            "runs": self.runs,
            "false_alarms": [
                {"caches": c.caches, "alarms": c.alarms, "runs": c.runs} for c in self.false_alarms
            ],
        }

    @classmethod
    def from_json(cls, value: Any, *, at: str = "$") -> WatchRange:
        """Read what ``to_json`` wrote.

        Raises
        ------
        FormatError
            It is something else; ``at`` names the place.
        """
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise FormatError("not a range of first tokens", fault=Fault.UNKNOWN_FORMAT, at=at)
        try:
            found = cls(
                tokens=int(value["tokens"]),
                layers=tuple(int(layer) for layer in value["layers"]),
                activations=Spread.from_json(value["activations"], at=f"{at}.activations"),
                choices=Spread.from_json(value["choices"], at=f"{at}.choices"),
                limit=float(value["limit"]),
                alarm_rate=float(value["alarm_rate"]),
                runs=int(value["runs"]),
                false_alarms=tuple(AlarmCount(**count) for count in value["false_alarms"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(
                "a damaged range of first tokens", fault=Fault.WRONG_TYPE, at=at
            ) from error
        if found.tokens < 1 or not 0 < found.limit < math.inf or min(found.layers, default=0) < 0:
            raise FormatError(
                "a range of first tokens out of range", fault=Fault.OUT_OF_RANGE, at=at
            )
        return found


class Watch:
    """Watches the first tokens of one answer.

    Parameters
    ----------
    limits
        Where honest runs lie.
    activations
        Measures the model, where ``push`` is not told what was measured.
    choices
        Whether to judge how sure the model is, too; not at temperatures above 1, for which no
        range was measured.
    """

    def __init__(
        self,
        limits: WatchRange,
        activations: LaterActivations | None = None,
        *,
        choices: bool = True,
    ) -> None:
        self.limits, self.choices = limits, choices
        self.scores: dict[str, float] = {}
        self._activations = activations
        self._seen: list[tuple[float, float]] = []

    @property
    def done(self) -> bool:
        """Whether enough tokens have been looked at."""
        return len(self._seen) >= (self.limits.tokens if self.choices else 1)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """While this is open, forward passes of this thread are measured."""
        if self._activations is None:
            yield
            return
        with self._activations.attached():
            yield

    def push(
        self, logits: torch.Tensor, activation: Sequence[float] | None = None
    ) -> Reason | None:
        """Look at the logits ``[vocab]`` of the next token; why they are odd, or None.

        ``activation`` are the sizes of the first forward pass, as ``LaterActivations`` gives them;
        by default they are asked for there.
        """
        if self.done:
            return None
        self._seen.append(sureness(logits))
        if not all(map(math.isfinite, self._seen[-1])):
            return Reason(ReasonCode.FIRST_TOKENS, "the model's logits are not finite")
        if len(self._seen) == 1:
            return self._first(activation)
        if len(self._seen) == self.limits.tokens:
            return self._all()
        return None

    def _first(self, activation: Sequence[float] | None) -> Reason | None:
        if activation is None and self._activations is not None:
            activation = self._activations.values()
        if not activation:
            return None
        score = self.limits.activations.distance(activation)
        return self._judge("activations", score, "the activations of later layers lie")

    def _all(self) -> Reason | None:
        mean = [fmean(column) for column in zip(*self._seen, strict=True)]
        score = self.limits.choices.distance(mean)
        what = f"the model's sureness of its first {len(self._seen)} tokens lies"
        return self._judge("choices", score, what)

    def _judge(self, name: str, score: float, what: str) -> Reason | None:
        self.scores[name] = score
        if score <= self.limits.limit:
            return None
        return Reason(
            ReasonCode.FIRST_TOKENS,
            f"{what} {score:.2f} times as far from the calibrated range as 95% of honest runs do, "
            f"and the limit is {self.limits.limit:.2f}",
        )

    def finish(self) -> Reason | None:
        """Judge an answer that ended before all tokens were there.

        Few tokens say little of how sure a model is: only the activations count then, and those
        have been judged already.
        """
        return None


def sureness(logits: torch.Tensor) -> tuple[float, float]:
    """Entropy (nats) of the distribution of logits ``[vocab]``, and the log probability of the
    likeliest token."""
    logs = logits.detach().float().log_softmax(-1)
    entropy = torch.special.entr(logs.exp()).sum()
    return float(entropy), float(logs.max())


def watch_of(engine: TransformersEngine, limits: WatchRange, *, choices: bool = True) -> Watch:
    """A watch of one answer of ``engine``.

    Raises
    ------
    UnsupportedModel
        The model does not keep its layers where they can be measured.
    """
    return Watch(limits, LaterActivations(engine.model, limits.layers), choices=choices)
