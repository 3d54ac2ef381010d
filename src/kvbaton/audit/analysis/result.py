"""The result of an audit, as JSON: every key that ``kvbaton audit report --json`` writes.

Numbers are finite or null, never NaN.  A value that was not measured, or that the data cannot give,
is null.  Ratios are treatment over reference: less than 1 is faster.  Points are percentage points
of accuracy: positive is better than the reference.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NotRequired, TypedDict

from kvbaton.types import JSON

RESULT_FORMAT = "kvbaton audit result 1"

Interval = list[float] | None
"""``[low, high]``, both finite; null where the data give none."""


class QualityVerdict(StrEnum):
    """What a treatment does to the answers."""

    EQUIVALENT = "equivalent"
    HARMFUL = "harmful"
    BETTER = "better"
    UNDECIDED = "undecided"


class SpeedVerdict(StrEnum):
    """What a treatment does to the time to the first token."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    UNDECIDED = "undecided"


class Verdict(StrEnum):
    """Speed and quality together."""

    PAYS = "pays"
    EQUIVALENT = "equivalent"
    HARMFUL = "harmful"
    UNDECIDED = "undecided"


class ContentVerdict(StrEnum):
    """Whether the right cache answers what a wrong one of the same shape does not."""

    TRANSFERRED = "transferred"
    NOT_NEEDED = "not needed"
    UNDECIDED = "undecided"


class Percentiles(TypedDict):
    """Percentiles of seconds; P90 from 10 observations on, P99 from 100 on, else null."""

    p50: float | None
    p90: float | None
    p99: float | None


class Discordant(TypedDict):
    """Questions on which a treatment and its reference differ, right against wrong."""

    lost: int
    gained: int


class Tests(TypedDict):
    """P values, and the same after Holm's correction over all treatments; null where undefined."""

    mcnemar_p: float | None
    mcnemar_p_holm: float | None
    wilcoxon_p: float | None
    wilcoxon_p_holm: float | None
    paired_t_p: float | None
    paired_t_p_holm: float | None
    tost_p: float | None
    tost_p_holm: float | None
    notes: list[str]
    """Sentences: why a value is null, which test speaks for speed."""


class EffectSize(TypedDict):
    """Sizes without units."""

    cliffs_delta: float | None
    """Of seconds: -1 where every trial is faster than every one of the reference."""
    rank_biserial: float | None
    """Of paired log ratios: -1 where every unit is faster."""
    cohen_h: float | None
    """Of right answers: positive where the treatment is right more often."""
    odds_ratio: float | None
    """Gained over lost questions, half a question added to each."""


class AsTreated(TypedDict):
    """The same figures over trials that took the assigned route only."""

    timed: int
    questions: int
    ttft_ratio: float | None
    ttft_ratio_ci: Interval
    accuracy: float | None
    accuracy_difference_points: float | None


class TreatmentResult(TypedDict):
    """One treatment against its reference, analysed as assigned."""

    label: str
    role: str
    """``candidate``, ``control`` or ``reference``."""
    reference: str | None
    """Name of the treatment that it is compared with; null for a reference."""
    units: int
    questions: int
    timed: int
    ttft_ratio: float | None
    ttft_ratio_ci: Interval
    ttft_s: Percentiles
    e2e_ratio: float | None
    e2e_ratio_ci: Interval
    e2e_s: Percentiles
    e2e_ratio_t0: float | None
    """End to end over ``T0``, the sender's whole way by text."""
    e2e_ratio_t0_ci: Interval
    fixed_ratio: float | None
    fixed_ratio_ci: Interval
    tokens_per_s: float | None
    accuracy: float | None
    accuracy_reference: float | None
    accuracy_t0: float | None
    """The same as ``accuracy_reference``, under the name that the issue asks for."""
    accuracy_difference_points: float | None
    accuracy_difference_ci_points: Interval
    """95% (at alpha 5%)."""
    equivalence_ci_points: Interval
    """The (1 - 2 alpha) interval that decides about equivalence."""
    interval: str | None
    """How the intervals of accuracy were made: ``t`` or ``exact``."""
    icc: float | None
    """How alike the questions of a unit were taken to be."""
    bound_units_only_points: float | None
    """Exact bound on the loss if all questions of a unit were one: the most careful reading."""
    score: float | None
    score_reference: float | None
    kl: float | None
    kl_multiple: float | None
    flips: float | None
    discordant: Discordant
    tests: Tests
    effect_size: EffectSize
    routes: dict[str, int]
    reasons: dict[str, int]
    fallback_share: float
    as_treated: AsTreated
    bytes_moved: float | None
    """Mean over trials."""
    computed_tokens: float | None
    reused_tokens: float | None
    flops: float | None
    """Mean over the units on which they were counted, under the reference too."""
    flops_ratio: float | None
    peak_bytes: float | None
    quality_verdict: str
    speed_verdict: str
    verdict: str
    why: str
    units_needed: int | None
    """Units that would decide, with as many questions each; null where the verdict stands."""


class ContentResult(TypedDict):
    """T3 against T4: whether content was transferred at all."""

    points: float | None
    ci_points: Interval
    verdict: str
    why: str


class StratumResult(TypedDict):
    """A treatment within one group of units or trials."""

    by: str
    """``length``, ``kind``, ``language``, ``relevance``, ``pair`` or ``load``."""
    value: str
    low: float | None
    high: float | None
    """Bounds of the group, for ``length`` (tokens) and ``load``."""
    treatment: str
    units: int
    questions: int
    ttft_ratio: float | None
    ttft_ratio_ci: Interval
    accuracy: float | None
    accuracy_t0: float | None
    accuracy_difference_points: float | None
    accuracy_difference_ci_points: Interval
    quality_verdict: str
    speed_verdict: str
    verdict: str
    why: str
    units_needed: int | None


class MixedTreatment(TypedDict):
    """A treatment's effect on seconds in the mixed model."""

    ratio: float | None
    ci: Interval
    p: float | None
    p_holm: float | None


class MixedModelResult(TypedDict):
    """Log seconds to the first token by treatment, with unit and pair as random effects."""

    treatments: dict[str, MixedTreatment]
    groups: dict[str, float | None]
    """Standard deviation of each random effect, on the log scale: ``unit``, ``pair``, ``rest``, the
    last of a mean over repeats."""
    converged: bool
    why: str


class Attribution(TypedDict):
    """Where a treatment's gain comes from, in seconds per trial; positive is saved."""

    receiver_prefill_s: float | None
    sender_decode_s: float | None
    allocation_s: float | None
    tokenization_s: float | None
    transport_s: float | None
    other_s: float | None
    total_s: float | None
    shares: dict[str, float]
    """Of the total that was saved; empty where less than 5% of the reference's time was."""


class ProfileRow(TypedDict):
    """A row of a profiled trial."""

    name: str
    share: float
    seconds: float


class BreakEvenPoint(TypedDict):
    """Measured ratio at a length."""

    tokens: int
    ratio: float
    ci: Interval


class BreakEven(TypedDict):
    """Context length from which on a treatment is faster than text."""

    tokens: int | None
    """Null where it is not faster at the longest length."""
    ci: list[int | None] | None
    """The upper end is null where the treatment may never be faster."""
    at_most: bool
    """It was faster at every length: the true value is ``tokens`` or less."""
    points: list[BreakEvenPoint]
    warnings: list[str]
    why: str


class FlipExample(TypedDict):
    """A question that a treatment answers otherwise than its reference."""

    unit: str
    treatment: str
    question: str
    kind: str
    """``lost`` or ``gained``."""
    expected: str | None
    reference_text: str
    text: str


class FailedRow(TypedDict):
    """Failures that differ in nothing but the unit and numbers in the sentence."""

    pair: str
    treatment: str
    what: str
    """``hand-off``, ``sender``, ``quality``, ``timed`` or ``floor``; empty if it is not known."""
    code: str
    sentence: str
    """Of the first unit."""
    count: int
    unit: str
    """The first one."""


class AuditResult(TypedDict):
    """All of it."""

    format: str
    seed: int
    units: int
    questions: int
    pairs: list[str]
    model: str
    dtype: str
    environment: JSON
    tasks: JSON
    plan: JSON
    noise_floor_kl: float | None
    noise_floor_flips: float | None
    treatments: dict[str, TreatmentResult]
    content: ContentResult
    strata: list[StratumResult]
    mixed_model: MixedModelResult
    attribution: dict[str, Attribution]
    zero_decode: JSON
    """Of ``Z``: ``e2e_ratio`` and ``ci`` over ``Z0``, ``e2e_ratio_t0`` and ``ci_t0`` over ``T0``,
    ``decode_s`` that the sender does not spend, ``why``; empty without it."""
    profile: dict[str, list[ProfileRow]]
    break_even: dict[str, BreakEven]
    break_even_tokens: int | None
    """Of T3."""
    profit: JSON
    """Which route is fastest at which length: ``cells``, ``winners``; strata are pairs, where there
    are several."""
    flip_examples: list[FlipExample]
    failed: list[FailedRow]
    warnings: list[str]
    overhead_share: float | None
    """Time beside the model's work, as a share of that work, over all sessions."""
    wall_s: float | None
    """Of all sessions of all runs."""
    method: JSON
    """``intervals``, ``tests``, ``verdicts``: sentences; ``versions``: of the libraries."""
    samples: NotRequired[dict[str, list[float]]]
    """Treatment -> seconds to the first token of its trials, for charts of distributions."""
