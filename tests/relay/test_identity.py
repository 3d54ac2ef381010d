"""How often the engine is asked who it is: each answer looks at all weights."""

from __future__ import annotations

from typing import Any

import pytest
from tests.relay.conftest import SEGMENT_TOKENS

from kvbaton.agent import Agent
from kvbaton.relay import Relay
from kvbaton.seals import TrustDomain
from kvbaton.stores import MemoryStore


@pytest.fixture
def asked(engine: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with every question."""
    found: list[int] = []
    kind = type(engine)
    original = kind.function

    def counting(self: Any) -> Any:
        found.append(1)
        return original.fget(self)

    monkeypatch.setattr(kind, "function", property(counting, original.fset))
    return found


def test_a_take_asks_once_and_a_hand_off_twice(
    engine: Any, domain: TrustDomain, asked: list[int]
) -> None:
    """Once per take, and once per shipment and manifest, however many segments there are."""
    relay = Relay(engine, MemoryStore(), domain, segment_tokens=SEGMENT_TOKENS)
    sender, receiver = (Agent(n, engine, relay, stream=False) for n in ("sender", "receiver"))
    turn = sender.run("Hello there, " * 40, max_new_tokens=1)
    asked.clear()
    baton = sender.hand_off(turn)
    assert len(baton.manifest.segments) > 5
    assert len(asked) <= 2
    asked.clear()
    taken = receiver.take(baton.id, "Go on", max_new_tokens=1)
    assert taken.receipt.route == "baton"
    assert len(asked) == 1
