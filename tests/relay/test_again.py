"""Handing off again: what a hand-off has stored is neither exported nor written a second time."""

from __future__ import annotations

from typing import Any

import pytest
from tests.relay.conftest import SEGMENT_TOKENS

from kvbaton.agent import Agent
from kvbaton.relay import Relay
from kvbaton.seals import TrustDomain
from kvbaton.stores import Key, Kind, MemoryStore

TEXT = "Hello there, " * 40


@pytest.fixture
def exported(engine: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Spans that the engine is asked to export."""
    found: list[Any] = []
    original = type(engine).export

    def watching(self: Any, cache: Any, spans: Any) -> Any:
        found.extend(spans)
        return original(self, cache, spans)

    monkeypatch.setattr(type(engine), "export", watching)
    return found


@pytest.fixture
def relay(engine: Any, domain: TrustDomain) -> Relay:
    """A relay over a store of its own, with small segments."""
    return Relay(engine, MemoryStore(), domain, segment_tokens=SEGMENT_TOKENS)


def test_a_second_hand_off_exports_nothing(relay: Relay, engine: Any, exported: list[Any]) -> None:
    """The second baton of a turn lists the same segments, and none was exported for it."""
    sender = Agent("sender", engine, relay, stream=False)
    turn = sender.run(TEXT, max_new_tokens=1)
    first = sender.hand_off(turn)
    exported.clear()
    second = sender.hand_off(turn, instruction="Now the other one")
    assert exported == []
    assert second.bytes_written == 0
    assert second.manifest.segments == first.manifest.segments


def test_a_grown_context_exports_what_is_new_and_the_tail(
    relay: Relay, engine: Any, exported: list[Any]
) -> None:
    """Full segments stay; the short tail of the last hand-off is exported anew, on the grid."""
    sender = Agent("sender", engine, relay, stream=False)
    first = sender.hand_off(sender.run(TEXT, max_new_tokens=1))
    cached = first.manifest.cached_tokens
    exported.clear()
    sender.hand_off(sender.run("Go on", max_new_tokens=1))
    assert exported[0].first == cached - cached % SEGMENT_TOKENS


def test_what_left_the_store_is_exported_again(
    relay: Relay, engine: Any, exported: list[Any]
) -> None:
    """From the first segment that the store no longer holds on, all is written again."""
    sender = Agent("sender", engine, relay, stream=False)
    turn = sender.run(TEXT, max_new_tokens=1)
    first = sender.hand_off(turn)
    relay.store.delete(Key(Kind.SEGMENT, first.manifest.segments[1].address))
    exported.clear()
    second = sender.hand_off(turn)
    assert exported[0].first == SEGMENT_TOKENS
    assert second.manifest.segments == first.manifest.segments
    assert second.bytes_written == first.manifest.segments[1].size_bytes


def test_an_older_turn_does_not_make_a_newer_one_forget(relay: Relay, engine: Any) -> None:
    """After both turns were handed off, neither writes anything again."""
    sender = Agent("sender", engine, relay, stream=False)
    older = sender.run(TEXT, max_new_tokens=1)
    newer = sender.run("Go on", max_new_tokens=1)
    sender.hand_off(newer)
    sender.hand_off(older)
    assert sender.hand_off(newer).bytes_written == 0
    assert sender.hand_off(older).bytes_written == 0


def test_window_layers_are_exported_each_time_and_stay_exact(
    window_engine: Any, domain: TrustDomain
) -> None:
    """A second baton of a model with window layers is taken with the same answer as the first."""
    relay = Relay(window_engine, MemoryStore(), domain, segment_tokens=SEGMENT_TOKENS)
    sender = Agent("sender", window_engine, relay, stream=False)
    turn = sender.run(TEXT, max_new_tokens=2)
    answers = []
    for baton in (sender.hand_off(turn), sender.hand_off(turn)):
        taken = Agent("receiver", window_engine, relay).take(baton, "Go on", max_new_tokens=8)
        assert taken.receipt.route == "baton"
        answers.append(taken.ids)
    assert answers[0] == answers[1]
