"""Tokens read back from V of layer 0."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tests.engines.families import FAMILIES, tiny

from kvbaton.probes.limits import honest_cache
from kvbaton.probes.reconstruction import held_values, read_tokens, reconstruction


def ids_of(count: int, seed: int = 0) -> list[int]:
    """Ids of which neighbours differ."""
    return [3 + (31 * i + 7 * i * i + 13 * seed) % 89 for i in range(count)]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_text_can_be_read_from_the_cache_alone(family: str) -> None:
    """Every token that layer 0 holds, in every family: K and V are as secret as the text."""
    engine, ids = tiny(family), ids_of(40)
    cache = honest_cache(engine, ids, random.Random(0), way=1)
    first, values = held_values(engine, cache)
    window = engine.layout.layers[0].window
    assert first == (max(0, 40 - (window - 1)) if window else 0)
    assert read_tokens(engine, values) == ids[first:]
    found = reconstruction(engine, cache, ids)
    assert (found.share, found.first_wrong, found.poor) == (1.0, None, False)
    assert found.text == engine.tokenizer.decode(ids[first:])
    assert found.positions == 40 - first


def test_the_first_wrong_token_is_named(engine: Any) -> None:
    """Another token is read where another one was fed."""
    ids = ids_of(40)
    cache = honest_cache(engine, ids, random.Random(0), way=0)
    said = [*ids[:9], ids[8], *ids[10:39], ids[0]]
    found = reconstruction(engine, cache, said)
    assert (found.first_wrong, found.poor) == (9, True)
    assert found.share == pytest.approx(38 / 40)


def test_noise_is_a_loss_of_quality(engine: Any) -> None:
    """The more noise, the fewer tokens are read rightly."""
    ids, shares = ids_of(200), []
    for level in (0.0, 1.0, 4.0):
        cache = honest_cache(engine, ids, random.Random(0), way=0)
        store = cache.layers[0].v_store
        drawn = torch.randn(store.shape, generator=torch.Generator().manual_seed(0))
        store += level * store.std() * drawn
        shares.append(reconstruction(engine, cache, ids).share)
    assert shares[0] == 1.0 > shares[1] > shares[2]


def test_tokens_that_are_alike_count_as_one() -> None:
    """Tokens that no training text had may have the same values: neither is wrong."""
    engine = tiny("llama")
    embedding = engine.model.get_input_embeddings().weight
    with torch.no_grad():
        embedding[50] = embedding[20]
    ids = [50, 20, 30, 50]
    cache = honest_cache(engine, ids, random.Random(0), way=0)
    assert read_tokens(engine, held_values(engine, cache)[1]) == [20, 20, 30, 20]
    assert reconstruction(engine, cache, ids).share == 1.0
    with torch.no_grad():
        embedding[50] *= -3
    engine.function = engine._identify()
    again = honest_cache(engine, ids, random.Random(0), way=0)
    assert read_tokens(engine, held_values(engine, again)[1]) == ids
