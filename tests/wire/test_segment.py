"""Sealing and reading segments are inverse."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire import samples
from tests.wire.samples import FUNCTION, IDS, KEYS, LAYOUT, RAW

from kvbaton.errors import Fault, FormatError, InputError
from kvbaton.types import (
    DTYPE_BYTES,
    JSON,
    EncodedLayer,
    Fidelity,
    FidelityClass,
    KVLayout,
    LayerKind,
    LayerLayout,
    Place,
    RopeSpec,
    SealedSegment,
    SegmentKind,
    SegmentSpan,
    StoredTensor,
    TokenRun,
)
from kvbaton.wire import segment
from kvbaton.wire.layout import encode_layout, parse_layout
from kvbaton.wire.segment import (
    encoded_layer,
    header_length,
    parse_header,
    range_tensors,
    read_header,
    seal_segment,
    verify_range,
)
from kvbaton.wire.structure import FREE_BYTES, Expected, raw_storage

FINITE = st.floats(allow_nan=False, allow_infinity=False)
NAMES = st.text("abcxyz_09", min_size=1, max_size=8)
PARAMETERS = st.dictionaries(
    NAMES,
    FINITE | st.integers(-(1 << 63), (1 << 63) - 1) | NAMES | st.lists(FINITE).map(tuple),
    max_size=4,
).map(lambda d: tuple(sorted(d.items())))
ROPES = st.builds(
    RopeSpec,
    kind=NAMES,
    pairing=st.sampled_from(["half", "interleaved"]),
    rotary_dim=st.integers(1, 256),
    base=FINITE,
    attention_factor=FINITE,
    table=st.binary(min_size=32, max_size=32).map(bytes.hex),
    parameters=PARAMETERS,
)


@st.composite
def layouts(draw: st.DrawFn) -> KVLayout:
    """Layouts of up to eight layers of up to three kinds."""
    ropes = draw(st.lists(ROPES, max_size=2))
    sizes = st.integers(1, 4)
    spec = st.builds(
        lambda window, heads, k, v, rope: LayerLayout(
            LayerKind.WINDOW if window else LayerKind.FULL, heads, k, v, window, rope
        ),
        st.just(0) | st.integers(2, 6),
        sizes,
        sizes,
        sizes,
        st.integers(-1, len(ropes) - 1),
    )
    specs = draw(st.lists(spec, min_size=1, max_size=3))
    layers = draw(st.lists(st.sampled_from(specs), min_size=1, max_size=8))
    dtype = draw(st.sampled_from(["BF16", "F16", "F32", "F64"]))
    return KVLayout(dtype, tuple(layers), tuple(ropes))


def random_layer(
    layout: KVLayout, layer: int, span: SegmentSpan, content: st.DataObject
) -> EncodedLayer:
    """A raw layer of random bytes that covers what its kind keeps of the span."""
    spec = layout.layers[layer]
    count = span.count if spec.kind is LayerKind.FULL else min(span.count, spec.window - 1)
    tensors = []
    for name, dim in (("k", spec.k_dim), ("v", spec.v_dim)):
        size = spec.kv_heads * count * dim * DTYPE_BYTES[layout.dtype]
        data = content.draw(st.binary(min_size=size, max_size=size))
        shape = (spec.kv_heads, count, dim)
        tensors.append(StoredTensor(name, layout.dtype, shape, memoryview(data)))
    return EncodedLayer(span, layer, TokenRun(span.stop - count, count), RAW, RAW, tuple(tensors))


@settings(max_examples=60)
@given(layouts(), st.data())
def test_what_is_sealed_is_read_back(layout: KVLayout, data: st.DataObject) -> None:
    """A random segment comes back with the same header and layers; every range verifies."""
    kind = SegmentKind.RUN if layout.full_layers else SegmentKind.WINDOW
    layers = layout.full_layers or layout.window_layers
    span = SegmentSpan(data.draw(st.integers(0, 9)), data.draw(st.integers(1, 9)), kind)
    parts = [random_layer(layout, layer, span, data) for layer in layers]
    sealed = seal_segment(
        iter(parts),
        keys=KEYS,
        function=FUNCTION,
        layout=layout,
        token_digest="1d" * 32,
        prefix_key="2e" * 32,
    )
    whole = samples.file_bytes(sealed)
    header = read_header(
        lambda offset, size: whole[offset : offset + size],
        file_size=len(whole),
        address=sealed.address,
        keys=KEYS,
    )
    assert header == sealed.header
    assert header.size_bytes == len(whole)
    assert header.layout == layout
    assert segment._read_entries(whole[: header.body_start], len(whole), raw_storage) == header
    assert segment._read_expected(whole[: header.body_start], raw_storage) == header
    for part, layer in zip(header.ranges, parts, strict=True):
        view = memoryview(whole)[header.body_start + part.start : header.body_start + part.stop]
        verify_range(header, part, view)
        assert encoded_layer(header, part, view) == layer


@given(layouts())
def test_layouts_come_back(layout: KVLayout) -> None:
    """parse(encode(layout)) is the layout, with the types of its RoPE parameters."""
    again = parse_layout(encode_layout(layout), "$")
    assert again == layout
    kinds = [[type(v) for _, v in rope.parameters] for rope in layout.ropes]
    assert [[type(v) for _, v in rope.parameters] for rope in again.ropes] == kinds


def test_integer_and_float_parameters_have_different_bytes() -> None:
    """A parameter 4 and a parameter 4.0 are equal in Python and still written as what they are."""
    ropes = [replace(samples.ROPE, parameters=(("factor", x),)) for x in (4, 4.0, 4)]
    first, second, third = (
        encode_layout(replace(LAYOUT, ropes=(rope,)))["ropes"][0]["parameters"] for rope in ropes
    )
    assert first == third == {"factor": {"int": 4}}
    assert second == {"factor": {"float": "0x1.0000000000000p+2"}}


def test_a_layout_of_thirty_layers_is_one_record() -> None:
    """Alike layers are written once with the length of their run."""
    layout = replace(LAYOUT, layers=(LAYOUT.layers[0],) * 30)
    value = encode_layout(layout)
    assert value["layers"] == [[0, 30]]
    assert len(value["specs"]) == 1


def test_sealing_copies_no_tensor() -> None:
    """The parts of a sealed segment are the callers' own buffers, between header and zeros."""
    buffer = bytearray(2 * 5 * 2)
    layers = [samples.encoded(layer, SegmentSpan(0, 5), TokenRun(0, 5)) for layer in (0, 2)]
    own = StoredTensor("k", "BF16", (1, 5, 2), memoryview(buffer))
    layers[0] = replace(layers[0], tensors=(own, layers[0].tensors[1]))
    sealed = samples.seal(layers)
    buffer[0] = 7
    assert sealed.parts[1][0] == 7
    assert [len(part) for part in sealed.parts[1:]] == [20, 44] * 4


def test_every_tensor_starts_aligned_and_in_sorted_order() -> None:
    """Tensors start at multiples of 64 from the file's start, sorted by name and by offset."""
    header = samples.run_segment().header
    names = [t.name for t in header.tensors]
    assert names == ["layer.0000.k", "layer.0000.v", "layer.0002.k", "layer.0002.v"]
    assert [t.start for t in header.tensors] == [0, 64, 128, 192]
    assert header.body_start % 64 == 0


def test_tensors_of_a_range_are_relative_to_it() -> None:
    """Names lose the layer and offsets begin with the layer's first byte."""
    header = samples.run_segment().header
    k, v = range_tensors(header, header.ranges[1])
    assert (k.name, k.start, k.stop, v.name, v.start, v.stop) == ("k", 0, 20, "v", 64, 84)


def test_the_same_input_seals_to_the_same_bytes() -> None:
    """Sealing twice gives one address and one file."""
    one, two = samples.run_segment(), samples.run_segment()
    assert one.address == two.address
    assert samples.file_bytes(one) == samples.file_bytes(two)


def test_fidelity_is_the_worst_of_the_layers() -> None:
    """One lossy layer makes a lossy segment."""
    lossy = Fidelity(FidelityClass.LOSSY, "int8", "ca" * 32)
    layers = [samples.encoded(layer, SegmentSpan(0, 5), TokenRun(0, 5)) for layer in (0, 2)]
    layers[1] = replace(layers[1], fidelity=lossy)
    assert samples.seal(layers).header.fidelity == lossy


def _int8_storage(
    codec: tuple[JSON, ...], *, place: Place, shape: tuple[int, int, int], dtype: str, at: str
) -> Expected:
    """A codec with codes, one scale per head, and a blob of any length."""
    if codec != ({"name": "int8"},):
        return raw_storage(codec, place=place, shape=shape, dtype=dtype, at=at)
    name = place.name
    return {
        name: ("I8", shape),
        f"{name}.blob": ("U8", None),
        f"{name}.scale": ("F32", (shape[0],)),
    }


def test_a_tensor_of_free_length_has_a_bound() -> None:
    """Compression may make a tensor somewhat larger, but nobody has to allocate for any claim."""
    span, codec = SegmentSpan(0, 5), ({"name": "int8"},)

    def sealed(length: int) -> SealedSegment:
        raw = samples.encoded(0, span, TokenRun(0, 5))
        other = samples.encoded(2, span, TokenRun(0, 5))
        side = (
            StoredTensor("k", "I8", (1, 5, 2), memoryview(bytes(10))),
            StoredTensor("k.blob", "U8", (length,), memoryview(bytes(length))),
            StoredTensor("k.scale", "F32", (1,), memoryview(bytes(4))),
        )
        return seal_segment(
            [replace(raw, k_codec=codec, tensors=(*side, raw.tensors[1])), other],
            keys=KEYS,
            function=FUNCTION,
            layout=LAYOUT,
            token_digest=KEYS.token_digest(IDS[:5]),
            prefix_key="00" * 32,
            storage=_int8_storage,
        )

    most = 2 * (5 * 2 * 2) + FREE_BYTES
    assert sealed(most).header.tensors[1].shape == (most,)
    with pytest.raises(InputError, match="at most"):
        sealed(most + 1)


def test_another_codec_brings_its_own_tensors() -> None:
    """Side tensors and their pads lie next to their own; raw readers refuse the codec by name."""
    span, codec = SegmentSpan(0, 5), ({"name": "int8"},)
    layers = []
    for layer in (0, 2):
        raw = samples.encoded(layer, span, TokenRun(0, 5))
        side = (
            StoredTensor("k", "I8", (1, 5, 2), memoryview(bytes(10))),
            StoredTensor("k.blob", "U8", (64,), memoryview(bytes(64))),
            StoredTensor("k.scale", "F32", (1,), memoryview(bytes(4))),
        )
        layers.append(replace(raw, k_codec=codec, tensors=(*side, raw.tensors[1])))
    sealed = seal_segment(
        layers,
        keys=KEYS,
        function=FUNCTION,
        layout=LAYOUT,
        token_digest=KEYS.token_digest(IDS[:5]),
        prefix_key="00" * 32,
        storage=_int8_storage,
    )
    whole = samples.file_bytes(sealed)
    start = whole[: header_length(whole[:8])]
    header = parse_header(start, file_size=len(whole), storage=_int8_storage)
    assert header == sealed.header
    assert header.codecs == (codec, RAW)
    found = [(t.name, t.start) for t in range_tensors(header, header.ranges[0])]
    assert found == [("k", 0), ("k.blob", 64), ("k.scale", 128), ("v", 192)]
    with pytest.raises(FormatError) as caught:
        parse_header(start, file_size=len(whole))
    assert (caught.value.fault, caught.value.at) == (Fault.UNKNOWN_CODEC, "$.codecs[0]")


def _layers() -> list[EncodedLayer]:
    return [samples.encoded(layer, SegmentSpan(0, 5), TokenRun(0, 5)) for layer in (0, 2)]


def _other_span() -> list[EncodedLayer]:
    first, second = _layers()
    return [first, replace(second, span=SegmentSpan(0, 6))]


def _short_tensor() -> list[EncodedLayer]:
    first, second = _layers()
    short = replace(second.tensors[0], data=second.tensors[0].data[:18])
    return [first, replace(second, tensors=(short, second.tensors[1]))]


def _strided_tensor() -> list[EncodedLayer]:
    first, second = _layers()
    strided = replace(second.tensors[0], data=memoryview(bytes(40))[::2])
    return [first, replace(second, tensors=(strided, second.tensors[1]))]


def _twice_the_same_tensor() -> list[EncodedLayer]:
    first, second = _layers()
    return [first, replace(second, tensors=(second.tensors[0],) * 2)]


@pytest.mark.parametrize(
    "layers",
    [
        [],
        _layers()[:1],
        _layers()[::-1],
        _other_span(),
        _short_tensor(),
        _strided_tensor(),
        _twice_the_same_tensor(),
    ],
    ids=["none", "one layer short", "descending", "two spans", "short", "strided", "twice"],
)
def test_what_could_not_be_read_back_is_not_sealed(layers: list[EncodedLayer]) -> None:
    """Layers that do not make a readable segment are the caller's mistake."""
    with pytest.raises(InputError):
        seal_segment(
            layers,
            keys=KEYS,
            function=FUNCTION,
            layout=LAYOUT,
            token_digest="00" * 32,
            prefix_key="00" * 32,
        )


def test_unsorted_rope_parameters_are_not_sealed() -> None:
    """Parameters in another order would come back as another layout."""
    rope = replace(samples.ROPE, parameters=(("b", 1), ("a", 2)))
    with pytest.raises(InputError):
        encode_layout(replace(LAYOUT, ropes=(rope,)))


def test_an_address_needs_the_keys() -> None:
    """Asking for an address to be verified without keys is an error, not a pass."""
    whole = samples.file_bytes(samples.run_segment())
    with pytest.raises(InputError):
        parse_header(whole[: header_length(whole)], file_size=len(whole), address="00" * 32)


def test_a_million_layers_cost_no_memory() -> None:
    """A layout that claims a million layers is refused before it is expanded."""
    value = encode_layout(LAYOUT) | {"layers": [[0, 1_000_000], [1, 1]]}
    tracemalloc.start()
    with pytest.raises(FormatError):
        parse_layout(value, "$")
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1 << 20


def test_equal_layouts_are_one_object() -> None:
    """Segments of one model share their parsed layout, so that comparing it costs nothing."""
    whole = samples.file_bytes(samples.run_segment())
    start = whole[: header_length(whole)]
    one, two = (parse_header(start, file_size=len(whole)) for _ in range(2))
    assert one.layout is two.layout
