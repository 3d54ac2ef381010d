"""How likely each receipt was to come by baton, given what is known, and what follows from it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvbaton.types import JSON

MOST_ODDS = 9.0
"""Receipts whose odds of the baton route are so many times those of all receipts, or so many times
smaller, have too few counterparts: scores outside 0.1 to 0.9 where both routes are as common."""
FEWEST_EFFECTIVE = 20
MOST_OUTSIDE = 0.5
BALANCED = 0.1

_PENALTY = 0.01
_STEEPEST = 15.0


@dataclass(frozen=True, slots=True)
class Overlap:
    """Whether both routes were used for the same kind of receipts.

    Parameters
    ----------
    scores
        ``[receipts]``, probability of the baton route.
    inside
        ``[receipts]``, whether a receipt of this kind could have come either way.
    effective
        Effective number of receipts by text and by baton once weighted, of those inside
        (Kish: square of the sum of weights over the sum of squares).
    outside
        Share of receipts outside, by text and by baton.
    method
        ``logit``, or ``ridge`` where the logistic regression had no finite answer.
    """

    scores: np.ndarray
    inside: np.ndarray
    effective: tuple[float, float]
    outside: tuple[float, float]
    outside_share: float
    method: str

    @property
    def enough(self) -> bool:
        """Whether there is enough to compare."""
        return min(self.effective) >= FEWEST_EFFECTIVE and max(self.outside) <= MOST_OUTSIDE

    def to_json(self) -> JSON:
        """As it stands in the result."""
        return {
            "enough": self.enough,
            "outside_share": self.outside_share,
            "outside": {"text": self.outside[0], "baton": self.outside[1]},
            "effective_receipts": {"text": self.effective[0], "baton": self.effective[1]},
            "method": self.method,
        }


def fit_scores(columns: np.ndarray, treated: np.ndarray) -> tuple[np.ndarray, str]:
    """Propensity scores ``[receipts]`` by logistic regression, and how they were found.

    Where features separate the routes, or nearly so, the regression is penalised (ridge).

    Parameters
    ----------
    columns
        Standardised features ``[receipts, features]``.
    treated
        ``[receipts]``, boolean.
    """
    from statsmodels.genmod.families import Binomial
    from statsmodels.genmod.generalized_linear_model import GLM

    table = np.column_stack([np.ones(len(treated)), columns])
    model = GLM(treated.astype(float), table, family=Binomial())
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            fitted = model.fit(maxiter=50)
            steep = float(np.abs(fitted.params).max())
            if fitted.converged and steep < _STEEPEST:
                return np.asarray(fitted.fittedvalues), "logit"
        except (np.linalg.LinAlgError, ValueError, FloatingPointError):
            pass  # no finite answer: the penalised one has one
        penalties = np.r_[0.0, np.full(columns.shape[1], _PENALTY)]
        ridge = model.fit_regularized(alpha=penalties, L1_wt=0.0)
        scores = np.asarray(model.predict(ridge.params, table))
    return scores, "ridge"


def overlap(columns: np.ndarray, treated: np.ndarray) -> Overlap:
    """Scores, and the receipts that both routes are used for.

    The rule is that of Crump, Hotz, Imbens and Mitnik (Biometrika 96, 2009), for odds instead of
    scores so that a rare route is no reason by itself.  Scores are fitted anew to what is inside.
    """
    scores, method = fit_scores(columns, treated)
    lowest, highest = _bounds(treated)
    low = max(lowest, float(scores[treated].min()), float(scores[~treated].min()))
    high = min(highest, float(scores[treated].max()), float(scores[~treated].max()))
    inside = (scores >= low) & (scores <= high)
    sides = ~treated, treated
    if all(np.count_nonzero(inside & side) >= FEWEST_EFFECTIVE for side in sides):
        again, method = fit_scores(columns[inside], treated[inside])
        scores = scores.copy()
        scores[inside] = np.clip(again, lowest, highest)
    weights = stabilised_weights(scores, treated)
    return Overlap(
        scores=scores,
        inside=inside,
        effective=(_kish(weights[inside & ~treated]), _kish(weights[inside & treated])),
        outside=(float(1 - inside[~treated].mean()), float(1 - inside[treated].mean())),
        outside_share=float(1 - inside.mean()),
        method=method,
    )


def stabilised_weights(scores: np.ndarray, treated: np.ndarray) -> np.ndarray:
    """Inverse-probability weights ``[receipts]``, with mean about 1 in each arm."""
    share = float(treated.mean())
    bounded = np.clip(scores, *_bounds(treated))
    return np.where(treated, share / bounded, (1 - share) / (1 - bounded))


def _bounds(treated: np.ndarray) -> tuple[float, float]:
    """Scores with odds within a factor of those of all receipts."""
    odds = float(treated.mean()) / float(1 - treated.mean())
    low, high = odds / MOST_ODDS, odds * MOST_ODDS
    return low / (1 + low), high / (1 + high)


def _kish(weights: np.ndarray) -> float:
    total = float(np.sum(weights**2))
    return float(np.sum(weights)) ** 2 / total if total > 0 else 0.0


# --- balance -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Balance:
    """Standardised difference of means of one feature, baton minus text, before and after."""

    feature: str
    before: float
    after: float

    def to_json(self) -> JSON:
        """``{"feature", "before", "after", "balanced"}``."""
        return {
            "feature": self.feature,
            "before": self.before,
            "after": self.after,
            "balanced": abs(self.after) < BALANCED,
        }


def balance(
    names: Sequence[str],
    columns: np.ndarray,
    treated: np.ndarray,
    *,
    inside: np.ndarray,
    weights: np.ndarray,
) -> tuple[Balance, ...]:
    """How alike the receipts of both routes are: as logged, and inside and weighted.

    Differences are in units of the pooled deviation as logged; the target is below 0.1 (Austin,
    Statistics in Medicine 28, 2009).
    """
    found = []
    for name, values in zip(names, columns.T, strict=True):
        spread = float(np.sqrt((values[treated].var() + values[~treated].var()) / 2)) or 1.0
        before = float(values[treated].mean() - values[~treated].mean()) / spread
        one, other = inside & treated, inside & ~treated
        after = np.nan
        if one.any() and other.any():
            means = [float(np.average(values[s], weights=weights[s])) for s in (one, other)]
            after = (means[0] - means[1]) / spread
        found.append(Balance(name, before, before if np.isnan(after) else after))
    return tuple(found)
