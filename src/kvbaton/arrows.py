"""The arrows of the flow that need neither engine nor store: iterators of (segment, layer).

One type per arrow, so what has not been verified cannot be decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from threading import Event

from kvbaton import codecs
from kvbaton.errors import StoreTimeout
from kvbaton.reasons import located
from kvbaton.stores import Reader
from kvbaton.types import (
    AlignedLayer,
    DecodedLayer,
    EncodedLayer,
    ExportedLayer,
    FetchedLayer,
    LayerRange,
    SegmentHeader,
    SlicedLayer,
    VerifiedLayer,
)
from kvbaton.wire import segment

Opened = tuple[int, Reader, SegmentHeader]
"""Index in the manifest, open segment file, checked header."""


def slice_layers(exported: Iterable[ExportedLayer]) -> Iterator[SlicedLayer]:
    """The whole of what was exported: batons carry prefixes so far."""
    for part in exported:
        yield SlicedLayer(part.span, part.layer, part.run, part.keys, part.values)


def encode_layers(
    sliced: Iterable[SlicedLayer], chain: codecs.CodecChain
) -> Iterator[EncodedLayer]:
    """Stored tensors of each layer."""
    described = chain.to_json()
    for part in sliced:
        tensors = chain.encode("k", part.keys) + chain.encode("v", part.values)
        yield EncodedLayer(
            part.span, part.layer, part.run, described, described, tensors, chain.fidelity
        )


def get_layers(opened: Sequence[Opened], abandoned: Event) -> Iterator[tuple[int, FetchedLayer]]:
    """Layer ranges by layer and then by position, each in private memory that is used again."""
    plan: list[tuple[LayerRange, Opened]] = [
        (part, item) for item in opened for part in item[2].ranges
    ]
    plan.sort(key=lambda entry: (entry[0].layer, entry[0].run.first))
    largest = max((part.stop - part.start for part, _ in plan), default=0)
    private = memoryview(bytearray(largest))
    for part, (index, reader, header) in plan:
        if abandoned.is_set():
            raise StoreTimeout("the take was abandoned")
        data = private[: part.stop - part.start]
        with located(f"$.segments[{index}]"):
            reader.read_into(header.body_start + part.start, data)
        yield index, FetchedLayer(header, part, data)


def verify_layers(
    fetched: Iterable[tuple[int, FetchedLayer]],
) -> Iterator[tuple[int, VerifiedLayer]]:
    """Only bytes with the promised digest pass; they are hashed where nobody else can write."""
    for index, part in fetched:
        with located(f"$.segments[{index}]"):
            segment.verify_range(part.header, part.range, part.data)
        yield index, VerifiedLayer(part.header, part.range, part.data)


def decode_layers(verified: Iterable[tuple[int, VerifiedLayer]]) -> Iterator[DecodedLayer]:
    """Tensors again, by the codec chains that each segment's header names."""
    chains: dict[tuple[int, int], codecs.CodecChain] = {}
    for index, part in verified:
        with located(f"$.segments[{index}]"):
            yield _decode_one(index, part, chains)


def _decode_one(
    index: int, part: VerifiedLayer, chains: dict[tuple[int, int], codecs.CodecChain]
) -> DecodedLayer:
    header, run = part.header, part.range.run
    spec = header.layout.layers[part.range.layer]
    tensors = []
    stored = _by_tensor(segment.encoded_layer(header, part.range, part.data))
    for name, codec, dim in (
        ("k", part.range.k_codec, spec.k_dim),
        ("v", part.range.v_codec, spec.v_dim),
    ):
        if (index, codec) not in chains:
            chains[index, codec] = codecs.chain_from_json(header.codecs[codec], codecs.CODECS)
        shape = (spec.kv_heads, run.count, dim)
        tensors.append(chains[index, codec].decode(stored[name], header.layout.dtype, shape))
    return DecodedLayer(header.span, part.range.layer, run, tensors[0], tensors[1])


def align_layers(decoded: Iterable[DecodedLayer], tokens: int) -> Iterator[AlignedLayer]:
    """Cut to the positions that are reused; in these modes keys already stand where they belong."""
    for part in decoded:
        count = min(part.run.stop, tokens) - part.run.first
        if count == part.run.count:
            yield AlignedLayer(part.span, part.layer, part.run, part.keys, part.values)
        elif count > 0:
            run = replace(part.run, count=count)
            yield AlignedLayer(
                part.span, part.layer, run, part.keys[:, :count], part.values[:, :count]
            )


def _by_tensor(layer: EncodedLayer) -> dict[str, dict[str, memoryview]]:
    """Stored bytes by tensor (``k``, ``v``) and then by suffix."""
    stored: dict[str, dict[str, memoryview]] = {}
    for tensor in layer.tensors:
        name, _, suffix = tensor.name.partition(".")
        stored.setdefault(name, {})[suffix] = tensor.data
    return stored
