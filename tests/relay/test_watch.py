"""Watching the first tokens: held back until the watch is done, never shown after an alarm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.relay.test_outcomes import by_text, handed_off

from kvbaton.decoding import Answer, Decoding, decode
from kvbaton.engines.transformers.sampling import Sampling
from kvbaton.errors import BatonRefused
from kvbaton.triggers import predicate
from kvbaton.types import Outcome, Reason, ReasonCode, Route

PROMPT = tuple(range(5, 25))
ODD = Reason(ReasonCode.FIRST_TOKENS, "odd")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Compute on one thread: thread pools cost more than a tiny model computes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Scripted:
    """A watch of ``tokens`` tokens that raises its alarm at one of them, or at an early end."""

    def __init__(self, tokens: int, alarm_at: int = -1, *, at_end: bool = False) -> None:
        self.tokens, self.alarm_at, self.at_end = tokens, alarm_at, at_end
        self.pushed = self.attachments = self.finished = 0

    @property
    def done(self) -> bool:
        """Whether all tokens were pushed."""
        return self.pushed >= self.tokens

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Count how often the model is measured."""
        self.attachments += 1
        yield

    def push(self, logits: Any) -> Reason | None:
        """Raise the alarm at its token."""
        assert logits.dim() == 1
        self.pushed += 1
        return ODD if self.pushed == self.alarm_at else None

    def finish(self) -> Reason | None:
        """Raise the alarm at an early end, if it is so scripted."""
        self.finished += 1
        return ODD if self.at_end else None


def answered(engine: Any, watch: Any = None, *, tokens: int = 12, **options: Any) -> Answer:
    """Decode behind the same prompt every time."""
    settled = options.pop("settled", None)
    first_token = options.pop("first_token", None)
    how = Decoding(max_new_tokens=tokens, **options)
    cache = engine.new_cache(64)
    return decode(engine, cache, PROMPT, how, settled=settled, first_token=first_token, watch=watch)


@settings(max_examples=20, deadline=None)
@given(
    watched=st.integers(1, 20),
    tokens=st.integers(1, 14),
    temperature=st.sampled_from([0.0, 0.9]),
    stop=st.sampled_from([(), ("e",), ("zzz",)]),
)
def test_without_an_alarm_nothing_changes(
    engine: Any, watched: int, tokens: int, temperature: float, stop: tuple[str, ...]
) -> None:
    """Ids, text, pieces of text and the end are those of an unwatched answer."""
    plain: list[str] = []
    seen: list[str] = []
    options = {"tokens": tokens, "sampling": Sampling(temperature, seed=3), "stop": stop}
    wanted = answered(engine, on_text=plain.append, **options)
    got = answered(engine, Scripted(watched), on_text=seen.append, **options)
    assert (got.ids, got.text, got.finish) == (wanted.ids, wanted.text, wanted.finish)
    assert seen == plain
    assert (got.computed_tokens, got.alarm) == (len(PROMPT), None)


def test_watched_tokens_are_held_back_until_the_watch_is_done(engine: Any) -> None:
    """Nothing is shown before the fifth token has been looked at; then all of it, and at once."""
    watch, shown_at = Scripted(5), []
    answer = answered(engine, watch, on_text=lambda text: shown_at.append(watch.pushed))
    assert shown_at and min(shown_at) == 5
    assert watch.pushed == 5
    assert answer.shown_s >= answer.ttft_s > 0


def test_what_is_not_watched_is_shown_with_its_first_token(engine: Any) -> None:
    """Without a watch both times are those of the first token."""
    order: list[str] = []
    answer = answered(engine, settled=lambda ids: order.append(f"{len(ids)} ids"), tokens=3)
    assert order == ["1 ids", "2 ids"]
    assert 0 < answer.shown_s <= answer.ttft_s


@pytest.mark.parametrize("alarm_at", [1, 3, 5])
def test_an_alarm_stops_before_anything_was_shown(engine: Any, alarm_at: int) -> None:
    """The caller gets the reason and nothing else, and no forward pass is made after it."""
    shown: list[str] = []
    settled: list[int] = []
    watch = Scripted(5, alarm_at)
    before = engine.computed_tokens()
    answer = answered(
        engine, watch, on_text=shown.append, settled=lambda ids: settled.append(len(ids))
    )
    assert (answer.alarm, answer.finish) == (ODD, "alarm")
    assert (answer.ids, answer.text, answer.fired) == ((), "", None)
    assert (shown, settled) == ([], [])
    assert engine.computed_tokens() - before == len(PROMPT) + alarm_at - 1
    assert answer.computed_tokens == len(PROMPT)


def test_nothing_is_settled_while_tokens_are_held_back(engine: Any) -> None:
    """What a sender would store while decoding waits until the watch is done."""
    settled: list[int] = []
    answered(engine, Scripted(4), settled=lambda ids: settled.append(len(ids)), tokens=7)
    assert settled == [4, 5, 6]


def test_the_first_token_is_announced_although_it_is_held_back(engine: Any) -> None:
    """Time to first token is the time at which it was computed; an alarm before it has none."""
    announced: list[int] = []
    for watch in (Scripted(6), Scripted(6, 1), Scripted(6, 2)):
        answered(engine, watch, first_token=lambda watch=watch: announced.append(watch.pushed))
    assert announced == [1, 1]


@pytest.mark.parametrize("at_end", [False, True])
def test_an_answer_shorter_than_the_watch_is_judged_at_its_end(engine: Any, at_end: bool) -> None:
    """It is shown once the watch lets it pass, and never otherwise."""
    shown: list[str] = []
    watch = Scripted(9, at_end=at_end)
    answer = answered(engine, watch, tokens=3, on_text=shown.append)
    assert watch.finished == 1
    assert (answer.alarm is not None) is at_end
    assert "".join(shown) == answer.text
    assert bool(shown) is not at_end
    assert len(answer.ids) == (0 if at_end else 3)


def test_a_trigger_that_fires_on_held_tokens_is_forgotten_on_alarm(engine: Any) -> None:
    """A hand-off on odd tokens does not happen; the same trigger fires where all is well."""
    trigger = predicate(lambda progress: len(progress.ids) == 2)
    calm = answered(engine, Scripted(5), hand_off_when=(trigger,))
    assert calm.finish == "hand-off"
    assert calm.fired is not None
    odd = answered(engine, Scripted(5, at_end=True), hand_off_when=(trigger,))
    assert (odd.finish, odd.fired) == ("alarm", None)


def test_the_model_is_measured_once_per_answer(engine: Any) -> None:
    """The watch is attached for as long as the answer takes, and taken off afterwards."""
    watch = Scripted(3)
    answered(engine, watch)
    assert watch.attachments == 1


def test_a_watch_sees_logits_that_cannot_be_sampled_from(engine: Any) -> None:
    """Logits that are not finite raise an alarm instead of an error, as they come to it first."""

    class Broken:
        """The tiny engine after a cache of NaN."""

        def __getattr__(self, name: str) -> Any:
            return getattr(engine, name)

        def forward(self, cache: Any, ids: Any) -> Any:
            """Feed, and lose everything."""
            return engine.forward(cache, ids) * torch.nan

    class Strict(Scripted):
        """Alarms at what is not finite."""

        def push(self, logits: Any) -> Reason | None:
            """Look at the logits."""
            return None if bool(torch.isfinite(logits).all()) else ODD

    assert answered(Broken(), Strict(2)).alarm == ODD


# --- in an agent -------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_an_agent_whose_watch_alarms_answers_from_the_ids(agent_of: Any, stream: bool) -> None:
    """Nothing odd is shown; ids are those of text, and the receipt counts both attempts."""
    baton = handed_off(agent_of)
    wanted = by_text(agent_of, baton)
    shown: list[str] = []
    receiver = agent_of("b", stream=stream, watch_for=lambda fidelity, how: Scripted(4, 3))
    turn = receiver.take(baton.id, "Go on", max_new_tokens=12, on_text=shown.append)
    receipt = turn.receipt
    assert (receipt.outcome, receipt.route) == (Outcome.KV_UNUSABLE, Route.TEXT)
    assert receipt.reasons[0].code is ReasonCode.FIRST_TOKENS
    assert receipt.computed_tokens > receipt.context_tokens
    assert turn.ids == wanted
    assert "".join(shown) == turn.text
    again = receiver.hand_off(turn)
    assert (again.manifest.hops.lossy, again.manifest.fidelity.kind) == (0, "exact")


def test_an_agent_whose_watch_passes_uses_the_cache(agent_of: Any) -> None:
    """The answer is the one of an unwatched receiver, by the baton."""
    baton = handed_off(agent_of)
    plain = agent_of("a").take(baton.id, "Go on", max_new_tokens=12)
    watched = agent_of("b", watch_for=lambda fidelity, how: Scripted(4))
    turn = watched.take(baton.id, "Go on", max_new_tokens=12)
    assert (turn.receipt.route, turn.ids) == (Route.BATON, plain.ids)


def test_strict_receivers_refuse_on_alarm(agent_of: Any) -> None:
    """The error carries the reason, and no answer is given."""
    baton = handed_off(agent_of)
    receiver = agent_of("b", watch_for=lambda fidelity, how: Scripted(4, 1))
    with pytest.raises(BatonRefused, match="odd") as error:
        receiver.take(baton.id, "Go on", max_new_tokens=12, strict=True)
    assert error.value.reason_code == "first-tokens-odd"


def test_what_was_not_taken_is_not_watched(agent_of: Any) -> None:
    """A text route has nothing to watch: the watch is never asked for."""
    asked: list[Any] = []
    agent_of("b", watch_for=lambda *given: asked.append(given)).run("Hello there", max_new_tokens=3)
    assert asked == []
