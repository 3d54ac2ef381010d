"""Function ids of tiny models with weights that anybody can compute; run as a script, prints them.

The weights are small multiples of 1/1000 by counting, so that no random generator has a part.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tests.engines.chat_tokenizers import CHATML, word_tokenizer
from tests.engines.families import FAMILIES, build

from kvbaton.engines.transformers.engine import TransformersEngine
from kvbaton.engines.transformers.load import load_checkpoint, wrap_model


def count_weights(model: Any) -> None:
    """Set every parameter to -0.125, ..., 0.125 by counting."""
    with torch.no_grad():
        for parameter in model.parameters():
            counted = (torch.arange(parameter.numel()) * 37 + 11) % 251 - 125
            parameter.copy_(counted.div(1000).view(parameter.shape))


def wrapped(model: Any) -> TransformersEngine:
    """An engine with counted weights, a small tokenizer and a ChatML template."""
    count_weights(model)
    tokenizer = word_tokenizer()
    tokenizer.chat_template = CHATML
    return wrap_model(model, tokenizer)


def odd_heads() -> TransformersEngine:
    """A Llama with heads of 96: processors do not agree on the last bits of its RoPE table."""
    config = transformers.LlamaConfig(
        vocab_size=320,
        hidden_size=96,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=1,
        max_position_embeddings=64,
    )
    return wrapped(transformers.AutoModelForCausalLM.from_config(config))


def all_ids() -> dict[str, str]:
    """The first 16 digits of each id."""
    engines = {family: wrapped(build(family)) for family in FAMILIES} | {"odd heads": odd_heads()}
    return {name: engine.function.digest[:16] for name, engine in engines.items()}


def id_of(model: Any, tokenizer: Any = None) -> str:
    """The function id of a model under the small tokenizer."""
    if tokenizer is None:
        tokenizer = word_tokenizer()
        tokenizer.chat_template = CHATML
    engine = wrap_model(model, tokenizer)
    engine.close()
    return engine.function.digest


def loaded(folder: Path, **options: Any) -> Any:
    """An engine from a checkpoint folder, in float32."""
    return load_checkpoint(folder, dtype="float32", device="cpu", offline=True, **options)


if __name__ == "__main__":
    print(json.dumps(all_ids()))
