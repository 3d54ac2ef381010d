"""The bytes of one layer in a segment: find its tensors, verify it, view it as it was sealed."""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter

from kvbaton.errors import DigestMismatch, Fault
from kvbaton.types import EncodedLayer, LayerRange, SegmentHeader, StoredTensor, TensorRecord
from kvbaton.wire import fields as f
from kvbaton.wire.digests import Buffer, range_digest
from kvbaton.wire.limits import ALIGNMENT
from kvbaton.wire.structure import pad_bytes, tensor_prefix

_ZEROS = bytes(ALIGNMENT)
_start_of = attrgetter("start")


def range_tensors(header: SegmentHeader, part: LayerRange) -> tuple[TensorRecord, ...]:
    """The tensors of one layer, with names and offsets relative to the layer: ``k`` at byte 0."""
    skip = len(tensor_prefix(part.layer))
    return tuple(
        TensorRecord(t.name[skip:], t.dtype, t.shape, t.start - part.start, t.stop - part.start)
        for t in _records(header, part)
    )


def _records(header: SegmentHeader, part: LayerRange) -> tuple[TensorRecord, ...]:
    """The header's own records of one layer's tensors."""
    low = bisect_left(header.tensors, part.start, key=_start_of)
    return header.tensors[low : bisect_left(header.tensors, part.stop, low, key=_start_of)]


def verify_range(header: SegmentHeader, part: LayerRange, data: Buffer) -> None:
    """Check the bytes of one layer range: size, digest, and zeros where there is only padding.

    Raises
    ------
    DigestMismatch
        Other bytes than the header promises; names the layer.
    FormatError
        ``TRUNCATED``, ``TRAILING_BYTES`` or ``PAD_NOT_ZERO``.
    """
    wanted = part.stop - part.start
    if len(data) != wanted:
        fault = Fault.TRUNCATED if len(data) < wanted else Fault.TRAILING_BYTES
        raise f.refuse(
            f"layer {part.layer} has {len(data)} bytes where {wanted} belong",
            fault,
            _range_path(header, part),
        )
    if range_digest(data) != part.digest:
        raise DigestMismatch(
            f"the bytes of layer {part.layer} are not the ones that were promised",
            at=_range_path(header, part),
        )
    for tensor in _records(header, part):
        pad, stop = pad_bytes(tensor.stop), tensor.stop - part.start
        if pad and bytes(data[stop : stop + pad]) != _ZEROS[:pad]:
            name = tensor.name.removeprefix(tensor_prefix(part.layer))
            raise f.refuse(
                f"the padding behind {name!r} of layer {part.layer} is not zero",
                Fault.PAD_NOT_ZERO,
                _range_path(header, part),
            )


def encoded_layer(header: SegmentHeader, part: LayerRange, data: memoryview) -> EncodedLayer:
    """One layer as it was sealed; its tensors are views of ``data``, the verified range."""
    return EncodedLayer(
        span=header.span,
        layer=part.layer,
        run=part.run,
        k_codec=header.codecs[part.k_codec],
        v_codec=header.codecs[part.v_codec],
        tensors=tuple(
            StoredTensor(t.name, t.dtype, t.shape, data[t.start : t.stop])
            for t in range_tensors(header, part)
        ),
        fidelity=header.fidelity,
    )


def _range_path(header: SegmentHeader, part: LayerRange) -> str:
    return f"$.ranges[{bisect_left(header.ranges, part.start, key=_start_of)}]"
