"""`bench policy` and the calibration behind it: real takes, and figures that follow from them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from tests.bench.tiny import checkpoint

from kvbaton.bench import policy
from kvbaton.bench.calibrating import CalibrationPlan, RelayOf, calibrate, plain_relays
from kvbaton.bench.fidelity.throttle import ThrottledStore
from kvbaton.bench.policy import PolicyBench, measure_policy, summary_of
from kvbaton.bench.policy_report import policy_tables
from kvbaton.engines.transformers.load import load_checkpoint
from kvbaton.errors import InputError
from kvbaton.policy.costs import predictions_ahead
from kvbaton.policy.hosts import host_id
from kvbaton.policy.speeds import Speeds
from kvbaton.relay import CHECKED
from kvbaton.stores import Kind, MemoryStore
from kvbaton.types import Mode, Receipt, Route

CALIBRATION = CalibrationPlan(
    text_tokens=(64, 128), take_tokens=(64, 128), rounds=2, budget_s=0.0, patience_s=0.0
)
PLAN = PolicyBench(
    ("exact",),
    tokens=(96, 160),
    multiples=(0.5, 20.0),
    repeats=2,
    calibration=CALIBRATION,
    patience_s=0.0,
)
PROMISED = {"tokens", "bandwidth_mb_s", "chosen", "fastest", "predicted_s", "actual_s"}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny models gain nothing from more threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tiny model."""
    folder = tmp_path_factory.mktemp("model")
    made = load_checkpoint(
        checkpoint(folder), name="tiny", dtype="float32", device="cpu",
        digests=folder / "digests", offline=True,
    )  # fmt: skip
    made.max_tokens = 16_384
    return made


@pytest.fixture(scope="module")
def relay_of(engine: Any) -> RelayOf:
    """Relays that encode nothing."""
    return plain_relays(engine, lambda name: None, lambda function: frozenset(), CHECKED)


@pytest.fixture(scope="module")
def speeds(engine: Any, relay_of: RelayOf) -> Speeds:
    """What a short calibration measures."""
    store = MemoryStore()
    found = calibrate(engine, store, relay_of, CALIBRATION, lambda said: None)
    assert not any(list(store.list(kind)) for kind in Kind)
    return found


@pytest.fixture(scope="module")
def result(engine: Any, relay_of: RelayOf) -> dict[str, Any]:
    """A whole run."""
    return measure_policy(engine, relay_of, PLAN, lambda said: None)


# --- calibration -------------------------------------------------------------------------------


def test_calibration_measures_every_phase(engine: Any, speeds: Speeds) -> None:
    """Of this function on this host; the length of prompts decides where the knots are."""
    assert (speeds.host, speeds.function) == (host_id(), engine.function.digest)
    assert speeds.layers == len(engine.layout.layers)
    assert speeds.token_bytes == engine.layout.cache_bytes(1)
    assert [knot.tokens for knot in speeds.prefill if knot.tokens <= 64] == [4, 16, 32, 64]
    assert len([knot for knot in speeds.prefill if knot.tokens > 64]) == 2
    assert speeds.generate_s > 0
    for name in ("overhead", "verify", "probe", "attach", "align", "recompute"):
        assert getattr(speeds, name).seconds(1000) > 0, name
    assert list(speeds.stores) == ["memory://"]


def test_stored_bytes_per_token_are_those_of_segments(engine: Any, speeds: Speeds) -> None:
    """A little more than the cache's own, for the headers."""
    own = engine.layout.cache_bytes(1)
    assert own < speeds.codecs["exact"].token_bytes < 3 * own


def test_what_was_calibrated_predicts_and_is_kept(speeds: Speeds) -> None:
    """Every route, and through JSON to the last bit."""
    found = predictions_ahead(speeds, cached_tokens=128, new_tokens=20, store="memory://")
    assert [one.route for one in found] == ["text", "exact", "slice"]
    assert all(0 < one.low_s <= one.ttft_s <= one.high_s < math.inf for one in found)
    assert Speeds.from_json(json.loads(json.dumps(speeds.to_json()))) == speeds


def test_takes_of_a_calibration_are_of_both_routes(engine: Any, relay_of: RelayOf) -> None:
    """Text computes every token, caches only what is new; nothing is mended."""
    receipts: list[Receipt] = []
    with pytest.MonkeyPatch.context() as patch:
        from kvbaton.bench.calibrating import _Bench

        take = _Bench._take

        def overheard(bench: _Bench, *given: Any, **options: Any) -> Receipt:
            receipts.append(take(bench, *given, **options))
            return receipts[-1]

        patch.setattr(_Bench, "_take", overheard)
        calibrate(engine, MemoryStore(), relay_of, CALIBRATION, lambda said: None)
    assert {one.route for one in receipts} == {Route.TEXT, Route.BATON}
    for one in receipts:
        assert one.mode is Mode.CONTINUE
        reused = one.reused_tokens if one.route is Route.BATON else 0
        assert one.computed_tokens == one.context_tokens - reused
        assert one.recomputed_token_layers == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"profiles": ("compact",)},
        {"text_tokens": ()},
        {"take_tokens": ()},
        {"text_tokens": (3,)},
        {"rounds": 1},
    ],
)
def test_calibrations_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    """There are lengths and rounds, and exact is always measured."""
    with pytest.raises(InputError):
        dataclasses.replace(CALIBRATION, **wrong)


# --- bench -------------------------------------------------------------------------------------


def test_rows_have_the_promised_fields(result: dict[str, Any]) -> None:
    """One row per length, profile and bandwidth; the whole is JSON."""
    assert len(result["rows"]) == 4
    assert all(set(row) >= PROMISED for row in result["rows"])
    assert {"best_choice_share", "mean_regret"} <= set(result)
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_figures_follow_from_the_times(result: dict[str, Any]) -> None:
    """What was chosen took what it took, and the fastest is the fastest."""
    for row in result["rows"]:
        times = {"text": row["text_s"], "exact": row["cache_s"]}
        assert row["actual_s"] == times[row["chosen"]]
        assert times[row["fastest"]] == min(times.values())
        assert row["regret"] == row["actual_s"] / min(times.values()) - 1
        assert row["right"] == (row["regret"] <= 0.05 + 1e-12)
        foretold = {"text": row["predicted_text_s"], "exact": row["predicted_cache_s"]}
        assert row["predicted_s"] == foretold[row["chosen"]]
    assert result["mean_regret"] == fmean(row["regret"] for row in result["rows"])
    assert result["best_choice_share"] == fmean(row["right"] for row in result["rows"])


def test_text_is_measured_once_per_length(result: dict[str, Any]) -> None:
    """Every row of a length has the same time by text, and no bandwidth of another."""
    for tokens in {row["tokens"] for row in result["rows"]}:
        rows = [row for row in result["rows"] if row["tokens"] == tokens]
        assert len({row["text_s"] for row in rows}) == 1
        assert rows[1]["bandwidth_mb_s"] == pytest.approx(40 * rows[0]["bandwidth_mb_s"])


def test_choices_are_made_before_and_bytes_really_wait(engine: Any, relay_of: RelayOf) -> None:
    """The line to each point is asked for the whole of the segments, after the policy chose."""
    events: list[str] = []
    waits: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        point, timed = policy._Grid._point, policy._Grid._timed

        def chosen(grid: Any, *given: Any) -> Any:
            events.append("chosen")
            return point(grid, *given)

        def measured(grid: Any, *given: Any) -> Any:
            events.append("measured")
            return timed(grid, *given)

        class Line(ThrottledStore):
            def __init__(self, inner: Any, bytes_per_s: float) -> None:
                super().__init__(inner, bytes_per_s, wait=waits.append)

        patch.setattr(policy._Grid, "_point", chosen)
        patch.setattr(policy._Grid, "_timed", measured)
        patch.setattr(policy, "ThrottledStore", Line)
        one = dataclasses.replace(PLAN, tokens=(96,), repeats=1)
        found = measure_policy(engine, relay_of, one, lambda said: None)
    assert events == ["chosen", "chosen", "measured"]
    size = 96 * engine.layout.cache_bytes(1)
    slowest = min(row["bandwidth_mb_s"] for row in found["rows"]) * 1e6
    assert sum(waits) > size / slowest


def test_the_summary_can_be_checked_by_hand() -> None:
    """Two of three right; never choosing costs what it costs."""

    def row(text_s: float, cache_s: float, chosen: str) -> dict[str, Any]:
        actual = text_s if chosen == "text" else cache_s
        regret = actual / min(text_s, cache_s) - 1
        return {
            "text_s": text_s, "cache_s": cache_s, "chosen": chosen, "actual_s": actual,
            "predicted_s": 2 * actual, "regret": regret, "right": regret <= 0.05, "near": True,
        }  # fmt: skip

    found = summary_of([row(1.0, 2.0, "text"), row(3.0, 1.0, "exact"), row(1.0, 2.0, "exact")])
    assert found["best_choice_share"] == pytest.approx(2 / 3)
    assert found["mean_regret"] == pytest.approx(1 / 3)
    assert found["always_text"] == pytest.approx(2 / 3)
    assert found["always_cache"] == pytest.approx(2 / 3)
    assert found["prediction_error"] == pytest.approx(1.0)


def test_tables_have_a_cell_for_every_heading(result: dict[str, Any]) -> None:
    """Each row of each table is as wide as its headings."""
    for table in policy_tables(result):
        assert all(len(row) == len(table.headings) for row in table.rows)


def test_nothing_is_left_behind(
    engine: Any, relay_of: RelayOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store goes with the run."""
    monkeypatch.setattr(policy, "fast_folder", lambda needed: tmp_path)
    one = dataclasses.replace(PLAN, tokens=(96,), multiples=(20.0,), repeats=1)
    measure_policy(engine, relay_of, one, lambda said: None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": ()},
        {"tokens": (0,)},
        {"multiples": ()},
        {"multiples": (0.0,)},
        {"repeats": 0},
        {"profiles": ()},
        {"tokens": (64,)},
    ],
)
def test_plans_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    """There is something to measure, at other lengths than those of the calibration."""
    with pytest.raises(InputError):
        dataclasses.replace(PLAN, **wrong)
