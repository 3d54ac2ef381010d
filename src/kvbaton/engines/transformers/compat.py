"""Every difference between the supported versions of transformers lives in this file.

Supported: 4.57 to 5.24.  The differences are: the name of the cache argument (``cache`` from
5.24 on, ``past_key_values`` before), the shape of RoPE tables (one module per base before 5.0,
one buffer per layer type after), ``get_mask_sizes`` (positions before 5.x, a length after), the
name of a layer's maximum length, the name of one family's output layer, and what a tokenizer
writes down that does nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from kvbaton.errors import UnsupportedLayout, UnsupportedModel

OLDEST = (4, 57)
NEWEST = (5, 24)


def version() -> str:
    """Version of transformers that is installed."""
    return str(transformers.__version__)


def require_supported_version() -> None:
    """Raise ``UnsupportedModel`` outside the supported range."""
    numbers = tuple(int(part) for part in version().split(".")[:2])
    if not OLDEST <= numbers <= NEWEST:
        raise UnsupportedModel(
            f"transformers {version()} is outside the supported range 4.57 to 5.24",
            hint="pip install 'transformers>=4.57,<5.25'",
        )


def cache_argument(model: Any) -> str:
    """Name of the forward argument that takes the cache."""
    parameters = inspect.signature(type(model).forward).parameters
    return "cache" if "cache" in parameters else "past_key_values"


def returned_cache(output: Any) -> Any:
    """The cache in the output of a model or of ``generate``; None where it has none."""
    for name in ("cache", "past_key_values"):
        found = getattr(output, name, None)
        if found is not None:
            return found
    return None


def parameter_name(name: str) -> str:
    """The name that a parameter has in the newest version."""
    return name.replace("embed_out.", "lm_head.")  # GPT-NeoX before 5.0


def tokenizer_rules(serialized: dict[str, Any]) -> dict[str, Any]:
    """What a serialized fast tokenizer does to text, written alike by all versions.

    The post-processor is left out: from 5.0 on there is one even where it adds nothing, and what
    one adds shows in the ids of any text.
    """
    parts = ("added_tokens", "normalizer", "pre_tokenizer", "decoder", "model")
    return {part: _without_empty(serialized.get(part)) for part in parts}


def _without_empty(value: Any) -> Any:
    """The same without options that are null or an empty string: versions differ in which."""
    if isinstance(value, dict) and "type" in value:
        return {k: _without_empty(v) for k, v in value.items() if v is not None and v != ""}
    return value


def query_length(sizes_argument: Any) -> int:
    """Number of new positions, from either form of ``get_mask_sizes``'s argument."""
    if isinstance(sizes_argument, torch.Tensor):
        return int(sizes_argument.shape[0])
    return int(sizes_argument)


def layer_windows(config: Any) -> list[int]:
    """Window of every layer as the library itself would cache it; 0 for full attention.

    Raises
    ------
    UnsupportedLayout
        The library caches a layer in a way that is not on the white list.
    """
    try:
        layers = DynamicCache(config=config).layers
    except (KeyError, ValueError, AttributeError, TypeError) as error:
        raise UnsupportedLayout(
            f"transformers {version()} builds no per-layer cache for {config.model_type}: {error}"
        ) from error
    if not layers:
        return [0] * int(config.num_hidden_layers)
    return [_window_of(index, layer) for index, layer in enumerate(layers)]


def _window_of(index: int, layer: Any) -> int:
    if type(layer) is DynamicLayer:
        return 0
    if type(layer) is DynamicSlidingWindowLayer:
        return int(layer.sliding_window)
    raise UnsupportedLayout(
        f"layer {index} is cached as {type(layer).__name__}, which is not full or window attention"
    )


@dataclass(frozen=True)
class RopeTable:
    """Inverse frequencies ``[rotary_dim / 2]`` float32 of one RoPE, its kind and its factor.

    ``as_configured`` says that the table is the one which kind, base and parameters give.
    """

    layer_type: str
    kind: str
    inv_freq: torch.Tensor
    attention_factor: float
    base: float
    parameters: dict[str, Any]
    as_configured: bool


_TABLE_NAMES = (("rotary_emb", ""), ("rotary_emb_local", "sliding_attention"))


def rope_tables(model: Any, config: Any) -> list[RopeTable]:
    """RoPE tables by layer type (``""`` where one table serves all layers), in a fixed order."""
    found: list[RopeTable] = []
    for attribute, layer_type in _TABLE_NAMES:
        module = next((m for n, m in model.named_modules() if n.split(".")[-1] == attribute), None)
        if module is not None:
            found.extend(_tables_of(module, layer_type, config))
    if len(found) > 1 and found[0].layer_type == "":
        found[0] = RopeTable(**{**vars(found[0]), "layer_type": "full_attention"})
    return found


_TABLE_NOISE = 1e-5
"""Relative difference that processors may make to a table: they raise to powers differently."""
_ELSEWHERE = ("rope_type", "type", "partial_rotary_factor", "rope_theta")
"""Parameters that the table's kind, its size or its base already state."""


def _elsewhere(name: str, kind: str) -> bool:
    """Whether a parameter is stated elsewhere; a proportional table has the size of the head."""
    if kind == "proportional" and name == "partial_rotary_factor":
        return False
    return name in _ELSEWHERE


def _tables_of(module: Any, layer_type: str, config: Any) -> Iterator[RopeTable]:
    fresh = _original_tables(type(module)(module.config))
    for prefix, inv_freq in sorted(_original_tables(module).items()):
        where = prefix.removesuffix("_") or layer_type
        kind = module.rope_type[where] if prefix else module.rope_type
        factor = torch.tensor(getattr(module, f"{prefix}attention_scaling"), dtype=torch.float32)
        parameters = _rope_parameters(config, where)
        base = parameters.get("rope_theta")
        if kind == "longrope":  # from 5.0 on among the parameters, before beside them
            length = getattr(config, "original_max_position_embeddings", None)
            parameters.setdefault("original_max_position_embeddings", length)
        yield RopeTable(
            layer_type=where,
            kind=str(kind),
            inv_freq=inv_freq,
            attention_factor=float(factor),
            base=_legacy_base(config, where) if base is None else float(base),
            parameters={
                k: v for k, v in parameters.items() if v is not None and not _elsewhere(k, kind)
            },
            as_configured=torch.allclose(inv_freq, fresh[prefix], rtol=_TABLE_NOISE, atol=0),
        )


def _original_tables(module: Any) -> dict[str, torch.Tensor]:
    """Inverse frequencies in float32 on the host, as they are before any length has changed them.

    By prefix of their names: empty, or a layer type with an underscore.
    """
    suffix = "inv_freq"
    names = [n for n, _ in module.named_buffers() if n.endswith(suffix) and "original" not in n]
    return {
        name.removesuffix(suffix): _original_table(module, name).detach().to("cpu", torch.float32)
        for name in names
    }


def _original_table(module: Any, name: str) -> torch.Tensor:
    """The table in use, or the one that it was before a length changed it.

    Before 5.0 the original is no buffer: it stays as it was when a model's dtype is changed.
    """
    prefix = name.removesuffix("inv_freq")
    kind = module.rope_type[prefix.removesuffix("_")] if prefix else module.rope_type
    current = getattr(module, name)
    if kind == "longrope" or (kind == "dynamic" and _has_grown(module, prefix)):
        return getattr(module, f"{prefix}original_inv_freq", current)
    return current


def _has_grown(module: Any, prefix: str) -> bool:
    seen = getattr(module, f"{prefix}max_seq_len_cached", module.max_seq_len_cached)
    return bool(seen > module.original_max_seq_len)


def _rope_parameters(config: Any, layer_type: str) -> dict[str, Any]:
    parameters = getattr(config, "rope_parameters", None)
    if parameters is None:
        local = layer_type == "sliding_attention"
        return {} if local else dict(getattr(config, "rope_scaling", None) or {})
    nested = parameters.get(layer_type)
    if isinstance(nested, dict):
        return dict(nested)
    return {k: v for k, v in parameters.items() if not isinstance(v, dict)}


def _legacy_base(config: Any, layer_type: str) -> float:
    if layer_type == "sliding_attention" and hasattr(config, "rope_local_base_freq"):
        return float(config.rope_local_base_freq)
    for name in ("rope_theta", "rotary_emb_base"):
        if getattr(config, name, None) is not None:
            return float(getattr(config, name))
    return 10000.0


def load_kwargs(dtype: torch.dtype, attention: str | None) -> dict[str, Any]:
    """Keyword arguments for ``from_pretrained``."""
    kwargs: dict[str, Any] = {"dtype": dtype}
    if attention is not None:
        kwargs["attn_implementation"] = attention
    return kwargs
