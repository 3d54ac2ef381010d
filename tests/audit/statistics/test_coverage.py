"""Intervals cover what they promise; treatments that do nothing are not condemned or praised."""

import numpy as np
import pytest
from tests.audit.statistics.simulated import (
    DISCORDANCES,
    LOG_RATIOS,
    Nothing,
    accuracy_coverage,
    draw_turned,
    false_verdicts,
    mean_coverage,
)

from kvbaton.audit.statistics.power import power_for
from kvbaton.audit.statistics.proportions import accuracy_difference

QUICK, FULL = 300, 2000


def spread(audits: int) -> float:
    """Three standard errors of a share of 95% that is counted over so many audits."""
    return 3 * (0.95 * 0.05 / audits) ** 0.5


@pytest.mark.parametrize("kind", ["normal", "exponential, skew 2"])
def test_intervals_of_ratios_cover(kind: str) -> None:
    """95% intervals of 40 unit means hold the truth in 93 to 97 of 100 audits, but for chance."""
    draw, truth = LOG_RATIOS[kind]
    found = mean_coverage(draw, truth, 40, audits=QUICK, seed=5)
    assert 0.93 - spread(QUICK) <= found <= 0.97 + spread(QUICK)


@pytest.mark.parametrize(("lost", "gained"), [(0.1, 0.1), (0.2, 0.05)])
def test_intervals_of_accuracy_cover(lost: float, gained: float) -> None:
    """So do intervals of accuracy where enough answers turn."""
    found, _ = accuracy_coverage(40, lost, gained, 0.1, audits=QUICK, seed=5)
    assert 0.93 - spread(QUICK) <= found <= 0.97 + spread(QUICK)


def test_exact_intervals_cover_at_least_as_much() -> None:
    """Where few answers turn, and alike within units, the interval is exact and errs wide."""
    found, exact = accuracy_coverage(40, 0.02, 0.0, 0.3, audits=QUICK, seed=5)
    assert found >= 0.95
    assert exact > 0.9


def test_nothing_is_seldom_condemned_or_praised() -> None:
    """At most 5% of audits of treatments that do nothing have a false verdict, but for chance."""
    share, said = false_verdicts(Nothing(units=20, treatments=2), audits=150, seed=3)
    assert share <= 0.05 + 3 * (0.05 * 0.95 / 150) ** 0.5
    assert said["same"] > 0


def test_the_power_estimate_agrees_with_simulation() -> None:
    """The estimated power is what the analysis of simulated audits comes to."""
    told = power_for(40, 5, icc=0.3, expected_discordance=0.01).power
    assert simulated_power(40, 0.01, audits=QUICK) == pytest.approx(told, abs=0.08)


def simulated_power(units: int, discordance: float, *, audits: int) -> float:
    """Share of simulated audits that show equivalence within 5 points."""
    dice, half = np.random.default_rng(11), discordance / 2
    shown = 0
    for _ in range(audits):
        answers = draw_turned(dice, units, 5, half, half, 0.3)
        shown += accuracy_difference(answers, icc=0.3, level=0.9).within(0.05)
    return shown / audits


@pytest.mark.long
@pytest.mark.parametrize("units", [20, 40, 60])
@pytest.mark.parametrize("kind", sorted(LOG_RATIOS))
def test_all_intervals_of_ratios_cover(kind: str, units: int) -> None:
    """With 20 to 60 units, skewed or heavy-tailed, 93 to 97% of the intervals hold the truth."""
    draw, truth = LOG_RATIOS[kind]
    found = mean_coverage(draw, truth, units, audits=FULL, seed=17)
    print(f"{kind} | {units} | {100 * found:.1f}%")
    assert 0.93 - spread(FULL) / 3 <= found <= 0.97 + spread(FULL) / 3


@pytest.mark.long
@pytest.mark.parametrize("icc", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("units", [20, 40, 60])
@pytest.mark.parametrize(("lost", "gained"), DISCORDANCES)
def test_all_intervals_of_accuracy_cover(
    lost: float, gained: float, units: int, icc: float
) -> None:
    """They hold the truth in 93% at least; in 97% at most, where the exact one is not used."""
    found, exact = accuracy_coverage(units, lost, gained, icc, audits=FULL, seed=17)
    print(f"{lost} | {gained} | {units} | {icc} | {100 * found:.1f}% | exact {100 * exact:.0f}%")
    assert found >= 0.93 - spread(FULL) / 3
    assert found <= 0.97 + spread(FULL) / 3 or exact > 0.05


@pytest.mark.long
@pytest.mark.parametrize(
    "nothing",
    [
        Nothing(),
        Nothing(units=20),
        Nothing(unit_noise=0.1, turn=0.05),
        Nothing(units=20, unit_noise=0.2, turn=0.03, treatments=5),
        Nothing(units=60, noise=0.3, turn=0.1, treatments=1),
    ],
    ids=lambda n: (
        f"{n.units} units, {n.treatments} treatments, noise {n.noise}/{n.unit_noise}, turn {n.turn}"
    ),
)
def test_nothing_is_seldom_condemned_or_praised_in_many_audits(nothing: Nothing) -> None:
    """At most 5% of 1,000 audits of treatments that do nothing have any false verdict."""
    share, said = false_verdicts(nothing, audits=1000, seed=3)
    print(f"{nothing} | {100 * share:.1f}% | {dict(said)}")
    assert share <= 0.05 + (0.05 * 0.95 / 1000) ** 0.5


@pytest.mark.long
@pytest.mark.parametrize(
    ("units", "discordance"), [(40, 0.01), (40, 0.02), (80, 0.02), (60, 0.05), (150, 0.1)]
)
def test_all_power_estimates_agree_with_simulation(units: int, discordance: float) -> None:
    """Estimates are within 6 points of what 2,000 simulated audits come to."""
    told = power_for(units, 5, icc=0.3, expected_discordance=discordance).power
    found = simulated_power(units, discordance, audits=FULL)
    print(f"{units} | {discordance} | {100 * told:.0f}% | {100 * found:.0f}%")
    assert found == pytest.approx(told, abs=0.06)
