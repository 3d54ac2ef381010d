"""attach(export(x)) continues exactly as the sender would have, on every family."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.engines.families import FAMILIES, WINDOW, WINDOWED, tiny
from transformers.cache_utils import DynamicCache

from kvbaton.errors import StaleTurn
from kvbaton.testing.engines import attach, continuation, cut, hand_over
from kvbaton.types import AlignedLayer, KVLayout, SegmentKind, SegmentSpan

STEPS = [17, 101, 5, 230, 44]
LENGTHS = {True: (WINDOW // 2, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW), False: (1, 40)}
CASES = [
    pytest.param(family, tokens, id=f"{family}-{tokens}")
    for family in FAMILIES
    for tokens in LENGTHS[family in WINDOWED]
]
LIBRARY_TOLERANCE = 2e-4
"""float32, logits of size 10: one forward pass against another cut of the same tokens."""


def prompt(count: int) -> list[int]:
    """Ids of which no window repeats another."""
    return [3 + (97 * i + 11 * i * i) % 280 for i in range(count)]


def filled(engine: Any, tokens: int) -> Any:
    """A cache after a prompt, fed in one go."""
    cache = engine.new_cache(tokens)
    engine.forward(cache, prompt(tokens))
    return cache


def assert_bitwise(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    """Logits are equal to the last bit."""
    assert [torch.equal(a, b) for a, b in zip(got, wanted, strict=True)] == [True] * len(wanted)


@torch.inference_mode()
def library_logits(engine: Any, ids: list[int], steps: list[int]) -> list[torch.Tensor]:
    """Logits behind ``ids`` and behind each step, with the library's own cache."""
    cache, rows = DynamicCache(config=engine.model.config), []
    for part in (ids, *([step] for step in steps)):
        fed = torch.tensor([part])
        output = engine.model(input_ids=fed, use_cache=True, **{engine.cache_argument: cache})
        rows.append(output.logits[0, -1].float())
    return rows


@pytest.mark.parametrize(("family", "tokens"), CASES)
def test_the_receiver_continues_as_the_sender(
    tiny_engine: Callable[..., Any], family: str, tokens: int
) -> None:
    """In float32 several steps after attach give the sender's own logits, bit for bit."""
    engine = tiny_engine(family)
    sender = filled(engine, tokens)
    receiver = hand_over(engine, sender, size=7)
    assert_bitwise(continuation(engine, receiver, STEPS), continuation(engine, sender, STEPS))


@pytest.mark.parametrize(("family", "tokens"), CASES)
def test_the_engine_computes_what_the_library_computes(
    tiny_engine: Callable[..., Any], family: str, tokens: int
) -> None:
    """Own cache and the library's give the same logits, before and after a hand-off."""
    engine = tiny_engine(family)
    cache = engine.new_cache(tokens)
    first = engine.forward(cache, prompt(tokens))
    mine = [first, *continuation(engine, hand_over(engine, cache), STEPS)]
    for got, wanted in zip(mine, library_logits(engine, prompt(tokens), STEPS), strict=True):
        torch.testing.assert_close(got, wanted, atol=LIBRARY_TOLERANCE, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_is_bitwise_too(tiny_engine: Callable[..., Any], family: str) -> None:
    """In bfloat16 the receiver's logits are the sender's, bit for bit."""
    engine = tiny_engine(family, dtype=torch.bfloat16)
    for tokens in (WINDOW // 2, 3 * WINDOW):
        sender = filled(engine, tokens)
        receiver = hand_over(engine, sender, size=7)
        assert_bitwise(continuation(engine, receiver, STEPS), continuation(engine, sender, STEPS))


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_neox"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_dtypes(tiny_engine: Callable[..., Any], family: str, dtype: torch.dtype) -> None:
    """float16 and float64 caches are handed over bit for bit as well."""
    engine = tiny_engine(family, dtype=dtype)
    sender = filled(engine, 3 * WINDOW)
    receiver = hand_over(engine, sender, size=7)
    assert receiver.layers[0].k_store.dtype == dtype
    assert_bitwise(continuation(engine, receiver, STEPS), continuation(engine, sender, STEPS))


@pytest.mark.parametrize("family", FAMILIES)
def test_another_engine_of_the_same_model(tiny_engine: Callable[..., Any], family: str) -> None:
    """A receiver that has loaded the same model for itself continues bit for bit, too."""
    engine, receiving = tiny_engine(family), tiny(family)
    assert receiving.model is not engine.model
    assert (receiving.function, receiving.layout) == (engine.function, engine.layout)
    sender = filled(engine, 20)
    receiver = hand_over(engine, sender, receiving)
    assert_bitwise(continuation(receiving, receiver, STEPS), continuation(engine, sender, STEPS))


@pytest.mark.parametrize("family", FAMILIES)
def test_hand_over_while_decoding(tiny_engine: Callable[..., Any], family: str) -> None:
    """At every step of a decode loop, what is exported continues as the loop does."""
    engine = tiny_engine(family)
    sender = filled(engine, WINDOW - 2)
    receivers = []
    for token in STEPS:
        engine.forward(sender, [token])
        receivers.append(hand_over(engine, sender, size=5))
    last = engine.forward(sender, [9])
    for done, receiver in enumerate(receivers, start=1):
        rest = [*STEPS[done:], 9]
        assert torch.equal(continuation(engine, receiver, rest)[-1], last)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
@pytest.mark.parametrize("size", [1, 2, 3, 8, 16, 35, 36, 100])
def test_segments_of_any_size(tiny_engine: Callable[..., Any], family: str, size: int) -> None:
    """Cut into segments of 1 to all tokens, the attached bytes are the same."""
    engine, tokens = tiny_engine(family), 3 * WINDOW
    sender = filled(engine, tokens)
    receiver = hand_over(engine, sender, size=size)
    for layer, spec in enumerate(engine.layout.layers):
        held = min(tokens, spec.window - 1) if spec.window else tokens
        got = receiver.layer_view(layer, tokens - held, held)
        wanted = sender.layer_view(layer, tokens - held, held)
        assert torch.equal(got[0], wanted[0])
        assert torch.equal(got[1], wanted[1])


@pytest.mark.parametrize("family", FAMILIES)
def test_hop_after_hop(tiny_engine: Callable[..., Any], family: str) -> None:
    """Five hops with tokens added at each give the logits of one cache on the same schedule."""
    engine = tiny_engine(family)
    alone = filled(engine, 10)
    travelling = hand_over(engine, alone)
    for hop in range(5):
        turn = prompt(4 + hop)
        assert torch.equal(engine.forward(travelling, turn), engine.forward(alone, turn))
        travelling = hand_over(engine, travelling, size=6)


def test_part_of_a_context(tiny_engine: Callable[..., Any]) -> None:
    """Of a model without window layers any number of leading tokens can be attached alone."""
    engine = tiny_engine("qwen3")
    sender = filled(engine, 40)
    for tokens in (1, 15, 16, 17, 39):
        alone = filled(engine, tokens)
        receiver = hand_over(engine, sender, tokens=tokens)
        for got, wanted in zip(
            continuation(engine, receiver, STEPS), continuation(engine, alone, STEPS), strict=True
        ):
            torch.testing.assert_close(got, wanted, atol=LIBRARY_TOLERANCE, rtol=0)


def test_the_tokens_matter(tiny_engine: Callable[..., Any]) -> None:
    """The law is not empty: behind another context the same step gives other logits."""
    engine = tiny_engine("llama")
    one, other = filled(engine, 20), engine.new_cache(20)
    engine.forward(other, [*prompt(10), 3, *prompt(20)[11:]])
    difference = engine.forward(one, STEPS[:1]) - engine.forward(other, STEPS[:1])
    assert float(difference.abs().max()) > 0.1


def test_a_window_forgets(tiny_engine: Callable[..., Any]) -> None:
    """The windows' state of a turn that has moved on is refused, not guessed."""
    engine = tiny_engine("gemma3")
    cache = filled(engine, 3 * WINDOW)
    engine.forward(cache, [5])
    with pytest.raises(StaleTurn):
        list(engine.export(cache, [SegmentSpan(0, 3 * WINDOW, SegmentKind.WINDOW)]))


def test_a_window_within_its_first_positions_can_still_be_exported(
    tiny_engine: Callable[..., Any],
) -> None:
    """While a window has lost nothing, the state of an earlier turn is still there."""
    engine = tiny_engine("gemma3")
    earlier = filled(engine, 5)
    spans = cut(engine.layout, 5, 8)
    wanted = [(part.keys, part.values) for part in engine.export(earlier, spans)]
    engine.forward(earlier, STEPS)
    for part, (keys, values) in zip(engine.export(earlier, spans), wanted, strict=True):
        assert torch.equal(part.keys, keys)
        assert torch.equal(part.values, values)


def test_layouts_are_what_the_configurations_say(tiny_engine: Callable[..., Any]) -> None:
    """Window and full layers, heads and dimensions of four families, by hand."""

    def shown(layout: KVLayout) -> list[tuple[int, int, int]]:
        return [(spec.window, spec.kv_heads, spec.k_dim) for spec in layout.layers]

    assert shown(tiny_engine("llama").layout) == [(0, 2, 16)] * 4
    assert shown(tiny_engine("mistral").layout) == [(12, 2, 16)] * 4
    assert shown(tiny_engine("gemma2").layout) == [(12, 2, 16), (0, 2, 16)] * 2
    assert shown(tiny_engine("gemma3").layout) == [(12, 2, 16)] * 3 + [(0, 2, 16)]
    assert shown(tiny_engine("gpt_neox").layout) == [(0, 4, 16)] * 4
    assert [spec.rope for spec in tiny_engine("gemma3").layout.layers] == [1, 1, 1, 0]
    assert [rope.base for rope in tiny_engine("gemma3").layout.ropes] == [1e6, 1e4]
    assert tiny_engine("gpt_neox").layout.ropes[0].rotary_dim == 4


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_smollm2(request: pytest.FixtureRequest, tokenizer: Any, dtype: str) -> None:
    """On the real model, in both dtypes, the receiver continues bit for bit as the sender."""
    engine = request.getfixturevalue(f"smollm2_{dtype}")
    ids = tokenizer("The quick brown fox jumps over the lazy dog. " * 20).input_ids
    sender = engine.new_cache(len(ids))
    engine.forward(sender, ids)
    receiver = hand_over(engine, sender, size=64)
    steps = tokenizer(" And then the dog").input_ids
    assert_bitwise(continuation(engine, receiver, steps), continuation(engine, sender, steps))


def test_parts_may_come_layer_by_layer(tiny_engine: Callable[..., Any]) -> None:
    """Attaching by layer and then by segment, as a take does, gives the same cache."""
    engine, tokens = tiny_engine("gemma2"), 30
    sender = filled(engine, tokens)
    exported = list(engine.export(sender, cut(engine.layout, tokens, 8)))
    exported.sort(key=lambda part: (part.layer, part.run.first))
    receiver = attach(
        engine,
        (AlignedLayer(p.span, p.layer, p.run, p.keys, p.values) for p in exported),
        tokens,
    )
    assert_bitwise(continuation(engine, receiver, STEPS), continuation(engine, sender, STEPS))
