"""A slot refuses numbers that are not finite, whatever their dtype, sign and place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.engines.families import tiny

from kvbaton.engines.transformers.slot import _Finite, integer_view
from kvbaton.errors import Fault, FormatError
from kvbaton.types import AlignedLayer, SegmentSpan

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
TOKENS = 9


@given(
    bits=hnp.arrays(np.uint16, st.integers(1, 40)),
    dtype=st.sampled_from([torch.bfloat16, torch.float16]),
)
def test_the_bits_say_the_same_as_the_numbers(bits: np.ndarray, dtype: torch.dtype) -> None:
    """Any pattern of bits of half precision is judged as the library judges it."""
    tensor = torch.from_numpy(bits.astype(np.int32).astype(np.int16)).view(dtype)
    assert _Finite(dtype)(integer_view(tensor)) == bool(torch.isfinite(tensor).all())


@given(numbers=st.lists(st.floats(width=32), min_size=1), step=st.integers(1, 3))
def test_single_precision_and_strides_are_judged_alike(numbers: list[float], step: int) -> None:
    """So is any float32, also where only every other number is looked at."""
    tensor = torch.tensor(numbers, dtype=torch.float32)[::step]
    assert _Finite(torch.float32)(integer_view(tensor)) == bool(torch.isfinite(tensor).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["keys", "values"])
def test_one_odd_number_is_refused_with_its_layer(
    dtype: torch.dtype, odd: float, name: str
) -> None:
    """Nothing is attached; the error names layer and tensor."""
    engine: Any = tiny("llama", dtype=dtype)
    cache = engine.new_cache(TOKENS)
    engine.forward(cache, range(5, 5 + TOKENS))
    parts = list(engine.export(cache, [SegmentSpan(0, TOKENS)]))
    getattr(parts[2], name)[1, 3, 4] = odd
    slot = engine.slot(TOKENS, room=1)
    aligned = [AlignedLayer(p.span, p.layer, p.run, p.keys, p.values) for p in parts]
    slot.write(aligned[0])
    slot.write(aligned[1])
    with pytest.raises(FormatError, match=f"{name} of layer 2 hold numbers") as error:
        slot.write(aligned[2])
    assert (error.value.fault, error.value.at) == (Fault.NOT_FINITE, "$.layers[2]")


def test_the_largest_finite_numbers_pass() -> None:
    """What is only large is not refused."""
    for dtype in DTYPES:
        limits = torch.finfo(dtype)
        tensor = torch.tensor([limits.max, limits.min, 0.0, -0.0, limits.tiny], dtype=dtype)
        assert _Finite(dtype)(integer_view(tensor))
