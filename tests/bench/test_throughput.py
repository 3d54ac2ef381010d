"""`bench throughput`: each route does the work that it says, and the figures follow from it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bench.tiny import checkpoint

from kvbaton.agent import Agent
from kvbaton.bench import throughput
from kvbaton.bench.throughput import FIT_BYTES, ThroughputPlan, measure_throughput
from kvbaton.bench.throughput_report import throughput_tables
from kvbaton.conversation import Turn
from kvbaton.engines.transformers.load import load_checkpoint
from kvbaton.errors import InputError, WindowExceeded
from kvbaton.types import Receipt, Route

PLAN = ThroughputPlan(agents=(1, 2), rounds=2, tokens=64, new_tokens=4, repeats=2)
PROMISED = {
    "agents", "rounds", "text_turns_per_min", "baton_turns_per_min", "ratio",
    "peak_bytes_text", "peak_bytes_baton",
}  # fmt: skip


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
    return load_checkpoint(
        checkpoint(folder), name="tiny", dtype="float32", device="cpu",
        digests=folder / "digests", offline=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(engine: Any) -> tuple[dict[str, Any], list[Receipt]]:
    """The result of a whole run, and the receipts of all its turns."""
    receipts: list[Receipt] = []
    with pytest.MonkeyPatch.context() as patch:
        kept = Agent._kept

        def overheard(agent: Agent, turn: Turn) -> Turn:
            receipts.append(turn.receipt)
            return kept(agent, turn)

        patch.setattr(Agent, "_kept", overheard)
        return measure_throughput(engine, PLAN, lambda said: None), receipts


def test_rows_have_the_promised_fields(run: tuple[dict[str, Any], list[Receipt]]) -> None:
    """One row per ring; the whole is JSON without a number that is none."""
    result, _ = run
    assert [row["agents"] for row in result["rows"]] == [1, 2]
    assert all(set(row) >= PROMISED for row in result["rows"])
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_ratios_are_those_of_the_medians(run: tuple[dict[str, Any], list[Receipt]]) -> None:
    """Turns per minute are turns over the median of the seconds."""
    for row in run[0]["rows"]:
        assert row["turns"] == row["agents"] * row["rounds"]
        for route in ("text", "kept", "baton"):
            assert len(row["samples"][route]) == PLAN.repeats
            seconds = sum(row["samples"][route]) / 2
            assert row[f"{route}_turns_per_min"] == pytest.approx(60 * row["turns"] / seconds)
        assert row["ratio"] == row["baton_turns_per_min"] / row["text_turns_per_min"]
        assert row["ratio_kept"] == row["baton_turns_per_min"] / row["kept_turns_per_min"]


def test_all_routes_answer_equally_long_and_only_batons_skip_the_prefill(
    engine: Any,
) -> None:
    """Text computes every position of every context, a baton only what is new."""
    contexts = {}
    for route in ("text", "kept", "baton"):
        with throughput._Store(route) as store, pytest.MonkeyPatch.context() as patch:
            receipts: list[Receipt] = []
            kept = Agent._kept

            def overheard(agent: Agent, turn: Turn, to: Any = receipts, on: Any = kept) -> Turn:
                to.append(turn.receipt)
                return on(agent, turn)  # type: ignore[no-any-return]

            patch.setattr(Agent, "_kept", overheard)
            throughput._ring(engine, PLAN, 2, "a document " * 5, route, store)
        assert [receipt.generated_tokens for receipt in receipts] == 4 * [PLAN.new_tokens]
        contexts[route] = [receipt.context_tokens for receipt in receipts]
        first, *others = receipts
        assert first.computed_tokens == first.context_tokens
        if route == "text":
            assert all(r.computed_tokens == r.context_tokens for r in others)
        elif route == "kept":
            again = others[1:]  # those that have had a turn before
            assert all(r.reused_tokens > 0 for r in again)
        else:
            assert all(r.route is Route.BATON for r in others)
            assert all(r.computed_tokens < r.context_tokens / 2 for r in others)
    assert contexts["text"] == contexts["baton"]


def test_waiting_agents_are_counted_from_what_they_hold(
    run: tuple[dict[str, Any], list[Receipt]],
) -> None:
    """By baton the document is there once, beside one running cache."""
    waiting = run[0]["waiting"]
    assert waiting["kept_agents"] == FIT_BYTES // waiting["kept_bytes"]
    once = waiting["shared_bytes"] + waiting["kept_bytes"]
    assert waiting["baton_agents"] == (FIT_BYTES - once) // waiting["baton_bytes"]
    assert waiting["shared_bytes"] > 0 < waiting["baton_bytes"]


def test_tables_have_a_cell_for_every_heading(run: tuple[dict[str, Any], list[Receipt]]) -> None:
    """Each row of each table is as wide as its headings."""
    for table in throughput_tables(run[0]):
        assert all(len(row) == len(table.headings) for row in table.rows)


def test_nothing_is_left_behind(engine: Any, tmp_path: Path) -> None:
    """The store of a run by baton goes with the run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(throughput, "fast_folder", lambda needed: tmp_path)
        with throughput._Store("baton") as store:
            throughput._ring(engine, PLAN, 2, "a document", "baton", store)
            assert list(tmp_path.iterdir())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "wrong", [{"agents": ()}, {"agents": (0,)}, {"rounds": 0}, {"tokens": 0}, {"repeats": 0}]
)
def test_plans_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    """There is at least one of everything."""
    with pytest.raises(InputError):
        ThroughputPlan(**wrong)


def test_a_ring_that_outgrows_the_window_is_refused(engine: Any) -> None:
    """The error is the one of any prompt that is too long."""
    long = ThroughputPlan(agents=(2,), rounds=1, tokens=engine.max_tokens, repeats=1)
    with pytest.raises(WindowExceeded):
        measure_throughput(engine, long, lambda said: None)
