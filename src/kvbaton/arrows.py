"""The arrows of the flow that need neither engine nor store: iterators of (segment, layer).

One type per arrow, so what has not been verified cannot be decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING

from kvbaton import codecs
from kvbaton.errors import KvbatonError, StoreTimeout
from kvbaton.reasons import located, placed
from kvbaton.stores import Reader
from kvbaton.types import (
    EXACT,
    AlignedLayer,
    DecodedLayer,
    EncodedLayer,
    ExportedLayer,
    FetchedLayer,
    Fidelity,
    KVLayout,
    LayerRange,
    SegmentHeader,
    SlicedLayer,
    TokenRun,
    VerifiedLayer,
    worst_fidelity,
)
from kvbaton.wire import segment
from kvbaton.wire.structure import layer_places, tensor_prefix

if TYPE_CHECKING:
    import torch

    from kvbaton.alignment.shift import Shifter

    _Tensors = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Opened:
    """A segment in the order of the manifest: its index there, its open file, its checked header,
    and its position in the baton less the one at which it was computed."""

    index: int
    reader: Reader
    header: SegmentHeader
    shift: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """Positions ``run`` of a segment, as it was computed, that are attached.

    They go to ``to`` in the cache that is filled; their keys are turned as if they stood at
    ``position``.
    """

    run: TokenRun
    to: int
    position: int


def slice_layers(exported: Iterable[ExportedLayer]) -> Iterator[SlicedLayer]:
    """What was exported: only the wanted positions were copied out of the cache."""
    for part in exported:
        yield SlicedLayer(part.span, part.layer, part.run, part.keys, part.values)


def encode_layers(
    sliced: Iterable[SlicedLayer],
    plan: codecs.CodecPlan,
    layout: KVLayout,
    *,
    attended: Fidelity = EXACT,
) -> Iterator[EncodedLayer]:
    """Stored tensors of each layer by the plan's chains.

    ``attended`` is the worst fidelity of everything that these positions attended to: no
    encoding makes them better than that.
    """
    for part in sliced:
        k_chain, v_chain = plan.chains(part.layer)
        k_place, v_place = layer_places(layout, part.layer, part.run.first)
        with located(f"$.layers[{part.layer}]"):
            tensors = k_chain.encode(part.keys, k_place) + v_chain.encode(part.values, v_place)
        yield EncodedLayer(
            part.span, part.layer, part.run, k_chain.to_json(), v_chain.to_json(), tensors,
            worst_fidelity(attended, plan.fidelity),
        )  # fmt: skip


def get_layers(opened: Sequence[Opened], abandoned: Event) -> Iterator[tuple[int, FetchedLayer]]:
    """Layer ranges by layer and then by position, each in private memory that is used again."""
    plan: list[tuple[LayerRange, Opened]] = [
        (part, item) for item in opened for part in item.header.ranges
    ]
    plan.sort(key=lambda entry: (entry[0].layer, entry[0].run.first + entry[1].shift))
    largest = max((part.stop - part.start for part, _ in plan), default=0)
    private = data = memoryview(bytearray(largest))
    for part, item in plan:
        index, reader, header = item.index, item.reader, item.header
        if abandoned.is_set():
            raise StoreTimeout("the take was abandoned")
        if len(data) != part.stop - part.start:
            data = private[: part.stop - part.start]
        try:
            reader.read_into(header.body_start + part.start, data)
        except KvbatonError as error:
            placed(error, _at(index))
            raise
        yield index, FetchedLayer(header, part, data)


def verify_layers(
    fetched: Iterable[tuple[int, FetchedLayer]],
) -> Iterator[tuple[int, VerifiedLayer]]:
    """Only bytes with the promised digest pass; they are hashed where nobody else can write."""
    for index, part in fetched:
        try:
            segment.verify_range(part.header, part.range, part.data)
        except KvbatonError as error:
            placed(error, _at(index))
            raise
        yield index, VerifiedLayer(part.header, part.range, part.data)


def decode_layers(
    verified: Iterable[tuple[int, VerifiedLayer]],
) -> Iterator[tuple[int, DecodedLayer]]:
    """Tensors again, by the codec chains that each segment's header names."""
    decoders: dict[int, _Decoder] = {}
    for index, part in verified:
        try:
            decoder = decoders.get(index)
            if decoder is None:
                decoder = decoders[index] = _Decoder(part.header)
            decoded = decoder(part)
        except KvbatonError as error:
            placed(error, _at(index))
            raise
        yield index, decoded


def _at(index: int) -> str:
    return f"$.segments[{index}]"


class _Decoder:
    """Decodes the layers of one segment.

    Chains are built and tensors are found once; and where a chain only views the stored bytes,
    the views of one layer serve the next one in the same memory.
    """

    def __init__(self, header: SegmentHeader) -> None:
        self._header = header
        self._chains: dict[int, codecs.CodecChain] = {}
        self._places = dict(_places(header))
        self._last: tuple[memoryview, tuple[int, ...], _Tensors] | None = None
        self._scratch: dict[tuple[str, tuple[int, ...]], torch.Tensor] = {}

    def __call__(self, part: VerifiedLayer) -> DecodedLayer:
        place = part.range
        keys, values = self._same_views(part) or self._decode(part)
        return DecodedLayer(self._header.span, place.layer, place.run, keys, values)

    def _same_views(self, part: VerifiedLayer) -> _Tensors | None:
        """The views of the last layer, if this one lies in the same memory in the same way."""
        if self._last is None:
            return None
        data, structure, views = self._last
        return views if data is part.data and structure == self._structure(part) else None

    def _structure(self, part: VerifiedLayer) -> tuple[int, ...]:
        place = part.range
        spec = self._header.layout.layers[place.layer]
        shape = spec.kv_heads, place.run.count, spec.k_dim, spec.v_dim
        return (*shape, place.k_codec, place.v_codec)

    def _decode(self, part: VerifiedLayer) -> _Tensors:
        place, data = part.range, part.data
        heads, count, k_dim, v_dim, *_ = structure = self._structure(part)
        stored: dict[str, dict[str, memoryview]] = {"k": {}, "v": {}}
        for name, suffix, start, stop in self._places[place.layer]:
            stored[name][suffix] = data[start:stop]
        k_chain, v_chain = self._chain(place.k_codec), self._chain(place.v_codec)
        layout = self._header.layout
        k_place, v_place = layer_places(layout, place.layer, place.run.first)
        k_shape, v_shape = (heads, count, k_dim), (heads, count, v_dim)
        k_out, v_out = self._memory(k_chain, "k", k_shape), self._memory(v_chain, "v", v_shape)
        keys = k_chain.decode(stored["k"], layout.dtype, k_shape, k_place, out=k_out)
        values = v_chain.decode(stored["v"], layout.dtype, v_shape, v_place, out=v_out)
        if k_chain.views and v_chain.views:
            self._last = data, structure, (keys, values)
        return keys, values

    def _memory(
        self, chain: codecs.CodecChain, name: str, shape: tuple[int, ...]
    ) -> torch.Tensor | None:
        """Where to decode to: one layer is copied on before the next one comes."""
        if chain.views:
            return None
        found = self._scratch.get((name, shape))
        if found is None:
            import torch

            from kvbaton.codecs.dtypes import TORCH_DTYPES

            found = torch.empty(shape, dtype=TORCH_DTYPES[self._header.layout.dtype])
            self._scratch[name, shape] = found
        return found

    def _chain(self, codec: int) -> codecs.CodecChain:
        chain = self._chains.get(codec)
        if chain is None:
            described = self._header.codecs[codec]
            chain = self._chains[codec] = codecs.chain_from_json(described, codecs.CODECS)
        return chain


def _places(header: SegmentHeader) -> Iterator[tuple[int, list[tuple[str, str, int, int]]]]:
    """By layer: tensor (``k``, ``v``), suffix, and bytes within the layer of all that is stored.

    Ranges partition the body and both they and the tensors ascend, so one pass is enough.
    """
    tensors, position = header.tensors, 0
    for part in header.ranges:
        found, skip = [], len(tensor_prefix(part.layer))
        while position < len(tensors) and tensors[position].start < part.stop:
            tensor = tensors[position]
            name, _, suffix = tensor.name[skip:].partition(".")
            found.append((name, suffix, tensor.start - part.start, tensor.stop - part.start))
            position += 1
        yield part.layer, found


def align_layers(
    decoded: Iterable[tuple[int, DecodedLayer]],
    cuts: Sequence[Sequence[Cut]],
    shifter: Shifter | None = None,
) -> Iterator[AlignedLayer]:
    """Cut to the positions that are attached, keys turned to where they will stand.

    ``cuts`` are those of each segment of the manifest, ascending.  Keys are turned once, from
    what was stored; those that stay in their place are not touched.
    """
    for index, part in decoded:
        for piece in cuts[index]:
            first = max(part.run.first, piece.run.first)
            count = min(part.run.stop, piece.run.stop) - first
            if count <= 0:
                continue
            keys, values = part.keys, part.values
            if count != part.run.count:
                begin = first - part.run.first
                keys, values = keys[:, begin : begin + count], values[:, begin : begin + count]
            ahead = first - piece.run.first
            if piece.position != piece.run.first and shifter is not None:
                keys = shifter.moved(
                    keys, layer=part.layer, old_first=first, new_first=piece.position + ahead
                )
            run = TokenRun(piece.to + ahead, count)
            yield AlignedLayer(part.span, part.layer, run, keys, values)
