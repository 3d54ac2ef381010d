"""Drift: a planted day is found, nothing is found where nothing changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.audit.observe.simulated import START_S, World, as_log, simulate

from kvbaton.audit.observe.drift import Window, drift, windows
from kvbaton.audit.observe.observation import observe
from kvbaton.errors import InputError

LOTS = World(by_lot=True, conversations=400)


def by_count(total: int, size: int) -> tuple[Window, ...]:
    """Windows of so many receipts."""
    edges = range(0, total, size)
    return tuple(Window(str(low), np.arange(low, low + size)) for low in edges)


def test_a_lasting_change_is_found_at_its_day() -> None:
    """From the seventh day on the ratio is 0.95 instead of 0.6: one alarm, that day."""
    found = observe(as_log(simulate(replace(LOTS, drift_day=6, drift_ratio=0.95), 1)))
    (alarm,) = found["drift"]["alarms"]
    assert (alarm["what"], alarm["kind"], alarm["window"]) == ("effect", "since", "2026-09-27")
    assert alarm["before"] == pytest.approx(0.6, abs=0.05)
    assert alarm["after"] == pytest.approx(0.95, abs=0.08)
    assert alarm["p_adjusted"] < 0.01
    assert "since 2026-09-27" in alarm["sentence"]
    assert [one["window"] for one in found["drift"]["windows"]][6] == "2026-09-27"


def test_fallbacks_that_become_frequent_are_found() -> None:
    """From 5 to 40% at the fifth day: an alarm for the share that fell back."""
    world = replace(LOTS, fallback=0.05, fallback_after=0.4, drift_day=4, drift_ratio=0.6)
    found = observe(as_log(simulate(world, 2)))
    (alarm,) = [one for one in found["drift"]["alarms"] if one["what"] == "fallback"]
    assert (alarm["kind"], alarm["window"]) == ("since", "2026-09-25")
    assert alarm["after"] == pytest.approx(0.4, abs=0.07)


def test_nothing_is_found_where_nothing_changes() -> None:
    """Neither by lot nor by propensity, with 10% fallbacks throughout."""
    steady = {"fallback": 0.1, "conversations": 300}
    for world in (replace(LOTS, **steady), World(**steady)):  # type: ignore[arg-type]
        assert observe(as_log(simulate(world, 1)))["drift"]["alarms"] == []


def test_false_alarms_are_rarer_than_they_may_be() -> None:
    """2.5% of series without a change raise an alarm, for means and shares: of 100 at most 7."""
    random = np.random.default_rng(0)
    cut = by_count(600, 60)
    clusters = np.repeat(np.arange(200), 3)
    for sample in (
        lambda: random.standard_t(5, 600) + np.repeat(random.normal(0, 1, 200), 3),
        lambda: (random.random(600) < 0.05).astype(float),
    ):
        alarms = [drift(sample(), cut, clusters, what="x", rounds=199) for _ in range(100)]
        assert sum(bool(one) for one in alarms) <= 7


def test_one_odd_window_is_told_as_one() -> None:
    """A change that goes away again is an alarm for its window, not since it."""
    random = np.random.default_rng(1)
    values = random.normal(size=600)
    values[240:300] += 2
    (alarm,) = drift(values, by_count(600, 60), np.arange(600), what="effect")
    assert (alarm.kind, alarm.window) == ("in", "240")
    assert alarm.after - alarm.before == pytest.approx(2, abs=0.5)


def test_constant_values_and_few_windows_raise_no_alarm() -> None:
    """Nothing can change in a constant, or with one window or none."""
    ones = np.ones(100)
    assert drift(ones, by_count(100, 20), np.arange(100), what="fallback") == ()
    assert drift(ones, by_count(100, 100), np.arange(100), what="fallback") == ()
    assert drift(ones, (), np.arange(100), what="fallback") == ()


def test_windows_are_days_weeks_or_counts() -> None:
    """Dates are UTC, counts keep the order, and a short rest joins the last window."""
    rows = as_log(simulate(World(conversations=100), 1)).observations
    days = windows(rows, "day")
    assert [one.label for one in days] == [f"2026-09-{n}" for n in range(21, 31)]
    assert START_S // 86_400 * 86_400 == START_S
    assert [one.label for one in windows(rows, "week")] == ["2026-W39", "2026-W40"]
    assert sum(len(one.members) for one in days) == len(rows)
    counted = windows(rows[:250], "100")
    assert [one.label for one in counted] == ["receipts 1 to 100", "receipts 101 to 250"]
    assert [one.label for one in windows(rows, "auto")] == [one.label for one in days]
    untimed = [replace(one, time_s=None) for one in rows]
    assert windows(untimed, "auto")[0].label == "receipts 1 to 100"
    assert [one.label for one in windows(rows[:5], "100")] == ["receipts 1 to 5"]


@pytest.mark.parametrize("window", ["month", "0", "-5", "1.5", ""])
def test_what_is_no_window_is_refused(window: str) -> None:
    """Days, weeks and counts only."""
    with pytest.raises(InputError, match="is no window"):
        windows(as_log(simulate(World(conversations=3), 1)).observations, window)


def test_days_need_times() -> None:
    """Without the label `time` a window of a day is an input error that says so."""
    rows = as_log(simulate(LOTS, 1)).observations
    with pytest.raises(InputError, match="need the label 'time'"):
        windows([replace(rows[0], time_s=None), *rows[1:]], "day")
