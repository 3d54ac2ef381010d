"""Loading a checkpoint, or wrapping a model that the user has loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from kvbaton.engines.transformers import compat, identity, layout
from kvbaton.engines.transformers.engine import TransformersEngine
from kvbaton.errors import ModelUnavailable, UnsupportedModel

_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}


def parse_dtype(name: str | torch.dtype) -> torch.dtype:
    """A torch dtype from its name.

    Raises
    ------
    UnsupportedModel
        No cache is handed over in that dtype.
    """
    if isinstance(name, torch.dtype):
        return name
    try:
        return _DTYPES[name]
    except KeyError:
        raise UnsupportedModel(f"unknown dtype {name!r}: use one of {', '.join(_DTYPES)}") from None


def wrap_model(
    model: Any,
    tokenizer: Any,
    *,
    name: str = "",
    deterministic: bool = False,
    threads: int = 1,
    weights: str | None = None,
) -> TransformersEngine:
    """An engine around a model and tokenizer of the user's own.

    Raises
    ------
    UnsupportedLayout, UnsupportedModel
        The model's cache cannot be handed over faithfully.
    """
    engine = TransformersEngine(
        model,
        tokenizer,
        name=name or str(getattr(model.config, "_name_or_path", "")) or model.config.model_type,
        weights=weights,
        deterministic=deterministic,
        threads=threads,
    )
    try:
        prove_mask_is_honoured(engine)
    except Exception:
        engine.close()
        raise
    return engine


def load_checkpoint(
    source: str | Path,
    *,
    name: str = "",
    dtype: str | torch.dtype = "bfloat16",
    device: str = "auto",
    attention: str | None = None,
    deterministic: bool = False,
    threads: int = 1,
    digests: Path | None = None,
    offline: bool = False,
) -> TransformersEngine:
    """Load a local checkpoint folder or a Hugging Face id.

    ``digests`` is a folder in which the digests of weights are remembered.

    Raises
    ------
    UnsupportedLayout, UnsupportedModel
        The model's cache cannot be handed over faithfully.
    ModelUnavailable
        The checkpoint cannot be read or fetched.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    compat.require_supported_version()
    wanted = parse_dtype(dtype)
    try:
        config = AutoConfig.from_pretrained(source, local_files_only=offline)
        layout.require_supported(config)
        _refuse_quantized(config)
        model = AutoModelForCausalLM.from_pretrained(
            source, local_files_only=offline, **compat.load_kwargs(wanted, attention)
        )
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=offline)
    except (OSError, ValueError, ImportError) as error:
        raise ModelUnavailable(
            f"cannot load {source}: {str(error).splitlines()[0]}",
            hint="check the path or id; models that are not on this machine need the network",
        ) from error
    model = model.to(_pick_device(device))
    folder = Path(source)
    weights, memory, stamp = None, identity.DigestMemory(digests), ""
    if folder.is_dir():
        stamp = identity.checkpoint_stamp(folder, dtype=str(wanted))
        weights = memory.recall(stamp)
    engine = wrap_model(
        model, tokenizer, name=name or str(source), deterministic=deterministic, threads=threads,
        weights=weights,
    )  # fmt: skip
    if stamp and weights is None:
        memory.remember(stamp, engine.weights)
    return engine


def _refuse_quantized(config: Any) -> None:
    if getattr(config, "quantization_config", None):
        raise UnsupportedModel(
            "quantized checkpoints are not supported: their function cannot be identified yet",
            hint="load an unquantized checkpoint",
        )


def _pick_device(device: str) -> str:
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


@torch.inference_mode()
def prove_mask_is_honoured(engine: TransformersEngine) -> None:
    """Show on three tokens that a masked position cannot be seen.

    Two inputs differ in a token that the mask hides: their last logits must agree, and must not
    agree without the mask.

    Raises
    ------
    UnsupportedModel
        The attention kernel ignores masks, or nothing depends on the hidden token.
    """
    vocabulary = int(engine.model.config.vocab_size)
    ids = torch.tensor([[1, 2, 3], [1, vocabulary - 2, 3]], device=engine.device)
    positions = torch.arange(3, device=engine.device).expand(2, 3)
    hiding = torch.tensor([[1, 0, 1], [1, 0, 1]], device=engine.device)

    def spread(mask: torch.Tensor) -> float:
        out = engine.model(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False
        )
        last = out.logits[:, -1].float()
        return float((last[0] - last[1]).abs().max())

    hidden, seen = spread(hiding), spread(torch.ones_like(hiding))
    if seen == 0 or hidden > 0.1 * seen:
        kernel = getattr(engine.model.config, "_attn_implementation", "unknown")
        raise UnsupportedModel(
            f"the attention kernel {kernel!r} does not honour a mask "
            f"(difference {hidden:.3g} with the mask, {seen:.3g} without)",
            hint="load with another attn_implementation, such as 'sdpa' or 'eager'",
        )
