"""Users' own caches become one sequence each; padding never leaves, and nothing is guessed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.engines.families import FAMILIES, WINDOW, WINDOWED, tiny
from tests.engines.own_loops import STEPS, assert_like_alone, forward, prefilled, prompt
from transformers import DynamicCache, EncoderDecoderCache, StaticCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from kvbaton.engines.transformers.adopt import adopt
from kvbaton.errors import EmptyInput, InputError, UnsupportedLayout


@pytest.mark.parametrize("with_config", [True, False], ids=["by-layer", "all-dynamic"])
@pytest.mark.parametrize("family", FAMILIES)
def test_one_sequence(tiny_engine: Callable[..., Any], family: str, with_config: bool) -> None:
    """A cache of one sequence is taken as it is, whether it knows of windows or keeps all."""
    engine = tiny_engine(family)
    for tokens in (WINDOW // 2, 3 * WINDOW) if family in WINDOWED else (20,):
        cache = DynamicCache(config=engine.model.config) if with_config else DynamicCache()
        ids = prompt(tokens)
        forward(engine, cache, torch.tensor([ids]))
        (adopted,) = adopt(engine, cache, ids)
        assert_like_alone(engine, adopted, ids, tokens)
        for layer, spec in enumerate(engine.layout.layers):
            held = min(tokens, spec.window - 1) if spec.window else tokens
            keys, values = adopted.cache.layer_view(layer, tokens - held, held)
            assert torch.equal(keys, cache.layers[layer].keys[0, :, -held:])
            assert torch.equal(values, cache.layers[layer].values[0, :, -held:])


@pytest.mark.parametrize(
    ("family", "at"),
    [(family, at) for family in ("llama", "gpt_neox", "phi3") for at in (0, 1, 18, 19)]
    + [(family, at) for family in ("gemma3", "mistral") for at in (9, 10, 19)],
)
def test_a_wrong_id_is_noticed(tiny_engine: Callable[..., Any], family: str, at: int) -> None:
    """One id that is not the one that was computed is refused, and its position is named.

    Layer 0 of a window model holds the last 11 positions only, so no more can be compared.
    """
    engine, ids = tiny_engine(family), prompt(20)
    cache = DynamicCache(config=engine.model.config)
    forward(engine, cache, torch.tensor([ids]))
    wrong = [*ids[:at], ids[at] + 1, *ids[at + 1 :]]
    with pytest.raises(InputError, match=f"differ at position {at} "):
        adopt(engine, cache, wrong)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("apart", [-1, 1, 44])
def test_a_wrong_position_is_noticed(
    tiny_engine: Callable[..., Any], family: str, apart: int
) -> None:
    """A token that was computed at another position, as a bad loop does it, is refused.

    44 positions apart the fastest channels have turned by seven whole turns and one degree.
    """
    engine, ids = tiny_engine(family), prompt(20)
    cache = DynamicCache(config=engine.model.config)
    forward(engine, cache, torch.tensor([ids[:-1]]))
    forward(engine, cache, torch.tensor([ids[-1:]]), positions=torch.tensor([[19 + apart]]))
    with pytest.raises(InputError, match="position 19 of these ids under another position"):
        adopt(engine, cache, ids)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_real_models_cache(request: pytest.FixtureRequest, tokenizer: Any, dtype: str) -> None:
    """On SmolLM2 every honest schedule passes; one id or one position off is refused."""
    engine = request.getfixturevalue(f"smollm2_{dtype}")
    ids = tokenizer("In the relay, the baton changes hands once: 6 or 7 runners wait.").input_ids
    for cut in (1, 7, len(ids) - 1):
        cache = DynamicCache(config=engine.model.config)
        forward(engine, cache, torch.tensor([ids[:cut]]))
        for token in ids[cut:]:
            forward(engine, cache, torch.tensor([[token]]))
        assert adopt(engine, cache, ids)[0].ids == tuple(ids)
        six, seven = (tokenizer(text, add_special_tokens=False).input_ids[-1] for text in "67")
        swapped = [seven if token == six else token for token in ids]
        assert swapped != ids
        with pytest.raises(InputError, match=f"differ at position {ids.index(six)} "):
            adopt(engine, cache, swapped)
    bad = DynamicCache(config=engine.model.config)
    forward(engine, bad, torch.tensor([ids[:-1]]))
    forward(engine, bad, torch.tensor([ids[-1:]]), positions=torch.tensor([[len(ids)]]))
    with pytest.raises(InputError, match="under another position"):
        adopt(engine, bad, ids)


def test_only_the_first_layer_is_run_again(tiny_engine: Callable[..., Any]) -> None:
    """Comparing costs one layer: the second is not called, however long the context is."""
    engine = tiny_engine("llama")
    cache, ids, _ = prefilled(engine, [prompt(300)])
    calls: list[int] = []
    hooks = [
        layer.register_forward_hook(lambda *_, index=index: calls.append(index))
        for index, layer in enumerate(engine.model.model.layers)
    ]
    try:
        adopt(engine, cache, ids)
    finally:
        for hook in hooks:
            hook.remove()
    assert calls == []


def test_the_users_cache_stays_the_users(tiny_engine: Callable[..., Any]) -> None:
    """After adoption the user's own cache goes on as if nothing had happened."""
    engine = tiny_engine("gemma3")
    cache, ids, _ = prefilled(engine, [prompt(20)])
    twin, _, _ = prefilled(engine, [prompt(20)])
    (adopted,) = adopt(engine, cache, ids)
    engine.forward(adopted.cache, STEPS)
    fed = torch.tensor([[60, 61]])
    assert torch.equal(forward(engine, cache, fed), forward(engine, twin, fed))


def test_a_window_that_records_its_past(tiny_engine: Callable[..., Any]) -> None:
    """A window layer that holds more than its window gives its last positions only."""
    engine = tiny_engine("mistral")
    cache, ids, _ = prefilled(engine, [prompt(30)])
    everything = DynamicCache()
    forward(engine, everything, ids)
    for layer, whole in zip(cache.layers, everything.layers, strict=True):
        layer.keys, layer.values = whole.keys, whole.values
    (adopted,) = adopt(engine, cache, ids)
    assert_like_alone(engine, adopted, prompt(30), 30)


def odd_layer(engine: Any, kind: type) -> Any:
    """A filled cache one of whose layers is of another kind."""
    cache, _, _ = prefilled(engine, [prompt(8)])
    strange = kind()
    strange.__dict__.update(cache.layers[1].__dict__)
    cache.layers[1] = strange
    return cache


def test_foreign_kinds_of_caches_are_refused(tiny_engine: Callable[..., Any]) -> None:
    """Static, offloaded, quantized, cross-attention and unknown caches raise UnsupportedLayout."""
    engine = tiny_engine("llama")
    plain, ids, _ = prefilled(engine, [prompt(8)])
    static = StaticCache(config=engine.model.config, max_cache_len=16)
    forward(engine, static, ids)
    offloaded, _, _ = prefilled(engine, [prompt(8)])
    offloaded.offloading = True
    quantized = odd_layer(engine, type("QuantizedLayer", (DynamicLayer,), {}))
    derived = type("MtpCache", (DynamicCache,), {})(config=engine.model.config)
    forward(engine, derived, ids)
    foreign = {
        "StaticCache": static,
        "offloaded": offloaded,
        "QuantizedLayer": quantized,
        "EncoderDecoderCache": EncoderDecoderCache(plain, DynamicCache()),
        "MtpCache": derived,
        "tuple": tuple((layer.keys, layer.values) for layer in plain.layers),
        "NoneType": None,
    }
    for name, cache in foreign.items():
        with pytest.raises(UnsupportedLayout, match=name):
            adopt(engine, cache, ids)


def test_caches_of_other_models_are_refused(tiny_engine: Callable[..., Any]) -> None:
    """Other layers, windows, heads or dtypes than the engine's model has are refused."""
    engine = tiny_engine("llama")
    cache, ids, _ = prefilled(engine, [prompt(20)])
    with pytest.raises(InputError, match="bfloat16"):
        adopt(tiny_engine("llama", dtype=torch.bfloat16), cache, ids)
    with pytest.raises(InputError, match="instead of"):
        adopt(tiny_engine("gpt_neox"), cache, ids)
    with pytest.raises(InputError, match="not computed from these ids"):
        adopt(tiny_engine("qwen2"), cache, ids)
    fewer = DynamicCache()
    fewer.layers = cache.layers[:2]
    with pytest.raises(UnsupportedLayout, match="2 layers and the model 4"):
        adopt(engine, fewer, ids)
    windows, _, _ = prefilled(tiny_engine("mistral"), [prompt(20)])
    with pytest.raises(UnsupportedLayout, match="window of 12 where the model's is unlimited"):
        adopt(engine, windows, ids)
    windows.layers[2] = DynamicSlidingWindowLayer(sliding_window=9)
    with pytest.raises(UnsupportedLayout, match="window of 9 where the model's is 12") as caught:
        adopt(tiny_engine("mistral"), windows, ids)
    assert caught.value.at == "$.layers[2]"


def test_layers_that_disagree_are_refused(tiny_engine: Callable[..., Any]) -> None:
    """A cache whose forward pass was interrupted is not taken for a whole one."""
    engine = tiny_engine("llama")
    cache, ids, _ = prefilled(engine, [prompt(20)])
    cache.layers[3].keys = cache.layers[3].keys[:, :, :-1]
    cache.layers[3].values = cache.layers[3].values[:, :, :-1]
    with pytest.raises(InputError, match="different numbers of positions"):
        adopt(engine, cache, ids)


def test_an_empty_cache_is_refused(tiny_engine: Callable[..., Any]) -> None:
    """A cache, or a row of it, without a single valid token raises EmptyInput."""
    engine = tiny_engine("llama")
    with pytest.raises(EmptyInput):
        adopt(engine, DynamicCache(config=engine.model.config), [3, 4])
    with pytest.raises(EmptyInput):
        adopt(engine, engine.new_cache(4), [3, 4])
    cache, ids, mask = prefilled(engine, [prompt(4), prompt(5)])
    mask[0] = 0
    with pytest.raises(EmptyInput, match="sequence 0"):
        adopt(engine, cache, ids, mask)


@pytest.mark.parametrize(
    "ids",
    [[], [[]], 7, [[3, 4], [5]], [0.5, 1.5], [[[3, 4]]], ["a", "b"], [3, 4, 5], None, [320], [-1]],
    ids=[
        "empty",
        "empty row",
        "scalar",
        "ragged",
        "floats",
        "3d",
        "text",
        "too few",
        "none",
        "unknown",
        "negative",
    ],
)
def test_ids_that_fit_nothing_are_refused(tiny_engine: Callable[..., Any], ids: Any) -> None:
    """Ids that are not integers by row, or fewer than the cache's positions, raise InputError."""
    engine = tiny_engine("llama")
    cache, _, _ = prefilled(engine, [prompt(8)])
    with pytest.raises(InputError):
        adopt(engine, cache, ids)


def test_our_own_cache_is_taken_back(tiny_engine: Callable[..., Any]) -> None:
    """A cache of ours that the user's code went on with is one sequence without padding."""
    engine = tiny_engine("gemma3")
    cache = engine.new_cache(8)
    engine.forward(cache, prompt(20))
    forward(engine, cache, torch.tensor([[40, 41]]))
    ids = [*prompt(20), 40, 41, 42]
    (adopted,) = adopt(engine, cache, ids)
    assert_like_alone(engine, adopted, ids, 22)
    with pytest.raises(UnsupportedLayout, match="another model"):
        adopt(tiny_engine("gemma2"), cache, ids)
    with pytest.raises(InputError, match="ids for 21"):
        adopt(engine, cache, ids[:21])
    with pytest.raises(InputError, match="one sequence"):
        adopt(engine, cache, [ids, ids])
    with pytest.raises(InputError, match="differ at position 20"):
        adopt(engine, cache, [*prompt(20), 41, 41, 42])


def test_other_engines_are_refused() -> None:
    """What is not an engine for transformers cannot read its caches."""
    with pytest.raises(InputError, match="only an engine for transformers"):
        adopt(object(), DynamicCache(), [3])  # type: ignore[arg-type]


def test_ids_beyond_the_cache_are_pending() -> None:
    """Any number of ids may stand behind the cache; they have no KV yet."""
    engine = tiny("llama")
    cache, _, _ = prefilled(engine, [prompt(9)])
    (adopted,) = adopt(engine, cache, [*prompt(9), 50, 51, 52])
    assert (len(adopted.ids), adopted.cache.length) == (12, 9)
