"""The receiver's arrows: what is found once per segment is what looking it up each time gives."""

from __future__ import annotations

from threading import Event
from typing import Any

import pytest
import torch
from tests.wire.samples import KEYS

from kvbaton import codecs
from kvbaton.arrows import (
    Opened,
    decode_layers,
    encode_layers,
    get_layers,
    slice_layers,
    verify_layers,
)
from kvbaton.codecs.base import CodecChain, TensorToTensor
from kvbaton.codecs.raw import Raw
from kvbaton.errors import DigestMismatch, FormatError
from kvbaton.stores import Key, Kind, MemoryStore
from kvbaton.types import (
    ExportedLayer,
    KVLayout,
    LayerKind,
    LayerLayout,
    Place,
    SegmentKind,
    SegmentSpan,
    TokenRun,
    VerifiedLayer,
)
from kvbaton.wire import segment

LAYERS = (
    LayerLayout(LayerKind.FULL, kv_heads=2, k_dim=8, v_dim=4, rope=-1),
    LayerLayout(LayerKind.WINDOW, kv_heads=1, k_dim=4, v_dim=4, window=6, rope=-1),
    LayerLayout(LayerKind.FULL, kv_heads=3, k_dim=4, v_dim=16, rope=-1),
    LayerLayout(LayerKind.WINDOW, kv_heads=2, k_dim=4, v_dim=8, window=4, rope=-1),
)
LAYOUT = KVLayout("F32", LAYERS, ())


def exported(span: SegmentSpan) -> list[ExportedLayer]:
    """Random K and V of every layer that belongs into the span."""
    kind = LayerKind.FULL if span.kind is SegmentKind.RUN else LayerKind.WINDOW
    found = []
    for index, spec in enumerate(LAYERS):
        if spec.kind is kind:
            held = span.count if kind is LayerKind.FULL else min(span.stop, spec.window - 1)
            run = TokenRun(span.stop - held, held)
            keys = torch.randn(spec.kv_heads, held, spec.k_dim)
            values = torch.randn(spec.kv_heads, held, spec.v_dim)
            found.append(ExportedLayer(span, index, run, keys, values))
    return found


SPANS = (SegmentSpan(0, 5), SegmentSpan(5, 3), SegmentSpan(0, 8, SegmentKind.WINDOW))


@pytest.fixture
def shipped() -> tuple[list[ExportedLayer], list[Any]]:
    """What was exported, and the open segments that were made of it."""
    store, parts, opened = MemoryStore(), [], []
    for index, span in enumerate(SPANS):
        layers = exported(span)
        sealed = segment.seal_segment(
            encode_layers(slice_layers(layers), codecs.exact_plan(len(LAYOUT.layers)), LAYOUT),
            keys=KEYS,
            function="f0" * 32,
            layout=LAYOUT,
            token_digest="1" * 64,
            prefix_key="2" * 64,
        )
        key = Key(Kind.SEGMENT, sealed.address)
        store.put(key, sealed.parts)
        opened.append(Opened(index, store.open(key), sealed.header))
        parts.extend(layers)
    return parts, opened


def copies(opened: list[Any]) -> list[tuple[int, VerifiedLayer]]:
    """Verified layers whose bytes outlive the iteration."""
    return [
        (index, VerifiedLayer(part.header, part.range, memoryview(bytearray(part.data))))
        for index, part in verify_layers(get_layers(opened, Event()))
    ]


def test_what_goes_in_comes_out_by_layer_and_position(shipped: Any) -> None:
    """Every exported layer is decoded bit for bit, ordered by layer and then by position."""
    parts, opened = shipped
    decoded = [part for _, part in decode_layers(copies(opened))]
    assert [(d.layer, d.run.first) for d in decoded] == sorted(
        (p.layer, p.run.first) for p in parts
    )
    by_place = {(p.span, p.layer): p for p in parts}
    for got in decoded:
        want = by_place[got.span, got.layer]
        assert got.run == want.run
        assert torch.equal(got.keys, want.keys)
        assert torch.equal(got.values, want.values)


def test_places_found_once_are_those_found_each_time(shipped: Any) -> None:
    """The decoder agrees with its slow twin, which views each layer anew and builds its chains."""
    _, opened = shipped
    parts = copies(opened)
    for (_, part), (_, fast) in zip(parts, decode_layers(parts), strict=True):
        header, place = part.header, part.range
        slow = segment.encoded_layer(header, place, part.data)
        spec = LAYERS[place.layer]
        tensors = {tensor.name: tensor for tensor in slow.tensors}
        for name, got, dim in (("k", fast.keys, spec.k_dim), ("v", fast.values, spec.v_dim)):
            chain = codecs.chain_from_json(
                slow.k_codec if name == "k" else slow.v_codec, codecs.CODECS
            )
            shape = (spec.kv_heads, place.run.count, dim)
            want = chain.decode({"": tensors[name].data}, LAYOUT.dtype, shape, Place(name, 0, 0))
            assert torch.equal(got, want)


def test_memory_that_is_used_again_shows_what_is_in_it_now(shipped: Any) -> None:
    """While layers stream through one private buffer, each is decoded as what it is."""
    parts, opened = shipped
    by_place = {(p.span, p.layer): p for p in parts}
    seen = 0
    for _, got in decode_layers(verify_layers(get_layers(opened, Event()))):
        want = by_place[got.span, got.layer]
        assert torch.equal(got.keys, want.keys)
        assert torch.equal(got.values, want.values)
        seen += 1
    assert seen == len(parts)


def test_a_codec_that_computes_is_asked_for_every_layer(monkeypatch: Any) -> None:
    """Only what is the stored memory itself is used again for the next layer."""
    header = copies_of_equal_layers()[0][1].header
    asked: list[str] = []

    class Counting(Raw):
        """Looks like a view, and is not."""

        views = False

        def unpack(self, stored: Any, dtype: str, shape: Any, place: Place) -> torch.Tensor:
            """Counts."""
            asked.append(dtype)
            return super().unpack(stored, dtype, shape, place).clone()

    monkeypatch.setattr(codecs, "CODECS", {"raw": Counting})
    list(decode_layers(copies_of_equal_layers()))
    assert len(asked) == 2 * len(header.ranges)


def copies_of_equal_layers() -> list[tuple[int, VerifiedLayer]]:
    """Three layers of one structure, one after another in one buffer."""
    spec = LayerLayout(LayerKind.FULL, kv_heads=1, k_dim=4, v_dim=4, rope=-1)
    layout, span = KVLayout("F32", (spec,) * 3, ()), SegmentSpan(0, 4)
    layers = [
        ExportedLayer(span, i, span, torch.randn(1, 4, 4), torch.randn(1, 4, 4)) for i in range(3)
    ]
    sealed = segment.seal_segment(
        encode_layers(slice_layers(layers), codecs.exact_plan(3), layout),
        keys=KEYS,
        function="f0" * 32,
        layout=layout,
        token_digest="1" * 64,
        prefix_key="2" * 64,
    )
    data = memoryview(bytearray(128))
    return [(0, VerifiedLayer(sealed.header, part, data)) for part in sealed.header.ranges]


def test_an_error_names_its_segment(shipped: Any) -> None:
    """A flipped byte is found in the segment in which it is, whatever the order of layers."""
    _, opened = shipped
    fetched = get_layers(opened, Event())
    for index, part in fetched:
        if (index, part.range.layer) == (1, 2):
            part.data[0] ^= 1
            with pytest.raises(DigestMismatch) as caught:
                list(verify_layers([(index, part)]))
    assert caught.value.at.startswith("$.segments[1].ranges[")


def test_an_unknown_codec_names_its_segment(shipped: Any, monkeypatch: Any) -> None:
    """A chain that cannot be built is an error of the segment that names it."""
    _, opened = shipped
    parts = copies(opened)
    monkeypatch.setattr(codecs, "CODECS", {})
    with pytest.raises(FormatError) as caught:
        list(decode_layers(parts[-1:]))
    assert caught.value.at == f"$.segments[{parts[-1][0]}].codecs[0]"


class Negate(TensorToTensor):
    """Turns every sign around: its own inverse."""

    name = "negate"

    def forward(self, tensor: torch.Tensor, place: Place) -> torch.Tensor:
        """The sender's side."""
        return -tensor

    def inverse(self, tensor: torch.Tensor, place: Place) -> torch.Tensor:
        """The receiver's side."""
        return -tensor


def test_chains_run_forwards_and_backwards() -> None:
    """Codecs before the packer are applied in order and undone in the reverse order."""
    chain = CodecChain((Negate(), Raw()))
    tensor = torch.arange(6.0).view(1, 3, 2)
    (stored,) = chain.encode(tensor, Place("k", 0, 0))
    assert torch.frombuffer(stored.data, dtype=torch.float32).tolist() == [0, -1, -2, -3, -4, -5]
    assert torch.equal(chain.decode({"": stored.data}, "F32", (1, 3, 2), Place("k", 0, 0)), tensor)
