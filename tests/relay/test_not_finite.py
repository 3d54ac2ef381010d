"""A baton whose bytes are what was promised, and whose numbers are no numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.relay.test_outcomes import LONG, by_text

from kvbaton.types import Outcome, ReasonCode, Route


@pytest.mark.parametrize("odd", [math.nan, -math.inf])
def test_numbers_that_are_not_finite_are_never_attached(agent_of: Any, odd: float) -> None:
    """A valid segment that holds one is refused with its layer; the answer is that of text."""
    sender = agent_of("sender", system="You plan", stream=False)
    turn = sender.run(LONG, max_new_tokens=9)
    turn.conversation.cache.layers[1].v_store[0, 0, 5, 3] = odd
    baton = sender.hand_off(turn)
    taken = agent_of("b").take(baton.id, "Go on", max_new_tokens=12)
    receipt = taken.receipt
    assert (receipt.outcome, receipt.route) == (Outcome.KV_UNUSABLE, Route.TEXT)
    (reason,) = receipt.reasons
    assert reason.code is ReasonCode.SEGMENT_CORRUPT
    assert reason.at.endswith("$.layers[1]")
    assert "values of layer 1 hold numbers that are not finite" in reason.sentence
    assert taken.ids == by_text(agent_of, baton)
