"""Computing chosen positions of a cache again: the text route's cache, row by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.engines.families import FAMILIES, WINDOWED, tiny

from kvbaton.engines.transformers import recompute
from kvbaton.errors import EmptyInput, InputError, UnsupportedLayout

FULL = [family for family in FAMILIES if family not in WINDOWED]
TOKENS, SPLIT = 30, 12
TOLERANCE = 1e-5
"""float32, keys of size 10: rows as one masked batch against one pass over everything."""


def prompt(count: int, seed: int = 0) -> list[int]:
    """Ids of which no window repeats another."""
    return [3 + (97 * i + 11 * i * i + 31 * seed) % 280 for i in range(count)]


IDS = prompt(TOKENS)


def filled(engine: Any, ids: list[int]) -> Any:
    """A cache after a prompt, fed in one go."""
    cache = engine.new_cache(len(ids) + 5)
    engine.forward(cache, ids)
    return cache


def behind_another_prefix(engine: Any) -> Any:
    """The cache of ``IDS`` whose positions from ``SPLIT`` on have seen another beginning."""
    cache, other = filled(engine, IDS), filled(engine, prompt(SPLIT, 1) + IDS[SPLIT:])
    for mine, theirs in zip(cache.layers, other.layers, strict=True):
        mine.k_store[:, :, SPLIT:TOKENS] = theirs.k_store[:, :, SPLIT:TOKENS]
        mine.v_store[:, :, SPLIT:TOKENS] = theirs.v_store[:, :, SPLIT:TOKENS]
    return cache


def states(cache: Any) -> list[torch.Tensor]:
    """Copies of K and V ``[kv_heads, n, dim]`` of all layers."""
    views = [cache.layer_view(i, 0, cache.length) for i in range(len(cache.layers))]
    return [part.clone() for view in views for part in view]


def assert_near(cache: Any, other: Any) -> None:
    """Two caches hold the same numbers, but for the order of sums."""
    for got, wanted in zip(states(cache), states(other), strict=True):
        torch.testing.assert_close(got, wanted, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FULL)
def test_all_rows_give_the_text_route_s_cache(
    tiny_engine: Callable[..., Any], family: str, attention: str
) -> None:
    """With every row of the slice computed anew, the cache is the one of the text."""
    engine = tiny_engine(family, attention=attention)
    cache, text = behind_another_prefix(engine), filled(engine, IDS)
    before = engine.computed_tokens()
    assert engine.recompute(cache, IDS, range(SPLIT, TOKENS)) == 4 * (TOKENS - SPLIT)
    assert engine.computed_tokens() - before == TOKENS - SPLIT
    assert_near(cache, text)
    next_one, wanted = engine.forward(cache, [17]), engine.forward(text, [17])
    torch.testing.assert_close(next_one, wanted, atol=2e-4, rtol=0)


def test_it_was_another_cache(tiny_engine: Callable[..., Any]) -> None:
    """The law is not empty: before, the slice's rows are far from the text route's."""
    engine = tiny_engine("llama")
    off = states(behind_another_prefix(engine))[-1] - states(filled(engine, IDS))[-1]
    assert float(off.abs().max()) > 0.1


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt_neox"])
def test_rows_that_are_not_chosen_stay(tiny_engine: Callable[..., Any], family: str) -> None:
    """Only the chosen rows change, in every layer but the first; all others are bitwise alike."""
    engine = tiny_engine(family)
    cache = behind_another_prefix(engine)
    before, rows = states(cache), [SPLIT, SPLIT + 3, TOKENS - 1]
    engine.recompute(cache, IDS, rows)
    others = [i for i in range(TOKENS) if i not in rows]
    for old, new in zip(before, states(cache), strict=True):
        assert torch.equal(old[:, others], new[:, others])
    for old, new in list(zip(before, states(cache), strict=True))[2:]:
        assert bool((old[:, rows] != new[:, rows]).any(dim=(0, 2)).all())


@pytest.mark.parametrize("cut", [1, 7])
def test_two_steps_are_one(tiny_engine: Callable[..., Any], cut: int) -> None:
    """Rows computed in two steps, in their order, are those of one step."""
    engine = tiny_engine("llama")
    rows = list(range(SPLIT, TOKENS, 2))
    once, twice = behind_another_prefix(engine), behind_another_prefix(engine)
    engine.recompute(once, IDS, rows)
    engine.recompute(twice, IDS, rows[:cut])
    engine.recompute(twice, IDS, rows[cut:])
    assert_near(twice, once)


def test_more_rows_than_one_pass_takes(
    tiny_engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are computed in batches, and the result does not depend on their size."""
    engine = tiny_engine("llama")
    monkeypatch.setattr(recompute, "ROWS_AT_ONCE", 4)
    cache = behind_another_prefix(engine)
    engine.recompute(cache, IDS, range(SPLIT, TOKENS))
    assert_near(cache, filled(engine, IDS))


def test_the_first_layers_alone(tiny_engine: Callable[..., Any]) -> None:
    """With two layers asked for, those are the text route's and the others stay bitwise."""
    engine = tiny_engine("qwen2")
    cache, text = behind_another_prefix(engine), filled(engine, IDS)
    before = states(cache)
    assert engine.recompute(cache, IDS, range(SPLIT, TOKENS), layers=2) == 2 * (TOKENS - SPLIT)
    for index, (got, wanted) in enumerate(zip(states(cache), states(text), strict=True)):
        if index < 4:
            torch.testing.assert_close(got, wanted, atol=TOLERANCE, rtol=0)
        else:
            assert torch.equal(got, before[index])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(tiny_engine: Callable[..., Any], dtype: torch.dtype) -> None:
    """In other dtypes all rows give the text route's cache, within their own rounding."""
    engine = tiny_engine("qwen2", dtype=dtype)
    cache, text = behind_another_prefix(engine), filled(engine, IDS)
    engine.recompute(cache, IDS, range(SPLIT, TOKENS))
    for got, wanted in zip(states(cache), states(text), strict=True):
        off = (got.double() - wanted.double()).norm() / wanted.double().norm()
        assert float(off) < 16 * torch.finfo(dtype).eps


# -- deviation --------------------------------------------------------------------------------


def test_deviation_by_hand(tiny_engine: Callable[..., Any]) -> None:
    """It is the squared distance of the old rows to the text route's at that layer."""
    engine = tiny_engine("llama")
    cache, text = behind_another_prefix(engine), filled(engine, IDS)
    views = cache.layer_view(2, SPLIT, 18), text.layer_view(2, SPLIT, 18)
    pairs = [(old.clone(), new) for old, new in zip(*views, strict=True)]
    got = engine.deviation(cache, IDS, SPLIT, TOKENS, check_layer=2)
    wanted = torch.stack([(a - b).square().sum(dim=(0, 2)) for a, b in pairs])
    assert got.shape == (2, TOKENS - SPLIT)
    torch.testing.assert_close(got, wanted, atol=1e-3, rtol=1e-4)


def test_deviation_leaves_the_first_layers_computed(tiny_engine: Callable[..., Any]) -> None:
    """The layers that it had to compute stay computed; deeper ones are untouched."""
    engine = tiny_engine("llama")
    cache, expected = behind_another_prefix(engine), behind_another_prefix(engine)
    before = engine.computed_tokens()
    engine.deviation(cache, IDS, SPLIT, TOKENS, check_layer=1)
    assert engine.computed_tokens() - before == TOKENS - SPLIT
    engine.recompute(expected, IDS, range(SPLIT, TOKENS), layers=2)
    for got, wanted in zip(states(cache), states(expected), strict=True):
        assert torch.equal(got, wanted)


def test_nothing_deviates_behind_the_same_prefix(tiny_engine: Callable[..., Any]) -> None:
    """A slice behind the prefix that it was computed behind has no deviation."""
    engine = tiny_engine("smollm")
    off = engine.deviation(filled(engine, IDS), IDS, SPLIT, TOKENS, check_layer=3)
    assert float(off.max()) < 1e-6


# -- importance -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "queries"), [("llama", 1), ("qwen3", 100), *((family, 8) for family in FULL)]
)
def test_fused_and_eager_attention_show_the_same_weights(
    tiny_engine: Callable[..., Any], family: str, queries: int
) -> None:
    """Every layer's importance adds up to 1, and is the library's own mean weight."""
    found = []
    for attention in ("sdpa", "eager"):
        engine = tiny_engine(family, attention=attention)
        cache = filled(engine, IDS)
        before = states(cache)
        found.append(engine.attention_importance(cache, IDS, queries=queries))
        assert all(torch.equal(a, b) for a, b in zip(before, states(cache), strict=True))
    assert found[0].shape == (4, TOKENS)
    torch.testing.assert_close(found[0].sum(dim=1), torch.ones(4))
    torch.testing.assert_close(found[0], found[1], atol=1e-6, rtol=0)


def test_the_first_token_alone(tiny_engine: Callable[..., Any]) -> None:
    """A single token pays all its attention to itself."""
    engine = tiny_engine("llama")
    cache = filled(engine, IDS[:1])
    assert engine.attention_importance(cache, IDS[:1]).tolist() == [[1.0]] * 4


# -- what cannot be done ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "error", "words"),
    [
        ([], EmptyInput, "no positions"),
        ([30], InputError, "row 30 is not in a cache of 30"),
        ([-1], InputError, "row -1"),
        ([4, 3], InputError, "row 3 comes after row 4"),
        ([4, 4], InputError, "row 4 comes after row 4"),
    ],
)
def test_rows_that_cannot_be(
    tiny_engine: Callable[..., Any], rows: list[int], error: type[Exception], words: str
) -> None:
    """Rows must be in the cache, ascending, each once."""
    engine = tiny_engine("llama")
    with pytest.raises(error, match=words):
        engine.recompute(filled(engine, IDS), IDS, rows)


def test_ids_of_another_length(tiny_engine: Callable[..., Any]) -> None:
    """There must be an id for every position, one that the model knows."""
    engine = tiny_engine("llama")
    with pytest.raises(InputError, match="29 ids for a cache of 30"):
        engine.recompute(filled(engine, IDS), IDS[:-1], [3])
    with pytest.raises(InputError, match="id 999"):
        engine.recompute(filled(engine, IDS), [*IDS[:-1], 999], [3])


@pytest.mark.parametrize("layers", [0, 5])
def test_layers_that_are_not_there(tiny_engine: Callable[..., Any], layers: int) -> None:
    """The number of layers must be one of the model's."""
    engine = tiny_engine("llama")
    with pytest.raises(InputError, match=f"no first {layers}"):
        engine.recompute(filled(engine, IDS), IDS, [3], layers=layers)


@pytest.mark.parametrize("family", WINDOWED)
def test_window_models_are_refused(tiny_engine: Callable[..., Any], family: str) -> None:
    """A window layer no longer has what a row attends to."""
    engine = tiny_engine(family)
    with pytest.raises(UnsupportedLayout, match="not full attention"):
        engine.recompute(filled(engine, IDS), IDS, [3])


def test_beyond_the_original_length(tiny_engine: Callable[..., Any]) -> None:
    """With a RoPE that depends on the length, longer sequences are refused."""
    engine = tiny_engine("phi3-rope-longrope")
    long = prompt(40)
    with pytest.raises(UnsupportedLayout, match="depends on the length"):
        engine.recompute(filled(engine, long), long, [3])


def test_a_kernel_without_masks() -> None:
    """Attention that takes no mask of one's own is refused by name."""
    engine = tiny("llama")
    cache = filled(engine, IDS)
    engine.model.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(UnsupportedLayout, match="flash_attention_2"):
        engine.recompute(cache, IDS, [3])


@pytest.mark.parametrize("fail_at", [1, 3])
def test_a_failure_leaves_the_cache_as_it_was(
    monkeypatch: pytest.MonkeyPatch, fail_at: int
) -> None:
    """If the model fails half-way, in any batch, nothing of the cache has changed."""
    engine = tiny("llama")
    monkeypatch.setattr(recompute, "ROWS_AT_ONCE", 6)
    cache = behind_another_prefix(engine)
    before, calls = states(cache), []

    def failing(*_: Any) -> None:
        calls.append(1)
        if len(calls) == fail_at:
            raise KeyboardInterrupt

    handle = engine.model.model.layers[1].mlp.register_forward_hook(failing)
    with pytest.raises(KeyboardInterrupt):
        engine.recompute(cache, IDS, range(SPLIT, TOKENS))
    handle.remove()
    assert all(torch.equal(a, b) for a, b in zip(before, states(cache), strict=True))
    engine.recompute(cache, IDS, range(SPLIT, TOKENS))
    assert_near(cache, filled(engine, IDS))
