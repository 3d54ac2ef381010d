"""What a baton is measured against: each rival does the same work on the same model and ids.

All of them run in inference mode, with the model's own kernel and dtype, compute the logits of
the last position only, and return the first token (greedy).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from kvbaton.engines.transformers import compat

Tensors = list[tuple[torch.Tensor, torch.Tensor]]
"""K and V ``[1, kv_heads, tokens, head_dim]`` by layer."""


def text_by_loop(engine: Any, ids: Sequence[int]) -> int:
    """Prefill the whole prompt with our own engine, in one shot."""
    cache = engine.new_cache(len(ids) + 1)
    return int(engine.forward(cache, ids).argmax())


@torch.inference_mode()
def text_by_generate(engine: Any, ids: Sequence[int]) -> int:
    """Prefill the whole prompt with ``generate`` of transformers, which keeps one position's
    logits."""
    prompt = torch.tensor([list(ids)], device=engine.device)
    out = engine.model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        generation_config=greedy(engine, 1),
    )
    return int(out[0, -1])


def greedy(engine: Any, tokens: int) -> Any:
    """Generation settings for exactly ``tokens`` greedy tokens, whatever they are."""
    from transformers import GenerationConfig

    return GenerationConfig(
        max_new_tokens=tokens, do_sample=False, num_beams=1, eos_token_id=None, pad_token_id=0
    )


def kv_tensors(engine: Any, cache: Any, tokens: int) -> Tensors:
    """Contiguous copies of the first ``tokens`` positions, as the library's cache keeps them."""
    views = (cache.layer_view(layer, 0, tokens) for layer in range(len(engine.layout.layers)))
    return [(k.unsqueeze(0).clone(), v.unsqueeze(0).clone()) for k, v in views]


def library_cache(engine: Any, tensors: Tensors) -> Any:
    """A ``DynamicCache`` of transformers over some tensors."""
    cache = DynamicCache(config=engine.model.config)
    for layer, (keys, values) in enumerate(tensors):
        cache.update(keys, values, layer)
    return cache


def save_by_hand(path: Path, ids: Sequence[int], tensors: Tensors) -> None:
    """What a user's sender would write."""
    torch.save({"ids": torch.tensor(list(ids)), "kv": tensors}, path)


@torch.inference_mode()
def take_by_hand(engine: Any, path: Path, new: Sequence[int], *, mapped: bool = False) -> int:
    """What a user's receiver would do: load, rebuild the library's cache, feed the new ids."""
    loaded = torch.load(path, mmap=mapped, map_location=engine.device)
    return feed(engine, library_cache(engine, loaded["kv"]), new)


@torch.inference_mode()
def take_from_prefix_cache(engine: Any, kept: Any, new: Sequence[int]) -> int:
    """What a prefix cache in the process does: copy the kept cache, feed the new ids."""
    return feed(engine, copy.deepcopy(kept), new)


@torch.inference_mode()
def feed(engine: Any, cache: Any, new: Sequence[int]) -> int:
    """One forward pass of the library over ``new`` behind its cache; the first token."""
    output = engine.model(
        input_ids=torch.tensor([list(new)], device=engine.device),
        use_cache=True,
        logits_to_keep=1,
        **{compat.cache_argument(engine.model): cache},
    )
    return int(output.logits[0, -1].argmax())


class Stamps:
    """A streamer for ``generate`` that notes when the first token came."""

    def __init__(self) -> None:
        self.first_s = 0.0
        self.calls = 0

    def put(self, _value: Any) -> None:
        """Called with the prompt and then with every token."""
        self.calls += 1
        if self.calls == 2:
            self.first_s = time.perf_counter()

    def end(self) -> None:
        """Nothing to do."""


@torch.inference_mode()
def decode_by_generate(
    engine: Any, kept: Any, ids: Sequence[int], tokens: int
) -> tuple[float, int]:
    """Seconds that ``generate`` takes for the tokens after the first one, and their number."""
    prompt = torch.tensor([list(ids)], device=engine.device)
    stamps = Stamps()
    engine.model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        generation_config=greedy(engine, tokens + 1),
        streamer=stamps,
        **{compat.cache_argument(engine.model): copy.deepcopy(kept)},
    )
    engine.wait_for_device()
    return time.perf_counter() - stamps.first_s, stamps.calls - 2
