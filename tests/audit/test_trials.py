"""Trials: what is timed, what is counted, and how answers are compared with those by text."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
import torch
from tests.audit.conftest import equipment_of, unit_of

from kvbaton.audit.case import Case
from kvbaton.audit.flops import counted_flops
from kvbaton.audit.load import Load, Meter
from kvbaton.audit.profiling import OUTSIDE, profiled
from kvbaton.audit.tasks.schema import Question
from kvbaton.audit.treatments import treatment
from kvbaton.audit.trials import Trials, compared, going_on
from kvbaton.bench.fidelity.answers import forced_logits
from kvbaton.errors import EmptyInput, InputError, KvbatonError


def trials_of(case: Case) -> Trials:
    """Trials with three fixed tokens."""
    return Trials(case, fixed_tokens=3, meter=Meter())


def quality(case: Case, name: str) -> Any:
    """The quality record of a treatment."""
    one = treatment(name)
    return trials_of(case).quality(one, treatment(one.reference))


# --- comparing -----------------------------------------------------------------------------------


def test_distance_and_flips_are_those_by_hand() -> None:
    """KL(text || this) in nats per position, and where another token is the likeliest."""
    theirs = torch.tensor([[0.0, math.log(3)], [0.0, 0.0], [5.0, 0.0]])
    mine = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 5.0]])
    first = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)
    top = math.exp(5) / (1 + math.exp(5))
    last = (2 * top - 1) * 5
    found = compared(mine, theirs)
    assert found["kl"] == pytest.approx((first + last) / 3, rel=1e-6)
    assert found["kl_max"] == pytest.approx(last, rel=1e-6)
    assert (found["positions"], found["flips"]) == (3, 2)


def test_many_positions_are_compared_like_few() -> None:
    """Positions are looked at in groups; the groups do not show."""
    generator = torch.Generator().manual_seed(1)
    mine, theirs = (torch.randn(37, 11, generator=generator) for _ in range(2))
    parts = [compared(mine[n : n + 1], theirs[n : n + 1]) for n in range(37)]
    found = compared(mine, theirs)
    assert found["kl"] == pytest.approx(sum(part["kl"] for part in parts) / 37)
    assert found["flips"] == sum(part["flips"] for part in parts)
    assert compared(mine, mine) == {"kl": 0.0, "kl_max": 0.0, "positions": 37, "flips": 0}


def test_texts_side_by_side_say_what_each_says_alone(audited_engine: Any) -> None:
    """The logits of every looked-at position are those of a pass of its own."""
    engine, head = audited_engine, tuple(range(40, 60))
    texts = [(70, 71, 72, 73), (70, 71, 80), (90,)]
    positions = [3, 2, 1]
    cache = engine.new_cache(64)
    engine.forward(cache, head)
    found = forced_logits(engine, cache, texts, positions=positions)
    assert cache.length == len(head)
    for ids, count, logits in zip(texts, positions, found, strict=True):
        assert logits.shape[0] == count
        for place in range(count):
            alone = engine.new_cache(64)
            upto = (*head, *ids[: len(ids) - count + place + 1])
            torch.testing.assert_close(logits[place], engine.forward(alone, upto))


def test_more_positions_than_ids_are_refused(audited_engine: Any) -> None:
    """Nothing could be said of them."""
    cache = audited_engine.new_cache(8)
    audited_engine.forward(cache, (5, 6))
    with pytest.raises(EmptyInput):
        forced_logits(audited_engine, cache, [(7,)], positions=[2])


@pytest.mark.parametrize(
    ("opening", "answer", "forced"),
    [
        ("", "4711", "4711"),
        ("The code is", "4711", " 4711"),
        ("The code is ", "4711", "4711"),
        ("depth=", "12", "12"),
        ("f(a,", "12", "12"),
        ("\u5de5\u53f7\u662f", "4711", "4711"),
        ("Answer:", "yes", " yes"),
        ("```python\ndef f(x):\n", "def f(x):\n    return x", "    return x"),
        ("It is", "isolated", " isolated"),
    ],
)
def test_a_forced_answer_goes_on_where_its_opening_ends(
    opening: str, answer: str, forced: str
) -> None:
    """A space between words only, and nothing said twice."""
    assert going_on(opening, answer) == forced


# --- quality -------------------------------------------------------------------------------------


def test_text_is_no_distance_from_itself(case: Case) -> None:
    """The reference is compared with itself, exactly."""
    record = quality(case, "T0")
    assert all(a["kl"] == 0 and a["flips"] == 0 for a in record["answers"])
    assert record["route"] == "text"


@pytest.mark.parametrize("name", ["T1", "T2", "T3", "Z"])
def test_honest_caches_are_close_in_float32(case: Case, name: str) -> None:
    """The distance is that of rounding, and the answers are the same."""
    record, text = quality(case, name), quality(case, treatment(name).reference)
    assert max(a["kl_max"] for a in record["answers"]) < 1e-6
    assert [a["text"] for a in record["answers"]] == [a["text"] for a in text["answers"]]


@pytest.mark.parametrize("name", ["T4", "T5", "T5-shuffled"])
def test_controls_are_far(case: Case, name: str) -> None:
    """Another conversation's numbers are no rounding error."""
    record = quality(case, name)
    assert min(a["kl_max"] for a in record["answers"]) > 1e-4


def test_answers_are_forced_at_every_token_of_the_right_one(case: Case) -> None:
    """As many positions are compared as the right answer has tokens."""
    text = case.engine.tokenizer.encode(" red", add_special_tokens=False)
    bare = case.engine.tokenizer.encode("red", add_special_tokens=False)
    positions = [a["positions"] for a in quality(case, "T3")["answers"]]
    assert positions == [len(text), len(bare)]


def test_without_a_right_answer_the_one_by_text_is_forced(audited_engine: Any) -> None:
    """A scorer of one's own needs none; a distance is measured all the same."""
    asked = (
        Question("q", "Go on.", (), scorer="tests.audit.test_trials:always", max_new_tokens=3),
    )
    made = Case(equipment_of(audited_engine), unit_of(0, questions=asked), (unit_of(1),))
    (answer,) = quality(made, "T3")["answers"]
    assert answer["right"] and answer["positions"] >= 1
    made.close()


def always(question: Question, text: str) -> float:
    """A user's scorer."""
    del question, text
    return 1.0


def broken(question: Question, text: str) -> float:
    """A user's scorer that fails."""
    raise ZeroDivisionError(question.id + text[:0])


def test_a_scorer_that_fails_is_named(audited_engine: Any) -> None:
    """With the question that it failed on."""
    asked = (Question("q7", "Go on.", ("x",), scorer="tests.audit.test_trials:broken"),)
    made = Case(equipment_of(audited_engine), unit_of(0, questions=asked), (unit_of(1),))
    with pytest.raises(InputError) as caught:
        quality(made, "T3")
    assert "q7" in str(caught.value)
    made.close()


def test_operations_are_those_of_the_ids_that_are_run(case: Case) -> None:
    """By cache only a few positions are computed; a control costs what the cache costs."""
    flops = {name: quality(case, name)["flops"] for name in ("T0", "T1", "T2", "T3", "T4")}
    assert flops["T3"] == flops["T4"] < flops["T1"] < flops["T0"]
    assert flops["T3"] < flops["T2"] < flops["T0"]


def test_window_models_are_timed_but_not_asked(windowed_engine: Any) -> None:
    """Questions side by side need full attention; it is said, not guessed."""
    made = Case(equipment_of(windowed_engine), unit_of(0), (unit_of(1),))
    with pytest.raises(KvbatonError, match="full attention"):
        quality(made, "T3")
    assert trials_of(made).timed(treatment("T3"), 0, 0)["route"] == "baton"
    made.close()


# --- timed ---------------------------------------------------------------------------------------


def test_a_timed_trial_has_a_fixed_length_and_keeps_its_receipt(case: Case) -> None:
    """Answers differ in length, so that all are timed for as many tokens."""
    record = trials_of(case).timed(treatment("T3"), 1, 4)
    assert record["fixed_tokens"] == 3 and record["position"] == 4 and record["repeat"] == 1
    assert 0 < record["ttft_s"] <= record["fixed_s"] < record["e2e_s"]
    assert record["receipt"]["seconds"]["ttft"] == record["ttft_s"]
    assert record["receipt"]["route"] == record["route"] == "baton"
    assert 0 <= record["busy"] <= 1 and record["load"] >= 0


def test_the_whole_way_counts_what_each_route_needs(case: Case) -> None:
    """Text needs no hand-off, zero-decode no message, the text of a prompt no sender at all."""
    trials, sender = trials_of(case), case.sender_s
    spoken = sender["prefill_s"] + sender["decode_s"]
    assert trials.before_s(treatment("T3"), 5.0) == spoken + 5.0
    assert trials.before_s(treatment("T0"), 5.0) == spoken + case.tokenize_s
    assert trials.before_s(treatment("Z"), 5.0) == sender["prefill_s"] + 5.0
    assert trials.before_s(treatment("Z0"), 5.0) == 0.0


def test_the_noise_floor_is_about_nothing_in_float32(case: Case) -> None:
    """Two prefills of the same ids in chunks and in one go."""
    record = trials_of(case).floor(treatment("T0"))
    assert record["kl"] < 1e-9 and record["flips"] == 0 and record["positions"] > 0


# --- instruments ---------------------------------------------------------------------------------


def test_operations_of_a_product_are_counted() -> None:
    """A product of [2, 3] and [3, 5] takes 2 x 2 x 3 x 5 operations."""
    done, flops = counted_flops(lambda: torch.ones(2, 3) @ torch.ones(3, 5))
    assert done.shape == (2, 5) and flops == 60


def test_attention_is_counted_on_every_device() -> None:
    """Scores and values: 2 products of heads x queries x keys x width, two operations each."""
    q, k = torch.randn(1, 3, 7, 8), torch.randn(1, 3, 11, 8)
    attend = torch.nn.functional.scaled_dot_product_attention
    _, flops = counted_flops(lambda: attend(q, k, k))
    assert flops == 2 * 2 * 3 * 7 * 11 * 8


def test_a_profile_adds_up_and_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """Seconds by group are the wall seconds; native code does not write to the terminal."""
    found = profiled(lambda: torch.ones(64, 64) @ torch.ones(64, 64))
    assert sum(found["groups"].values()) >= 0.99 * found["wall_s"]
    assert "matrix products" in found["groups"] and OUTSIDE in found["groups"]
    assert all(row["share"] >= 0 for row in found["top"]) and found["top"][0]["calls"] >= 1
    assert capfd.readouterr() == ("", "")


def test_work_is_told_from_what_measuring_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nested work counts once."""
    assert Meter().overhead_share == 0.0
    clock = iter([0.0, 1.0, 2.0, 11.0, 22.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    meter = Meter()  # made at 0; work from 1 to 11, with work inside from 2 on; looked at at 22
    with meter.work(), meter.work():
        pass
    assert meter.work_s == 10.0 and meter.overhead_share == (22.0 - 10.0) / 10.0


def test_the_load_is_a_share() -> None:
    """Whatever the machine does meanwhile."""
    taken = Load().taken()
    assert set(taken) == {"load", "busy"} and 0 <= taken["busy"] <= 1
