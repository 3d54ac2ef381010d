"""Loading a checkpoint, or wrapping a model that the user has loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from kvbaton.engines.transformers import compat, identity, layout
from kvbaton.engines.transformers.engine import TransformersEngine
from kvbaton.errors import InputError, ModelUnavailable, OutOfMemory, UnsupportedModel

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
    compat.require_supported_version()
    wanted, folder = parse_dtype(dtype), Path(source)
    memory = identity.DigestMemory(digests)
    stamp = _stamp(folder, wanted)
    model, tokenizer = _read(source, compat.load_kwargs(wanted, attention), offline=offline)
    unchanged = bool(stamp) and stamp == _stamp(folder, wanted)
    weights = memory.recall(stamp) if unchanged else None
    engine = wrap_model(
        _placed(model, device), tokenizer, name=name or str(source), deterministic=deterministic,
        threads=threads, weights=weights,
    )  # fmt: skip
    if unchanged and weights is None:
        memory.remember(stamp, engine.weights)
    return engine


def load_tokenizer(source: str | Path, *, offline: bool = False) -> Any:
    """The tokenizer of a checkpoint, without its weights.

    Raises
    ------
    ModelUnavailable
        It cannot be read or fetched.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(source, local_files_only=offline)
    except (OSError, ValueError, ImportError) as error:
        raise ModelUnavailable(
            f"cannot load the tokenizer of {source}: {str(error).splitlines()[0]}"
        ) from error


def _stamp(folder: Path, dtype: torch.dtype) -> str:
    """The stamp of a checkpoint folder; empty for a Hugging Face id."""
    return identity.checkpoint_stamp(folder, dtype=str(dtype)) if folder.is_dir() else ""


def _read(source: str | Path, options: dict[str, Any], *, offline: bool) -> tuple[Any, Any]:
    """Model and tokenizer of a checkpoint; every weight is in it, none is made up."""
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    try:
        config = AutoConfig.from_pretrained(source, local_files_only=offline)
        layout.require_supported(config)
        identity.refuse_quantized(config)
        model, report = AutoModelForCausalLM.from_pretrained(
            source, local_files_only=offline, output_loading_info=True, **options
        )
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=offline)
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        raise ModelUnavailable(
            f"cannot load {source}: {str(error).splitlines()[0]}",
            hint="check the path or id; models that are not on this machine need the network",
        ) from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelUnavailable(
            f"cannot load {source}: its files lack {len(missing)} weights, such as {missing[0]}",
            hint="fetch the checkpoint again",
        )
    return model, tokenizer


def _placed(model: Any, device: str) -> Any:
    """The model on a device; ``auto`` is the GPU if there is one."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return model.to(device)
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(f"no memory for the model on {device}") from error
    except (RuntimeError, AssertionError) as error:  # how torch says that there is no such device
        raise InputError(f"cannot use device {device!r}: {str(error).splitlines()[0]}") from error


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
