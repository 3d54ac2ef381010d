"""The cache's own laws: it grows without losing anything, and looks like the library's."""

import copy
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engines.families import WINDOW, tiny
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from kvbaton.decoding import Decoding, decode
from kvbaton.engines.transformers import compat
from kvbaton.engines.transformers.cache import FullLayer, KVCache, WindowLayer
from kvbaton.errors import CacheBusy, InputError
from kvbaton.testing.engines import continuation, hand_over
from kvbaton.types import KVLayout, LayerKind, LayerLayout

HEADS, K_DIM, V_DIM = 2, 3, 5
CPU = torch.device("cpu")


def states(first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V ``[1, heads, count, dim]`` of positions ``first`` on; no two elements are equal."""
    positions = torch.arange(first, first + count, dtype=torch.float64).view(1, 1, count, 1)
    keys, values = (
        positions * 1000 + 100 * torch.arange(HEADS).view(1, HEADS, 1, 1) + torch.arange(dim)
        for dim in (K_DIM, V_DIM)
    )
    return keys, values + 0.5


def layer_of(window: int, room: int) -> FullLayer | WindowLayer:
    """An empty layer; window 0 is full attention."""
    kind = LayerKind.WINDOW if window else LayerKind.FULL
    spec = LayerLayout(kind, HEADS, K_DIM, V_DIM, window)
    return (WindowLayer if window else FullLayer)(spec, room, torch.float64, CPU)


def library_layer(window: int) -> DynamicLayer:
    """The library's layer of the same kind."""
    return DynamicSlidingWindowLayer(sliding_window=window) if window else DynamicLayer()


def mask_sizes(layer: Any, count: int) -> tuple[int, int]:
    """Mask sizes for ``count`` new positions, asked as the installed version asks."""
    by_positions = tuple(int(n) for n in compat.version().split(".")[:2]) < (5, 0)
    sizes = layer.get_mask_sizes(torch.arange(count) if by_positions else count)
    return int(sizes[0]), int(sizes[1])


@settings(max_examples=150, deadline=None)
@given(
    window=st.sampled_from([0, 2, 3, 8]),
    room=st.integers(1, 20),
    updates=st.lists(st.integers(1, 30), min_size=1, max_size=25),
)
def test_growth_keeps_contents(window: int, room: int, updates: list[int]) -> None:
    """After any updates a layer returns, keeps and counts what a list of all positions says."""
    layer, seen = layer_of(window, room), 0
    for count in updates:
        keys, values = layer.update(*states(seen, count))
        kept = min(seen, window - 1) if window else seen
        wanted = states(seen - kept, kept + count)
        assert torch.equal(keys, wanted[0])
        assert torch.equal(values, wanted[1])
        seen += count
        kept = min(seen, window - 1) if window else seen
        assert torch.equal(layer.keys, states(seen - kept, kept)[0])
        assert torch.equal(layer.values, states(seen - kept, kept)[1])
        assert layer.get_seq_length() == seen


@settings(max_examples=100, deadline=None)
@given(
    window=st.sampled_from([0, 2, 3, 8]),
    updates=st.lists(st.integers(1, 12), min_size=1, max_size=12),
    asked=st.integers(1, 5),
)
def test_a_layer_looks_like_the_librarys(window: int, updates: list[int], asked: int) -> None:
    """Returned tensors, lengths and mask sizes equal those of the library's layer of that kind."""
    mine, theirs, seen = layer_of(window, 4), library_layer(window), 0
    for count in updates:
        assert mask_sizes(mine, count) == mask_sizes(theirs, count)
        got, wanted = mine.update(*states(seen, count)), theirs.update(*states(seen, count))
        assert torch.equal(got[0], wanted[0])
        assert torch.equal(got[1], wanted[1])
        assert torch.equal(mine.keys, theirs.keys)
        seen += count
        assert mine.get_seq_length() == theirs.get_seq_length() == seen
        assert mask_sizes(mine, asked) == mask_sizes(theirs, asked)
    assert mine.is_sliding == theirs.is_sliding
    name = "get_max_length" if hasattr(theirs, "get_max_length") else "get_max_cache_shape"
    assert getattr(mine, name)() == getattr(theirs, name)()


@settings(max_examples=100, deadline=None)
@given(
    updates=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    window=st.sampled_from([0, 4]),
    data=st.data(),
)
def test_views_are_at_true_positions(updates: list[int], window: int, data: st.DataObject) -> None:
    """Any positions that a cache still holds are seen where they are, however it has grown."""
    spec = LayerLayout(LayerKind.WINDOW if window else LayerKind.FULL, HEADS, K_DIM, V_DIM, window)
    cache = KVCache(KVLayout("F64", (spec,)), 3, torch.float64, CPU)
    for count in updates:
        cache.update(*states(cache.length, count), 0)
    held = min(cache.length, window - 1) if window else cache.length
    first = data.draw(st.integers(cache.length - held, cache.length))
    count = data.draw(st.integers(0, cache.length - first))
    keys, values = cache.layer_view(0, first, count)
    assert torch.equal(keys, states(first, count)[0][0])
    assert torch.equal(values, states(first, count)[1][0])


def test_what_an_update_returned_stays() -> None:
    """A window layer that makes room leaves the tensors alone that it has returned before."""
    layer = layer_of(8, 8)
    earlier = [(layer.update(*states(first, 3)), first) for first in range(0, 60, 3)]
    for (keys, _), first in earlier:
        kept = min(first, 7)
        assert torch.equal(keys, states(first - kept, kept + 3)[0])


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_decoding_after_attach_copies_nothing(tiny_engine: Callable[..., Any], family: str) -> None:
    """While there is room the buffers stay where they are, step after step."""
    engine = tiny_engine(family)
    sender = engine.new_cache(40)
    engine.forward(sender, list(range(3, 43)))
    receiver = hand_over(engine, sender, room=30)
    places = [layer.k_store.data_ptr() for layer in receiver.layers]
    for token in range(30):
        engine.forward(receiver, [3 + token])
        assert [layer.k_store.data_ptr() for layer in receiver.layers] == places
    engine.forward(receiver, [9])
    for layer, place in zip(receiver.layers, places, strict=True):
        assert layer.is_sliding or layer.k_store.data_ptr() != place


def test_a_window_layer_moves_once_per_window() -> None:
    """Decoding far beyond the window moves its buffers at most once per window of tokens."""
    layer = layer_of(64, 10_000)
    places = []
    for position in range(2_000):
        layer.update(*states(position, 1))
        places.append(layer.k_store.data_ptr())
    moves = sum(before != after for before, after in pairwise(places))
    assert moves <= 2_000 // 64
    assert layer.room <= 2 * 63 + 64


def test_growth_is_geometric() -> None:
    """A full layer without room grows in steps that get longer: few copies for many tokens."""
    layer, rooms = layer_of(0, 1), set()
    for position in range(1_000):
        layer.update(*states(position, 1))
        rooms.add(layer.room)
    assert len(rooms) < 25
    assert layer.room < 2 * 1_000


def test_room_is_made_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """If memory for V cannot be had, K keeps its old buffer: the layer is what it was."""
    layer, calls = layer_of(0, 4), 0
    layer.update(*states(0, 4))
    allocate = layer._allocate

    def fail_for_values(head_dim: int, room: int) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if head_dim == V_DIM:
            raise MemoryError
        return allocate(head_dim, room)

    monkeypatch.setattr(layer, "_allocate", fail_for_values)
    with pytest.raises(MemoryError):
        layer.update(*states(4, 1))
    assert (calls, layer.room, layer.get_seq_length()) == (2, 4, 4)
    monkeypatch.undo()
    assert torch.equal(layer.update(*states(4, 1))[0], states(0, 5)[0])


@pytest.mark.parametrize("window", [0, 8])
def test_another_dtype_is_not_converted(window: int) -> None:
    """Keys or values in another dtype than the cache's raise InputError; nothing is cast."""
    layer = layer_of(window, 8)
    keys, values = states(0, 2)
    with pytest.raises(InputError, match="float32"):
        layer.update(keys.float(), values)
    with pytest.raises(InputError):
        layer.update(keys, values.float())
    assert layer.get_seq_length() == 0


@pytest.mark.parametrize("window", [0, 8])
def test_several_sequences_are_refused(window: int) -> None:
    """A batch, or beam search, raises InputError instead of mixing sequences."""
    layer = layer_of(window, 8)
    keys, values = states(0, 2)
    with pytest.raises(InputError, match="one sequence"):
        layer.update(keys.repeat(2, 1, 1, 1), values.repeat(2, 1, 1, 1))
    with pytest.raises(InputError):
        layer.reorder_cache(torch.tensor([0]))
    with pytest.raises(InputError):
        layer.batch_repeat_interleave(2)


def test_a_cache_does_not_shrink(tiny_engine: Callable[..., Any]) -> None:
    """Cropping and resetting raise InputError: earlier turns stay valid."""
    engine = tiny_engine("gemma3")
    cache = engine.new_cache(8)
    engine.forward(cache, [3, 4, 5])
    for shrink in (lambda: cache.crop(-1), cache.reset):
        with pytest.raises(InputError, match="only grows"):
            shrink()
    assert cache.length == 3


def test_a_cache_that_grew_in_the_engine_goes_on_in_generate() -> None:
    """Buffers made in inference mode can be written outside of it, also with gradients on."""
    engine = tiny("gemma3")
    cache = engine.new_cache(1)
    engine.forward(cache, list(range(3, 33)))
    engine.forward(cache, [33])
    library = DynamicCache(config=engine.model.config)
    ids = torch.tensor([list(range(3, 34))])
    engine.model(input_ids=ids, use_cache=True, **{engine.cache_argument: library})
    for step in (40, 41):
        fed = torch.tensor([[step]])
        mine, theirs = (
            engine.model(input_ids=fed, use_cache=True, **{engine.cache_argument: c}).logits
            for c in (cache, library)
        )
        torch.testing.assert_close(mine, theirs, atol=2e-4, rtol=0)
    assert not any(layer.k_store.requires_grad for layer in cache.layers)


def test_a_copy_is_a_cache_of_its_own(tiny_engine: Callable[..., Any]) -> None:
    """A copied cache, as users make them of a prompt's, goes on without touching the first."""
    engine = tiny_engine("gemma3")
    cache = engine.new_cache(40)
    engine.forward(cache, list(range(3, 33)))
    with cache.exclusive():
        twin = copy.deepcopy(cache)
    wanted = continuation(engine, hand_over(engine, cache), [50, 51])
    with twin.exclusive():
        continuation(engine, twin, [60, 61, 62])
    for got, own in zip(continuation(engine, cache, [50, 51]), wanted, strict=True):
        assert torch.equal(got, own)
    assert (twin.length, cache.length) == (33, 32)


def test_size_counts_all_buffers() -> None:
    """Two layers with room for 10 positions of 2 heads in float64: 2 * 10 * 2 * (3 + 5) * 8."""
    spec = LayerLayout(LayerKind.FULL, HEADS, K_DIM, V_DIM)
    cache = KVCache(KVLayout("F64", (spec, spec)), 10, torch.float64, CPU)
    assert cache.size_bytes == 2 * 10 * 2 * (3 + 5) * 8
    assert cache.length == 0


def test_two_requests_on_one_cache() -> None:
    """While one request decodes, another on the same cache raises CacheBusy and changes nothing."""
    engine = tiny("llama")
    cache = engine.new_cache(16)
    inside, go_on = threading.Event(), threading.Event()

    def wait_inside(*_: Any) -> None:
        inside.set()
        assert go_on.wait(timeout=60)

    hook = engine.model.get_input_embeddings().register_forward_pre_hook(wait_inside)
    worker = threading.Thread(
        target=decode, args=(engine, cache, [3, 4], Decoding(max_new_tokens=3))
    )
    worker.start()
    try:
        assert inside.wait(timeout=60)
        hook.remove()
        with pytest.raises(CacheBusy):
            decode(engine, cache, [5, 6], Decoding(max_new_tokens=3))
    finally:
        go_on.set()
        worker.join()
    assert cache.length == 2 + 2
    decode(engine, cache, [7], Decoding(max_new_tokens=1))
    assert cache.length == 5


def test_the_lock_is_given_back_after_an_error() -> None:
    """A request that fails leaves the cache free for the next one."""
    engine = tiny("llama")
    cache = engine.new_cache(8)
    with pytest.raises(InputError), cache.exclusive():
        engine.forward(cache, [])
    with cache.exclusive():
        engine.forward(cache, [3])
    assert cache.length == 1


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
@pytest.mark.parametrize("fed", [1, 3, 40])
@pytest.mark.parametrize("where", ["layers.2", "norm"])
def test_a_forward_pass_that_fails_leaves_nothing(family: str, fed: int, where: str) -> None:
    """Whether some or all layers had the new positions, afterwards none has, and all goes on."""
    engine = tiny(family)
    cache, undisturbed = engine.new_cache(30), engine.new_cache(30)
    for each in (cache, undisturbed):
        engine.forward(each, list(range(3, 33)))

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    hook = engine.model.get_submodule(f"model.{where}").register_forward_pre_hook(interrupt)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            engine.forward(cache, [200 + i % 50 for i in range(fed)])
    hook.remove()
    assert {layer.get_seq_length() for layer in cache.layers} == {30}
    for layer, spec in enumerate(engine.layout.layers):
        held = min(30, spec.window - 1) if spec.window else 30
        got = cache.layer_view(layer, 30 - held, held)
        assert torch.equal(got[0], undisturbed.layer_view(layer, 30 - held, held)[0])
        assert torch.equal(got[1], undisturbed.layer_view(layer, 30 - held, held)[1])
    for mine, theirs in zip(
        continuation(engine, cache, [50, 51, 52]),
        continuation(engine, undisturbed, [50, 51, 52]),
        strict=True,
    ):
        assert torch.equal(mine, theirs)


def test_a_failed_chunk_keeps_the_chunks_before_it() -> None:
    """A deterministic engine that fails in its second chunk has the first, and says so."""
    engine, calls = tiny("gemma3", deterministic=True), []

    def fail_second(*_: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise MemoryError

    hook = engine.model.model.layers[3].register_forward_pre_hook(fail_second)
    cache, ids = engine.new_cache(8), [3 + i % 200 for i in range(300)]
    with pytest.raises(MemoryError):
        engine.forward(cache, ids)
    hook.remove()
    assert {layer.get_seq_length() for layer in cache.layers} == {256}
    whole = engine.new_cache(8)
    assert torch.equal(engine.forward(cache, ids[256:]), engine.forward(whole, ids))


def test_window_caches_stay_small(tiny_engine: Callable[..., Any]) -> None:
    """Window layers of a long conversation hold their window, not the conversation."""
    engine = tiny_engine("mistral")
    cache = engine.new_cache(400)
    for start in range(0, 400, 20):
        engine.forward(cache, [3 + (start + i) % 250 for i in range(20)])
    assert cache.length == 400
    assert all(layer.room <= 2 * (WINDOW - 1) + 64 for layer in cache.layers)
