"""The mixed model against the analysis of variance, and against data that it cannot fit."""

import math

import numpy as np
import pytest
from tests.audit.statistics.test_intervals import SLEEP

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
    """lmer(extra ~ group + (1 | ID)) gives 1.58 with a standard error of 0.389."""
    found = fit_mixed(sleep(), {"T3": "T0"})
    ratio = found.ratios["T3"]
    error = float(np.std(SLEEP, ddof=1)) / math.sqrt(10)
    assert error == pytest.approx(0.38896, abs=1e-5)
    assert found.converged
    assert ratio.value is not None and ratio.high is not None
    assert math.log(ratio.value) == pytest.approx(-1.58, abs=1e-6)
    assert (math.log(ratio.high) + 1.58) / 1.959964 == pytest.approx(error, rel=1e-3)


def test_several_pairs_have_an_effect_of_their_own() -> None:
    """A pair that is three times slower changes the spread of pairs, not the ratio."""
    found = fit_mixed([*sleep(), *sleep("q", 3.0)], {"T3": "T0"})
    assert found.ratios["T3"].value == pytest.approx(math.exp(-1.58), rel=1e-6)
    assert (found.spreads["pair"] or 0) > 0.1
    assert "pair within unit" in found.why


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
