"""What a number of units can show before anything is measured, and how many units it would take.

The questions of a unit turn as the Dirichlet-multinomial law has it, whose intraclass correlation
is the plan's.  Every count that all units together may come to is weighed by its chance, and judged
by the interval that the analysis will use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import stats

from kvbaton.audit.statistics.proportions import (
    FEW,
    concordant_bound,
    effective_questions,
    exact_limits,
)
from kvbaton.errors import InputError

AIM = 0.8
"""Chance with which an audit should show what is so."""
MOST_UNITS = 100_000
_NEGLIGIBLE = 1e-10
_LEAST_ICC = 1e-6
_MANY = 40.0
"""Effective number of expected odd questions from which on their law is normal enough."""
_LEAST_WEIGHT = 1e-12


@dataclass(frozen=True, slots=True)
class _Design:
    """So many units of so many questions."""

    units: int
    questions: int
    icc: float

    @property
    def effective(self) -> float:
        """Independent questions that they are worth."""
        return effective_questions([self.questions] * self.units, self.icc)

    def most(self, share: float) -> int:
        """A count that is hardly ever passed."""
        asked = self.units * self.questions
        spread = share * (1 - share) * asked * (1 + (self.questions - 1) * self.icc)
        return min(asked, math.ceil(asked * share + 9 * math.sqrt(spread)) + 6 * self.questions)


@dataclass(frozen=True, slots=True)
class Power:
    """What an audit of some size can show, if the treatment does no net harm.

    Parameters
    ----------
    units, questions, margin_points, icc, alpha, expected_discordance
        As asked; ``questions`` per unit.
    effective
        Independent questions that all questions are worth.
    power
        Chance that equivalence within the margin is shown.
    attainable_margin_points
        Margin that is shown with a chance of 80%; None where even 100 points are not.
    bound_points
        One-sided bound on the loss if not one answer turns.
    bound_units_only_points
        The same if all questions of a unit are worth one (icc 1).
    """

    units: int
    questions: int
    margin_points: float
    icc: float
    alpha: float
    expected_discordance: float
    effective: float
    power: float
    attainable_margin_points: float | None
    bound_points: float
    bound_units_only_points: float


def power_for(
    units: int,
    questions: int,
    *,
    margin_points: float = 5.0,
    icc: float = 0.3,
    alpha: float = 0.05,
    expected_discordance: float = 0.02,
) -> Power:
    """Power of an audit, where as many answers are gained as lost.

    Parameters
    ----------
    questions
        Per unit.
    expected_discordance
        Share of the questions that turn, in either direction.

    Raises
    ------
    InputError
        A number that is none of its kind.
    """
    _check(questions, margin_points, alpha, expected_discordance)
    if units < 0:
        raise InputError(f"there cannot be {units} units")
    design = _Design(units, questions, icc)
    effective, half = design.effective, expected_discordance / 2
    ends, chances = _furthest_ends(design, alpha, half, half)
    return Power(
        units=units,
        questions=questions,
        margin_points=margin_points,
        icc=icc,
        alpha=alpha,
        expected_discordance=expected_discordance,
        effective=effective,
        power=_chance_within(ends, chances, margin_points / 100),
        attainable_margin_points=_attainable(ends, chances),
        bound_points=100 * concordant_bound(effective, alpha),
        bound_units_only_points=100 * concordant_bound(units, alpha),
    )


@lru_cache(maxsize=4096)
def units_needed(
    *,
    questions: int,
    margin_points: float = 5.0,
    icc: float = 0.3,
    alpha: float = 0.05,
    lost: float = 0.0,
    gained: float = 0.0,
) -> int | None:
    """Least number of units that shows equivalence with a chance of 80%.

    Parameters
    ----------
    questions
        Per unit.
    lost, gained
        Shares of the questions that turn.

    Returns
    -------
    int or None
        None where no number does: the true difference is as large as the margin.
    """
    _check(questions, margin_points, alpha, lost + gained)
    margin = margin_points / 100
    if abs(gained - lost) >= margin:
        return None

    def shows(units: int) -> bool:
        design = _Design(units, questions, icc)
        if design.effective * (lost + gained) > _MANY:
            return _normal_power(design, alpha, lost, gained, margin) >= AIM
        ends, chances = _furthest_ends(design, alpha, lost, gained)
        return _chance_within(ends, chances, margin) >= AIM

    most = 2
    while not shows(most):
        most *= 2
        if most > MOST_UNITS:
            return None
    least = most // 2
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (least, middle) if shows(middle) else (middle, most)
    return most


def units_to_narrow(units: int, half_width: float, wanted: float) -> int | None:
    """Units for an interval of the wanted half width, as it narrows with the root of their number.

    Returns
    -------
    int or None
        None where no number of units would do, or more than 100,000.
    """
    if not wanted > 0 or not math.isfinite(half_width) or units < 1:
        return None
    needed = math.ceil(units * (half_width / wanted) ** 2)
    return max(needed, units + 1) if needed <= MOST_UNITS else None


def _check(questions: int, margin_points: float, alpha: float, discordance: float) -> None:
    if questions < 1:
        raise InputError(f"a unit has at least one question, not {questions}")
    if not 0 < margin_points <= 100:
        raise InputError(f"a margin lies between 0 and 100 points, not at {margin_points}")
    if not 0 < alpha < 0.5:
        raise InputError(f"alpha lies between 0 and 0.5, not at {alpha}")
    if not 0 <= discordance <= 1:
        raise InputError(f"a share lies between 0 and 1, not at {discordance}")


def _normal_power(
    design: _Design, alpha: float, lost: float, gained: float, margin: float
) -> float:
    """Chance of equivalence where many answers turn: of two one-sided t tests, as z tests."""
    difference = gained - lost
    error = math.sqrt(max(lost + gained - difference**2, 0.0) / design.effective)
    room = margin - float(stats.t.ppf(1 - alpha, design.units - 1)) * error
    if room <= 0 or error <= 0:
        return 0.0
    above, below = (room - difference) / error, (-room - difference) / error
    return float(stats.norm.cdf(above) - stats.norm.cdf(below))


def _furthest_ends(
    design: _Design, alpha: float, lost: float, gained: float
) -> tuple[np.ndarray, np.ndarray]:
    """End of the (1 - 2 alpha) interval that is farther from zero, and the chance of each count."""
    if design.units < 2:
        return np.ones(1), np.ones(1)
    down, up, chances = _counts(design, lost, gained)
    asked, effective = design.units * design.questions, design.effective
    lost_share, gained_share = down / asked, up / asked
    difference = gained_share - lost_share
    variance = np.maximum(lost_share + gained_share - difference**2, 0.0) / effective
    half = stats.t.ppf(1 - alpha, design.units - 1) * np.sqrt(variance)
    low, high = difference - half, difference + half
    odd = asked - np.maximum(np.maximum(down, up), asked - down - up)
    few = odd * effective / asked < FEW
    exact_low, exact_high = exact_limits(lost_share, gained_share, effective, 1 - 2 * alpha)
    low = np.where(few, np.minimum(low, exact_low), low)
    high = np.where(few, np.maximum(high, exact_high), high)
    return np.maximum(-low, high), chances


def _counts(
    design: _Design, lost: float, gained: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts of lost and gained answers over all units, and their chances.

    The law of one unit is raised to the power of the units by Fourier transform, on a grid beyond
    which the chances do not matter.
    """
    of_unit = np.arange(design.questions + 1)
    down, up = np.meshgrid(of_unit, of_unit, indexing="ij")
    inside = down + up <= design.questions
    counts = np.stack([down, up, design.questions - down - up], axis=-1)[inside]
    likeness = min(max(design.icc, _LEAST_ICC), 1 - _LEAST_ICC)
    shares = np.asarray([lost, gained, 1 - lost - gained])
    weights = np.maximum(shares * (1 - likeness) / likeness, _LEAST_WEIGHT)
    law = np.zeros(down.shape)
    law[inside] = stats.dirichlet_multinomial.pmf(counts, weights, design.questions)
    size = (design.most(lost) + 1, design.most(gained) + 1)
    spectrum = np.fft.rfft2(law, s=_at_least(size, law.shape))
    grid = np.fft.irfft2(spectrum**design.units, s=_at_least(size, law.shape))
    chances = np.maximum(grid, 0.0).ravel()
    all_down, all_up = (axis.ravel() for axis in np.indices(grid.shape))
    kept = (chances > _NEGLIGIBLE) & (all_down + all_up <= design.units * design.questions)
    return all_down[kept], all_up[kept], chances[kept]


def _at_least(size: tuple[int, int], least: tuple[int, ...]) -> tuple[int, int]:
    return max(size[0], least[0]), max(size[1], least[1])


def _chance_within(ends: np.ndarray, chances: np.ndarray, margin: float) -> float:
    return float(min(chances[ends < margin].sum(), 1.0))


def _attainable(ends: np.ndarray, chances: np.ndarray) -> float | None:
    """Least margin in points that is shown with a chance of 80%."""
    order = np.argsort(ends, kind="stable")
    reached = np.searchsorted(np.cumsum(chances[order]), AIM * (1 - 1e-9))
    if reached >= len(ends) or ends[order][reached] >= 1:
        return None
    return float(100 * ends[order][reached])
