"""Right and wrong under two treatments: differences of accuracy over units of several questions.

Answers that turn are rare, and the questions of a unit tend to fare alike.  So there are two ways:

- *t*: Student's interval of the unit means, as in the paired test of equivalence.  Where enough
  turned; its coverage is as good as that of the bootstrap, which hangs on single units here.
- *exact*: where few or none turned.  Clopper-Pearson limits of the shares lost and gained on the
  *effective* number of questions (Korn and Graubard, Survey Methodology 24, 1998), combined by the
  method of variance estimates recovery (Zou and Donner, Statistics in Medicine 27, 2008).  Never
  of width zero, and never narrower than Student's interval of the unit means.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from statsmodels.stats.proportion import proportion_confint

from kvbaton.audit.statistics.intervals import require_level, student_interval
from kvbaton.audit.statistics.values import Estimate, is_constant, quiet
from kvbaton.errors import InputError

FEW = 8.0
"""Effective number of odd questions up to which the exact interval is used."""
FEWEST_FOR_ICC = 20
"""Discordant questions from which on their likeness within units is estimated."""


@dataclass(frozen=True, slots=True)
class UnitAnswers:
    """What became of the questions of one unit.

    Parameters
    ----------
    questions
        Asked under both treatments.
    lost
        Right under the reference, wrong under the treatment.
    gained
        The other way round.
    """

    questions: int
    lost: int
    gained: int

    def __post_init__(self) -> None:
        if min(self.lost, self.gained) < 0 or self.lost + self.gained > self.questions:
            raise InputError(
                f"{self.lost} lost and {self.gained} gained of {self.questions} questions"
            )

    @property
    def difference(self) -> float:
        """Accuracy under the treatment minus that under the reference."""
        return (self.gained - self.lost) / self.questions


@dataclass(frozen=True, slots=True)
class Turned:
    """All units of a comparison.

    Parameters
    ----------
    units
        Those that were asked at least one question.
    """

    units: tuple[UnitAnswers, ...]

    @classmethod
    def of(cls, units: Iterable[UnitAnswers]) -> Turned:
        """Units in an order that is always the same; those without questions are left out."""
        asked = (unit for unit in units if unit.questions)
        return cls(tuple(sorted(asked, key=lambda u: (u.questions, u.lost, u.gained))))

    @property
    def questions(self) -> int:
        """Of all units."""
        return sum(unit.questions for unit in self.units)

    @property
    def lost(self) -> int:
        """Questions that were lost."""
        return sum(unit.lost for unit in self.units)

    @property
    def gained(self) -> int:
        """Questions that were gained."""
        return sum(unit.gained for unit in self.units)

    @property
    def odd(self) -> int:
        """Questions that did not fare as most did: few of them say little about spread."""
        same = self.questions - self.lost - self.gained
        return self.questions - max(same, self.lost, self.gained)

    @property
    def differences(self) -> np.ndarray:
        """Of accuracy, per unit."""
        return np.asarray([unit.difference for unit in self.units], dtype=np.float64)

    def effective(self, icc: float) -> float:
        """Effective number of questions; see ``effective_questions``."""
        return effective_questions([unit.questions for unit in self.units], icc)


def effective_questions(sizes: Sequence[int], icc: float) -> float:
    """How many independent questions the clustered ones are worth (Kish's design effect).

    ``n * m / (1 + (m - 1) * icc)`` for ``n`` units of ``m`` questions; with unequal sizes ``m`` in
    the design effect is the mean size that a question sees.

    Raises
    ------
    InputError
        ``icc`` is not between 0 and 1.
    """
    if not 0 <= icc <= 1:
        raise InputError(f"an intraclass correlation lies between 0 and 1, not at {icc}")
    total = sum(sizes)
    if not total:
        return 0.0
    seen = sum(size * size for size in sizes) / total
    return total / (1 + (seen - 1) * icc)


def concordant_bound(effective: float, alpha: float) -> float:
    """One-sided upper limit of a share that never occurred in ``effective`` questions."""
    return 1.0 if effective <= 0 else 1 - alpha ** (1 / effective)


def exact_interval(
    lost: float, gained: float, questions: float, *, effective: float, level: float = 0.95
) -> tuple[float, float]:
    """Limits of the difference of accuracy from what was lost and gained.

    Parameters
    ----------
    lost, gained, questions
        As counted.
    effective
        How many independent questions they are worth.
    """
    require_level(level)
    if questions <= 0 or effective <= 0:
        return -1.0, 1.0
    low, high = exact_limits(
        np.asarray(lost / questions), np.asarray(gained / questions), effective, level
    )
    return float(low), float(high)


def exact_limits(
    down: np.ndarray, up: np.ndarray, effective: float, level: float
) -> tuple[np.ndarray, np.ndarray]:
    """The same for many shares lost and gained at once, all arrays of one shape."""
    down_low, down_high = _clopper_pearson(down, effective, level)
    up_low, up_high = _clopper_pearson(up, effective, level)
    low = up - down - np.hypot(up - up_low, down_high - down)
    high = up - down + np.hypot(up_high - up, down - down_low)
    return np.maximum(low, -1.0), np.minimum(high, 1.0)


def accuracy_difference(turned: Turned, *, icc: float, level: float = 0.95) -> Estimate:
    """Difference of accuracy, treatment minus reference, as a share, with its interval.

    Parameters
    ----------
    icc
        How alike the questions of a unit fare, 0 to 1; it matters to the exact interval, and to
        whether that is used.
    """
    require_level(level)
    if not turned.units:
        return Estimate(None, why="no question was asked under both treatments")
    by_t = student_interval(turned.differences, level=level)
    if not is_sparse(turned, icc=icc):
        return Estimate(by_t.value, *_clipped(by_t.interval or []), by_t.method)
    exact = exact_interval(
        turned.lost, turned.gained, turned.questions, effective=turned.effective(icc), level=level
    )
    value = float(turned.differences.mean())
    return Estimate(value, *_clipped([value, *exact, *(by_t.interval or [])]), "exact")


def _clipped(ends: Sequence[float]) -> tuple[float, float]:
    return max(min(ends, default=-1.0), -1.0), min(max(ends, default=1.0), 1.0)


def is_sparse(turned: Turned, *, icc: float) -> bool:
    """Whether too few questions are odd for the spread of unit means to be trusted."""
    if is_constant(turned.differences):
        return True
    return turned.odd * turned.effective(icc) / turned.questions < FEW


def intraclass(several: Iterable[Turned]) -> float | None:
    """How alike questions of a unit fare, from the discordances of comparisons that have enough.

    The estimator is that of the one-way analysis of variance, mean squares pooled over comparisons
    (Donner, International Statistical Review 54, 1986).

    Returns
    -------
    float or None
        0 to 1; None with too few discordances, or units of one question.
    """
    between = within = between_free = within_free = size_sum = 0.0
    for turned in several:
        units, total = len(turned.units), turned.questions
        if turned.lost + turned.gained < FEWEST_FOR_ICC or units < 2 or total <= units:
            continue
        sizes = np.asarray([unit.questions for unit in turned.units], dtype=np.float64)
        means = turned.differences
        grand = float((sizes * means).sum() / total)
        squares = turned.lost + turned.gained
        between += float((sizes * (means - grand) ** 2).sum())
        within += squares - float((sizes * means**2).sum())
        between_free += units - 1
        within_free += total - units
        size_sum += total - float((sizes**2).sum()) / total
    if not between_free or not within_free:
        return None
    size = size_sum / between_free
    one, two = between / between_free, within / within_free
    below = one + (size - 1) * two
    return None if below <= 0 else min(max((one - two) / below, 0.0), 1.0)


def _clopper_pearson(
    share: np.ndarray, effective: float, level: float
) -> tuple[np.ndarray, np.ndarray]:
    distinct, places = np.unique(share, return_inverse=True)
    with quiet():
        low, high = proportion_confint(
            distinct * effective, effective, alpha=1 - level, method="beta"
        )
    low = np.where((distinct <= 0) | ~np.isfinite(low), 0.0, low)
    high = np.where((distinct >= 1) | ~np.isfinite(high), 1.0, high)
    return low[places].reshape(share.shape), high[places].reshape(share.shape)
