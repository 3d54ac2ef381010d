"""The evidence for the headline claims, on real models; figures are printed for the record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from tests.long.private_facts import Notes, make_notes

from kvbaton.agent import Agent
from kvbaton.api import load
from kvbaton.backing import Source
from kvbaton.engines.transformers import compat
from kvbaton.relay import Relay
from kvbaton.seals import TrustDomain
from kvbaton.stores import MemoryStore
from kvbaton.types import Baton, Route

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

Say = Callable[[str], None]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Print a figure where whoever runs the tests sees it."""

    def show(line: str) -> None:
        with capsys.disabled():
            print(f"\n  {line}", flush=True)

    return show


def agent_for(engine: Any, domain: TrustDomain, name: str, store: Any = None) -> Agent:
    """An agent with a store of its own unless one is given."""
    relay = Relay(engine, store if store is not None else MemoryStore(), domain)
    return Agent(name, engine, relay, stream=False)


def read_notes(engine: Any, domain: TrustDomain, notes: Notes) -> tuple[Agent, Baton]:
    """A sender that has read some notes, and its baton."""
    sender = agent_for(engine, domain, "sender")
    turn = sender.run(f"Read these notes.\n\n{notes.text}", max_new_tokens=2)
    return sender, sender.hand_off(turn)


def test_fifty_greedy_answers_are_those_of_the_text_route(
    smollm2_f32: Any, domain: TrustDomain, say: Say
) -> None:
    """In float32 a baton changes no token of any of fifty answers."""
    same = 0
    for seed in range(50):
        notes = make_notes(seed, sentences=10 + seed % 20)
        _, baton = read_notes(smollm2_f32, domain, notes)
        by_baton, by_text = (
            agent_for(smollm2_f32, domain, "taker").take(
                baton, notes.question, max_new_tokens=24, deadline_s=deadline_s
            )
            for deadline_s in (60.0, 0.0)
        )
        assert by_text.receipt.route is Route.TEXT
        same += by_baton.ids == by_text.ids
    say(f"greedy answers equal to text, float32: {same} of 50")
    assert same == 50


def test_five_hops_on_the_real_model_are_bitwise_equal(
    smollm2_f32: Any, domain: TrustDomain
) -> None:
    """Two agents that hand over five times have the cache of one agent on the same schedule."""
    alone = agent_for(smollm2_f32, domain, "alone")
    pair = [agent_for(smollm2_f32, domain, name) for name in ("a", "b")]
    notes = make_notes(1, sentences=25)
    single = alone.run(notes.text, max_new_tokens=6)
    turn = pair[0].run(notes.text, max_new_tokens=6)
    for hop in range(5):
        baton = pair[hop % 2].hand_off(turn)
        turn = pair[(hop + 1) % 2].take(baton, notes.question, max_new_tokens=6)
        single = alone.run(notes.question, max_new_tokens=6)
        assert turn.conversation.ids == single.conversation.ids
    mine, theirs = turn.conversation.cache, single.conversation.cache
    for one, other in zip(mine.layers, theirs.layers, strict=True):
        assert torch.equal(one.keys, other.keys)
        assert torch.equal(one.values, other.values)


@torch.inference_mode()
def log_probabilities(engine: Any, cache: Any, ids: list[int], keep: int) -> torch.Tensor:
    """Log-probabilities ``[keep, vocab]`` of the last ``keep`` positions of ``ids``, float32."""
    start = cache.length
    output = engine.model(
        input_ids=torch.tensor([ids]),
        position_ids=torch.arange(start, start + len(ids)).unsqueeze(0),
        use_cache=True,
        logits_to_keep=keep,
        **{compat.cache_argument(engine.model): cache},
    )
    return torch.log_softmax(output.logits[0].float(), dim=-1)


def mean_kl(p: torch.Tensor, q: torch.Tensor) -> float:
    """Mean over positions of KL(p || q), in nats."""
    return float((p.exp() * (p - q)).sum(-1).mean())


def test_bf16_batons_differ_from_text_by_the_noise_floor(
    smollm2_bf16: Any, domain: TrustDomain, say: Say
) -> None:
    """Over three texts the median KL to text is at most 1.5 times the chunked-prefill noise."""
    engine, keep = smollm2_bf16, 128
    against_text, noise = [], []
    for seed in (11, 12, 13):
        ids = list(engine.chat.render(_long_talk(seed)).ids)
        split = len(ids) - keep
        text = log_probabilities(engine, engine.new_cache(len(ids)), ids, keep)
        sender = engine.new_cache(split)
        engine.forward(sender, ids[:split])
        relay = Relay(engine, MemoryStore(), domain)
        baton = relay.hand_off(Source(sender, split, tuple(ids[:split])), sender="a", text="")
        taken = relay.take(baton, prompt_tokens=len(ids), reusable=split, room=keep, deadline_s=60)
        baton_logs = log_probabilities(engine, taken.cache, ids[split:], keep)
        against_text.append(mean_kl(text, baton_logs))
        chunked = engine.new_cache(len(ids))
        for first in range(0, split, 256):
            engine.forward(chunked, ids[first : min(first + 256, split)])
        noise.append(mean_kl(text, log_probabilities(engine, chunked, ids[split:], keep)))
    median, floor = sorted(against_text)[1], sorted(noise)[1]
    say(
        f"bf16 KL to text: median {median:.2e}, noise floor {floor:.2e}, ratio {median / floor:.2f}"
    )
    assert median <= 1.5 * floor


def _long_talk(seed: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": make_notes(seed, sentences=100).text}]


@pytest.mark.parametrize(("model", "sentences"), [("smollm2-135m", 27), ("qwen2.5-coder-0.5b", 88)])
def test_only_the_right_cache_answers(
    domain: TrustDomain, say: Say, model: str, sentences: int
) -> None:
    """Sixty questions about private facts: text and the right baton answer them; the KV of
    another conversation of the same length under the right ids, or zeroed KV, does not."""
    engine = load(model, dtype="bfloat16")
    notes = [make_notes(seed, sentences=sentences) for seed in range(61)]
    read = [read_notes(engine, domain, each) for each in notes]
    order = sorted(range(61), key=lambda i: read[i][1].manifest.cached_tokens)
    right = dict.fromkeys(("text", "right", "other", "zeroed"), 0)
    lengths = []
    for asked, longer in pairwise(order):
        sender, baton = read[asked]
        lengths.append(baton.manifest.cached_tokens)
        spoiled = {
            "other": _mislabelled(sender, baton, _cache(read[longer])),
            "zeroed": _mislabelled(sender, baton, _zeroed(engine, lengths[-1])),
        }
        for name, given in {"text": baton, "right": baton, **spoiled}.items():
            deadline_s = 0.0 if name == "text" else 60.0
            taker = agent_for(engine, domain, "taker", sender.relay.store)
            turn = taker.take(
                given, notes[asked].question, max_new_tokens=16, deadline_s=deadline_s
            )
            assert turn.receipt.route is (Route.TEXT if name == "text" else Route.BATON)
            right[name] += notes[asked].answer in turn.text
    say(f"{model}, about {sum(lengths) // 60} tokens, of 60: {right}")
    assert right["text"] >= 55
    assert right["right"] >= right["text"] - 2
    assert right["other"] <= 3
    assert right["zeroed"] <= 3


def _cache(read: tuple[Agent, Baton]) -> Any:
    conversation = read[0].conversation
    if conversation is None:
        raise AssertionError("the sender has no conversation")
    return conversation.cache


def _zeroed(engine: Any, tokens: int) -> Any:
    cache = engine.new_cache(tokens)
    for layer, spec in zip(cache.layers, engine.layout.layers, strict=True):
        zeros = torch.zeros(1, spec.kv_heads, tokens, spec.k_dim, dtype=engine.dtype)
        layer.update(zeros, zeros)
    return cache


def _mislabelled(sender: Agent, baton: Baton, cache: Any) -> Baton:
    """A baton with the ids of one conversation and the KV of something else."""
    source = Source(cache, baton.manifest.cached_tokens, baton.transcript.ids)
    made = sender.relay.hand_off(
        source, sender="impostor", text=baton.transcript.text, spans=baton.manifest.spans
    )
    return replace(made, transcript=baton.transcript)
