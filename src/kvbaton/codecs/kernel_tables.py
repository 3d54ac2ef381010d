"""The compiled kernels of a module, by dtype; loading one imports numba."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@cache
def encoders(module: str) -> Mapping[torch.dtype, Callable[..., int]]:
    """Encoders of a module in ``kernels``, by dtype; none where numba does not run."""
    import torch

    try:
        found = import_module(f"kvbaton.codecs.kernels.{module}")
    except ImportError:
        return {}
    return {
        torch.float32: found.encode_f32,
        torch.bfloat16: found.encode_bf16,
        torch.float16: found.encode_f16,
    }


@cache
def decoders(module: str) -> Mapping[str, tuple[torch.dtype, Callable[..., int]]]:
    """Dtypes and decoders of a module in ``kernels``, by safetensors name."""
    import torch

    found = import_module(f"kvbaton.codecs.kernels.{module}")
    return {
        "F32": (torch.float32, found.decode_f32),
        "BF16": (torch.bfloat16, found.decode_bf16),
        "F16": (torch.float16, found.decode_f16),
    }
