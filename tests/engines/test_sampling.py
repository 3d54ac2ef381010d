"""Choosing tokens: greedy, seeded, and within top-k and top-p."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvbaton.engines.transformers.sampling import Sampler, Sampling
from kvbaton.errors import InputError

scores = st.lists(st.sampled_from([-8.0, -1.0, -0.5, 0.0, 0.25, 1.0, 3.0]), min_size=1, max_size=40)

DRAWS = """
import torch
from kvbaton.engines.transformers.sampling import Sampler, Sampling
sampler = Sampler(Sampling(temperature=1.5, top_p=0.9, seed=7))
logits = torch.linspace(-2, 2, 50).cos()
print([sampler(logits) for _ in range(20)])
"""


def reference(logits, temperature, top_k, top_p):
    """Ids and probabilities in plain Python: sort all, cut by rank, cut by the sum so far."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[: top_k or None]
    weights = [math.exp(logits[i] / temperature) for i in order]
    kept, so_far = {}, 0.0
    for token, weight in zip(order, weights, strict=True):
        if kept and top_p < 1 and so_far / sum(weights) >= top_p:
            break
        kept[token] = weight
        so_far += weight
    return {token: weight / so_far for token, weight in kept.items()}


@given(
    scores,
    st.sampled_from([0.1, 0.7, 1.0, 2.5]),
    st.integers(0, 45),
    st.sampled_from([0.0537, 0.3331, 0.6137, 0.9071, 0.9713, 1.0]),
)
def test_candidates_equal_the_reference(logits, temperature, top_k, top_p):
    """Top-k and top-p keep the tokens, with the probabilities, that plain Python gives."""
    sampler = Sampler(Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=0))
    ids, probabilities = sampler.candidates(torch.tensor(logits))
    expected = reference(logits, temperature, top_k, top_p)
    assert set(ids.tolist()) == set(expected)
    for token, probability in zip(ids.tolist(), probabilities.tolist(), strict=True):
        assert probability == pytest.approx(expected[token], rel=1e-9)


def test_top_p_looks_beyond_the_first_tokens_of_a_flat_distribution():
    """With 5,000 equal tokens, half of the probability is the first 2,500 ids."""
    ids, probabilities = Sampler(Sampling(temperature=1.0, top_p=0.5)).candidates(torch.zeros(5000))
    assert abs(len(ids) - 2500) <= 1
    assert ids.tolist() == list(range(len(ids)))
    assert float(probabilities.sum()) == pytest.approx(1)


@given(scores, st.sampled_from([torch.float32, torch.bfloat16]))
def test_greedy_takes_the_lowest_of_the_best(logits, dtype):
    """Greedy choice is the first id with the largest logit."""
    assert Sampler(Sampling())(torch.tensor(logits, dtype=dtype)) == logits.index(max(logits))


def test_one_candidate_is_always_drawn():
    """With top-k of 1 any temperature and seed give the greedy token."""
    logits = torch.tensor([0.0, 2.0, 2.0, 1.0])
    assert {Sampler(Sampling(temperature=5.0, top_k=1, seed=s))(logits) for s in range(20)} == {1}


def test_tiny_temperature_is_greedy():
    """A temperature next to zero gives the best token, without overflow."""
    sampler = Sampler(Sampling(temperature=1e-308, seed=1))
    assert {sampler(torch.tensor([0.0, 900.0, -900.0])) for _ in range(20)} == {1}


def test_frequencies_follow_the_probabilities():
    """Of 4,000 draws from 1/2, 1/4, 1/4 each token gets its share within five deviations."""
    sampler = Sampler(Sampling(temperature=1.0, seed=3))
    logits = torch.log(torch.tensor([0.5, 0.25, 0.25]))
    counts = np.bincount([sampler(logits) for _ in range(4000)], minlength=3)
    assert np.all(np.abs(counts - [2000, 1000, 1000]) < 5 * np.sqrt([1000, 750, 750]))


def test_impossible_tokens_are_never_drawn():
    """A token whose logit is minus infinity has no probability."""
    sampler = Sampler(Sampling(temperature=1.0, seed=1))
    logits = torch.tensor([float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")])
    assert {sampler(logits) for _ in range(100)} == {1, 3}


def test_seed_gives_the_same_tokens_in_another_process():
    """A seed determines the tokens, in this process and in a fresh one."""
    fresh = [
        subprocess.run([sys.executable, "-c", DRAWS], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    sampler = Sampler(Sampling(temperature=1.5, top_p=0.9, seed=7))
    logits = torch.linspace(-2, 2, 50).cos()
    here = str([sampler(logits) for _ in range(20)])
    assert [process.stdout.strip() for process in fresh] == [here, here]


def test_seeds_differ_and_none_is_fresh():
    """Different seeds, or none, give different draws."""
    logits = torch.zeros(10_000)
    draws = {
        tuple(sampler(logits) for _ in range(4))
        for sampler in (Sampler(Sampling(temperature=1.0, seed=s)) for s in (1, 2, None, None))
    }
    assert len(draws) == 4


def test_global_random_state_is_untouched():
    """Drawing neither reads nor moves torch's global generator."""
    torch.manual_seed(5)
    before = torch.get_rng_state()
    sampler = Sampler(Sampling(temperature=1.0, top_p=0.9, seed=5))
    first = [sampler(torch.zeros(100)) for _ in range(5)]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    again = Sampler(Sampling(temperature=1.0, top_p=0.9, seed=5))
    assert [again(torch.zeros(100)) for _ in range(5)] == first


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": float("nan")}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"seed": True}, "seed"),
    ],
)
def test_values_out_of_range_are_refused(options, name):
    """Each option that is out of range is an input error that names it."""
    with pytest.raises(InputError) as caught:
        Sampling(**options)
    assert caught.value.at == f"$.sampling.{name}"


@pytest.mark.parametrize(
    "logits",
    [
        torch.zeros(2, 3),
        torch.zeros(0),
        torch.tensor([0.0, float("nan")]),
        torch.tensor([0.0, float("inf")]),
        torch.full((3,), float("-inf")),
    ],
)
def test_logits_without_a_finite_best_are_refused(logits):
    """Broken logits never turn into a token."""
    with pytest.raises(InputError):
        Sampler(Sampling())(logits)
