"""Users' own caches become one sequence each; padding never leaves, and nothing is guessed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.engines.families import FAMILIES, WINDOW, WINDOWED, tiny
from tests.engines.own_loops import batch, forward, generate, positions_of, prefilled, prompt
from transformers import DynamicCache, EncoderDecoderCache, StaticCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from kvbaton.engines.transformers.adopt import adopt
from kvbaton.errors import EmptyInput, InputError, UnsupportedLayout
from kvbaton.testing.engines import continuation, hand_over

STEPS = [33, 101, 57]
LONGROPE = "phi3-rope-longrope"
"""Its RoPE table is another one from 33 tokens on."""
TOLERANCE = 2e-4


def assert_like_alone(engine: Any, adopted: Any, ids: list[int], cached: int) -> None:
    """What was adopted is what the sequence alone would be: ids, keys, values, logits."""
    assert adopted.ids == tuple(ids)
    assert adopted.cache.length == cached
    alone = engine.new_cache(cached)
    engine.forward(alone, ids[:cached])
    for layer, state in enumerate(alone.layers):
        count = state.end - state.begin
        got = adopted.cache.layer_view(layer, cached - count, count)
        wanted = alone.layer_view(layer, cached - count, count)
        torch.testing.assert_close(got, wanted, atol=TOLERANCE, rtol=0)
    for got, wanted in zip(
        continuation(engine, hand_over(engine, adopted.cache), STEPS),
        continuation(engine, alone, STEPS),
        strict=True,
    ):
        torch.testing.assert_close(got, wanted, atol=TOLERANCE, rtol=0)


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


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != LONGROPE])
def test_a_left_padded_batch(tiny_engine: Callable[..., Any], family: str) -> None:
    """Each row of a left-padded batch becomes the sequence that it would be alone."""
    engine = tiny_engine(family)
    rows = [prompt(3, 1), prompt(WINDOW + 5, 2), prompt(3 * WINDOW, 3)]
    cache, ids, mask = prefilled(engine, rows)
    adopted = adopt(engine, cache, ids, mask)
    for one, row in zip(adopted, rows, strict=True):
        assert_like_alone(engine, one, row, len(row))


def test_a_batch_shares_one_changing_table(tiny_engine: Callable[..., Any]) -> None:
    """Where a long row has changed the RoPE table of a short one, the batch is refused."""
    engine = tiny_engine(LONGROPE)
    short = [prompt(3, 1), prompt(30, 2)]
    cache, ids, mask = prefilled(engine, short)
    for one, row in zip(adopt(engine, cache, ids, mask), short, strict=True):
        assert_like_alone(engine, one, row, len(row))
    cache, ids, mask = prefilled(engine, [prompt(3, 1), prompt(33, 2)])
    with pytest.raises(InputError, match="table changes with the length"):
        adopt(engine, cache, ids, mask)
    cache, ids, mask = prefilled(engine, [prompt(40, 2)])
    assert_like_alone(engine, adopt(engine, cache, ids, mask)[0], prompt(40, 2), 40)


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "gemma3", "mistral"])
def test_a_batch_that_generate_has_filled(tiny_engine: Callable[..., Any], family: str) -> None:
    """After `generate` over a padded batch the last token of each row is pending."""
    engine = tiny_engine(family)
    rows = [prompt(5, 1), prompt(WINDOW + 5, 2)]
    ids, mask = batch(rows)
    said = generate(engine, ids, 7, attention_mask=mask)
    adopted = adopt(engine, said, said.sequences, mask)
    for index, (one, row) in enumerate(zip(adopted, rows, strict=True)):
        whole = [*row, *said.sequences[index, ids.shape[1] :].tolist()]
        assert len(whole) == len(row) + 7
        assert_like_alone(engine, one, whole, len(whole) - 1)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_right_padded_batch(tiny_engine: Callable[..., Any], family: str) -> None:
    """Right padding is left out as well, as long as it has pushed nothing out of a window."""
    engine = tiny_engine(family)
    rows = [prompt(6, 1), prompt(WINDOW - 2, 2)]
    cache, ids, mask = prefilled(engine, rows, "right")
    for one, row in zip(adopt(engine, cache, ids, mask), rows, strict=True):
        assert_like_alone(engine, one, row, len(row))


def test_padding_between_tokens(tiny_engine: Callable[..., Any]) -> None:
    """Tokens that were decoded behind right padding stand behind the prompt, without a gap."""
    engine = tiny_engine("llama")
    rows = [prompt(4, 1), prompt(9, 2)]
    cache, ids, mask = prefilled(engine, rows, "right")
    for token in (40, 50):
        ids = torch.cat([ids, torch.tensor([[token], [token + 1]])], dim=1)
        mask = torch.cat([mask, torch.ones(2, 1, dtype=mask.dtype)], dim=1)
        forward(engine, cache, ids[:, -1:], mask, positions_of(mask)[:, -1:])
    for index, one in enumerate(adopt(engine, cache, ids, mask)):
        whole = [*rows[index], 40 + index, 50 + index]
        assert_like_alone(engine, one, whole, len(whole))


def test_padding_that_windows_count_in_is_refused(tiny_engine: Callable[..., Any]) -> None:
    """With window layers, tokens behind right padding see another window: refused."""
    engine = tiny_engine("gemma3")
    cache, ids, mask = prefilled(engine, [prompt(4, 1), prompt(9, 2)], "right")
    ids = torch.cat([ids, torch.tensor([[40], [41]])], dim=1)
    mask = torch.cat([mask, torch.ones(2, 1, dtype=mask.dtype)], dim=1)
    forward(engine, cache, ids[:, -1:], mask, positions_of(mask)[:, -1:])
    with pytest.raises(InputError, match="between its tokens") as caught:
        adopt(engine, cache, ids, mask)
    assert "left" in caught.value.hint


def test_padding_that_pushed_tokens_out_is_refused(tiny_engine: Callable[..., Any]) -> None:
    """Right padding longer than a window has cost the window its tokens: refused by layer."""
    engine = tiny_engine("gemma3")
    cache, ids, mask = prefilled(engine, [prompt(4, 1), prompt(3 * WINDOW, 2)], "right")
    with pytest.raises(InputError, match="out of the window") as caught:
        adopt(engine, cache, ids, mask)
    assert caught.value.at == "$.layers[0]"


def test_rows_that_end_early_leave_their_padding(tiny_engine: Callable[..., Any]) -> None:
    """A row that `generate` has padded behind its end is taken up to its end."""
    engine = tiny_engine("llama")
    ids, mask = batch([prompt(5, 1), prompt(8, 2)])
    free = generate(engine, ids, 6, attention_mask=mask).sequences[0, 8:].tolist()
    end = free[2]
    said = generate(engine, ids, 6, attention_mask=mask, eos_token_id=end)
    assert said.sequences[0, 8:].tolist() == [*free[:3], 0, 0, 0]
    engine.model.generation_config.eos_token_id = end
    try:
        first, second = adopt(engine, said, said.sequences, mask)
    finally:
        engine.model.generation_config.eos_token_id = 2
    assert_like_alone(engine, first, [*prompt(5, 1), *free[:3]], 8)
    assert len(second.ids) == 8 + 6
    assert second.cache.length == len(second.ids) - 1


def test_tokens_behind_an_end_are_not_cut_off(tiny_engine: Callable[..., Any]) -> None:
    """Where a sequence goes on behind an end token, a mask for all ids is asked for."""
    engine = tiny_engine("llama")
    cache, ids, mask = prefilled(engine, [prompt(6)])
    more = torch.tensor([[2, 30, 31]])
    forward(engine, cache, more)
    whole = torch.cat([ids, more], dim=1)
    with pytest.raises(InputError, match="after its end"):
        adopt(engine, cache, whole, mask)
    (adopted,) = adopt(engine, cache, whole, torch.ones_like(whole))
    assert adopted.ids == tuple(whole[0].tolist())


def test_a_missing_mask_is_noticed(tiny_engine: Callable[..., Any]) -> None:
    """Ids that begin or end with padding and no mask raise InputError; a mask of ones says it."""
    engine = tiny_engine("llama")
    for side in ("left", "right"):
        cache, ids, _ = prefilled(engine, [prompt(4, 1), prompt(7, 2)], side)
        with pytest.raises(InputError, match="padding token"):
            adopt(engine, cache, ids)
    cache = DynamicCache(config=engine.model.config)
    forward(engine, cache, torch.tensor([[0, 30, 31]]))
    (adopted,) = adopt(engine, cache, [0, 30, 31], [1, 1, 1])
    assert adopted.ids == (0, 30, 31)


def test_padding_without_positions_is_refused(tiny_engine: Callable[..., Any]) -> None:
    """A left-padded forward pass without position_ids rotates keys by the padding: refused."""
    engine = tiny_engine("llama")
    ids, mask = batch([prompt(4, 1), prompt(7, 2)])
    cache = DynamicCache(config=engine.model.config)
    forward(engine, cache, ids, mask)
    with pytest.raises(InputError, match="under another position") as caught:
        adopt(engine, cache, ids, mask)
    assert "position_ids" in caught.value.hint


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


def test_masks_that_do_not_fit_are_refused(tiny_engine: Callable[..., Any]) -> None:
    """A mask of other rows, of more columns, or of four dimensions raises InputError."""
    engine = tiny_engine("llama")
    cache, ids, mask = prefilled(engine, [prompt(4), prompt(5)])
    longer = torch.ones(2, ids.shape[1] + 1)
    for wrong in (mask[:1], longer, torch.ones(2, 1, 5, 5)):
        with pytest.raises(InputError, match="does not fit"):
            adopt(engine, cache, ids, wrong)
    with pytest.raises(InputError, match="instead of"):
        adopt(engine, cache, ids[:1], mask[:1])


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
