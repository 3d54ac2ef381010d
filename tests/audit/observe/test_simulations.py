"""Many logs with a known truth: bias, coverage and false alarms, as the guide states them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.audit.observe.simulated import World, as_log, simulate

from kvbaton.audit.observe.observation import observe

LOGS = 200


def results(world: World) -> list[Any]:
    """The results of many logs of one world."""
    return [observe(as_log(simulate(world, seed))) for seed in range(5000, 5000 + LOGS)]


def bias(found: list[Any], name: str, truth: float) -> float:
    """Geometric mean of the estimates over the truth."""
    logs = [math.log(one["effects"]["ttft"][name]) for one in found]
    return math.exp(float(np.mean(logs))) / truth


def covered(found: list[Any], truth: float) -> float:
    """Share of the intervals that hold the truth."""
    ends = [one["ttft_ratio_ci"] for one in found]
    return sum(low <= truth <= high for low, high in ends) / len(ends)


@pytest.mark.long
def test_confounding_is_removed_and_intervals_cover() -> None:
    """As logged the ratio is off by more than half; weighted by under 2%; 91 to 99% cover."""
    found = results(World())
    assert bias(found, "naive_ratio", 0.6) > 1.5
    assert bias(found, "ratio", 0.6) == pytest.approx(1, abs=0.02)
    assert bias(found, "weighted_ratio", 0.6) == pytest.approx(1, abs=0.03)
    assert 0.91 <= covered(found, 0.6) <= 0.99
    alarms = sum(bool(one["drift"]["alarms"]) for one in found)
    assert alarms <= 0.1 * LOGS


@pytest.mark.long
def test_lots_recover_the_truth_and_no_effect_gives_no_verdict() -> None:
    """By lot 91 to 99% cover; with no effect at most 8% of the logs say faster or slower."""
    assert 0.91 <= covered(results(World(by_lot=True)), 0.6) <= 0.99
    none = results(World(ratio=1.0))
    wrong = sum(one["verdict"] in {"faster", "slower"} for one in none)
    assert wrong <= 0.08 * LOGS


@pytest.mark.long
def test_a_drift_of_a_quarter_is_found() -> None:
    """From 0.6 to 0.75 at the seventh of ten days: found in 8 of 10 logs, mostly to the day."""
    drifting = results(World(by_lot=True, drift_day=6, drift_ratio=0.75))
    days = [
        [alarm["window"] for alarm in one["drift"]["alarms"] if alarm["what"] == "effect"]
        for one in drifting
    ]
    assert sum(bool(one) for one in days) >= 0.8 * LOGS
    assert sum("2026-09-27" in one for one in days) >= 0.5 * LOGS
    frequent = replace(World(by_lot=True), fallback=0.05, fallback_after=0.25, drift_day=6)
    noticed = sum(
        any(a["what"] == "fallback" for a in one["drift"]["alarms"]) for one in results(frequent)
    )
    assert noticed >= 0.8 * LOGS
