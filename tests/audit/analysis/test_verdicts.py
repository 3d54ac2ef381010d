"""The rules of verdicts, case by case."""

import pytest

from kvbaton.audit.analysis.result import ContentVerdict, QualityVerdict, SpeedVerdict, Verdict
from kvbaton.audit.analysis.verdicts import (
    Quality,
    Rule,
    content_verdict,
    overall_verdict,
    quality_verdict,
    speed_verdict,
)
from kvbaton.audit.statistics.values import Estimate

RULE = Rule(margin_points=5.0, alpha=0.05)
NONE = Estimate(None, why="nothing was measured")


def quality(value: float, low: float, high: float, shrink: float = 0.8) -> Quality:
    """A difference with its wide interval, and a narrow one that is 0.8 times as wide."""
    narrow = Estimate(value, value + (low - value) * shrink, value + (high - value) * shrink)
    return Quality(Estimate(value, low, high), narrow)


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        (0.0, -0.04, 0.04, "equivalent"),
        (0.0, -0.06, 0.06, "equivalent"),  # the narrow interval is +-4.8 points
        (-0.02, -0.03, -0.01, "equivalent"),  # worse, but by less than matters
        (0.0, -0.07, 0.07, "undecided"),
        (-0.2, -0.3, -0.1, "harmful"),
        (-0.06, -0.10, -0.02, "harmful"),  # below zero, and the estimate beyond the margin
        (-0.04, -0.10, -0.02, "undecided"),  # below zero, but the estimate within the margin
        (-0.06, -0.15, 0.01, "undecided"),
        (0.2, 0.1, 0.3, "better"),
        (0.06, 0.02, 0.10, "better"),
    ],
)
def test_quality(value: float, low: float, high: float, expected: str) -> None:
    """Equivalent within the margin, harmful or better beyond it, else undecided."""
    verdict, why = quality_verdict(quality(value, low, high), RULE, p_holm=0.001)
    assert verdict == expected
    assert "points" in why


def test_harm_that_may_be_chance_is_undecided() -> None:
    """A loss beyond the margin needs the corrected test too; equivalence does not."""
    for p_holm in (0.06, None):
        harm = quality_verdict(quality(-0.06, -0.10, -0.02), RULE, p_holm=p_holm)
        assert harm[0] is QualityVerdict.UNDECIDED
        equal = quality_verdict(quality(0.0, -0.04, 0.04), RULE, p_holm=p_holm)
        assert equal[0] is QualityVerdict.EQUIVALENT


@pytest.mark.parametrize(
    ("value", "low", "high", "p_holm", "expected"),
    [
        (0.2, 0.1, 0.3, 0.001, "faster"),
        (0.2, 0.1, 0.3, 0.2, "undecided"),  # chance, among so many comparisons
        (0.2, 0.1, 0.3, None, "undecided"),
        (0.96, 0.93, 0.99, 0.001, "undecided"),  # below 1, but by less than 5%
        (0.94, 0.90, 0.98, 0.001, "faster"),
        (1.5, 1.2, 1.8, 0.001, "slower"),
        (0.98, 0.96, 0.999, 0.001, "same"),  # faster, but by less than matters
        (1.0, 0.96, 1.04, 0.9, "same"),
        (1.0, 0.9, 1.1, 0.9, "undecided"),
    ],
)
def test_speed(value: float, low: float, high: float, p_holm: float | None, expected: str) -> None:
    """Same within 5%, faster or slower by 5% or more, where interval and corrected test say so."""
    assert speed_verdict(Estimate(value, low, high), RULE, p_holm=p_holm)[0] == expected


@pytest.mark.parametrize(
    ("of_quality", "of_speed", "expected"),
    [
        ("equivalent", "faster", "pays"),
        ("better", "faster", "pays"),
        ("better", "same", "pays"),
        ("better", "slower", "undecided"),
        ("equivalent", "same", "equivalent"),
        ("equivalent", "slower", "harmful"),
        ("equivalent", "undecided", "undecided"),
        ("harmful", "faster", "harmful"),
        ("undecided", "faster", "undecided"),
    ],
)
def test_both_together(of_quality: str, of_speed: str, expected: str) -> None:
    """What pays, what is equivalent, what harms."""
    found, why = overall_verdict(
        (QualityVerdict(of_quality), "quality is so"),
        (SpeedVerdict(of_speed), "speed is so"),
        Estimate(0.5, 0.3, 2.0),
    )
    assert found == expected
    assert why == "Speed is so. Quality is so."


def test_speed_that_is_nearly_the_same_is_equivalent() -> None:
    """Undecided speed within 10% is as good as the same."""
    near = Estimate(1.0, 0.92, 1.08)
    equal, open_ = (QualityVerdict.EQUIVALENT, "q"), (SpeedVerdict.UNDECIDED, "s")
    assert overall_verdict(equal, open_, near)[0] is Verdict.EQUIVALENT


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        (0.9, 0.8, 1.0, "transferred"),
        (0.08, 0.02, 0.14, "undecided"),
        (0.0, -0.03, 0.03, "not needed"),
        (-0.5, -0.6, -0.4, "undecided"),
    ],
)
def test_content(value: float, low: float, high: float, expected: str) -> None:
    """Transferred where the right cache beats a wrong one by the margin."""
    assert content_verdict(quality(value, low, high), RULE)[0] == expected


def test_what_was_not_measured_is_undecided() -> None:
    """Without an interval there is no verdict, and the reason is said."""
    nothing = Quality(NONE, NONE)
    assert quality_verdict(nothing, RULE, p_holm=None) == (
        QualityVerdict.UNDECIDED,
        "accuracy is not known: nothing was measured",
    )
    assert speed_verdict(NONE, RULE, p_holm=0.001)[0] is SpeedVerdict.UNDECIDED
    assert content_verdict(nothing, RULE)[0] is ContentVerdict.UNDECIDED
