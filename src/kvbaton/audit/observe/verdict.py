"""One word for the whole, and the sentence that says why."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from kvbaton.audit.observe.assignment import ArmCounts
from kvbaton.audit.observe.effects import Effect
from kvbaton.audit.observe.placebo import Placebo
from kvbaton.audit.observe.propensity import BALANCED
from kvbaton.audit.observe.sample import Sample

SAME = 0.05
"""Ratios within 5% of 1 count as the same."""
ODD_PLACEBO = 0.05


class Verdict(StrEnum):
    """The first three mean: do not believe the estimate."""

    MISMATCH = "arms do not match the plan"
    NO_OVERLAP = "no overlap"
    NOT_BALANCED = "not balanced"
    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a verdict is made of: the effect on log TTFT, and how receipts came to be compared."""

    ttft: Effect | None
    sample: Sample
    counts: ArmCounts | None
    placebo: Placebo | None


def judge(evidence: Evidence) -> tuple[Verdict, str]:
    """The verdict and why."""
    sample, counts = evidence.sample, evidence.counts
    if counts is not None and counts.alarm:
        return Verdict.MISMATCH, (
            f"{counts.conversations[0]} and {counts.conversations[1]} conversations are in the "
            f"arms, {counts.expected[0]:.0f} and {counts.expected[1]:.0f} were planned "
            f"(p = {counts.p:.1g}): receipts of one arm get lost, do not believe this"
        )
    if not sample.comparable or evidence.ttft is None:
        return Verdict.NO_OVERLAP, (
            "the two routes were used for different receipts, so there is nothing to compare "
            "them with"
        )
    unbalanced = [one for one in sample.balance if abs(one.after) >= BALANCED]
    if sample.overlap is not None and unbalanced:
        worst = max(unbalanced, key=lambda one: abs(one.after))
        return Verdict.NOT_BALANCED, (
            f"the routes still differ in {worst.feature} by {abs(worst.after):.2f} deviations: "
            "do not believe this"
        )
    return _of_effect(evidence.ttft, evidence.placebo)


def _of_effect(found: Effect, fake: Placebo | None) -> tuple[Verdict, str]:
    estimate = found.estimate.exponential()
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return Verdict.UNDECIDED, found.estimate.why
    low, high = estimate.low, estimate.high
    times = f"{estimate.value:.2f} of the time of text (95%: {low:.2f} to {high:.2f})"
    if math.exp(-SAME) <= low and high <= math.exp(SAME):
        return Verdict.SAME, f"the baton route takes {times}, within 5% of it"
    if low <= 1 <= high:
        return Verdict.UNDECIDED, f"the baton route takes {times}: more receipts are needed"
    if fake is not None and fake.beyond > ODD_PLACEBO:
        return Verdict.UNDECIDED, (
            f"the baton route takes {times}, but {100 * fake.beyond:.0f}% of placebo treatments "
            "seem to do as much"
        )
    word = Verdict.FASTER if high < 1 else Verdict.SLOWER
    return word, f"the baton route takes {times}"
