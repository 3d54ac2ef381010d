"""What a treatment does against its reference, analysed as assigned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kvbaton.audit.analysis.blocks import (
    BATON,
    Block,
    as_treated,
    is_right,
    mean_or_none,
    number_in,
    turned,
    unit_log_ratios,
    unit_mean,
)
from kvbaton.audit.analysis.result import (
    AsTreated,
    EffectSize,
    Percentiles,
    QualityVerdict,
    SpeedVerdict,
    Tests,
    Verdict,
)
from kvbaton.audit.analysis.runs import Compared
from kvbaton.audit.analysis.verdicts import (
    SAME_SHARE,
    Quality,
    Rule,
    overall_verdict,
    quality_verdict,
    speed_verdict,
)
from kvbaton.audit.statistics.hypotheses import (
    accuracy_differs,
    equivalence,
    exact_mcnemar,
    holm,
    location,
    paired_t,
    wilcoxon,
)
from kvbaton.audit.statistics.intervals import mean_interval
from kvbaton.audit.statistics.power import units_needed, units_to_narrow
from kvbaton.audit.statistics.proportions import Turned, accuracy_difference, concordant_bound
from kvbaton.audit.statistics.sizes import (
    cliffs_delta,
    cohen_h,
    odds_ratio,
    percentile,
    rank_biserial,
)
from kvbaton.audit.statistics.values import Estimate, Finding


@dataclass(frozen=True, slots=True)
class Effect:
    """A treatment against its reference, before correction for the number of comparisons."""

    blocks: Sequence[Block]
    treatment: Compared
    rule: Rule
    """With the icc that is used."""
    logs: Mapping[str, float]
    """Unit -> log ratio of the time to the first token."""
    ratio: Estimate
    turned: Turned
    quality: Quality
    speed_test: Finding
    quality_test: Finding

    @property
    def units(self) -> int:
        """That have trials of both, timed or asked."""
        return max(len(self.logs), len(self.turned.units))


@dataclass(frozen=True, slots=True)
class Judged:
    """Verdicts of an effect."""

    quality: QualityVerdict
    speed: SpeedVerdict
    verdict: Verdict
    why: str
    units_needed: int | None


def effect_of(blocks: Sequence[Block], treatment: Compared, rule: Rule, *, seed: int) -> Effect:
    """Compare a treatment with its reference over blocks."""
    name, base = treatment.name, treatment.reference
    logs = unit_log_ratios(blocks, name, base, "ttft_s")
    numbers = np.asarray(list(logs.values()), dtype=np.float64)
    found = turned(blocks, name, base)
    return Effect(
        blocks,
        treatment,
        rule,
        logs,
        mean_interval(numbers, level=rule.level, seed=seed).exponential(),
        found,
        quality_of(found, rule),
        location(numbers),
        accuracy_differs(found, icc=rule.icc),
    )


def quality_of(found: Turned, rule: Rule) -> Quality:
    """Difference of accuracy at both levels of confidence."""
    wide, narrow = (
        accuracy_difference(found, icc=rule.icc, level=level)
        for level in (rule.level, rule.equivalence_level)
    )
    return Quality(wide, narrow)


Corrected = Mapping[tuple[str, str], float | None]
"""(label, ``speed`` or ``quality``) -> p value after Holm's correction."""


def corrected_together(effects: Mapping[str, Effect]) -> Corrected:
    """The tests of speed and of accuracy of all effects that are read together, by label."""
    p_values: dict[tuple[str, str], float | None] = {}
    for label, effect in effects.items():
        p_values[label, "speed"] = effect.speed_test.p
        p_values[label, "quality"] = effect.quality_test.p
    return holm(p_values)


def judged(effect: Effect, label: str, corrected: Corrected) -> Judged:
    """The verdicts of an effect, with the p values of its label."""
    quality = quality_verdict(effect.quality, effect.rule, p_holm=corrected[label, "quality"])
    speed = speed_verdict(effect.ratio, effect.rule, p_holm=corrected[label, "speed"])
    verdict, why = overall_verdict(quality, speed, effect.ratio)
    needed = _units_needed(effect, quality[0], speed[0]) if verdict is Verdict.UNDECIDED else None
    if not effect.turned.units and effect.logs:
        why += " So this is about speed alone."
    if not effect.logs and effect.turned.units:
        why += " So this is about answers alone."
    if verdict is Verdict.UNDECIDED and needed is not None:
        why += f" About {needed} units would decide."
    return Judged(quality[0], speed[0], verdict, why, needed)


def ratio_of(effect: Effect, name: str, *, reference: str = "", seed: int) -> Estimate:
    """Ratio of another field of the timed trials, such as ``e2e_s``."""
    base = reference or effect.treatment.reference
    logs = unit_log_ratios(effect.blocks, effect.treatment.name, base, name)
    numbers = np.asarray(list(logs.values()), dtype=np.float64)
    return mean_interval(numbers, level=effect.rule.level, seed=seed).exponential()


def tests_of(effect: Effect) -> dict[str, Finding]:
    """All tests, by the names of the result."""
    logs = np.asarray(list(effect.logs.values()), dtype=np.float64)
    mcnemar = Finding("mcnemar", None, why="no question was asked under both treatments")
    if effect.turned.units:
        mcnemar = exact_mcnemar(effect.turned.lost, effect.turned.gained)
    return {
        "mcnemar_p": mcnemar,
        "wilcoxon_p": wilcoxon(logs),
        "paired_t_p": paired_t(logs),
        "tost_p": equivalence(effect.turned, margin=effect.rule.margin, icc=effect.rule.icc),
    }


def tests_json(found: Mapping[str, Finding], corrected: Mapping[str, float | None]) -> Tests:
    """Tests as the result has them."""
    notes = [
        f"{'speed, by ' if key == 'speed' else ''}{test.test}: {test.why}"
        for key, test in found.items()
        if test.why
    ]
    return Tests(
        mcnemar_p=found["mcnemar_p"].p,
        mcnemar_p_holm=corrected["mcnemar_p"],
        wilcoxon_p=found["wilcoxon_p"].p,
        wilcoxon_p_holm=corrected["wilcoxon_p"],
        paired_t_p=found["paired_t_p"].p,
        paired_t_p_holm=corrected["paired_t_p"],
        tost_p=found["tost_p"].p,
        tost_p_holm=corrected["tost_p"],
        notes=notes,
    )


def sizes_of(effect: Effect) -> EffectSize:
    """Effect sizes: of unit means of seconds, and of right answers."""
    name, base = effect.treatment.name, effect.treatment.reference
    here = [b for b in effect.blocks if b.unit in effect.logs]
    means = {
        one: [mean_or_none(block.seconds(one, "ttft_s")) for block in here] for one in (name, base)
    }
    treated = unit_mean(effect.blocks, name, is_right, among=base)
    reference = unit_mean(effect.blocks, base, is_right, among=name)
    return EffectSize(
        cliffs_delta=cliffs_delta(*([x for x in means[one] if x is not None] for one in means)),
        rank_biserial=rank_biserial(list(effect.logs.values())),
        cohen_h=cohen_h(treated, reference),
        odds_ratio=odds_ratio(effect.turned.gained, effect.turned.lost),
    )


def as_treated_json(effect: Effect, *, seed: int) -> AsTreated:
    """The effect over trials that took the assigned route."""
    name, base = effect.treatment.name, effect.treatment.reference
    kept = as_treated(effect.blocks, name)
    again = effect_of(kept, effect.treatment, effect.rule, seed=seed)
    return AsTreated(
        timed=sum(len(block.timed.get(name, ())) for block in kept),
        questions=again.turned.questions,
        ttft_ratio=again.ratio.value,
        ttft_ratio_ci=again.ratio.interval,
        accuracy=unit_mean(kept, name, is_right, among=base),
        accuracy_difference_points=again.quality.difference.scaled(100).value,
    )


def percentiles_of(blocks: Sequence[Block], treatment: str, name: str) -> Percentiles:
    """Percentiles of a field over all timed trials."""
    several = [block.seconds(treatment, name) for block in blocks]
    numbers = np.concatenate(several) if several else np.zeros(0)
    return Percentiles(
        p50=percentile(numbers, 0.5), p90=percentile(numbers, 0.9), p99=percentile(numbers, 0.99)
    )


def routes_of(blocks: Sequence[Block], treatment: str) -> tuple[dict[str, int], dict[str, int]]:
    """How often each route was taken, and each reason given, over timed trials and answers."""
    routes: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for block in blocks:
        trials = [*block.timed.get(treatment, ())]
        if treatment in block.quality:
            trials.append(block.quality[treatment])
        routes.update(str(trial.get("route", "unknown")) for trial in trials)
        reasons.update(str(code) for trial in trials for code in trial.get("reasons", ()))
    return dict(sorted(routes.items())), dict(sorted(reasons.items()))


def fallback_share(treatment: Compared, routes: Mapping[str, int]) -> float:
    """Share of the trials whose route was not the assigned one; 0 for references."""
    total = sum(routes.values())
    if treatment.is_reference or not total:
        return 0.0
    return 1 - routes.get(BATON, 0) / total


def trial_mean(blocks: Sequence[Block], treatment: str, name: str) -> float | None:
    """Mean of a field over timed trials."""
    return mean_or_none(
        number_in(trial.get(name)) for block in blocks for trial in block.timed.get(treatment, ())
    )


def quality_mean(blocks: Sequence[Block], treatment: str, name: str) -> float | None:
    """Mean of a field over the records of answers."""
    return mean_or_none(
        number_in(block.quality[treatment].get(name))
        for block in blocks
        if treatment in block.quality
    )


def bound_units_only(found: Turned, rule: Rule) -> float | None:
    """Exact bound on the loss in points, all questions of a unit being worth one."""
    if not found.units:
        return None
    if not found.lost + found.gained:
        return 100 * concordant_bound(len(found.units), rule.alpha)
    low = accuracy_difference(found, icc=1.0, level=rule.equivalence_level).low
    return None if low is None else max(0.0, -100 * low)


def _units_needed(effect: Effect, quality: QualityVerdict, speed: SpeedVerdict) -> int | None:
    """Units that it takes to decide all that is undecided; None where a part stays open."""
    wanted: list[int | None] = []
    if quality is QualityVerdict.UNDECIDED:
        wanted.append(_for_quality(effect))
    if speed is SpeedVerdict.UNDECIDED:
        wanted.append(_for_speed(effect))
    known = [number for number in wanted if number is not None]
    return max(known, default=None) if len(known) == len(wanted) else None


def _for_quality(effect: Effect) -> int | None:
    found, rule = effect.turned, effect.rule
    if not found.questions:
        return None
    lost, gained = found.lost / found.questions, found.gained / found.questions
    wide = effect.quality.difference
    if abs(gained - lost) >= rule.margin and wide.low is not None and wide.high is not None:
        return units_to_narrow(len(found.units), (wide.high - wide.low) / 2, abs(gained - lost))
    needed = units_needed(
        questions=max(1, round(found.questions / len(found.units))),
        margin_points=rule.margin_points,
        icc=rule.icc,
        alpha=rule.alpha,
        lost=lost,
        gained=gained,
    )
    return None if needed is None else max(needed, len(found.units) + 1)


def _for_speed(effect: Effect) -> int | None:
    low, high, value = effect.ratio.low, effect.ratio.high, effect.ratio.value
    if low is None or high is None or value is None:
        return None
    center, half = abs(float(np.log(value))), float(np.log(high / low)) / 2
    same = float(np.log(1 + SAME_SHARE))
    return units_to_narrow(len(effect.logs), half, center if center >= same else same - center)
