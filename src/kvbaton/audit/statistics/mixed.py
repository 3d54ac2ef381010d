"""A mixed model of seconds: treatments as fixed effects, unit and pair as random ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
        Treatment -> p value of Wald's test that the ratio is 1, and after Holm's correction.
    spreads
        Standard deviation of each random effect on the log scale: ``unit``, ``pair``, ``rest``.
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


def fit_mixed(
    timings: Sequence[Timing], references: Mapping[str, str], *, level: float = 0.95
) -> MixedFit:
    """Fit log seconds by restricted maximum likelihood.

    Parameters
    ----------
    timings
        Of all treatments and references; what is not positive and finite is left out.
    references
        Treatment -> the one that it is compared with.
    """
    require_level(level)
    kept = sorted(
        (t for t in timings if t.seconds > 0 and math.isfinite(t.seconds)),
        key=lambda t: (t.unit, t.pair, t.treatment, t.seconds),
    )
    names = sorted({t.treatment for t in kept})
    compared = {
        name: base for name, base in sorted(references.items()) if {name, base} <= set(names)
    }
    refused = _refusal(kept, compared)
    if refused:
        return MixedFit(why=refused)
    columns = [name for name in names if name != names[0]]
    with quiet() as heard:
        try:
            fitted = _model(kept, columns).fit(reml=True, method=["lbfgs", "powell"], maxiter=200)
        except (np.linalg.LinAlgError, ValueError, FloatingPointError, ZeroDivisionError) as error:
            return MixedFit(why=f"the mixed model could not be fitted: {error}")
        return _reading(fitted, columns, compared, level, has_pairs=_has_pairs(kept), heard=heard)


def _refusal(kept: Sequence[Timing], compared: Mapping[str, str]) -> str:
    if not compared:
        return "there is no treatment that was timed beside its reference"
    units = len({t.unit for t in kept})
    if units < FEWEST_UNITS:
        return f"a mixed model needs {FEWEST_UNITS} units at least, and there are {units}"
    by_cell: dict[tuple[str, str], list[float]] = {}
    for timing in kept:
        by_cell.setdefault((timing.pair, timing.treatment), []).append(math.log(timing.seconds))
    if all(is_constant(np.asarray(cell)) for cell in by_cell.values()):
        return "all trials of a treatment took the same time, so there is no spread to model"
    if all(is_constant(_differences(kept, *two)) for two in compared.items()):
        return "the mixed model is singular: all units differ by the same"
    return ""


def _differences(kept: Sequence[Timing], name: str, base: str) -> np.ndarray:
    """Differences of mean log seconds, of all units and pairs that have both."""
    logs: dict[tuple[str, str, str], list[float]] = {}
    for timing in kept:
        place = (timing.unit, timing.pair, timing.treatment)
        logs.setdefault(place, []).append(math.log(timing.seconds))
    means = {place: float(np.mean(some)) for place, some in logs.items()}
    return np.asarray(
        [
            mean - means[unit, pair, base]
            for (unit, pair, treatment), mean in means.items()
            if treatment == name and (unit, pair, base) in means
        ]
    )


def _has_pairs(kept: Sequence[Timing]) -> bool:
    return len({t.pair for t in kept}) > 1


def _model(kept: Sequence[Timing], columns: Sequence[str]) -> Any:
    logs = np.log([t.seconds for t in kept])
    fixed = np.zeros((len(kept), len(columns) + 1))
    fixed[:, 0] = 1.0
    place = {name: number + 1 for number, name in enumerate(columns)}
    for row, timing in enumerate(kept):
        if timing.treatment in place:
            fixed[row, place[timing.treatment]] = 1.0
    groups = np.asarray([t.unit for t in kept])
    components = _pairs_within_units(kept) if _has_pairs(kept) else None
    return MixedLM(logs, fixed, groups, exog_re=np.ones((len(kept), 1)), exog_vc=components)


def _pairs_within_units(kept: Sequence[Timing]) -> Any:
    """Each pair of a unit has an effect of its own: one indicator column per pair."""
    names, matrices = [], []
    for unit in sorted({t.unit for t in kept}):
        pairs = [t.pair for t in kept if t.unit == unit]
        distinct = sorted(set(pairs))
        matrices.append(np.asarray([[float(p == d) for d in distinct] for p in pairs]))
        names.append([f"pair[{d}]" for d in distinct])
    return VCSpec(["pair"], [names], [matrices])


def _reading(
    fitted: Any,
    columns: Sequence[str],
    compared: Mapping[str, str],
    level: float,
    *,
    has_pairs: bool,
    heard: Sequence[Any],
) -> MixedFit:
    scale = float(fitted.scale)
    if not math.isfinite(scale) or math.sqrt(max(scale, 0.0)) < _SMALLEST:
        return MixedFit(why="the mixed model is singular: nothing is left to chance")
    ratios: dict[str, Estimate] = {}
    p_values: dict[str, float | None] = {}
    for name, base in compared.items():
        contrast = np.zeros(len(columns) + 1)
        for treatment, sign in ((name, 1.0), (base, -1.0)):
            if treatment in columns:
                contrast[columns.index(treatment) + 1] += sign
        covariance = np.asarray(fitted.cov_params())[: len(contrast), : len(contrast)]
        ratios[name], p_values[name] = _wald(
            float(contrast @ np.asarray(fitted.fe_params)),
            float(contrast @ covariance @ contrast),
            level,
        )
    if any(estimate.interval is None for estimate in ratios.values()):
        return MixedFit(why="the mixed model is singular: its effects have no standard errors")
    random = {"unit": _root(float(np.asarray(fitted.cov_re)[0, 0])), "rest": _root(scale)}
    random["pair"] = _root(float(fitted.vcomp[0])) if has_pairs else None
    converged = bool(fitted.converged)
    why = "log seconds by restricted maximum likelihood; random effects: unit" + (
        " and pair within unit" if has_pairs else ""
    )
    if not converged:
        why = "the fit of the mixed model did not converge: read its figures with care"
    elif any("boundary" in str(warning.message) for warning in heard):
        why += "; a random effect is estimated as none"
    return MixedFit(ratios, p_values, holm(p_values), random, converged, why)


def _wald(effect: float, variance: float, level: float) -> tuple[Estimate, float | None]:
    if not (math.isfinite(effect) and math.isfinite(variance) and variance > 0):
        return Estimate(None, why="no standard error"), None
    error = math.sqrt(variance)
    half = float(stats.norm.ppf((1 + level) / 2)) * error
    estimate = Estimate(effect, effect - half, effect + half, "wald").exponential()
    return estimate, number_or_none(2 * float(stats.norm.sf(abs(effect) / error)))


def _root(variance: float) -> float | None:
    return number_or_none(math.sqrt(max(variance, 0.0))) if math.isfinite(variance) else None
