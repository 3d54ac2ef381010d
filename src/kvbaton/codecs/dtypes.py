"""torch dtypes and their safetensors names."""

from __future__ import annotations

import torch

from kvbaton.errors import InputError

TORCH_DTYPES: dict[str, torch.dtype] = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
}
SAFETENSORS_NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def safetensors_name(dtype: torch.dtype) -> str:
    """The name of a dtype that can be stored.

    Raises
    ------
    InputError
        There is none.
    """
    name = SAFETENSORS_NAMES.get(dtype)
    if name is None:
        raise InputError(f"tensors of {dtype} cannot be stored")
    return name
