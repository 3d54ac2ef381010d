"""Other safetensors readers open our segments and see the same arrays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from tests.wire import samples
from tests.wire.samples import FUNCTION, KEYS, LAYOUT, RAW

from kvbaton.types import EncodedLayer, SegmentSpan, StoredTensor, TokenRun
from kvbaton.wire.canonical import loads
from kvbaton.wire.header import parse_description
from kvbaton.wire.segment import seal_segment

DTYPES = {"F16": np.float16, "F32": np.float32, "F64": np.float64}


def sealed_file(dtype: str, arrays: dict[int, tuple[np.ndarray, np.ndarray]]) -> bytes:
    """A segment of one head, five tokens and two channels in each of the layers 0 and 2."""
    span = SegmentSpan(0, 5)
    layers = [
        EncodedLayer(
            span,
            layer,
            TokenRun(0, 5),
            RAW,
            RAW,
            tuple(
                StoredTensor(name, dtype, array.shape, memoryview(array))
                for name, array in zip("kv", pair, strict=True)
            ),
        )
        for layer, pair in arrays.items()
    ]
    segment = seal_segment(
        layers,
        keys=KEYS,
        function=FUNCTION,
        layout=replace(LAYOUT, dtype=dtype),
        token_digest="00" * 32,
        prefix_key="00" * 32,
    )
    return samples.file_bytes(segment)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_numpy_readers_see_the_same_arrays(dtype: str, tmp_path: Path) -> None:
    """safetensors.numpy and safe_open give back every K and V as it was."""
    random = np.random.default_rng(7)
    arrays = {
        layer: (
            random.standard_normal((1, 5, 2)).astype(DTYPES[dtype]),
            random.standard_normal((1, 5, 2)).astype(DTYPES[dtype]),
        )
        for layer in (0, 2)
    }
    data = sealed_file(dtype, arrays)
    path = tmp_path / "segment.safetensors"
    path.write_bytes(data)
    loaded = safetensors.numpy.load(data)
    with safetensors.safe_open(path, framework="numpy") as opened:
        for layer, pair in arrays.items():
            for name, array in zip("kv", pair, strict=True):
                full = f"layer.{layer:04d}.{name}"
                assert loaded[full].dtype == array.dtype
                np.testing.assert_array_equal(loaded[full], array)
                np.testing.assert_array_equal(opened.get_tensor(full), array)
        assert opened.metadata().keys() == {"kvbaton"}


def test_torch_readers_see_the_same_bfloat16() -> None:
    """The golden segment's keys of layer 2 are 2 to 11, its values 102 to 111."""
    loaded = safetensors.torch.load(samples.file_bytes(samples.run_segment()))
    wanted = torch.arange(2, 12, dtype=torch.bfloat16).reshape(1, 5, 2)
    assert torch.equal(loaded["layer.0002.k"], wanted)
    assert torch.equal(loaded["layer.0002.v"], wanted + 100)
    assert loaded["layer.0002.v-pad"].tolist() == [0] * 44


def test_the_metadata_of_another_reader_is_our_description(tmp_path: Path) -> None:
    """What safe_open shows as metadata parses to the segment's own description."""
    segment = samples.window_segment()
    path = tmp_path / "segment.safetensors"
    path.write_bytes(samples.file_bytes(segment))
    with safetensors.safe_open(path, framework="numpy") as opened:
        text = opened.metadata()["kvbaton"]
    described = parse_description(loads(text.encode(), limit_bytes=len(text), what="description"))
    assert described.ranges == segment.header.ranges
    assert described.layout == LAYOUT
