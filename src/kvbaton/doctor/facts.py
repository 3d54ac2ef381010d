"""What is known of a model without its weights: configuration, layout, tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kvbaton.errors import KvbatonError, ModelUnavailable
from kvbaton.types import KVLayout

_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")


@dataclass(frozen=True)
class Facts:
    """A model's configuration and what follows from it.

    Parameters
    ----------
    refusal
        Why its cache is not handed over; empty where it is.
    layout
        Structure of its cache in the wanted dtype; None where there is a refusal.
    chat
        Its chat format; None where the tokenizer is refused, and ``tokenizer_refusal`` says why.
    folder
        Where its weights lie, if they lie in a folder.
    """

    name: str
    config: Any
    tokenizer: Any
    layout: KVLayout | None
    refusal: str
    chat: Any
    tokenizer_refusal: str
    folder: Path | None

    @property
    def text_config(self) -> Any:
        """The configuration of the part that decodes text."""
        return self.config.get_text_config(decoder=True)

    @property
    def query_heads(self) -> int:
        """Heads of the queries; not those of the cache."""
        return int(getattr(self.text_config, "num_attention_heads", 0) or 0)

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values: ``num_key_value_heads``, or those of the queries."""
        return int(getattr(self.text_config, "num_key_value_heads", None) or self.query_heads)

    @property
    def head_dim(self) -> int:
        """Channels of a head."""
        given = getattr(self.text_config, "head_dim", None)
        return int(given or self.number("hidden_size") // max(self.query_heads, 1))

    def number(self, field: str) -> int:
        """A number of the configuration; 0 where it has none."""
        return int(getattr(self.text_config, field, None) or 0)

    @property
    def quantization(self) -> str:
        """How the checkpoint is quantized; empty where it is not."""
        described = getattr(self.config, "quantization_config", None)
        if not described:
            return ""
        method = described.get("quant_method") if isinstance(described, dict) else None
        return str(method or getattr(described, "quant_method", None) or "some method")

    @property
    def stored_dtype(self) -> str:
        """The dtype of the weights in the checkpoint, as its configuration says."""
        found = getattr(self.config, "dtype", None) or getattr(self.config, "torch_dtype", None)
        return str(found or "unknown").removeprefix("torch.")

    @cached_property
    def weight_files(self) -> tuple[Path, ...]:
        """The files that hold the weights, of the first kind that there is."""
        if self.folder is None:
            return ()
        for pattern in _WEIGHTS:
            found = tuple(sorted(self.folder.glob(pattern)))
            if found:
                return found
        return ()

    def weights_digest(self) -> str:
        """BLAKE3 digest (hex) of the weight files, as they are cut; empty where there are none."""
        return _files_digest(self.weight_files)


def describe(
    source: str | Path, *, name: str = "", dtype: str = "bfloat16", offline: bool = False
) -> Facts:
    """Read a model's configuration and tokenizer; no weights are loaded.

    Parameters
    ----------
    source
        A folder with a checkpoint, or a Hugging Face id.
    dtype
        The dtype that the cache would have.

    Raises
    ------
    ModelUnavailable
        There is no configuration to read.
    UnsupportedModel
        The dtype is not known, or the installed transformers is not supported.
    """
    from transformers import AutoConfig

    from kvbaton.engines.transformers import compat
    from kvbaton.engines.transformers.load import parse_dtype

    compat.require_supported_version()
    wanted = parse_dtype(dtype)
    try:
        config = AutoConfig.from_pretrained(source, local_files_only=offline)
    except (OSError, ValueError, KeyError) as error:
        raise ModelUnavailable(
            f"cannot read the configuration of {source}: {_first_line(error)}",
            hint="check the path or id; models that are not on this machine need the network",
        ) from error
    layout, refusal = _layout(config, wanted)
    tokenizer, chat, tokenizer_refusal = _chat(source, offline=offline)
    folder = Path(source)
    return Facts(
        name=name or str(source),
        config=config,
        tokenizer=tokenizer,
        layout=layout,
        refusal=refusal,
        chat=chat,
        tokenizer_refusal=tokenizer_refusal,
        folder=folder if folder.is_dir() else None,
    )


def _layout(config: Any, dtype: Any) -> tuple[KVLayout | None, str]:
    """Layout of a model that exists in outline only: its buffers are real, its weights are not."""
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    from kvbaton.engines.transformers import layout

    refusal = layout.refusal(config)
    if refusal is not None:
        return None, refusal
    try:
        with init_empty_weights(include_buffers=False):
            outline = AutoModelForCausalLM.from_config(config)
        return layout.build_layout(outline, dtype), ""
    except KvbatonError as error:
        return None, error.sentence
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        return None, f"no model can be made from its configuration: {_first_line(error)}"


def _chat(source: str | Path, *, offline: bool) -> tuple[Any, Any, str]:
    """Tokenizer and chat format, or why there is none."""
    from transformers import AutoTokenizer

    from kvbaton.engines.transformers.chat import ChatFormat

    try:
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=offline)
    except (OSError, ValueError, KeyError, ImportError) as error:
        return None, None, f"its tokenizer cannot be loaded: {_first_line(error)}"
    try:
        return tokenizer, ChatFormat(tokenizer), ""
    except KvbatonError as error:
        return tokenizer, None, error.sentence


def _files_digest(files: Iterable[Path]) -> str:
    from blake3 import blake3

    outer, some = blake3(), False
    for file in files:
        inner = blake3(max_threads=blake3.AUTO)
        inner.update_mmap(file)
        outer.update(inner.digest())
        some = True
    return str(outer.hexdigest()) if some else ""


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
