"""A mixed model of seconds: treatments as fixed effects, unit and pair as random ones.

It is fitted to the mean log seconds of each unit, pair and treatment, so repeats are no evidence of
their own.  Its standard errors are those between units (the sandwich of Liang and Zeger, Biometrika
73, 1986): they hold where units differ in what a treatment does, where treatments differ in how
much they scatter, and where the pairs of a unit fare alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import stats
from statsmodels.regression.mixed_linear_model import MixedLM, VCSpec

from kvbaton.audit.statistics.hypotheses import holm
from kvbaton.audit.statistics.intervals import require_level
from kvbaton.audit.statistics.values import Estimate, is_constant, number_or_none, quiet

FEWEST_UNITS = 5
_SMALLEST = 1e-4
"""Residual standard deviation, on the log scale, below which a fit is singular."""
_LEAST_FREE = 1e-6
"""Of a residual: with less, a unit's own cell decides it alone."""
_OPTIMIZERS = (["lbfgs", "powell"], ["powell"], ["nm"])
"""Tried in turn: some start where the matrix of another is singular."""
_NO_FIT = (np.linalg.LinAlgError, ValueError, FloatingPointError, ZeroDivisionError)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one trial."""

    unit: str
    pair: str
    treatment: str
    seconds: float


@dataclass(frozen=True, slots=True)
class MixedFit:
    """What the model says.

    Parameters
    ----------
    ratios
        Treatment -> ratio of its seconds over those of its reference, with interval.
    p, p_holm
        Treatment -> p value of the t test that the ratio is 1, and after Holm's correction.
    spreads
        Standard deviation of each random effect on the log scale: ``unit``, ``pair``, ``rest``, the
        last of a mean over repeats.
    converged
        Whether the figures can be used.
    why
        How it was fitted, or why it could not be.
    """

    ratios: Mapping[str, Estimate] = field(default_factory=dict)
    p: Mapping[str, float | None] = field(default_factory=dict)
    p_holm: Mapping[str, float | None] = field(default_factory=dict)
    spreads: Mapping[str, float | None] = field(default_factory=dict)
    converged: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class _Cell:
    """Mean of the log seconds of a unit's trials of a treatment on a pair."""

    unit: str
    pair: str
    treatment: str
    log_s: float


def fit_mixed(
    timings: Sequence[Timing], references: Mapping[str, str], *, level: float = 0.95
) -> MixedFit:
    """Fit mean log seconds by restricted maximum likelihood.

    Treatments that fewer than five units have beside their reference, or that differ from it by the
    same in all units, have no ratio.

    Parameters
    ----------
    timings
        Of all treatments and references; what is not positive and finite is left out.
    references
        Treatment -> the one that it is compared with.
    """
    require_level(level)
    cells = _cells(timings)
    names = sorted({cell.treatment for cell in cells})
    beside = {
        name: _differences(cells, name, base)
        for name, base in sorted(references.items())
        if {name, base} <= set(names)
    }
    known = {
        name: differences
        for name, differences in beside.items()
        if len(differences) >= FEWEST_UNITS and not is_constant(differences)
    }
    if not known:
        return MixedFit(why=_refusal(cells, beside))
    columns = [name for name in names if name != names[0]]
    compared = {name: (references[name], len(differences)) for name, differences in known.items()}
    with quiet() as heard:
        try:
            fixed = _fixed(cells, columns)
            fitted = _fitted(cells, fixed)
            covariance = _between_units(cells, fixed, fitted)
        except _NO_FIT as error:
            return MixedFit(why=f"the mixed model could not be fitted: {error}")
    found = _reading(fitted, covariance, columns, compared, level, has_pairs=_has_pairs(cells))
    return replace(found, why=_told(found, beside, known, heard))


def _cells(timings: Sequence[Timing]) -> list[_Cell]:
    logs: dict[tuple[str, str, str], list[float]] = {}
    for timing in timings:
        if timing.seconds > 0 and math.isfinite(timing.seconds):
            place = (timing.unit, timing.pair, timing.treatment)
            logs.setdefault(place, []).append(math.log(timing.seconds))
    return [_Cell(*place, float(np.mean(sorted(some)))) for place, some in sorted(logs.items())]


def _refusal(cells: Sequence[_Cell], beside: Mapping[str, np.ndarray]) -> str:
    """Why no treatment has a ratio."""
    units = max((len(differences) for differences in beside.values()), default=0)
    if not units:
        return "there is no treatment that was timed beside its reference"
    if units < FEWEST_UNITS:
        return f"a mixed model needs {FEWEST_UNITS} units at least, and there are {units}"
    logs: dict[tuple[str, str], list[float]] = {}
    for cell in cells:
        logs.setdefault((cell.pair, cell.treatment), []).append(cell.log_s)
    if all(is_constant(np.asarray(some)) for some in logs.values()):
        return "all trials of a treatment took the same time, so there is no spread to model"
    return "the mixed model is singular: all units differ by the same"


def _differences(cells: Sequence[_Cell], name: str, base: str) -> np.ndarray:
    """Mean difference of a unit's log seconds, of the units that have both on a pair."""
    logs = {(cell.unit, cell.pair, cell.treatment): cell.log_s for cell in cells}
    by_unit: dict[str, list[float]] = {}
    for (unit, pair, treatment), log_s in logs.items():
        if treatment == name and (unit, pair, base) in logs:
            by_unit.setdefault(unit, []).append(log_s - logs[unit, pair, base])
    return np.asarray([float(np.mean(some)) for some in by_unit.values()])


def _has_pairs(cells: Sequence[_Cell]) -> bool:
    return len({t.pair for t in cells}) > 1


def _fixed(cells: Sequence[_Cell], columns: Sequence[str]) -> np.ndarray:
    fixed = np.zeros((len(cells), len(columns) + 1))
    fixed[:, 0] = 1.0
    place = {name: number + 1 for number, name in enumerate(columns)}
    for row, cell in enumerate(cells):
        if cell.treatment in place:
            fixed[row, place[cell.treatment]] = 1.0
    return fixed


def _fitted(cells: Sequence[_Cell], fixed: np.ndarray) -> Any:
    logs = np.asarray([cell.log_s for cell in cells])
    groups = np.asarray([cell.unit for cell in cells])
    components = _pairs_within_units(cells) if _has_pairs(cells) else None
    model = MixedLM(logs, fixed, groups, exog_re=np.ones((len(cells), 1)), exog_vc=components)
    failure: Exception | None = None
    for optimizers in _OPTIMIZERS:
        try:
            return model.fit(reml=True, method=optimizers, maxiter=200)
        except _NO_FIT as error:
            failure = error
    raise failure or ValueError("no optimizer")


def _pairs_within_units(cells: Sequence[_Cell]) -> Any:
    """Each pair of a unit has an effect of its own: one indicator column per pair."""
    names, matrices = [], []
    for unit in sorted({cell.unit for cell in cells}):
        pairs = [cell.pair for cell in cells if cell.unit == unit]
        distinct = sorted(set(pairs))
        matrices.append(np.asarray([[float(p == d) for d in distinct] for p in pairs]))
        names.append([f"pair[{d}]" for d in distinct])
    return VCSpec(["pair"], [names], [matrices])


def _between_units(cells: Sequence[_Cell], fixed: np.ndarray, fitted: Any) -> np.ndarray:
    """Covariance of the fixed effects, from what is left of each unit as a whole."""
    left = np.asarray([cell.log_s for cell in cells]) - fixed @ np.asarray(fitted.fe_params)
    units = np.asarray([cell.unit for cell in cells])
    pairs = np.asarray([cell.pair for cell in cells])
    of_unit = float(np.asarray(fitted.cov_re)[0, 0])
    of_pair = float(fitted.vcomp[0]) if len(fitted.vcomp) else 0.0
    whitened: list[tuple[np.ndarray, np.ndarray]] = []
    for unit in np.unique(units):
        mine = units == unit
        alike = pairs[mine][:, None] == pairs[mine][None, :]
        spread = float(fitted.scale) * np.eye(int(mine.sum())) + of_unit + of_pair * alike
        root = np.linalg.cholesky(spread)
        whitened.append((np.linalg.solve(root, fixed[mine]), np.linalg.solve(root, left[mine])))
    inverse = np.linalg.inv(sum(design.T @ design for design, _ in whitened))
    scores = [design.T @ _freed(design, inverse) @ rest for design, rest in whitened]
    filling = sum(np.outer(score, score) for score in scores)
    covariance: np.ndarray = inverse @ filling @ inverse
    return covariance


def _freed(design: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """Makes up for what a unit's own cells take from its residuals (Bell and McCaffrey 2002).

    The inverse root of 1 minus the unit's leverage; n / (n - 1) in all where no trial is missing.
    """
    values, vectors = np.linalg.eigh(np.eye(len(design)) - design @ inverse @ design.T)
    roots = np.where(values > _LEAST_FREE, 1 / np.sqrt(np.maximum(values, _LEAST_FREE)), 0.0)
    freed: np.ndarray = (vectors * roots) @ vectors.T
    return freed


def _reading(
    fitted: Any,
    covariance: np.ndarray,
    columns: Sequence[str],
    compared: Mapping[str, tuple[str, int]],
    level: float,
    *,
    has_pairs: bool,
) -> MixedFit:
    """Ratios of treatments, each with its reference and the number of units that have both."""
    scale = float(fitted.scale)
    if not math.isfinite(scale) or math.sqrt(max(scale, 0.0)) < _SMALLEST:
        return MixedFit(why="the mixed model is singular: nothing is left to chance")
    ratios: dict[str, Estimate] = {}
    p_values: dict[str, float | None] = {}
    for name, (base, units) in compared.items():
        contrast = np.zeros(len(columns) + 1)
        for treatment, sign in ((name, 1.0), (base, -1.0)):
            if treatment in columns:
                contrast[columns.index(treatment) + 1] += sign
        ratios[name], p_values[name] = _by_t(
            float(contrast @ np.asarray(fitted.fe_params)),
            float(contrast @ covariance @ contrast),
            units,
            level,
        )
    if any(estimate.interval is None for estimate in ratios.values()):
        return MixedFit(why="the mixed model is singular: its effects have no standard errors")
    random = {"unit": _root(float(np.asarray(fitted.cov_re)[0, 0])), "rest": _root(scale)}
    random["pair"] = _root(float(fitted.vcomp[0])) if has_pairs else None
    why = (
        "mean log seconds of each unit and treatment by restricted maximum likelihood, errors "
        "between units; random effects: unit" + (" and pair within unit" if has_pairs else "")
    )
    return MixedFit(ratios, p_values, holm(p_values), random, bool(fitted.converged), why)


def _told(
    found: MixedFit,
    beside: Mapping[str, np.ndarray],
    known: Mapping[str, np.ndarray],
    heard: Sequence[Any],
) -> str:
    """How it was fitted, and what is odd about it."""
    if not found.ratios:
        return found.why
    if not found.converged:
        return "the fit of the mixed model did not converge: read its figures with care"
    why = found.why
    if any("boundary" in str(warning.message) for warning in heard):
        why += "; a random effect is estimated as none"
    left_out = sorted(beside.keys() - known.keys())
    if left_out:
        why += f"; left out, with too few units or no spread: {', '.join(left_out)}"
    return why


def _by_t(
    effect: float, variance: float, units: int, level: float
) -> tuple[Estimate, float | None]:
    if not (math.isfinite(effect) and math.isfinite(variance) and variance > 0):
        return Estimate(None, why="no standard error"), None
    error = math.sqrt(variance)
    half = float(stats.t.ppf((1 + level) / 2, units - 1)) * error
    estimate = Estimate(effect, effect - half, effect + half, "t").exponential()
    return estimate, number_or_none(2 * float(stats.t.sf(abs(effect) / error, units - 1)))


def _root(variance: float) -> float | None:
    return number_or_none(math.sqrt(max(variance, 0.0))) if math.isfinite(variance) else None
