"""The mixed model against the analysis of variance, and against data that it cannot fit."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.audit.statistics.test_intervals import SLEEP

from kvbaton.audit.statistics.intervals import student_interval
from kvbaton.audit.statistics.mixed import Timing, fit_mixed

ONE = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
TWO = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
"""Extra hours of sleep under two drugs (Student 1908)."""


def sleep(pair: str = "p", factor: float = 1.0) -> list[Timing]:
    """The sleep data as if they were log seconds."""
    rows = [(n, "T0", two) for n, two in enumerate(TWO)]
    rows += [(n, "T3", one) for n, one in enumerate(ONE)]
    return [Timing(f"u{n}", pair, name, factor * math.exp(value)) for n, name, value in rows]


def test_the_sleep_data_have_the_standard_error_of_the_paired_t_test() -> None:
    """lmer(extra ~ group + (1 | ID)) gives 1.58, error 0.389; the t test has p = 0.002833."""
    found = fit_mixed(sleep(), {"T3": "T0"})
    ratio = found.ratios["T3"]
    error = float(np.std(SLEEP, ddof=1)) / math.sqrt(10)
    assert error == pytest.approx(0.38896, abs=1e-5)
    assert found.converged
    assert ratio.value is not None and ratio.high is not None
    assert math.log(ratio.value) == pytest.approx(-1.58, abs=1e-6)
    assert (math.log(ratio.high) + 1.58) / 2.262157 == pytest.approx(error, rel=1e-6)
    assert found.p["T3"] == pytest.approx(0.002832890, rel=1e-5)


def test_several_pairs_have_an_effect_of_their_own() -> None:
    """A pair that is three times slower changes the spread of pairs, not the ratio."""
    found = fit_mixed([*sleep(), *sleep("q", 3.0)], {"T3": "T0"})
    assert found.ratios["T3"].value == pytest.approx(math.exp(-1.58), rel=1e-6)
    assert (found.spreads["pair"] or 0) > 0.1
    assert "pair within unit" in found.why


def drawn(
    dice: np.random.Generator,
    own: dict[str, float],
    *,
    units: int = 40,
    pairs: int = 1,
    repeats: int = 3,
    missing: float = 0.0,
) -> list[Timing]:
    """Trials of treatments whose log ratios scatter over units as ``own`` says, about 0."""
    found = []
    for unit in range(units):
        base, by_name = dice.normal(0, 0.5), {name: dice.normal(0, sd) for name, sd in own.items()}
        for pair in range(pairs):
            level = base + dice.normal(0, 0.1)
            for name, log_ratio in by_name.items():
                if dice.random() < missing:
                    continue
                logs = level + log_ratio + dice.normal(0, 0.03, repeats)
                found += [Timing(f"u{unit}", f"p{pair}", name, math.exp(log)) for log in logs]
    return found


@pytest.mark.parametrize("pairs", [1, 2])
@pytest.mark.parametrize("repeats", [1, 3, 20])
def test_intervals_are_as_wide_as_those_of_paired_units(pairs: int, repeats: int) -> None:
    """Neither repeats nor pairs are evidence of their own, nor do quiet treatments speak for T3."""
    own = {"T0": 0.0, "T1": 0.02, "T2": 0.02, "T3": 0.3}
    trials = drawn(np.random.default_rng(repeats), own, pairs=pairs, repeats=repeats)
    found = fit_mixed(trials, {"T1": "T0", "T2": "T0", "T3": "T0"}).ratios
    for name in ("T1", "T2", "T3"):
        logs = {
            unit: np.mean([math.log(t.seconds) for t in trials if (t.unit, t.treatment) == unit])
            for unit in {(t.unit, t.treatment) for t in trials}
        }
        expected = student_interval([logs[f"u{n}", name] - logs[f"u{n}", "T0"] for n in range(40)])
        assert found[name].interval == pytest.approx(expected.exponential().interval, rel=1e-6)


def test_intervals_cover_where_units_differ_and_trials_are_missing() -> None:
    """With a tenth of the trials gone, 93 to 97% of intervals hold the truth, but for chance."""
    dice, audits, held = np.random.default_rng(21), 80, 0
    for _ in range(audits):
        trials = drawn(dice, {"T0": 0.0, "T3": 0.3}, units=20, missing=0.1)
        low, high = fit_mixed(trials, {"T3": "T0"}).ratios["T3"].interval or (0.0, 0.0)
        held += low <= 1 <= high
    assert held / audits == pytest.approx(0.95, abs=0.02 + 3 * (0.95 * 0.05 / audits) ** 0.5)


def test_treatments_without_units_or_spread_are_left_out() -> None:
    """The others keep their figures, and the sentence names who has none."""
    few = [t for t in sleep() if t.treatment == "T0" and t.unit in ("u0", "u1")]
    same = [t for t in sleep() if t.treatment == "T0"]
    trials = [
        *sleep(),
        *(replace(t, treatment="T1") for t in few),
        *(replace(t, treatment="T2", seconds=t.seconds / 2) for t in same),
    ]
    found = fit_mixed(trials, {"T1": "T0", "T2": "T0", "T3": "T0"})
    assert found.ratios.keys() == {"T3"}
    assert "left out, with too few units or no spread: T1, T2" in found.why


def test_the_order_of_trials_does_not_matter() -> None:
    """Reversed trials give the same fit."""
    assert fit_mixed(sleep()[::-1], {"T3": "T0"}) == fit_mixed(sleep(), {"T3": "T0"})


@pytest.mark.parametrize(
    ("timings", "why"),
    [
        ([], "no treatment"),
        (sleep()[:10], "no treatment"),
        ([t for t in sleep() if t.unit in ("u0", "u1")], "needs 5 units"),
        ([Timing(f"u{n}", "p", t, 2.0) for n in range(9) for t in ("T0", "T3")], "same time"),
        (
            [
                Timing(f"u{n}", "p", t, (n + 1.0) * (0.5 if t == "T3" else 1.0))
                for n in range(9)
                for t in ("T0", "T3")
            ],
            "singular",
        ),
        ([Timing("u", "p", "T3", math.nan), Timing("u", "p", "T0", -1.0)], "no treatment"),
    ],
)
def test_what_cannot_be_fitted_gets_a_sentence(timings: list[Timing], why: str) -> None:
    """A model without data or spread is no exception, and has no figures."""
    found = fit_mixed(timings, {"T3": "T0"})
    assert not found.converged
    assert why in found.why
    assert found.ratios == {}
