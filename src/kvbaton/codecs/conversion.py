"""Explicit, range-checked conversions between dtypes, and the errors of bad numbers.

What the sender's side refuses is an ``InputError``; on the receiver's side it is a ``FormatError``.
Both name layer and tensor.
"""

from __future__ import annotations

import torch

from kvbaton.codecs.dtypes import TORCH_DTYPES
from kvbaton.errors import Fault, FormatError, InputError, KvbatonError
from kvbaton.types import Place


def path_of(place: Place) -> str:
    """Path of K or V of a layer in error messages: ``$.layers[7].k``."""
    return f"$.layers[{place.layer}].{place.name}"


def refuse_input(sentence: str, place: Place) -> InputError:
    """The error of a sender's tensor."""
    return InputError(sentence, at=path_of(place))


def refuse_stored(sentence: str, fault: Fault, place: Place) -> FormatError:
    """The error of stored bytes."""
    return FormatError(sentence, fault=fault, at=path_of(place))


def as_float32(tensor: torch.Tensor, place: Place) -> torch.Tensor:
    """The tensor in float32: exact for bfloat16 and float16, rounded for float64.

    Raises
    ------
    InputError
        A finite float64 that float32 cannot hold.
    """
    if tensor.dtype == torch.float32:
        return tensor
    converted = tensor.to(torch.float32)
    if tensor.dtype == torch.float64 and _overflows(tensor, converted):
        raise refuse_input("numbers beyond the range of float32", place)
    return converted


def to_dtype(tensor: torch.Tensor, dtype: str, place: Place) -> torch.Tensor:
    """The tensor in the dtype that a safetensors name stands for, on the sender's side.

    Raises
    ------
    InputError
        A finite number that the dtype cannot hold.
    """
    return _converted(tensor, dtype, None, refuse_input(f"numbers beyond {dtype}", place))


def as_dtype(
    tensor: torch.Tensor, dtype: str, place: Place, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """The decoded tensor in the cache's dtype, in ``out`` where that is given.

    Raises
    ------
    FormatError
        A number that is not finite, or that the dtype cannot hold.
    """
    error = refuse_stored(f"decoded numbers beyond {dtype}", Fault.OUT_OF_RANGE, place)
    return _converted(tensor, dtype, out, error)


def _converted(
    tensor: torch.Tensor, dtype: str, out: torch.Tensor | None, error: KvbatonError
) -> torch.Tensor:
    wanted = TORCH_DTYPES[dtype]
    if tensor.dtype == wanted and out is None:
        return tensor
    converted = tensor.to(wanted)
    if tensor.dtype != wanted and _overflows(tensor, converted):
        raise error
    return converted if out is None else out.copy_(converted)


def _overflows(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether a finite number became infinite; what was not finite before is others' business."""
    return bool((torch.isfinite(before) & ~torch.isfinite(after)).any())


def require_finite(tensor: torch.Tensor, place: Place) -> None:
    """Refuse NaN and infinity on the sender's side.

    Raises
    ------
    InputError
        With the position of the first such number.
    """
    finite = torch.isfinite(tensor)
    if not bool(finite.all()):
        head, token, channel = (int(i) for i in (~finite).nonzero()[0])
        raise refuse_input(
            f"{_kind(tensor[head, token, channel])} in head {head}, token {token}, "
            f"channel {channel}",
            place,
        )


def _kind(number: torch.Tensor) -> str:
    return "NaN" if bool(torch.isnan(number)) else "infinity"
