"""Logs with a known truth: the planted confounder is removed, and what cannot be known is said."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.audit.observe.simulated import World, as_log, simulate

from kvbaton.audit.observe.observation import FORMAT, observe
from kvbaton.audit.observe.reading import Log
from kvbaton.audit.observe.sample import By, Plan
from kvbaton.audit.observe.sensitivity import e_value
from kvbaton.errors import InputError

CONFOUNDED, LOTS = World(), World(by_lot=True, conversations=400)


@cache
def result(world: World, seed: int = 1, plan: Plan | None = None) -> Any:
    """The result of a simulated log."""
    return observe(as_log(simulate(world, seed)), plan)


def cut(log: Log, **changes: Any) -> Log:
    """The same log with every receipt changed alike."""
    return replace(log, observations=tuple(replace(o, **changes) for o in log.observations))


def test_a_planted_confounder_is_removed() -> None:
    """Long contexts go by baton: as logged it looks slower, weighted the true 0.6 is found."""
    found = result(CONFOUNDED)["effects"]["ttft"]
    assert found["naive_ratio"] > 1.0
    assert found["naive_ratio_ci"][0] > 0.9
    low, high = found["ratio_ci"]
    assert low < 0.6 < high
    assert high - low < 0.1
    assert found["weighted_ratio"] == pytest.approx(0.6, rel=0.1)
    assert result(CONFOUNDED)["verdict"] == "faster"
    assert "of the time of text" in result(CONFOUNDED)["why"]


def test_balance_is_reached_and_shown() -> None:
    """The context differs by a deviation as logged, and by less than a tenth once weighted."""
    table = {one["feature"]: one for one in result(CONFOUNDED)["balance"]}
    assert table["log context"]["before"] > 0.8
    assert all(one["balanced"] and abs(one["after"]) < 0.1 for one in table.values())
    assert {"agent reviewer", "hour (sine)", "place in log"} <= set(table)
    found = result(CONFOUNDED)["overlap"]
    assert found["enough"]
    assert found["method"] == "logit"
    assert 0 < found["outside_share"] < 0.2


def test_arms_recover_the_truth() -> None:
    """Lots by conversation need no weights; the arm decides, not the route."""
    found = result(LOTS)
    assert (found["by"], found["verdict"], found["overlap"]) == ("ab", "faster", None)
    low, high = found["ttft_ratio_ci"]
    assert low < 0.6 < high
    assert not found["assignment"]["alarm"]
    assert found["sensitivity"] is None
    assert found["effects"]["ttft"]["conversations"] == 400


def test_what_fell_back_counts_as_assigned() -> None:
    """With 30% fallbacks at the time of text the effect of assigning is 0.6 to the power of 0.7."""
    world = replace(LOTS, fallback=0.3)
    found = result(world)
    low, high = found["ttft_ratio_ci"]
    assert low < 0.6**0.7 < high
    assert high > 0.64
    assert found["counts"]["fallback_share"] == pytest.approx(0.3, abs=0.05)
    taken = result(replace(CONFOUNDED, fallback=0.3), plan=Plan(by=By.PROPENSITY, received=True))
    assert taken["ttft_ratio"] == pytest.approx(0.6, rel=0.06)
    assert taken["method"]["treatment"] == "route taken"


def test_quality_is_told_in_points() -> None:
    """A planted loss of 30 points is within the interval; no loss is not found where none is."""
    world = replace(LOTS, accuracy=(0.9, 0.6))
    found = result(world)["effects"]["score"]
    assert found["points_ci"][0] < -30 < found["points_ci"][1] < 0
    low, high = result(LOTS)["effects"]["score"]["points_ci"]
    assert low < 0 < high


def test_a_placebo_does_nothing() -> None:
    """Shuffled routes have no effect on average, and none of 200 reaches the estimate."""
    for found, dealt in ((result(CONFOUNDED), "receipts"), (result(LOTS), "conversations")):
        assert found["placebo"]["mean_ratio"] == pytest.approx(1.0, abs=0.02)
        assert found["placebo"]["share_beyond"] == 0.0
        assert found["placebo"]["by"] == dealt


def test_no_overlap_is_flagged_and_nothing_is_estimated() -> None:
    """Where length alone decides on the route there is no estimate, only a verdict."""
    found = result(replace(CONFOUNDED, confounding=40.0))
    assert found["verdict"] == "no overlap"
    assert found["ttft_ratio"] is None
    assert found["effects"]["ttft"]["ratio"] is None
    assert found["placebo"] is None
    assert not found["overlap"]["enough"]


def test_a_category_of_one_arm_is_left_out_by_name() -> None:
    """A model that was only ever used by baton has nothing to compare with."""
    log = as_log(simulate(CONFOUNDED, 1))
    own = tuple(
        replace(o, model="other") if o.offered and n % 5 == 0 else o
        for n, o in enumerate(log.observations)
    )
    found = observe(replace(log, observations=own))
    assert any("model 'other'" in warning for warning in found["warnings"])
    assert found["counts"]["compared"] < len(own)
    split = tuple(replace(o, model="b" if o.offered else "a") for o in own)
    assert observe(replace(log, observations=split))["verdict"] == "no overlap"


def test_lost_conversations_invalidate_the_arms() -> None:
    """A third of one arm's conversations missing is told before any effect."""
    rows = simulate(LOTS, 1)
    gone = {r["labels"]["conversation"] for r in rows if r["labels"]["arm"] == "baton"}
    gone = set(sorted(gone)[::3])
    found = observe(as_log([r for r in rows if r["labels"]["conversation"] not in gone]))
    assert found["verdict"] == "arms do not match the plan"
    assert found["assignment"]["p"] < 0.001
    assert "do not believe this" in found["why"]


def test_receipts_that_were_not_treated_as_assigned_are_told() -> None:
    """They count for their arm, and warnings say how many there are; others are left out."""
    log = as_log(simulate(LOTS, 1))
    rows = list(log.observations)
    text = next(n for n, one in enumerate(rows) if one.arm == "text")
    baton = next(n for n, one in enumerate(rows) if one.arm == "baton")
    rows[text] = replace(rows[text], offered=True)
    rows[baton] = replace(rows[baton], offered=False)
    rows += [replace(one, id=f"{one.id} sender", arm="", offered=False) for one in rows]
    found = observe(replace(log, observations=tuple(rows)))
    assert found["by"] == "ab"
    assert found["counts"]["receipts"] == len(log.observations)
    said = " ".join(found["warnings"])
    assert "1 receipts of the text arm were given a baton" in said
    assert "1 receipts of the baton arm had no baton" in said


def test_lost_receipts_are_a_warning() -> None:
    """Half of the receipts of one arm missing shows in the length of its conversations."""
    found = result(replace(LOTS, lost=0.5))
    assert any("not equally long" in warning for warning in found["warnings"])


def test_no_effect_is_not_an_effect() -> None:
    """A ratio of 1 gives `same` or `undecided`, also under confounding."""
    for seed in (2, 3):
        found = result(replace(CONFOUNDED, ratio=1.0, conversations=600), seed)
        assert found["verdict"] in {"same", "undecided"}
        assert found["ttft_ratio_ci"][0] < 1 < found["ttft_ratio_ci"][1]


def test_a_numeric_label_is_accounted_for() -> None:
    """A label that decides on route and time, once named, no longer biases the estimate."""
    random = np.random.default_rng(0)
    log = as_log(simulate(World(confounding=0.0, conversations=400), 4))
    rows = []
    for one in log.observations:
        load = random.normal()
        baton = random.random() < 1 / (1 + math.exp(-1.5 * load))
        ttft = math.exp(0.5 * load + 0.1 * random.normal()) * (0.6 if baton else 1)
        labels = {**one.labels, "queue": f"{load:.3f}"}
        rows.append(replace(one, offered=baton, ttft_s=ttft, labels=labels))
    changed = replace(log, observations=tuple(rows))
    assert observe(changed)["ttft_ratio"] > 0.75
    found = observe(changed, Plan(labels=("queue",)))
    low, high = found["ttft_ratio_ci"]
    assert low < 0.6 < high
    missing = [replace(o, labels={}) if n % 50 == 0 else o for n, o in enumerate(rows)]
    assert "queue missing" in {
        one["feature"]
        for one in observe(replace(log, observations=tuple(missing)), Plan(labels=("queue",)))[
            "balance"
        ]
    }


def test_separating_features_are_penalised() -> None:
    """A feature that tells the routes apart gives finite scores, and the verdict says so."""
    log = as_log(simulate(CONFOUNDED, 1))
    split = [replace(o, labels={**o.labels, "side": str(int(o.offered))}) for o in log.observations]
    found = observe(replace(log, observations=tuple(split)), Plan(labels=("side",)))
    assert found["verdict"] == "no overlap"
    assert any("penalised" in warning for warning in found["warnings"])


def test_the_e_value_is_the_published_one() -> None:
    """A risk ratio of 3.9 needs 7.26 (VanderWeele and Ding, 2017); no effect needs 1."""
    assert e_value(math.log(3.9) / 0.91, 1.0) == pytest.approx(7.26, abs=0.01)
    assert e_value(-math.log(3.9) / 0.91, 1.0) == e_value(math.log(3.9) / 0.91, 1.0)
    assert e_value(0.0, 1.0) == 1.0
    found = result(CONFOUNDED)["sensitivity"]
    assert found["e_value"] > found["e_value_interval"] > 1


# --- bad input ---------------------------------------------------------------------------------


def test_one_route_only_is_told() -> None:
    """All by baton, or all by text: nothing to compare, and what to do."""
    log = as_log(simulate(World(conversations=20), 1))
    for offered, word in ((True, "batons"), (False, "text")):
        with pytest.raises(InputError, match=word) as caught:
            observe(cut(log, offered=offered))
        assert "assign conversations" in caught.value.hint


def test_too_few_receipts_or_conversations_are_told() -> None:
    """Below 20 receipts of a route, or 10 conversations, nothing is estimated."""
    with pytest.raises(InputError, match="too few"):
        observe(as_log(simulate(World(conversations=5), 1)))
    log = as_log(simulate(World(conversations=60), 1))
    with pytest.raises(InputError, match="1 conversations are too few"):
        observe(cut(log, conversation="one"))


def test_times_that_never_vary_are_told() -> None:
    """A constant outcome is an input error for times, and no interval for scores."""
    log = as_log(simulate(CONFOUNDED, 1))
    with pytest.raises(InputError, match="all times to the first token are the same"):
        observe(cut(log, ttft_s=1.0))
    found = observe(cut(log, score=1.0))["effects"]["score"]
    assert found["points"] == pytest.approx(0.0, abs=1e-9)
    assert found["points_ci"] is None


def test_no_time_at_all_is_told() -> None:
    """Receipts without a time to the first token cannot be compared."""
    with pytest.raises(InputError, match="time to the first token"):
        observe(cut(as_log(simulate(CONFOUNDED, 1)), ttft_s=None))


def test_missing_parts_are_warnings() -> None:
    """No conversations, no totals and scores on one route only are said, not hidden."""
    log = as_log(simulate(CONFOUNDED, 1))
    found = observe(cut(log, conversation="", total_s=None, score=None, time_s=None))
    assert set(found["effects"]) == {"ttft"}
    assert any("names its conversation" in warning for warning in found["warnings"])
    half = [replace(o, score=None) if o.offered else o for o in log.observations]
    found = observe(replace(log, observations=tuple(half)))
    assert found["effects"]["score"]["points"] is None
    assert any("have a score" in warning for warning in found["warnings"])


@pytest.mark.parametrize("world", [CONFOUNDED, LOTS, replace(CONFOUNDED, confounding=40.0)])
def test_results_are_finite_and_repeat(world: World) -> None:
    """A result is JSON without NaN, and the same log and seed give the same result."""
    found = result(world)
    assert found["format"] == FORMAT
    text = json.dumps(found, allow_nan=False)
    assert json.dumps(observe(as_log(simulate(world, 1))), allow_nan=False) == text
