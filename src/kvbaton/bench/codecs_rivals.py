"""What ``bench codecs`` measures beside: the quantizers behind transformers' ``QuantizedCache``.

Each quantizes one layer's K or V as that cache does when its residual window is full, with its own
defaults (4 bits, groups of 64).  They need ``optimum-quanto`` and ``hqq``; where those are not
installed, or do not run here, the result says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import torch

Verb = Callable[[Any], Any]
_CLASSES = {"quanto": "QuantoQuantizedLayer", "hqq": "HQQQuantizedLayer"}
_FAILURES = (ImportError, AttributeError, TypeError, ValueError, RuntimeError, OSError, KeyError)
"""What third parties raise where they do not fit the installed releases."""


def rivals(skipped: dict[str, str]) -> Iterator[tuple[str, Verb, Verb]]:
    """Name, quantize and dequantize of every rival that runs here; the others go to ``skipped``."""
    for name, kind in _CLASSES.items():
        try:
            quantize, dequantize = _verbs(kind)
            dequantize(quantize((torch.randn(2, 64, 64), 0)))
        except _FAILURES as error:
            skipped[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
            continue
        yield f"QuantizedCache ({name}, 4 bit)", quantize, dequantize


def _verbs(kind: str) -> tuple[Verb, Verb]:
    layer = getattr(import_module("transformers.cache_utils"), kind)(nbits=4, q_group_size=64)

    def quantize(item: tuple[torch.Tensor, int]) -> Any:
        layer.keys = item[0][None]  # one backend asks it for device and dtype
        return layer._quantize(layer.keys, axis=0)

    def dequantize(stored: Any) -> torch.Tensor:
        tensor: torch.Tensor = layer._dequantize(stored)
        return tensor[0]

    return quantize, dequantize
