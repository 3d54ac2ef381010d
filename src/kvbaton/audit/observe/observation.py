"""From a log to the result: effects, how far to believe them, and what has changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvbaton.audit.observe.assignment import ArmCounts, count_arms
from kvbaton.audit.observe.drift import Alarm, drift, usable, windows
from kvbaton.audit.observe.effects import Effect, doubly_robust, effect, weighted
from kvbaton.audit.observe.placebo import Placebo, placebo
from kvbaton.audit.observe.propensity import BALANCED
from kvbaton.audit.observe.reading import Log, Observation
from kvbaton.audit.observe.sample import By, Plan, Sample, make_sample, select
from kvbaton.audit.observe.sensitivity import sensitivity
from kvbaton.audit.observe.verdict import Evidence, judge
from kvbaton.audit.statistics.values import is_constant
from kvbaton.errors import InputError
from kvbaton.types import JSON

FORMAT = "kvbaton audit observation 1"

_FEW_CONVERSATIONS = 30
_UNEVEN = 0.05


@dataclass(frozen=True, slots=True)
class _Outcome:
    """A name, its values ``[receipts]`` (not a number where there is none), and whether they are
    logarithms of seconds."""

    name: str
    values: np.ndarray
    is_log: bool


def observe(log: Log, plan: Plan | None = None, *, seed: int = 0) -> JSON:
    """Estimate what the baton route causes, from receipts of ordinary use.

    Parameters
    ----------
    log
        As :func:`read_log` gives it.
    seed
        Of the resampling and of the placebo.

    Returns
    -------
    JSON
        The result, with finite numbers or null.

    Raises
    ------
    InputError
        Too few receipts, only one route, an outcome that never varies, or a window that is none.
    """
    chosen = (plan or Plan()).resolved(log.observations)
    observations = select(log.observations, chosen)
    sample = make_sample(observations, chosen)
    counts = count_arms(observations, chosen.arms, chosen.shares) if chosen.by is By.AB else None
    outcomes = _outcomes(sample)
    if sample.comparable and is_constant(outcomes[0].values):
        raise InputError("all times to the first token are the same: nothing can be learnt")
    effects = {one.name: _estimated(one, sample, seed) for one in outcomes}
    fake = _placebo(outcomes[0], sample, effects["ttft"], seed) if sample.comparable else None
    ttft = effects["ttft"].get("log_effect")
    verdict, why = judge(Evidence(ttft, sample, counts, fake))
    return {
        "format": FORMAT,
        "by": chosen.by.value,
        "verdict": verdict.value,
        "why": why,
        "ttft_ratio": effects["ttft"]["ratio"],
        "ttft_ratio_ci": effects["ttft"]["ratio_ci"],
        "effects": {name: _without_effect(said) for name, said in effects.items()},
        "assignment": None if counts is None else counts.to_json(),
        "overlap": None if sample.overlap is None else sample.overlap.to_json(),
        "balance": [one.to_json() for one in sample.balance],
        "placebo": None if fake is None else fake.to_json(),
        "sensitivity": _sensitivity(ttft, outcomes[0].values, chosen),
        "drift": _drift(outcomes[0], sample, chosen),
        "counts": _counts(log, observations, sample),
        "warnings": [
            *log.warnings,
            *sample.warnings,
            *_warnings(log, observations, sample, counts),
        ],
        "method": _method(chosen),
        "seed": seed,
    }


def _outcomes(sample: Sample) -> list[_Outcome]:
    rows = sample.observations
    ttft = np.array([math.log(one.ttft_s or math.nan) for one in rows])
    total = np.array([math.log(one.total_s or math.nan) for one in rows])
    score = np.array([math.nan if one.score is None else one.score for one in rows])
    found = [_Outcome("ttft", ttft, is_log=True)]
    if np.isfinite(total).any():
        found.append(_Outcome("total", total, is_log=True))
    if np.isfinite(score).any():
        found.append(_Outcome("score", score, is_log=False))
    return found


# --- effects -----------------------------------------------------------------------------------


def _estimated(outcome: _Outcome, sample: Sample, seed: int) -> JSON:
    """Effects on one outcome: doubly robust, weighted and as logged."""
    there = np.isfinite(outcome.values)
    inside = there & sample.inside
    said: JSON = {"receipts": int(inside.sum()), "missing": int((~there).sum())}
    sides = [inside & sample.treated, inside & ~sample.treated]
    if not sample.comparable or min(int(side.sum()) for side in sides) < 2:
        return said | _spelled(None, None, None, outcome)
    values = outcome.values
    one = sample.subset(inside)
    best = effect(
        doubly_robust(values[inside], one.treated, one.columns, one.scores),
        one.clusters,
        seed=seed,
        fitted=one.columns.shape[1],
    )
    middle = effect(weighted(values[inside], one.treated, one.weights), one.clusters, seed=seed)
    every = sample.subset(there)
    ones = np.ones(len(every.treated))
    naive = effect(weighted(values[there], every.treated, ones), every.clusters, seed=seed)
    return said | _spelled(best, middle, naive, outcome) | {"log_effect": best}


def _spelled(
    best: Effect | None, middle: Effect | None, naive: Effect | None, outcome: _Outcome
) -> JSON:
    """Ratios for times, points for scores."""
    unit = "ratio" if outcome.is_log else "points"
    said: JSON = {}
    for prefix, found in (("", best), ("weighted_", middle), ("naive_", naive)):
        told = None
        if found is not None:
            told = found.estimate.exponential() if outcome.is_log else found.estimate.scaled(100.0)
        said[f"{prefix}{unit}"] = None if told is None else told.value
        said[f"{prefix}{unit}_ci"] = None if told is None else told.interval
    said["p"] = None if best is None else best.p
    said["conversations"] = None if best is None else best.clusters
    return said


def _without_effect(said: JSON) -> JSON:
    return {name: value for name, value in said.items() if name != "log_effect"}


def _placebo(outcome: _Outcome, sample: Sample, said: JSON, seed: int) -> Placebo | None:
    found = said.get("log_effect")
    if found is None:
        return None
    one = sample.subset(sample.inside)
    return placebo(
        outcome.values[sample.inside],
        one.treated,
        one.columns,
        one.scores,
        clusters=one.clusters,
        estimate=found.value,
        seed=seed,
    )


def _sensitivity(found: Effect | None, values: np.ndarray, plan: Plan) -> JSON | None:
    """Nothing where lots were drawn: there, no cause decides on the route."""
    if found is None or plan.by is By.AB:
        return None
    low, high = found.estimate.low, found.estimate.high
    ends = None if low is None or high is None else (low, high)
    return sensitivity(found.value, ends, float(values.std()))


# --- drift -------------------------------------------------------------------------------------


def _drift(outcome: _Outcome, sample: Sample, plan: Plan) -> JSON:
    """Windows of the effect and alarms; of the fallback share too."""
    none: JSON = {"windows": [], "alarms": [], "fallback_windows": []}
    if not sample.comparable:
        return none
    one = sample.subset(sample.inside)
    influences = doubly_robust(outcome.values[sample.inside], one.treated, one.columns, one.scores)
    cut = usable(windows(one.observations, plan.window), one.treated, one.clusters)
    alarms = drift(influences, cut, one.clusters, what="effect")
    told = []
    for window in cut:
        found = effect(influences[window.members], one.clusters[window.members], seed=0)
        told.append(
            {
                "window": window.label,
                "receipts": len(window.members),
                "ratio": found.estimate.exponential().value,
                "ratio_ci": found.estimate.exponential().interval,
            }
        )
    shares, more = _fallback_drift(sample, plan)
    said = [_alarm(alarm) for alarm in (*alarms, *more)]
    return {"windows": told, "alarms": said, "fallback_windows": shares}


def _fallback_drift(sample: Sample, plan: Plan) -> tuple[list[JSON], tuple[Alarm, ...]]:
    """Share of receipts that fell back, of those that were to come by baton."""
    offered = np.array([one.offered for one in sample.observations], dtype=bool)
    if not offered.any():
        return [], ()
    one = sample.subset(offered)
    fell = np.array([o.fell_back for o in one.observations], dtype=float)
    cut = usable(windows(one.observations, plan.window), None, one.clusters)
    told: list[JSON] = [
        {
            "window": window.label,
            "receipts": len(window.members),
            "share": float(fell[window.members].mean()),
        }
        for window in cut
    ]
    return told, drift(fell, cut, one.clusters, what="fallback")


def _alarm(alarm: Alarm) -> JSON:
    is_effect = alarm.what == "effect"
    before, after = (
        (math.exp(alarm.before), math.exp(alarm.after))
        if is_effect
        else (alarm.before, alarm.after)
    )
    what = "the ratio of times" if is_effect else "the share that fell back"
    where, else_ = ("since", "before") if alarm.kind == "since" else ("in", "elsewhere")
    sentence = f"{what} is {after:.2f} {where} {alarm.window}, and {before:.2f} {else_}"
    return {
        "what": alarm.what,
        "kind": alarm.kind,
        "window": alarm.window,
        "before": before,
        "after": after,
        "p_adjusted": alarm.p,
        "sentence": sentence,
    }


# --- what else is to be known ------------------------------------------------------------------


def _counts(log: Log, chosen: Sequence[Observation], sample: Sample) -> JSON:
    offered = [one for one in chosen if one.offered]
    fell = sum(one.fell_back for one in offered)
    routes: dict[str, int] = {}
    for one in chosen:
        routes[one.route] = routes.get(one.route, 0) + 1
    inside = sample.inside
    return {
        "lines": log.lines,
        "bad": log.bad,
        "duplicates": log.duplicates,
        "receipts": len(chosen),
        "compared": int(inside.sum()),
        "compared_baton": int((inside & sample.treated).sum()),
        "compared_text": int((inside & ~sample.treated).sum()),
        "conversations": len({one.cluster for one in chosen}),
        "routes": dict(sorted(routes.items())),
        "fallbacks": fell,
        "fallback_share": fell / len(offered) if offered else None,
    }


def _warnings(
    log: Log, chosen: Sequence[Observation], sample: Sample, counts: ArmCounts | None
) -> list[str]:
    said = []
    left = len(log.observations) - len(chosen)
    if left:
        said.append(f"{left} receipts have no time to the first token, or no arm of this test")
    if not any(one.conversation for one in chosen):
        said.append(
            "no receipt names its conversation: intervals are too narrow if receipts depend "
            "on each other"
        )
    if len({one.cluster for one in chosen}) < _FEW_CONVERSATIONS:
        said.append(f"below {_FEW_CONVERSATIONS} conversations intervals are rough")
    if counts is not None and counts.mixed:
        said.append(f"{counts.mixed} conversations have receipts of both arms")
    if counts is not None and counts.uneven:
        said.append(
            "conversations are not equally long in both arms: receipts of one get lost, or its "
            "conversations end sooner"
        )
    if counts is not None:
        said += _crossed(chosen, counts)
    if sample.overlap is not None and sample.overlap.method == "ridge":
        said.append("features tell the routes apart almost surely: scores are penalised")
    return said + _uneven(sample)


def _crossed(chosen: Sequence[Observation], counts: ArmCounts) -> list[str]:
    """Receipts that were not treated as their arm says; they count for it all the same."""
    text, baton = counts.arms
    given = sum(one.arm == text and one.offered for one in chosen)
    without = sum(one.arm == baton and not one.offered for one in chosen)
    said = []
    if given:
        said.append(f"{given} receipts of the text arm were given a baton all the same")
    if without:
        said.append(
            f"{without} receipts of the baton arm had no baton: give the label only to calls "
            "whose route the arm decides on"
        )
    return said


def _uneven(sample: Sample) -> list[str]:
    """Scores that are missing more often on one route say less than they seem to."""
    there = np.array([one.score is not None for one in sample.observations])
    if not there.any() or not sample.treated.any() or sample.treated.all():
        return []
    shares = float(there[sample.treated].mean()), float(there[~sample.treated].mean())
    if abs(shares[0] - shares[1]) <= _UNEVEN:
        return []
    return [
        f"{100 * shares[0]:.0f}% of the receipts by baton have a score, and "
        f"{100 * shares[1]:.0f}% of those by text"
    ]


def _method(plan: Plan) -> JSON:
    scores = "the planned shares" if plan.by is By.AB else "logistic regression"
    return {
        "estimate": "doubly robust (AIPW), mean over receipts",
        "scores": scores,
        "interval": "95%, bootstrap-t over conversations",
        "treatment": "as assigned"
        if plan.by is By.AB
        else ("route taken" if plan.received else "baton offered"),
        "balance_target": BALANCED,
        "window": plan.window,
        "arms": list(plan.arms),
    }
