"""Floating point operations that really ran, counted at the operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def counted_flops(work: Callable[[], T]) -> tuple[T, int]:
    """What ``work`` returns, and the floating point operations of this thread meanwhile.

    Matrix products and attention, a multiplication and an addition being two; what is elementwise
    is not counted.  Counting costs time: do not time it.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

    def attention(
        query: Any, key: Any, value: Any, *_: Any, out_shape: Any = None, **__: Any
    ) -> int:
        del out_shape
        return int(sdpa_flop_count(query, key, value))

    # the CPU's fused attention is missing from the library's own table
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    with FlopCounterMode(display=False, custom_mapping={fused: attention}) as counter:
        done = work()
    return done, int(counter.get_total_flops())
