"""The pipeline that comes along, on the real model that it was written for."""

from __future__ import annotations

from typing import Any

import pytest

from kvbaton.pipelines import default_pipeline, run_pipeline
from kvbaton.stores import MemoryStore
from kvbaton.types import Route

pytestmark = pytest.mark.long


def test_the_document_has_at_least_two_thousand_tokens(tokenizer: Any) -> None:
    """The shipped document is long enough to be worth handing over, and fits half the window."""
    ids = tokenizer(default_pipeline().document, add_special_tokens=False)["input_ids"]
    assert 2000 <= len(ids) < 4096


def test_all_takers_go_by_baton_and_find_the_private_facts(smollm2_f32: Any) -> None:
    """Workers and writer answer from the planner's cache, exactly as by text in float32."""
    result = run_pipeline(
        default_pipeline(), smollm2_f32, MemoryStore(), route="baton", compare=True
    )
    planner, alarm, repair, cost, writer = result.turns
    assert [t.receipt.route for t in (alarm, repair, cost, writer)] == [Route.BATON] * 4
    cached = planner.receipt.context_tokens + planner.receipt.generated_tokens - 1
    assert {turn.receipt.reused_tokens for turn in result.takers} == {cached}
    assert "Bluebell" in alarm.output
    assert "KP-7731" in repair.output
    assert "418,000" in cost.output
    assert [turn.difference for turn in result.turns] == [None] * 5
