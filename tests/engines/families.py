"""Tiny random models of every supported family, built from their configurations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from tests.engines.chat_tokenizers import CHATML, word_tokenizer

from kvbaton.engines.transformers.engine import TransformersEngine
from kvbaton.engines.transformers.load import wrap_model

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


def _scaled(kind: str, **parameters: Any) -> Any:
    """A Llama whose RoPE is scaled; every supported version takes the base at the top level."""
    scaling = {"rope_type": kind, **parameters}
    return transformers.LlamaConfig(**_GROUPED, rope_theta=500000.0, rope_scaling=scaling)


def _llama3() -> Any:
    return _scaled(
        "llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=128,
    )


def _linear() -> Any:
    return _scaled("linear", factor=2.0)


def _dynamic() -> Any:
    return _scaled("dynamic", factor=2.0)


def _yarn() -> Any:
    return _scaled("yarn", factor=4.0, original_max_position_embeddings=128)


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


def _phi3_longrope() -> Any:
    scaling = {
        "type": "longrope",
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
        "long_factor": [2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5],
    }
    return transformers.Phi3Config(
        **_GROUPED, sliding_window=None, original_max_position_embeddings=32, rope_scaling=scaling
    )


def _phi3_window() -> Any:
    return transformers.Phi3Config(**_GROUPED, sliding_window=WINDOW)


def _gpt_neox() -> Any:
    return transformers.GPTNeoXConfig(**_SMALL, rotary_pct=0.25)


def _olmo2() -> Any:
    return transformers.Olmo2Config(**_GROUPED)


FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "llama-rope-llama3": _llama3,
    "llama-rope-linear": _linear,
    "llama-rope-dynamic": _dynamic,
    "llama-rope-yarn": _yarn,
    "smollm": _smollm,
    "qwen2": _qwen2,
    "qwen2-window": _qwen2_window,
    "qwen3": _qwen3,
    "mistral": _mistral,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "phi3-window": _phi3_window,
    "phi3-rope-longrope": _phi3_longrope,
    "gpt_neox": _gpt_neox,
    "olmo2": _olmo2,
}
WINDOWED = ("qwen2-window", "mistral", "gemma2", "gemma3", "phi3-window")


def build(
    family: str,
    dtype: torch.dtype = torch.float32,
    *,
    device: str = "cpu",
    attention: str | None = None,
) -> Any:
    """A tiny random model; the same weights every time, large enough to tell tokens apart."""
    generator_state = torch.random.get_rng_state()
    torch.manual_seed(7)
    options = {} if attention is None else {"attn_implementation": attention}
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[family](), **options)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    torch.random.set_rng_state(generator_state)
    return model.to(device, dtype).eval()


def tiny(
    family: str,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    attention: str | None = None,
    template: str | None = CHATML,
    **options: Any,
) -> TransformersEngine:
    """An engine around a new tiny model, with a byte-level tokenizer of 293 known tokens."""
    tokenizer = word_tokenizer()
    tokenizer.chat_template = template
    model = build(family, dtype, device=device, attention=attention)
    return wrap_model(model, tokenizer, name=f"tiny-{family}", **options)
