"""One row of the result per treatment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvbaton.audit.analysis.attribution import TEXT_ONLY
from kvbaton.audit.analysis.blocks import Block, is_right, mean_or_none, number_in, unit_mean
from kvbaton.audit.analysis.effects import (
    Effect,
    Judged,
    as_treated_json,
    bound_units_only,
    corrected_together,
    effect_of,
    fallback_share,
    judged,
    percentiles_of,
    quality_mean,
    quality_of,
    ratio_of,
    routes_of,
    sizes_of,
    tests_json,
    tests_of,
    trial_mean,
)
from kvbaton.audit.analysis.result import (
    AsTreated,
    Discordant,
    EffectSize,
    QualityVerdict,
    SpeedVerdict,
    Tests,
    TreatmentResult,
    Verdict,
)
from kvbaton.audit.analysis.runs import Compared
from kvbaton.audit.analysis.verdicts import Rule
from kvbaton.audit.statistics.hypotheses import accuracy_differs, holm
from kvbaton.audit.statistics.proportions import intraclass
from kvbaton.audit.statistics.sizes import geometric_mean
from kvbaton.audit.statistics.values import Finding

_TESTS = ("mcnemar_p", "wilcoxon_p", "paired_t_p", "tost_p")
_NO_FLOOR = 1e-9
"""A noise floor below this is none: multiples of it say nothing."""


@dataclass(frozen=True, slots=True)
class Floor:
    """How far two prefills of the same ids lie apart; None where it was not measured."""

    kl: float | None
    flips: float | None


def treatment_rows(
    blocks: Sequence[Block],
    treatments: Mapping[str, Compared],
    rule: Rule,
    floor: Floor,
    *,
    seed: int,
) -> dict[str, TreatmentResult]:
    """All treatments, each test corrected over all that are compared."""
    effects = {
        name: effect_of(blocks, one, rule, seed=seed)
        for name, one in treatments.items()
        if not one.is_reference
    }
    effects = {name: _with_icc(effect, effects) for name, effect in effects.items()}
    found = {name: tests_of(effect) for name, effect in effects.items()}
    corrected = {
        test: holm({name: tests[test].p for name, tests in found.items()}) for test in _TESTS
    }
    together = corrected_together(effects)
    rows: dict[str, TreatmentResult] = {}
    for name, treatment in treatments.items():
        row = _measured(blocks, treatment, floor)
        if name in effects:
            effect = effects[name]
            tests = {**found[name], "speed": effect.speed_test, "accuracy": effect.quality_test}
            mine = {test: corrected[test][name] for test in _TESTS}
            row |= _compared(effect, tests, mine, judged(effect, name, together), seed=seed)
        rows[name] = row  # type: ignore[assignment]
    return rows


def _with_icc(effect: Effect, effects: Mapping[str, Effect]) -> Effect:
    """The effect with the likeness that others show, where it is more than the plan's.

    Others are the candidates with the same reference: what controls lose depends on what the
    tasks need, which says nothing about chance.
    """
    mine = effect.treatment
    others = [
        other.turned
        for name, other in sorted(effects.items())
        if name != mine.name
        and other.treatment.role == "candidate"
        and other.treatment.reference == mine.reference
    ]
    found = intraclass(others)
    if found is None or found <= effect.rule.icc:
        return effect
    rule = replace(effect.rule, icc=found)
    return replace(
        effect,
        rule=rule,
        quality=quality_of(effect.turned, rule),
        quality_test=accuracy_differs(effect.turned, icc=found),
    )


def _measured(blocks: Sequence[Block], treatment: Compared, floor: Floor) -> dict[str, Any]:
    """What is known of a treatment alone; fields of a comparison are those of a reference."""
    name = treatment.name
    routes, reasons = routes_of(blocks, name)
    accuracy = unit_mean(blocks, name, is_right)
    kl = unit_mean(blocks, name, lambda answer: number_in(answer.get("kl")))
    has_floor = floor.kl is not None and floor.kl >= _NO_FLOOR
    fixed, fixed_s = trial_mean(blocks, name, "fixed_tokens"), trial_mean(blocks, name, "fixed_s")
    measured = [b for b in blocks if b.timed.get(name) or name in b.quality]
    row = TreatmentResult(
        label=treatment.label,
        role=treatment.role,
        reference=None if treatment.is_reference else treatment.reference,
        units=len({block.unit for block in measured}),
        questions=sum(len(block.answers(name)) for block in blocks),
        timed=sum(len(block.timed.get(name, ())) for block in blocks),
        ttft_ratio=None,
        ttft_ratio_ci=None,
        ttft_s=percentiles_of(blocks, name, "ttft_s"),
        e2e_ratio=None,
        e2e_ratio_ci=None,
        e2e_s=percentiles_of(blocks, name, "e2e_s"),
        e2e_ratio_t0=None,
        e2e_ratio_t0_ci=None,
        fixed_ratio=None,
        fixed_ratio_ci=None,
        tokens_per_s=fixed / fixed_s if fixed and fixed_s else None,
        accuracy=accuracy,
        accuracy_reference=accuracy,
        accuracy_t0=accuracy,
        accuracy_difference_points=None,
        accuracy_difference_ci_points=None,
        equivalence_ci_points=None,
        interval=None,
        icc=None,
        bound_units_only_points=None,
        score=unit_mean(blocks, name, lambda answer: number_in(answer.get("score"))),
        score_reference=None,
        kl=kl,
        kl_multiple=kl / floor.kl if kl is not None and has_floor and floor.kl else None,
        flips=_flips(blocks, name),
        discordant=Discordant(lost=0, gained=0),
        tests=_no_tests(),
        effect_size=EffectSize(
            cliffs_delta=None, rank_biserial=None, cohen_h=None, odds_ratio=None
        ),
        routes=routes,
        reasons=reasons,
        fallback_share=fallback_share(treatment, routes),
        as_treated=_no_as_treated(),
        bytes_moved=trial_mean(blocks, name, "bytes_moved"),
        computed_tokens=trial_mean(blocks, name, "computed_tokens"),
        reused_tokens=trial_mean(blocks, name, "reused_tokens"),
        flops=quality_mean(blocks, name, "flops"),
        flops_ratio=None,
        peak_bytes=quality_mean(blocks, name, "peak_bytes"),
        quality_verdict=QualityVerdict.EQUIVALENT,
        speed_verdict=SpeedVerdict.SAME,
        verdict=Verdict.EQUIVALENT,
        why="It is what others are compared with.",
        units_needed=None,
    )
    return dict(row)


def _compared(
    effect: Effect,
    tests: Mapping[str, Finding],
    corrected: Mapping[str, float | None],
    found: Judged,
    *,
    seed: int,
) -> dict[str, Any]:
    """Fields of a comparison."""
    blocks, rule = effect.blocks, effect.rule
    name, base = effect.treatment.name, effect.treatment.reference
    end_to_end = ratio_of(effect, "e2e_s", seed=seed)
    over_text = ratio_of(effect, "e2e_s", reference=TEXT_ONLY, seed=seed)
    fixed = ratio_of(effect, "fixed_s", seed=seed)
    points, narrow = effect.quality.difference.scaled(100), effect.quality.narrow.scaled(100)
    reference = unit_mean(blocks, base, is_right, among=name)
    counted = _flops(blocks, name, base)
    return {
        "units": effect.units,
        "questions": effect.turned.questions,
        "ttft_ratio": effect.ratio.value,
        "ttft_ratio_ci": effect.ratio.interval,
        "e2e_ratio": end_to_end.value,
        "e2e_ratio_ci": end_to_end.interval,
        "e2e_ratio_t0": over_text.value,
        "e2e_ratio_t0_ci": over_text.interval,
        "fixed_ratio": fixed.value,
        "fixed_ratio_ci": fixed.interval,
        "accuracy": unit_mean(blocks, name, is_right, among=base),
        "accuracy_reference": reference,
        "accuracy_t0": reference,
        "accuracy_difference_points": points.value,
        "accuracy_difference_ci_points": points.interval,
        "equivalence_ci_points": narrow.interval,
        "interval": points.method or None,
        "icc": rule.icc,
        "bound_units_only_points": bound_units_only(effect.turned, rule),
        "score_reference": unit_mean(
            blocks, base, lambda answer: number_in(answer.get("score")), among=name
        ),
        "discordant": Discordant(lost=effect.turned.lost, gained=effect.turned.gained),
        "tests": tests_json(tests, corrected),
        "effect_size": sizes_of(effect),
        "as_treated": as_treated_json(effect, seed=seed),
        "flops": mean_or_none(one for one, _ in counted),
        "flops_ratio": geometric_mean([one / two for one, two in counted]),
        "quality_verdict": found.quality,
        "speed_verdict": found.speed,
        "verdict": found.verdict,
        "why": found.why,
        "units_needed": found.units_needed,
    }


def _flops(blocks: Sequence[Block], name: str, base: str) -> list[tuple[float, float]]:
    """Operations under a treatment and its reference, where both were counted."""
    counted = []
    for block in blocks:
        one = number_in((block.quality.get(name) or {}).get("flops"))
        two = number_in((block.quality.get(base) or {}).get("flops"))
        if one and two:
            counted.append((one, two))
    return sorted(counted)


def _flips(blocks: Sequence[Block], name: str) -> float | None:
    """Share of the compared positions at which another token is the likeliest."""
    answers = [answer for block in blocks for answer in block.answers(name).values()]
    positions = sum(number_in(answer.get("positions")) or 0.0 for answer in answers)
    flips = sum(number_in(answer.get("flips")) or 0.0 for answer in answers)
    return flips / positions if positions else None


def _no_tests() -> Tests:
    return Tests(
        mcnemar_p=None,
        mcnemar_p_holm=None,
        wilcoxon_p=None,
        wilcoxon_p_holm=None,
        paired_t_p=None,
        paired_t_p_holm=None,
        tost_p=None,
        tost_p_holm=None,
        notes=[],
    )


def _no_as_treated() -> AsTreated:
    return AsTreated(
        timed=0,
        questions=0,
        ttft_ratio=None,
        ttft_ratio_ci=None,
        accuracy=None,
        accuracy_difference_points=None,
    )
