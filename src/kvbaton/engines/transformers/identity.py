"""Function id and producer record: who computed a cache, and how.

The function id covers the weights as loaded, the configuration, RoPE, tokenizer, template,
adapter, dtype, quantization and aligner.  It is the same in every process.  Hashing the weights
takes a pass over them, so the digest of a checkpoint is remembered by the identity of its files:
device, inode, size, modification time *and* change time, which no user can set back, so an edit
in place with the same name, size and modification time is noticed.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3

from kvbaton.engines.transformers import compat
from kvbaton.errors import UnsupportedModel
from kvbaton.types import FunctionId, KVLayout, RopeSpec

STATEFUL_ROPE = ("dynamic", "longrope")
"""RoPE kinds whose table changes with the length, inside the model: one request at a time."""

_CONTEXT = "kvbaton function id 1"
_VOLATILE = frozenset(
    ("_name_or_path", "architectures", "attn_implementation", "_attn_implementation", "dtype",
     "id2label", "label2id", "output_attentions", "output_hidden_states", "return_dict",
     "torch_dtype", "transformers_version", "use_cache", "rope_parameters", "rope_scaling",
     "rope_theta", "rope_local_base_freq", "rotary_pct", "rotary_emb_base", "partial_rotary_factor",
     "original_max_position_embeddings", "layer_types", "head_dim", "quantization_config",
     "chunk_size_feed_forward", "problem_type", "pretraining_tp", "default_theta")
)  # fmt: skip
"""Names, versions, and what the parts ``rope``, ``dtype`` and the layout cover."""
_NOT_INFERENCE = frozenset(
    ("max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups",
     "num_return_sequences", "diversity_penalty", "temperature", "top_k", "top_p", "typical_p",
     "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
     "return_dict_in_generate", "output_scores", "remove_invalid_values", "use_bfloat16",
     "add_cross_attention", "torchscript", "tie_encoder_decoder", "tf_legacy_loss", "is_decoder",
     "pruned_heads", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id",
     "attention_dropout", "hidden_dropout", "classifier_dropout", "resid_pdrop", "embd_pdrop",
     "initializer_range")
)  # fmt: skip
"""What a configuration says of training and generation; it has no part in keys and values."""
_TABLE_SWITCHES = ("factor", "long_factor", "original_max_position_embeddings", "short_factor")
"""Parameters of those RoPE kinds that change their table with the length."""
_PROBES = (
    "The quick brown fox jumps over the lazy dog.",
    " leading and  double  spaces ",
    "\n\n\ttabs\r\n",
    "1234567890 3.14159",
    "don't we'll I'd",
    "Überraschung naïve 東京 жизнь 🙂👍🏽",
    "def f(x):\n    return x",
    "<|im_start|>user\nhello<|im_end|>",
    "<s>[INST] a [/INST]</s>",
)


def digest_of(value: Any) -> str:
    """BLAKE3 digest (hex) of a JSON value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return str(blake3(text.encode()).hexdigest())


def function_id(parts: dict[str, str]) -> FunctionId:
    """The function id over named parts."""
    ordered = tuple(sorted(parts.items()))
    text = json.dumps(ordered, separators=(",", ":")).encode()
    return FunctionId(blake3(text, derive_key_context=_CONTEXT).hexdigest(), ordered)


def weights_digest(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """BLAKE3 digest (hex) over names, dtypes, shapes and bytes of tensors, sorted by name."""
    outer = blake3()
    named = ((compat.parameter_name(name), tensor) for name, tensor in tensors)
    for name, tensor in sorted(named, key=lambda item: item[0]):
        data = tensor.detach().to("cpu").contiguous()
        raw = data.reshape(-1).view(torch.uint8).numpy()
        inner = blake3(raw, max_threads=blake3.AUTO).hexdigest()
        outer.update(f"{name}|{data.dtype}|{tuple(data.shape)}|{inner}\n".encode())
    return str(outer.hexdigest())


def checkpoint_stamp(folder: Path, **options: str) -> str:
    """Identity of the weight files in ``folder`` as they are now, and of how they are loaded."""
    stats = []
    for file in sorted(folder.glob("*")):
        if file.suffix in (".safetensors", ".bin", ".gguf", ".json"):
            s = file.stat()
            stats.append([file.name, s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns])
    return digest_of([str(folder.resolve()), stats, options, compat.version()])


class DigestMemory:
    """Remembers weight digests between processes; a file per stamp, written atomically."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def recall(self, stamp: str) -> str | None:
        """The digest that was remembered under ``stamp``."""
        if self.folder is None:
            return None
        try:
            text = (self.folder / stamp).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            return None
        return text if len(text) == 64 and set(text) <= set("0123456789abcdef") else None

    def remember(self, stamp: str, digest: str) -> None:
        """Remember ``digest``; a folder that cannot be written only costs time."""
        if self.folder is None:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            partial = self.folder / f".{stamp}.{os.getpid()}"
            partial.write_text(digest, encoding="ascii")
            partial.replace(self.folder / stamp)
        except OSError:
            self.folder = None


def tokenizer_digest(tokenizer: Any) -> str:
    """Digest of what the tokenizer does: vocabulary, rules, and the ids of fixed probes.

    Truncation and padding are left out: calls change them, and they do not change meaning.
    """
    described: dict[str, Any] = {
        "probes": [tokenizer.encode(p, add_special_tokens=True) for p in _PROBES]
    }
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        described |= compat.tokenizer_rules(json.loads(backend.to_str()))
    else:
        described["vocabulary"] = tokenizer.get_vocab()
    return digest_of(described)


def template_digest(tokenizer: Any) -> str:
    """Digest of the chat template, or of its absence."""
    return digest_of(getattr(tokenizer, "chat_template", None) or "")


def config_facts(config: Any) -> dict[str, Any]:
    """What the configuration says of the function: no names or versions, nothing of other parts."""
    left_out = _VOLATILE | _NOT_INFERENCE
    return {k: v for k, v in config.to_dict().items() if k not in left_out and v is not None}


def config_digest(config: Any) -> str:
    """Digest of what the configuration says of the function."""
    return digest_of(config_facts(config))


def rope_digest(ropes: tuple[RopeSpec, ...]) -> str:
    """Digest of the RoPE tables in use, and of what they change into with the length."""
    return digest_of(
        [
            [r.kind, r.pairing, r.rotary_dim, r.table, r.attention_factor.hex(), _switches(r)]
            for r in ropes
        ]
    )


def _switches(rope: RopeSpec) -> list[tuple[str, Any]]:
    """Parameters of a table that is not the same at all lengths."""
    if rope.kind not in STATEFUL_ROPE:
        return []
    return [(name, value) for name, value in rope.parameters if name in _TABLE_SWITCHES]


def layout_digest(layout: KVLayout) -> str:
    """Digest of the layer structure."""
    return digest_of(
        [[s.kind, s.kv_heads, s.k_dim, s.v_dim, s.window, s.rope] for s in layout.layers]
    )


def model_parts(model: Any, tokenizer: Any, layout: KVLayout, weights: str) -> dict[str, str]:
    """The named parts of a function id."""
    return {
        "weights": weights,
        "config": digest_of([config_digest(model.config), layout_digest(layout)]),
        "rope": rope_digest(layout.ropes),
        "tokenizer": tokenizer_digest(tokenizer),
        "template": template_digest(tokenizer),
        "adapter": adapter_name(model),
        "dtype": layout.dtype,
        "quantization": "none",
        "aligner": "none",
    }


def adapter_name(model: Any) -> str:
    """``none``: adapters are refused until their activation offset can be stated.

    Raises
    ------
    UnsupportedModel
        The model carries a PEFT adapter that has not been merged.
    """
    declared = getattr(model, "peft_config", None) or getattr(
        model, "_hf_peft_config_loaded", False
    )
    if declared or any(type(m).__module__.split(".")[0] == "peft" for m in model.modules()):
        raise UnsupportedModel(
            "the model carries an adapter that is not merged",
            hint="merge it with merge_and_unload(); it then has a function id of its own",
        )
    return "none"


def refuse_quantized(described: Any) -> None:
    """Raise ``UnsupportedModel`` if a configuration, or a model, says that it is quantized."""
    signs = ("quantization_config", "hf_quantizer", "is_quantized")
    if any(getattr(described, sign, None) for sign in signs):
        raise UnsupportedModel(
            "quantized models are not supported: their function cannot be identified yet",
            hint="load an unquantized or dequantized checkpoint",
        )


def require_plain(model: Any) -> None:
    """Require weights that are all on one device, not quantized and without adapters.

    Raises
    ------
    UnsupportedModel
        They are not.
    """
    refuse_quantized(model.config)
    refuse_quantized(model)
    adapter_name(model)
    devices = set((getattr(model, "hf_device_map", None) or {}).values())
    if len(devices) > 1:
        raise UnsupportedModel(
            f"the model is spread over {len(devices)} devices", hint="load it on one device"
        )


def producer_record(
    model: Any, *, chunk: int | None = None, threads: int | None = None
) -> tuple[tuple[str, str], ...]:
    """Engine, versions, kernel, chunking and threads: recorded, shown, never compared.

    ``chunk`` and ``threads`` are those that a deterministic engine fixes.
    """
    record = {
        "engine": "transformers",
        "transformers": compat.version(),
        "torch": str(torch.__version__),
        "device": str(next(model.parameters()).device.type),
        "kernel": str(getattr(model.config, "_attn_implementation", "unknown")),
        "machine": platform.machine(),
        "threads": str(threads or torch.get_num_threads()),
        "chunk": str(chunk or 0),
        "deterministic": str(int(threads is not None)),
    }
    return tuple(sorted(record.items()))
