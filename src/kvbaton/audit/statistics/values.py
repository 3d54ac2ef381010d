"""What a test or an estimate gives: numbers that are finite or None, and a sentence."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

Sample = Sequence[float] | np.ndarray
"""Numbers, one per unit or trial."""

_ALIKE = 1e-9
"""Samples whose relative spread is below this are constant: what is left is rounding."""
_LARGEST = 1e100
"""What is larger counts as infinite: its square would be."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its interval.

    Parameters
    ----------
    value
        None where there is no observation.
    low, high
        Ends of the interval; None where the data give none, both or neither.
    method
        How the interval was made: ``bootstrap-t``, ``t``, ``exact``, or empty.
    why
        Why there is no value or interval; empty where there is one.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    method: str = ""
    why: str = ""

    @property
    def interval(self) -> list[float] | None:
        """``[low, high]``, or None."""
        return None if self.low is None or self.high is None else [self.low, self.high]

    def within(self, margin: float) -> bool:
        """Whether the whole interval lies strictly between ``-margin`` and ``margin``."""
        if self.low is None or self.high is None:
            return False
        return -margin < self.low and self.high < margin

    def scaled(self, factor: float) -> Estimate:
        """The same in other units."""
        value, low, high = (None if x is None else x * factor for x in self._numbers())
        return Estimate(value, low, high, self.method, self.why)

    def exponential(self) -> Estimate:
        """From logarithms of ratios to ratios."""
        value, low, high = (None if x is None else _exp(x) for x in self._numbers())
        return Estimate(value, low, high, self.method, self.why)

    def _numbers(self) -> tuple[float | None, float | None, float | None]:
        return self.value, self.low, self.high


@dataclass(frozen=True, slots=True)
class Finding:
    """What a test found.

    Parameters
    ----------
    test
        Its name.
    p
        Between 0 and 1; None where the test says nothing about such data.
    statistic
        As the library gives it.
    why
        Why there is no p value, or what is to be known about it.
    """

    test: str
    p: float | None
    statistic: float | None = None
    why: str = ""


def finite(sample: Iterable[float | None]) -> np.ndarray:
    """The finite numbers of a sample, float64 ``[n]``; finite is what is at most 1e100."""
    numbers = np.asarray([math.nan if x is None else x for x in sample], dtype=np.float64)
    return numbers[np.abs(numbers) <= _LARGEST]


def is_constant(sample: np.ndarray) -> bool:
    """Whether all numbers are the same but for rounding; so is a sample of one or none."""
    if sample.size < 2:
        return True
    return bool(np.ptp(sample) <= _ALIKE * max(np.abs(sample).max(), _ALIKE))


def number_or_none(value: float) -> float | None:
    """A float; None for what is not finite."""
    return float(value) if math.isfinite(value) else None


@contextmanager
def quiet() -> Iterator[list[warnings.WarningMessage]]:
    """Libraries' warnings become entries of a list instead of lines on the terminal."""
    with warnings.catch_warnings(record=True) as heard, np.errstate(all="ignore"):
        warnings.simplefilter("always")
        yield heard


def _exp(x: float) -> float:
    return math.exp(min(max(x, -700.0), 700.0))
