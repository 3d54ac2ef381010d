"""Verdicts: pure functions of intervals, by rules that are written down before a run.

Quality, with the margin of the plan:

- *equivalent*: the (1 - 2 alpha) interval of the difference of accuracy lies within the margin;
- *harmful*: the (1 - alpha) interval lies below zero and the estimate at or beyond the margin, or
  the interval lies beyond the margin as a whole; and so says the test after Holm's correction;
- *better*: the same on the other side;
- *undecided*: none of these.

Speed, of the time to the first token:

- *same*: the (1 - alpha) interval of the ratio lies within 5%;
- *faster*, *slower*: it lies below, above 1, so says the test after Holm's correction, and the
  estimate is at or beyond 5%;
- *undecided*: none of these.

Holm's correction is over the tests of speed and of accuracy of all treatments together, so that at
most alpha of the audits of treatments that do nothing have any false verdict.

Both together:

- *pays*: equivalent and faster, or better and not slower (faster or same);
- *equivalent*: equivalent in quality, and in speed the same, or undecided with the interval
  within 10%;
- *harmful*: harmful in quality, or equivalent in quality and slower;
- *undecided*: all else.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvbaton.audit.analysis.result import ContentVerdict, QualityVerdict, SpeedVerdict, Verdict
from kvbaton.audit.statistics.values import Estimate

SAME_SHARE = 0.05
NEARLY_SAME_SHARE = 0.10


@dataclass(frozen=True, slots=True)
class Rule:
    """What is fixed before the run.

    Parameters
    ----------
    margin_points
        Of accuracy.
    alpha
        Share of false verdicts that is accepted.
    icc
        How alike the questions of a unit are taken to be.
    """

    margin_points: float = 5.0
    alpha: float = 0.05
    icc: float = 0.3

    @property
    def margin(self) -> float:
        """As a share."""
        return self.margin_points / 100

    @property
    def level(self) -> float:
        """Of confidence of effects."""
        return 1 - self.alpha

    @property
    def equivalence_level(self) -> float:
        """Of confidence for equivalence, by two one-sided tests."""
        return 1 - 2 * self.alpha


@dataclass(frozen=True, slots=True)
class Quality:
    """Difference of accuracy as a share, at both levels of confidence."""

    difference: Estimate
    narrow: Estimate
    """The (1 - 2 alpha) interval."""


def quality_verdict(
    quality: Quality, rule: Rule, *, p_holm: float | None
) -> tuple[QualityVerdict, str]:
    """Verdict on answers, and why.

    Parameters
    ----------
    p_holm
        Of the test that accuracy is the same, after correction; None where there is none.
    """
    found, margin = quality.difference, rule.margin
    if found.value is None or found.low is None or found.high is None:
        return QualityVerdict.UNDECIDED, f"accuracy is not known: {found.why or 'no interval'}"
    points = _points(found)
    within = f"the margin of {rule.margin_points:g} points"
    if quality.narrow.within(margin):
        kept = (
            "answers are as good: " if found.value == 0 else "answers are as good within limits: "
        )
        return QualityVerdict.EQUIVALENT, f"{kept}{_points(quality.narrow)}, inside {within}"
    harmful = _beyond(-found.value, -found.high, margin)
    better = _beyond(found.value, found.low, margin)
    if (harmful or better) and (p_holm is None or p_holm > rule.alpha):
        why = "among so many comparisons the difference of accuracy may be chance"
        return QualityVerdict.UNDECIDED, f"{why}: {points}"
    if harmful:
        return QualityVerdict.HARMFUL, f"answers are worse: {points}, beyond {within}"
    if better:
        return QualityVerdict.BETTER, f"answers are better: {points}, beyond {within}"
    return (
        QualityVerdict.UNDECIDED,
        f"accuracy may or may not differ by more than {within}: {_points(quality.narrow)}",
    )


def speed_verdict(ratio: Estimate, rule: Rule, *, p_holm: float | None) -> tuple[SpeedVerdict, str]:
    """Verdict on the time to the first token, and why.

    Parameters
    ----------
    ratio
        Treatment over reference, with its (1 - alpha) interval.
    p_holm
        Of the test that speaks for speed, after correction; None where there is none.
    """
    if ratio.value is None or ratio.low is None or ratio.high is None:
        return SpeedVerdict.UNDECIDED, f"speed is not known: {ratio.why or 'no interval'}"
    said = (
        f"{ratio.value:.3g} times the time to the first token ({ratio.low:.3g} to {ratio.high:.3g})"
    )
    if is_within(ratio, SAME_SHARE):
        return SpeedVerdict.SAME, f"as fast within 5%: {said}"
    why = _undecided_speed(ratio, rule, p_holm)
    if why:
        return SpeedVerdict.UNDECIDED, f"{why}: {said}"
    if ratio.high < 1:
        return SpeedVerdict.FASTER, f"faster: {said}"
    return SpeedVerdict.SLOWER, f"slower: {said}"


def _undecided_speed(ratio: Estimate, rule: Rule, p_holm: float | None) -> str:
    """Why a ratio speaks for neither; empty where it does."""
    value, low, high = ratio.value or 1.0, ratio.low or 0.0, ratio.high or 2.0
    if low <= 1 <= high:
        return "it may be faster or slower"
    if 1 / (1 + SAME_SHARE) < value < 1 + SAME_SHARE:
        return "the difference may be too small to matter"
    if p_holm is None or p_holm > rule.alpha:
        return "among so many comparisons this may be chance"
    return ""


def overall_verdict(
    quality: tuple[QualityVerdict, str], speed: tuple[SpeedVerdict, str], ratio: Estimate
) -> tuple[Verdict, str]:
    """Both together, and why."""
    why = f"{_sentence(speed[1])} {_sentence(quality[1])}"
    return _together(quality[0], speed[0], ratio), why


def content_verdict(quality: Quality, rule: Rule) -> tuple[ContentVerdict, str]:
    """Whether content was transferred: T3 minus T4, as ``quality`` of T3 against T4."""
    found = quality.difference
    if found.value is None or found.low is None:
        return (
            ContentVerdict.UNDECIDED,
            f"T3 and T4 cannot be compared: {found.why or 'no interval'}.",
        )
    said = f"the right cache against a wrong one of the same shape: {_points(found)}"
    if found.low > rule.margin:
        return ContentVerdict.TRANSFERRED, f"Content was transferred: {said}."
    if quality.narrow.within(rule.margin):
        return (
            ContentVerdict.NOT_NEEDED,
            f"These tasks do not need the cache's content: {said}. "
            "A gain in speed says nothing about content here.",
        )
    return ContentVerdict.UNDECIDED, f"Whether content was transferred is open: {said}."


def is_within(ratio: Estimate, share: float) -> bool:
    """Whether a ratio's interval lies within a share of 1, on the log scale."""
    if ratio.low is None or ratio.high is None:
        return False
    return ratio.low > 1 / (1 + share) and ratio.high < 1 + share


def _beyond(value: float, near_end: float, margin: float) -> bool:
    return (near_end > 0 and value >= margin) or near_end > margin


def _together(quality: QualityVerdict, speed: SpeedVerdict, ratio: Estimate) -> Verdict:
    if quality is QualityVerdict.HARMFUL:
        return Verdict.HARMFUL
    if quality is QualityVerdict.BETTER:
        pays = speed in (SpeedVerdict.FASTER, SpeedVerdict.SAME)
        return Verdict.PAYS if pays else Verdict.UNDECIDED
    if quality is QualityVerdict.UNDECIDED:
        return Verdict.UNDECIDED
    if speed is SpeedVerdict.FASTER:
        return Verdict.PAYS
    if speed is SpeedVerdict.SLOWER:
        return Verdict.HARMFUL
    if speed is SpeedVerdict.SAME or is_within(ratio, NEARLY_SAME_SHARE):
        return Verdict.EQUIVALENT
    return Verdict.UNDECIDED


def _points(found: Estimate) -> str:
    scaled = found.scaled(100)
    if scaled.value is None or scaled.low is None or scaled.high is None:
        return "an unknown number of points"
    return f"{scaled.value:+.1f} points ({scaled.low:+.1f} to {scaled.high:+.1f})"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
