"""From a model's configuration to a ``KVLayout``; a white list, so nothing is guessed.

A family is listed when its hand-off is tested bit for bit.  For everything else there is a
reason: the first one that applies is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from blake3 import blake3

from kvbaton.engines.transformers import compat
from kvbaton.errors import UnsupportedLayout
from kvbaton.rope import table_digest
from kvbaton.types import KVLayout, LayerKind, LayerLayout, Pairing, RopeSpec

FAMILIES: dict[str, Pairing] = {
    "gemma2": "half",
    "gemma3_text": "half",
    "gpt_neox": "half",
    "llama": "half",
    "mistral": "half",
    "olmo2": "half",
    "phi3": "half",
    "qwen2": "half",
    "qwen3": "half",
}
"""model_type -> how RoPE pairs channels.  SmolLM and SmolLM2 are ``llama``."""

DTYPES: dict[torch.dtype, str] = {
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.float64: "F64",
}
"""torch dtype -> safetensors name, for the dtypes that a cache may have."""

_STATE_SPACE = (
    "bamba",
    "falcon_h1",
    "granitemoehybrid",
    "jamba",
    "lfm2",
    "mamba",
    "nemotron_h",
    "plamo2",
    "recurrent_gemma",
    "rwkv",
    "xlstm",
    "zamba",
)
_MROPE = (
    "ernie4_5_vl",
    "glm4v",
    "qwen2_5_omni",
    "qwen2_5_vl",
    "qwen2_vl",
    "qwen3_omni",
    "qwen3_vl",
)
_LEARNED = ("biogpt", "gpt2", "gpt_bigcode", "gpt_neo", "imagegpt", "openai-gpt", "opt", "xglm")
_ALIBI = ("bloom", "mpt")


def _is_a(config: Any, families: tuple[str, ...]) -> bool:
    return config.model_type not in FAMILIES and str(config.model_type).startswith(families)


def _has(config: Any, *names: str) -> bool:
    return any(getattr(config, name, None) for name in names)


def _shares_layers(config: Any) -> bool:
    modes = getattr(config, "kv_sharing_modes", None) or ()
    return _has(config, "num_kv_shared_layers", "use_shared_kv") or "reuse" in modes


def _uses_mrope(config: Any) -> bool:
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    return _is_a(config, _MROPE) or "mrope_section" in str(rope)


def _looks_ahead(config: Any) -> bool:
    return getattr(config, "is_causal", True) is False or _has(
        config, "use_bidirectional_attention"
    )


def _foreign_layer_types(config: Any) -> set[str]:
    known = {"full_attention", "sliding_attention"}
    return set(getattr(config, "layer_types", None) or ()) - known


_REASONS: tuple[tuple[str, Callable[[Any], bool]], ...] = (
    (
        "it is an encoder-decoder: cross-attention caches are not handed over",
        lambda c: _has(c, "is_encoder_decoder", "add_cross_attention"),
    ),
    (
        "it keeps a state-space or recurrent state instead of keys and values",
        lambda c: _is_a(c, _STATE_SPACE),
    ),
    (
        "it has an indexer that keeps a cache of its own",
        lambda c: _has(c, "index_topk", "index_head_dim"),
    ),
    ("it uses multi-head latent attention (MLA)", lambda c: _has(c, "kv_lora_rank")),
    ("some of its layers share the keys and values of others", _shares_layers),
    ("it uses M-RoPE: positions are not one number per token", _uses_mrope),
    ("its tokens have learned positions, not rotary ones", lambda c: _is_a(c, _LEARNED)),
    (
        "it places tokens by ALiBi biases, not by rotary positions",
        lambda c: _is_a(c, _ALIBI) or _has(c, "alibi"),
    ),
    (
        "it has layers of chunked attention, which is neither full nor window attention",
        lambda c: "chunked_attention" in _foreign_layer_types(c),
    ),
    (
        "it has linear-attention or other layers that are neither full nor window attention",
        lambda c: bool(_foreign_layer_types(c)),
    ),
    ("it attends to later tokens, so keys and values change with what follows", _looks_ahead),
    (
        "it reads more than text; its text model alone may be supported",
        lambda c: _has(c, "vision_config", "audio_config"),
    ),
)


def refusal(config: Any) -> str | None:
    """Why the cache of a model with this configuration is not handed over; None if it is."""
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    for reason, applies in _REASONS:
        if applies(config) or applies(text):
            return reason
    if config.model_type not in FAMILIES:
        return f"its family is not on the list of tested ones: {', '.join(sorted(FAMILIES))}"
    return None


def require_supported(config: Any) -> None:
    """Raise ``UnsupportedLayout`` with the reason unless the family is on the white list."""
    reason = refusal(config)
    if reason is not None:
        raise UnsupportedLayout(
            f"{config.model_type} models are not supported: {reason}", at="$.model_type"
        )


def build_layout(model: Any, dtype: torch.dtype) -> KVLayout:
    """Layout of the cache that ``model`` keeps in ``dtype``.

    Raises
    ------
    UnsupportedLayout
        The family, a layer kind, the dtype or the positions are not on the white list.
    """
    config = model.config
    require_supported(config)
    if dtype not in DTYPES:
        raise UnsupportedLayout(f"caches in {dtype} are not handed over", at="$.dtype")
    windows = compat.layer_windows(config)
    if 1 in windows:
        raise UnsupportedLayout(
            "a window of 1 keeps no keys and values to hand over", at="$.sliding_window"
        )
    tables = compat.rope_tables(model, config)
    if not tables:
        raise UnsupportedLayout(
            f"{config.model_type}: no rotary position embedding was found", at="$.rope_parameters"
        )
    heads, head_dim = _heads(config)
    layers = tuple(
        LayerLayout(
            kind=LayerKind.WINDOW if window else LayerKind.FULL,
            kv_heads=heads,
            k_dim=head_dim,
            v_dim=head_dim,
            window=window,
            rope=_rope_index(tables, config, index),
        )
        for index, window in enumerate(windows)
    )
    ropes = tuple(_rope_spec(table, FAMILIES[config.model_type]) for table in tables)
    return KVLayout(dtype=DTYPES[dtype], layers=layers, ropes=ropes)


def _heads(config: Any) -> tuple[int, int]:
    queries = int(config.num_attention_heads)
    heads = int(getattr(config, "num_key_value_heads", None) or queries)
    head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // queries)
    return heads, head_dim


def _rope_index(tables: list[compat.RopeTable], config: Any, layer: int) -> int:
    if len(tables) == 1:
        return 0
    layer_type = config.layer_types[layer]
    return next(i for i, table in enumerate(tables) if table.layer_type == layer_type)


def _rope_spec(table: compat.RopeTable, pairing: Pairing) -> RopeSpec:
    parameters = tuple((name, _plain(value)) for name, value in sorted(table.parameters.items()))
    return RopeSpec(
        kind=table.kind,
        pairing=pairing,
        rotary_dim=2 * table.inv_freq.numel(),
        base=table.base,
        attention_factor=table.attention_factor,
        table=_table_digest(table, parameters),
        parameters=parameters,
    )


def _plain(value: Any) -> Any:
    """A parameter as it is compared: 8 and 8.0 are one number, however a configuration says it."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return float(value)
    return tuple(float(x) for x in value) if isinstance(value, list | tuple) else value


def _table_digest(table: compat.RopeTable, parameters: tuple[tuple[str, Any], ...]) -> str:
    """Identity of a table: what determines it, or its numbers where they are others.

    The last bits of the numbers depend on the processor that computed them.
    """
    if not table.as_configured:
        return str(blake3(table.inv_freq.contiguous().numpy().tobytes()).hexdigest())
    return table_digest(table.kind, table.base, table.inv_freq.numel(), parameters)
