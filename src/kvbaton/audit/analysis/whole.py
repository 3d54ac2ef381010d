"""From runs to the result of an audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version

from kvbaton.audit.analysis.attribution import (
    ZERO_DECODE,
    attribution_of,
    profile_rows,
    profiles_of,
)
from kvbaton.audit.analysis.blocks import Block, blocks_of, mean_or_none, number_in, turned
from kvbaton.audit.analysis.cautions import cautions
from kvbaton.audit.analysis.effects import quality_of
from kvbaton.audit.analysis.examples import flip_examples
from kvbaton.audit.analysis.failures import failed_rows
from kvbaton.audit.analysis.lengths import break_evens, measured_break_evens, profit_of
from kvbaton.audit.analysis.result import (
    RESULT_FORMAT,
    AuditResult,
    ContentResult,
    ContentVerdict,
    MixedModelResult,
    MixedTreatment,
    TreatmentResult,
)
from kvbaton.audit.analysis.rows import Floor, treatment_rows
from kvbaton.audit.analysis.runs import Compared, Run, joined_rule, treatments_of
from kvbaton.audit.analysis.strata import strata_of
from kvbaton.audit.analysis.verdicts import Rule, content_verdict
from kvbaton.audit.statistics.intervals import RESAMPLES
from kvbaton.audit.statistics.mixed import Timing, fit_mixed
from kvbaton.types import JSON

RIGHT, WRONG = "T3", "T4"
"""Treatments whose comparison says whether content was transferred."""
_LIBRARIES = ("scipy", "statsmodels", "numpy")


def analyse(runs: Sequence[Run], *, seed: int | None = None) -> AuditResult:
    """Analyse one run, or runs of the same plan on several pairs of models.

    Parameters
    ----------
    seed
        Of the resampling; that of the plan by default.

    Raises
    ------
    InputError
        The runs do not belong together.
    """
    rule = joined_rule(runs)
    runs = sorted(runs, key=lambda run: run.pair)
    first = runs[0]
    used = int(first.plan.get("seed", 0)) if seed is None else seed
    blocks, treatments = blocks_of(runs), treatments_of(runs)
    compared = [t for t in treatments.values() if not t.is_reference]
    floor = _floor(runs)
    rows = treatment_rows(blocks, treatments, rule, floor, seed=used)
    rules = {t.name: replace(rule, icc=rows[t.name]["icc"] or rule.icc) for t in compared}
    content = _content(blocks, rules, rule)
    profiles = profiles_of(runs)
    measured = measured_break_evens(runs, seed=used)
    lengths = break_evens(measured)
    return AuditResult(
        format=RESULT_FORMAT,
        seed=used,
        units=len({block.unit for block in blocks}),
        questions=_questions(blocks),
        pairs=sorted({run.pair for run in runs}),
        model=_joined(runs, "model"),
        dtype=_joined(runs, "dtype"),
        environment=first.header.get("environment") or {},
        tasks=first.tasks,
        plan=first.plan,
        noise_floor_kl=floor.kl,
        noise_floor_flips=floor.flips,
        treatments=rows,
        content=content,
        strata=strata_of(blocks, compared, rules, seed=used),
        mixed_model=_mixed(blocks, compared, rule),
        attribution={t.name: attribution_of(blocks, t, profiles) for t in compared},
        zero_decode=_zero_decode(blocks, rows),
        profile={name: profile_rows(record) for name, record in sorted(profiles.items())},
        break_even=lengths,
        break_even_tokens=lengths[RIGHT]["tokens"] if RIGHT in lengths else None,
        profit=profit_of(measured).to_json(),
        flip_examples=flip_examples(blocks, compared),
        failed=failed_rows(runs),
        warnings=cautions(runs, blocks, rule, treatments, rows, ContentVerdict(content["verdict"])),
        overhead_share=_overhead(runs),
        wall_s=_wall(runs),
        method=_method(rule, used),
        samples={
            name: [float(x) for block in blocks for x in block.seconds(name, "ttft_s")]
            for name in treatments
        },
    )


def _content(blocks: Sequence[Block], rules: Mapping[str, Rule], rule: Rule) -> ContentResult:
    """T3 against T4, with the larger icc of the two."""
    rule = max((rules.get(name, rule) for name in (RIGHT, WRONG)), key=lambda one: one.icc)
    quality = quality_of(turned(blocks, RIGHT, WRONG), rule)
    verdict, why = content_verdict(quality, rule)
    points = quality.difference.scaled(100)
    return ContentResult(points=points.value, ci_points=points.interval, verdict=verdict, why=why)


def _mixed(blocks: Sequence[Block], compared: Sequence[Compared], rule: Rule) -> MixedModelResult:
    names = {t.name for t in compared} | {t.reference for t in compared}
    timings = [
        Timing(block.unit, block.pair, name, float(seconds))
        for block in blocks
        for name in sorted(names & block.timed.keys())
        for seconds in block.seconds(name, "ttft_s")
    ]
    fitted = fit_mixed(timings, {t.name: t.reference for t in compared}, level=rule.level)
    return MixedModelResult(
        treatments={
            name: MixedTreatment(
                ratio=ratio.value,
                ci=ratio.interval,
                p=fitted.p.get(name),
                p_holm=fitted.p_holm.get(name),
            )
            for name, ratio in fitted.ratios.items()
        },
        groups=dict(fitted.spreads),
        converged=fitted.converged,
        why=fitted.why,
    )


def _floor(runs: Sequence[Run]) -> Floor:
    records = [record for run in runs for record in run.of_kind("floor")]
    positions = sum(number_in(r.get("positions")) or 0.0 for r in records)
    flips = sum(number_in(r.get("flips")) or 0.0 for r in records)
    return Floor(
        mean_or_none(number_in(r.get("kl")) for r in records),
        flips / positions if positions else None,
    )


def _zero_decode(blocks: Sequence[Block], rows: Mapping[str, TreatmentResult]) -> JSON:
    row = rows.get(ZERO_DECODE)
    if row is None:
        return {}
    saved = mean_or_none(
        number_in((b.about.get("sender") or {}).get("decode_s"))
        for b in blocks
        if ZERO_DECODE in b.timed
    )
    over = row["e2e_ratio_t0"]
    return {
        "e2e_ratio": row["e2e_ratio"],
        "ci": row["e2e_ratio_ci"],
        "e2e_ratio_t0": over,
        "ci_t0": row["e2e_ratio_t0_ci"],
        "decode_s": saved,
        "verdict": row["verdict"],
        "why": "Zero-decode was not timed beside text only."
        if over is None
        else f"Without a message, from the sender's start to the answer takes {over:.3g} times as "
        "long as by text with one; the receiver has no message to read.",
    }


def _questions(blocks: Sequence[Block]) -> int:
    return len({(b.unit, q) for b in blocks for name in b.quality for q in b.answers(name)})


def _joined(runs: Sequence[Run], name: str) -> str:
    return ", ".join(sorted({str(run.header.get(name, "")) for run in runs}))


def _sessions(runs: Sequence[Run], name: str) -> float:
    """Seconds of all sessions: a run that was interrupted has several."""
    return sum(number_in(r.get(name)) or 0.0 for run in runs for r in run.of_kind("session"))


def _wall(runs: Sequence[Run]) -> float | None:
    return _sessions(runs, "wall_s") or None


def _overhead(runs: Sequence[Run]) -> float | None:
    wall_s, work_s = _sessions(runs, "wall_s"), _sessions(runs, "work_s")
    return (wall_s - work_s) / work_s if work_s else None


def _method(rule: Rule, seed: int) -> JSON:
    level, narrow = 100 * rule.level, 100 * rule.equivalence_level
    return {
        "intervals": (
            f"{level:g}% intervals over units. Ratios: each end is the farther one of the "
            f"studentized bootstrap ({RESAMPLES} resamples of unit means, seed {seed}) and "
            "Student's t. Accuracy: Student's t; where few answers turned, exact (Clopper-Pearson "
            f"on the effective number of questions, intraclass correlation {rule.icc:g} or more)."
        ),
        "tests": (
            "Wilcoxon's signed ranks, paired t where Shapiro and Wilk do not reject normality, "
            "McNemar's exact test, two one-sided tests for equivalence; Holm's correction over "
            "treatments, for verdicts over speed and accuracy together."
        ),
        "verdicts": (
            f"Equivalent: the {narrow:g}% interval of the difference of accuracy lies within "
            f"{rule.margin_points:g} points. Faster: the {level:g}% interval of the ratio of times "
            "to the first token lies below 1, the test says so after Holm's correction, and the "
            "estimate is 5% or more. Pays: equivalent or better, and faster."
        ),
        "versions": {name: version(name) for name in _LIBRARIES},
    }
