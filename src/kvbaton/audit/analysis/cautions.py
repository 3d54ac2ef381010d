"""What a reader of a result has to know before anything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvbaton.audit.analysis.blocks import Block, mean_or_none, number_in
from kvbaton.audit.analysis.failures import failed_rows, failures_told
from kvbaton.audit.analysis.order import order_told
from kvbaton.audit.analysis.result import ContentVerdict, TreatmentResult
from kvbaton.audit.analysis.runs import Compared, Run
from kvbaton.audit.analysis.verdicts import Rule
from kvbaton.audit.statistics.power import power_for, units_needed

LITTLE_RIGHT = 0.2
LOAD_APART = 0.5
LOAD_APART_SHARE = 0.25


def cautions(
    runs: Sequence[Run],
    blocks: Sequence[Block],
    rule: Rule,
    treatments: Mapping[str, Compared],
    results: Mapping[str, TreatmentResult],
    content: ContentVerdict,
) -> list[str]:
    """Sentences; none where nothing is odd."""
    said = [*_size(runs, blocks, rule)]
    for name, result in results.items():
        if treatments[name].is_reference:
            said += _reference(name, result, treatments)
        else:
            said += _treatment(name, result, rule)
    said += _loads(blocks, treatments)
    said += order_told(blocks)
    said += failures_told(failed_rows(runs))
    if content is ContentVerdict.NOT_NEEDED:
        said.append(
            "A wrong cache of the same shape answers as well as the right one: these tasks cannot "
            "show that content was transferred."
        )
    return said


def _size(runs: Sequence[Run], blocks: Sequence[Block], rule: Rule) -> list[str]:
    units = len({block.unit for block in blocks})
    asked = max((len(b.answers(name)) for b in blocks for name in b.quality), default=0)
    said = []
    for run in runs:
        planned, done = int(run.plan.get("units", 0)), sum(b.pair == run.pair for b in blocks)
        if done < planned:
            said.append(f"{run.pair}: {done} of {planned} planned units were run.")
    if not units:
        said.append("No trial was run: there is nothing to say.")
    elif asked:
        can = power_for(
            units,
            asked,
            margin_points=rule.margin_points,
            icc=rule.icc,
            alpha=rule.alpha,
            expected_discordance=0.0,
        )
        if can.bound_points >= rule.margin_points or units < 2:
            needed = units_needed(
                questions=asked, margin_points=rule.margin_points, icc=rule.icc, alpha=rule.alpha
            )
            bound, margin = f"{can.bound_points:.1f}", f"{rule.margin_points:g}"
            said.append(
                f"{units} units of {asked} questions cannot show equal quality: if no answer "
                f"turns, a loss of {bound} points is still possible, and the margin is {margin}. "
                f"It takes {needed} units at least."
            )
    return said


def _reference(name: str, result: TreatmentResult, treatments: Mapping[str, Compared]) -> list[str]:
    right = result["accuracy"]
    used = any(t.reference == name and not t.is_reference for t in treatments.values())
    if right is None or not used or right > LITTLE_RIGHT:
        return []
    return [
        f"{name} answers {100 * right:.0f}% right: where so little is right, little can be lost, "
        "and equal quality says little."
    ]


def _treatment(name: str, result: TreatmentResult, rule: Rule) -> list[str]:
    said = []
    share = result["fallback_share"]
    if share >= 1:
        said.append(
            f"All trials of {name} fell back to another route: its figures, which are analysed as "
            "assigned, are those of the fallback."
        )
    elif share > 0:
        said.append(
            f"{100 * share:.0f}% of the trials of {name} fell back; its figures are analysed as "
            "assigned."
        )
    icc = result["icc"]
    if icc is not None and icc > rule.icc:
        said.append(
            f"{name}: questions of a unit fare more alike (icc {icc:.2f}) than planned "
            f"({rule.icc:g}); the larger figure is used."
        )
    if result["units"] and result["ttft_ratio"] is not None and result["ttft_ratio_ci"] is None:
        said.append(f"{name}: there is no interval of the time to the first token.")
    return said


def _loads(blocks: Sequence[Block], treatments: Mapping[str, Compared]) -> list[str]:
    loads = {name: _load(blocks, name) for name in treatments}
    said = []
    for name, treatment in treatments.items():
        mine, theirs = loads[name], loads.get(treatment.reference)
        if mine is None or theirs is None or treatment.is_reference:
            continue
        if abs(mine - theirs) > max(LOAD_APART, LOAD_APART_SHARE * max(mine, theirs)):
            said.append(
                f"The machine's load was {mine:.1f} during {name} and {theirs:.1f} during "
                f"{treatment.reference}: their times were not measured alike."
            )
    return said


def _load(blocks: Sequence[Block], treatment: str) -> float | None:
    return mean_or_none(
        number_in(trial.get("load")) for block in blocks for trial in block.timed.get(treatment, ())
    )
