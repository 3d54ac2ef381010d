"""Tiny random models of every supported family, built from their configurations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers

WINDOW = 12
_SMALL = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_GROUPED = _SMALL | {"num_key_value_heads": 2}


def _llama() -> Any:
    return transformers.LlamaConfig(**_GROUPED)


def _smollm() -> Any:
    return transformers.LlamaConfig(**_GROUPED, rope_theta=100000.0, tie_word_embeddings=True)


def _llama_scaled() -> Any:
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    }
    return transformers.LlamaConfig(**_GROUPED, rope_scaling=scaling)


def _qwen2() -> Any:
    return transformers.Qwen2Config(**_GROUPED)


def _qwen2_window() -> Any:
    return transformers.Qwen2Config(
        **_GROUPED, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2
    )


def _qwen3() -> Any:
    return transformers.Qwen3Config(**_GROUPED, head_dim=16)


def _mistral() -> Any:
    return transformers.MistralConfig(**_GROUPED, sliding_window=WINDOW)


def _gemma2() -> Any:
    return transformers.Gemma2Config(
        **_GROUPED, head_dim=16, query_pre_attn_scalar=16, sliding_window=WINDOW
    )


def _gemma3() -> Any:
    types = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
    return transformers.Gemma3TextConfig(
        **_GROUPED, head_dim=16, query_pre_attn_scalar=16, sliding_window=WINDOW, layer_types=types
    )


def _phi3() -> Any:
    return transformers.Phi3Config(**_GROUPED, sliding_window=None)


def _phi3_window() -> Any:
    return transformers.Phi3Config(**_GROUPED, sliding_window=WINDOW)


def _gpt_neox() -> Any:
    return transformers.GPTNeoXConfig(**_SMALL, rotary_pct=0.25)


def _olmo2() -> Any:
    return transformers.Olmo2Config(**_GROUPED)


FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "llama-rope-llama3": _llama_scaled,
    "smollm": _smollm,
    "qwen2": _qwen2,
    "qwen2-window": _qwen2_window,
    "qwen3": _qwen3,
    "mistral": _mistral,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "phi3-window": _phi3_window,
    "gpt_neox": _gpt_neox,
    "olmo2": _olmo2,
}
WINDOWED = ("qwen2-window", "mistral", "gemma2", "gemma3", "phi3-window")


def build(family: str, dtype: torch.dtype = torch.float32) -> Any:
    """A tiny random model; the same weights every time, large enough to tell tokens apart."""
    generator_state = torch.random.get_rng_state()
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[family]())
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    torch.random.set_rng_state(generator_state)
    return model.to(dtype).eval()
