"""Measuring the range of first tokens: on text, with a limit that holds by counting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.engines.families import tiny
from tests.probes.conftest import EFFORT, TEXTS

from kvbaton.errors import InputError
from kvbaton.probes import measuring
from kvbaton.probes.first_tokens import WatchRange
from kvbaton.probes.measuring import Effort, handed_over, measure_range


def test_the_same_seed_measures_the_same_range(engine: Any, limits: WatchRange) -> None:
    """Another run of the measurement gives the same numbers; another seed others."""
    again = measure_range(engine, TEXTS, tokens=4, alarm_rate=0.05, effort=EFFORT, seed=5)
    assert replace(again, false_alarms=()) == replace(limits, false_alarms=())
    other = measure_range(engine, TEXTS, tokens=4, alarm_rate=0.05, effort=EFFORT, seed=6)
    assert other.limit != again.limit


def test_a_range_says_how_it_was_measured(limits: WatchRange) -> None:
    """Tokens, layers, runs, and the false alarms as text and of each kind of cache."""
    assert (limits.tokens, limits.layers, limits.runs) == (4, (2, 3), 19)
    assert len(limits.activations.center) == 4
    assert [(count.caches, count.runs) for count in limits.false_alarms] == [
        ("text", 6), ("exact", 6),
    ]  # fmt: skip
    assert 0 < limits.limit < 100


def test_handed_over_caches_are_as_honest_as_text(limits: WatchRange) -> None:
    """In float32 an attached cache gives what text gives, so it has the same false alarms."""
    text, exact = limits.false_alarms
    assert text.alarms == exact.alarms


@pytest.mark.parametrize(("rate", "rank"), [(0.05, 19), (0.2, 16), (0.5, 10)])
def test_the_limit_is_the_score_that_few_honest_runs_exceed(
    engine: Any, monkeypatch: pytest.MonkeyPatch, rate: float, rank: int
) -> None:
    """Of 19 scores the one with rank 20 times (1 - rate)."""
    scores = iter([*range(19, 0, -1), *[0] * 6])
    monkeypatch.setattr(measuring._Runs, "score", lambda *_: float(next(scores)))
    found = measure_range(engine, TEXTS, tokens=2, alarm_rate=rate, effort=EFFORT)
    assert found.limit == rank


@pytest.mark.parametrize("rate", [0.0, 0.04, 1.0])
def test_too_few_runs_for_the_rate_are_refused(engine: Any, rate: float) -> None:
    """19 runs can promise 5%, and no less."""
    with pytest.raises(InputError, match="19 runs cannot set a limit"):
        measure_range(engine, TEXTS, alarm_rate=rate, effort=EFFORT)


def test_texts_that_are_too_short_are_refused(engine: Any) -> None:
    """At least one text must be as long as the shortest context."""
    with pytest.raises(InputError, match="as long as 48 tokens"):
        measure_range(engine, ["Hello"], effort=Effort())


def test_progress_is_told_for_each_run(engine: Any) -> None:
    """Every phase counts to its end."""
    told: list[str] = []
    measure_range(engine, TEXTS, tokens=2, alarm_rate=0.05, effort=EFFORT, progress=told.append)
    assert told[0] == "first tokens, spread: 1 of 12 runs"
    assert told[-1] == "first tokens, check: 6 of 6 runs"
    assert len(told) == 12 + 19 + 6


def test_prompts_fit_a_small_window() -> None:
    """Contexts are cut to half of what the model can attend to."""
    engine: Any = tiny("llama")
    engine.max_tokens = 200
    runs = measuring._Runs(engine, TEXTS, 4, Effort(shortest=8, longest=4000), 0)
    for _ in range(20):
        prompt = next(runs)
        assert 8 < len(prompt.context) + len(prompt.feed) + 4 <= 200


@pytest.mark.parametrize("family", ["gemma3", "mistral", "llama"])
def test_handed_over_caches_go_on_as_the_original(family: str) -> None:
    """Window layers included: the next logits are the same."""
    engine: Any = tiny(family)
    ids = tuple(range(5, 35))
    cache = engine.new_cache(64)
    engine.forward(cache, ids)
    other = handed_over(engine)(cache, ids)
    assert torch.equal(engine.forward(other, (7, 8)), engine.forward(cache, (7, 8)))
