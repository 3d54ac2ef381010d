"""How long a sender's answer will be, from how long its input is: so that a route can be chosen
before the sender starts.

A small regression on logarithms, per agent and mode, learnt from receipts on line.  It is a ridge
towards the mean, so that two turns say little; what lies far outside of what was seen counts as if
it lay at its edge; and old turns fade.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kvbaton.errors import Fault
from kvbaton.policy.costs import SEGMENT_TOKENS, predictions_ahead
from kvbaton.policy.routes import Prediction
from kvbaton.policy.speeds import MAX_NAMED, Speeds
from kvbaton.types import JSON
from kvbaton.wire.fields import read_object, refuse

FEW = 3
"""Turns before anything is predicted of an agent."""

_FADES = 0.97
"""Weight of a turn beside the next one: some 33 count."""
_RIDGE = 0.5
"""How many turns' worth of doubt there is about any slope."""
_ODD = 3.0
"""Deviations beyond which a turn counts as if it lay there."""
_LEAST_DEVIATION = 0.1
_Z80 = 1.2816
"""Deviations within which eight of ten lie."""
_FIELDS = ("weight", "mean_x", "mean_y", "var_x", "cov", "var")
_LARGEST = 1e9
_MOST_LOG = math.log(_LARGEST)


@dataclass(frozen=True, slots=True)
class Length:
    """Tokens of an answer, and the interval in which eight of ten lie."""

    tokens: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class LengthModel:
    """Logarithm of the answer's length over that of the input's, by faded moments.

    Parameters
    ----------
    weight
        Turns that count.
    mean_x, mean_y
        Means of both logarithms.
    var_x, cov
        Variance of the input's, and covariance of both.
    var
        Variance of the answer's about what was predicted of it.
    """

    weight: float = 0.0
    mean_x: float = 0.0
    mean_y: float = 0.0
    var_x: float = 0.0
    cov: float = 0.0
    var: float = 0.0

    @property
    def slope(self) -> float:
        """Of the logarithms, drawn towards zero while there are few turns."""
        return self.cov * self.weight / (self.var_x * self.weight + _RIDGE)

    def log_tokens(self, input_tokens: int) -> float:
        """Logarithm of the answer's length."""
        return self.mean_y + self.slope * (math.log(max(1, input_tokens)) - self.mean_x)

    @property
    def deviation(self) -> float:
        """Of the logarithm; larger while little is known."""
        return math.sqrt(max(self.var, _LEAST_DEVIATION**2) * (1 + 2 / max(self.weight, 1.0)))

    def seen(self, input_tokens: int, output_tokens: int) -> LengthModel:
        """The model after one more turn."""
        x, y = math.log(max(1, input_tokens)), math.log(max(1, output_tokens))
        if not self.weight:
            return LengthModel(1.0, x, y)
        error = y - self.log_tokens(input_tokens)
        if self.weight >= FEW:
            limit = _ODD * self.deviation
            y, error = y - error + _kept(error, limit), _kept(error, limit)
        weight = _FADES * self.weight + 1
        share = 1 / weight
        dx, dy = x - self.mean_x, y - self.mean_y
        return LengthModel(
            weight,
            self.mean_x + share * dx,
            self.mean_y + share * dy,
            (1 - share) * (self.var_x + share * dx * dx),
            (1 - share) * (self.cov + share * dx * dy),
            (1 - share) * self.var + share * error * error,
        )

    def predict(self, input_tokens: int, *, at_most: int) -> Length | None:
        """The answer's length; None before there were a few turns."""
        if self.weight < 1 + _FADES + _FADES**2:  # three turns, faded
            return None
        middle, wide = self.log_tokens(input_tokens), _Z80 * self.deviation
        tokens, low, high = (
            min(at_most, max(1, round(math.exp(min(one, _MOST_LOG)))))
            for one in (middle, middle - wide, middle + wide)
        )
        return Length(tokens, low, high)


def _kept(value: float, limit: float) -> float:
    return min(max(value, -limit), limit)


@dataclass(frozen=True, slots=True)
class OutputLengths:
    """Models by agent and mode, and one of all together for agents that were not seen yet."""

    models: Mapping[str, LengthModel] = field(default_factory=dict)

    def seen(self, receipt: Mapping[str, Any]) -> OutputLengths:
        """What is known after one more receipt; the same where it says nothing.

        Answers that were cut off say nothing of how long they would have been.
        """
        try:
            tokens, answer = receipt["context_tokens"], receipt["generated_tokens"]
            agent, mode = str(receipt["agent"])[:128], str(receipt["mode"])[:32]
            cut_off = receipt.get("finish") == "length"
        except (KeyError, TypeError, AttributeError):
            return self
        counts = type(tokens) is int and type(answer) is int
        if cut_off or not counts or not (0 < tokens < _LARGEST and 0 < answer < _LARGEST):
            return self
        models = dict(self.models)
        for name in ("", _name(agent, mode)):
            if name in models or len(models) < MAX_NAMED:
                models[name] = models.get(name, LengthModel()).seen(tokens, answer)
        return replace(self, models=models)

    def predict(
        self, input_tokens: int, *, agent: str = "", mode: str = "continue", at_most: int
    ) -> Length | None:
        """How long an agent's answer will be; None before there were a few turns of anybody's.

        Parameters
        ----------
        at_most
            Tokens at which the answer is cut off.
        """
        for name in (_name(agent, mode), ""):
            model = self.models.get(name)
            found = None if model is None else model.predict(input_tokens, at_most=at_most)
            if found is not None:
                return found
        return None

    def to_json(self) -> JSON:
        """As it is stored."""
        return {
            name: {field: getattr(model, field) for field in _FIELDS}
            for name, model in sorted(self.models.items())
        }

    @classmethod
    def from_json(cls, value: Any, at: str = "$") -> OutputLengths:
        """Read what ``to_json`` wrote; raises ``FormatError``."""
        if type(value) is not dict or len(value) > MAX_NAMED:
            raise refuse("not an object of models", Fault.WRONG_TYPE, at)
        models = {}
        for name, fields in value.items():
            place = f"{at}.{name[:80]}"
            read_object(fields, place, set(_FIELDS))
            for one in _FIELDS:
                number = fields[one]
                if type(number) not in {int, float} or not abs(number) <= _LARGEST:
                    raise refuse("not a number in its range", Fault.OUT_OF_RANGE, f"{place}.{one}")
            if min(fields[one] for one in ("weight", "var_x", "var")) < 0:
                raise refuse("a variance is negative", Fault.OUT_OF_RANGE, place)
            models[name] = LengthModel(**{one: float(fields[one]) for one in _FIELDS})
        return cls(models)


def _name(agent: str, mode: str) -> str:
    return f"{agent}\n{mode}"


def foresee(
    speeds: Speeds,
    length: Length,
    *,
    input_tokens: int,
    new_tokens: int,
    store: str,
    load: float = 1.0,
    segment_tokens: int = SEGMENT_TOKENS,
) -> tuple[Prediction, ...]:
    """What every route would take once the sender has answered, before it starts.

    Parameters
    ----------
    length
        Of the sender's answer.  Intervals cover its interval, too.
    input_tokens, new_tokens
        What the sender reads, and what the receiver will add behind the sender's answer.
    """
    middle, short, long = (
        predictions_ahead(
            speeds,
            cached_tokens=input_tokens + answer,
            new_tokens=new_tokens,
            store=store,
            load=load,
            segment_tokens=segment_tokens,
        )
        for answer in (length.tokens, length.low, length.high)
    )
    return tuple(
        replace(one, low_s=min(one.low_s, low.low_s), high_s=max(one.high_s, high.high_s))
        for one, low, high in zip(middle, short, long, strict=True)
    )
