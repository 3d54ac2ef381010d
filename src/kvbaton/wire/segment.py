"""Segments: canonical safetensors files, as ``docs/spec/segment.md`` states them.

``seal_segment`` writes one; ``read_header`` (or ``header_length`` and ``parse_header``),
``verify_range`` and ``encoded_layer`` are its inverse, one layer range at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

from kvbaton.errors import DigestMismatch, Fault, FormatError, InputError
from kvbaton.types import (
    JSON,
    EncodedLayer,
    KVLayout,
    LayerRange,
    SealedSegment,
    SegmentHeader,
    StoredTensor,
    TensorRecord,
    worst_fidelity,
)
from kvbaton.wire import fields as f
from kvbaton.wire.canonical import dumps, loads
from kvbaton.wire.digests import Buffer, DomainKeys, parts_digest
from kvbaton.wire.header import Description, encode_description, parse_description
from kvbaton.wire.limits import (
    ALIGNMENT,
    LENGTH_FIELD_BYTES,
    MAX_HEADER_BYTES,
    MAX_SEGMENT_BYTES,
)
from kvbaton.wire.ranges import encoded_layer, range_tensors, verify_range
from kvbaton.wire.structure import (
    Storage,
    check_ranges,
    expect_tensors,
    pad_bytes,
    raw_storage,
    read_tensors,
    tensor_prefix,
)

__all__ = [
    "encoded_layer",
    "header_length",
    "parse_header",
    "range_tensors",
    "read_header",
    "seal_segment",
    "verify_range",
]

_ZEROS = memoryview(bytes(ALIGNMENT))
_METADATA = "__metadata__"
_OPENING = f'{{"{_METADATA}":{{"kvbaton":"'
_decoder = json.JSONDecoder()
_quote = json.encoder.encode_basestring_ascii
_OURS = frozenset({"kvbaton"})
FIRST_READ_BYTES = 16 << 10


# --- parse -------------------------------------------------------------------------------------


def header_length(first8: Buffer, *, file_size: int | None = None) -> int:
    """Bytes of the whole header (length field, JSON, padding), from a file's first 8 bytes.

    That is where the body starts, and how much to read from offset 0 for :func:`parse_header`.

    Raises
    ------
    FormatError
        ``TRUNCATED`` or, before anything is allocated for it, ``TOO_LARGE`` or ``LENGTH_FIELD``.
    """
    at = "$.header"
    if len(first8) < LENGTH_FIELD_BYTES:
        raise f.refuse("the file ends within its length field", Fault.TRUNCATED, at)
    length = int.from_bytes(first8[:LENGTH_FIELD_BYTES], "little") + LENGTH_FIELD_BYTES
    if length > MAX_HEADER_BYTES:
        raise f.refuse(
            f"a header of {length} bytes, more than the {MAX_HEADER_BYTES} allowed",
            Fault.TOO_LARGE,
            at,
        )
    if length % ALIGNMENT:
        raise f.refuse(
            f"the body starts at byte {length}, no multiple of {ALIGNMENT}", Fault.LENGTH_FIELD, at
        )
    if file_size is not None and length > file_size:
        raise f.refuse(f"a header of {length} bytes in a file of {file_size}", Fault.TRUNCATED, at)
    return length


def parse_header(
    header_bytes: Buffer,
    *,
    file_size: int,
    address: str | None = None,
    keys: DomainKeys | None = None,
    storage: Storage = raw_storage,
) -> SegmentHeader:
    """Parse and check a whole header.

    Parameters
    ----------
    header_bytes
        The first :func:`header_length` bytes of the file.
    file_size
        Size of the file in bytes.
    address, keys
        The promised address and the domain's keys: with an address, nothing is parsed before it
        is verified.
    storage
        What codec chains store; the default knows ``raw``.

    Raises
    ------
    DigestMismatch
        The header is not the one that has this address.
    FormatError
        Any other way in which a header can be bad, with its path.
    """
    if address is not None:
        _check_address(header_bytes, address, keys)
    body_start = header_length(header_bytes)
    if len(header_bytes) != body_start:
        fault = Fault.TRUNCATED if len(header_bytes) < body_start else Fault.TRAILING_BYTES
        raise f.refuse(f"{len(header_bytes)} bytes of a header of {body_start}", fault, "$.header")
    header = _read_expected(header_bytes, storage)
    if header is None:
        header = _read_entries(header_bytes, file_size, storage)
    _check_size(header.size_bytes, file_size)
    return header


def read_header(
    read: Callable[[int, int], Buffer],
    *,
    file_size: int,
    address: str | None = None,
    keys: DomainKeys | None = None,
    storage: Storage = raw_storage,
    first_bytes: int = FIRST_READ_BYTES,
) -> SegmentHeader:
    """:func:`parse_header` over ``read(offset, size_bytes)``, such as a store reader's method.

    ``first_bytes`` are read at once, in the hope that the header is not longer.
    """
    start = read(0, min(file_size, first_bytes))
    length = header_length(start, file_size=file_size)
    whole = memoryview(start)[:length] if length <= len(start) else read(0, length)
    return parse_header(whole, file_size=file_size, address=address, keys=keys, storage=storage)


def _check_address(header_bytes: Buffer, address: str, keys: DomainKeys | None) -> None:
    if keys is None:
        raise InputError("an address can be verified with the domain's keys only")
    found = keys.segment_address(header_bytes)
    if found != address:
        raise DigestMismatch(
            f"the segment's header has the address {found[:16]}..., not {address[:16]}...",
            at="$.header",
        )


def _read_entries(header_bytes: Buffer, file_size: int, storage: Storage) -> SegmentHeader:
    """Read a header entry by entry, so that whatever is wrong is named."""
    table = _parse_table(header_bytes)
    described = parse_description(_description(table))
    check_ranges(described.span, described.layout, described.ranges)
    _check_size(len(header_bytes) + described.ranges[-1].stop, file_size)
    tensors = read_tensors(
        table,
        layout=described.layout,
        ranges=described.ranges,
        codecs=described.codecs,
        storage=storage,
    )
    return _header(described, tensors, len(header_bytes))


def _read_expected(header_bytes: Buffer, storage: Storage) -> SegmentHeader | None:
    """The fast twin of :func:`_read_entries`, None where that one must look.

    A description leaves a header no choice: whatever is not spelled as expected is wrong (or has
    a tensor of free length), and the slow twin says what.
    """
    text = bytes(header_bytes[LENGTH_FIELD_BYTES:]).decode("latin-1")
    if not text.startswith(_OPENING):
        return None
    try:
        inner, _ = _decoder.raw_decode(text, len(_OPENING) - 1)
        described = parse_description(
            loads(inner.encode("utf-8"), limit_bytes=MAX_HEADER_BYTES, what="segment description")
        )
        check_ranges(described.span, described.layout, described.ranges)
        expected = expect_tensors(
            layout=described.layout,
            ranges=described.ranges,
            codecs=described.codecs,
            storage=storage,
        )
    except (FormatError, ValueError):  # the slow twin finds it again, and names it
        return None
    if expected is None:
        return None
    tensors, spelled = expected
    table = f'{{"{_METADATA}":{{"kvbaton":{_quote(inner)}}},{spelled}}}'
    if text != table + " " * pad_bytes(LENGTH_FIELD_BYTES + len(table)):
        return None
    return _header(described, tensors, len(header_bytes))


def _parse_table(header_bytes: Buffer) -> dict[str, Any]:
    text = bytes(header_bytes[LENGTH_FIELD_BYTES:])
    spelled = text.rstrip(b" ")
    table = loads(spelled, limit_bytes=MAX_HEADER_BYTES, what="segment header")
    if len(text) - len(spelled) != pad_bytes(LENGTH_FIELD_BYTES + len(spelled)):
        raise f.refuse(
            "the header is padded with more spaces than needed", Fault.NOT_CANONICAL, "$.header"
        )
    if type(table) is not dict:
        raise f.refuse("the header is no object", Fault.WRONG_TYPE, "$.header")
    return table


def _description(table: dict[str, Any]) -> Any:
    """Take the description out of the safetensors table."""
    if _METADATA not in table:
        raise f.refuse("field '__metadata__' is missing", Fault.MISSING_FIELD, f"$.{_METADATA}")
    metadata = f.read_object(table.pop(_METADATA), f"$.{_METADATA}", _OURS)
    text = f.read_text(metadata, "kvbaton", f"$.{_METADATA}", at_most=MAX_HEADER_BYTES)
    data = text.encode("utf-8")
    return loads(data, limit_bytes=MAX_HEADER_BYTES, what="segment description")


def _check_size(wanted: int, found: int) -> None:
    if wanted > MAX_SEGMENT_BYTES:
        raise f.refuse(f"a segment of {wanted} bytes", Fault.TOO_LARGE, "$.ranges")
    if wanted != found:
        fault = Fault.TRUNCATED if found < wanted else Fault.TRAILING_BYTES
        raise f.refuse(f"the file has {found} bytes, its header says {wanted}", fault, "$.ranges")


def _header(
    described: Description, tensors: tuple[TensorRecord, ...], body_start: int
) -> SegmentHeader:
    return SegmentHeader(
        span=described.span,
        function=described.function,
        layout=described.layout,
        codecs=described.codecs,
        fidelity=described.fidelity,
        token_digest=described.token_digest,
        prefix_key=described.prefix_key,
        producer=described.producer,
        ranges=described.ranges,
        tensors=tensors,
        body_start=body_start,
    )


# --- seal --------------------------------------------------------------------------------------


def seal_segment(
    layers: Iterable[EncodedLayer],
    *,
    keys: DomainKeys,
    function: str,
    layout: KVLayout,
    token_digest: str,
    prefix_key: str,
    producer: tuple[tuple[str, str], ...] = (),
    storage: Storage = raw_storage,
) -> SealedSegment:
    """Seal the layers of one span, ascending, into a segment.

    The tensors' memory is not copied: it is hashed and becomes part of the result, so it must
    not be written to any more.

    Parameters
    ----------
    layers
        All full-attention layers of a ``run`` span, or all window layers of a ``window`` span.
    function
        Digest (hex) of the function id.
    token_digest, prefix_key
        Of the span's ids, and of all ids before it (``DomainKeys``).

    Raises
    ------
    InputError
        The parts do not make a segment that could be read back; ``at`` is the path.
    """
    several = tuple(layers)
    if not several or any(layer.span != several[0].span for layer in several):
        raise InputError("a segment is sealed from the layers of one span")
    chains = _chains(several)
    table: dict[str, Any] = {}
    parts: list[memoryview] = []
    ranges: list[LayerRange] = []
    for layer in several:
        start = ranges[-1].stop if ranges else 0
        ranges.append(_seal_layer(layer, chains, start, table, parts))
    described = Description(
        span=several[0].span,
        function=function,
        layout=layout,
        codecs=tuple(chains),
        fidelity=worst_fidelity(*(layer.fidelity for layer in several)),
        token_digest=token_digest,
        prefix_key=prefix_key,
        producer=tuple(sorted(producer)),
        ranges=tuple(ranges),
    )
    header_bytes = _header_bytes(described, table)
    header = _read_back(header_bytes, len(header_bytes) + ranges[-1].stop, storage)
    return SealedSegment(
        address=keys.segment_address(header_bytes),
        header=header,
        parts=(memoryview(header_bytes), *parts),
    )


def _chains(layers: tuple[EncodedLayer, ...]) -> list[tuple[JSON, ...]]:
    chains: list[tuple[JSON, ...]] = []
    for layer in layers:
        for chain in (layer.k_codec, layer.v_codec):
            if chain not in chains:
                chains.append(chain)
    return chains


def _seal_layer(
    layer: EncodedLayer,
    chains: list[tuple[JSON, ...]],
    start: int,
    table: dict[str, Any],
    parts: list[memoryview],
) -> LayerRange:
    """Append one layer's tensors and pads to the table and the parts."""
    cursor, first_part = start, len(parts)
    for tensor in sorted(layer.tensors, key=attrgetter("name")):
        name = tensor_prefix(layer.layer) + tensor.name
        data = _flat(tensor)
        parts.append(data)
        cursor = _entry(table, name, tensor.dtype, list(tensor.shape), cursor, data.nbytes)
        if pad := pad_bytes(cursor):
            parts.append(_ZEROS[:pad])
            cursor = _entry(table, f"{name}-pad", "U8", [pad], cursor, pad)
    return LayerRange(
        layer=layer.layer,
        run=layer.run,
        start=start,
        stop=cursor,
        digest=parts_digest(parts[first_part:]),
        k_codec=chains.index(layer.k_codec),
        v_codec=chains.index(layer.v_codec),
    )


def _flat(tensor: StoredTensor) -> memoryview:
    if not tensor.data.c_contiguous:
        raise InputError(f"the bytes of tensor {tensor.name!r} are not contiguous")
    return tensor.data.cast("B")


def _entry(
    table: dict[str, Any], name: str, dtype: str, shape: list[int], start: int, size_bytes: int
) -> int:
    if name in table:
        raise InputError(f"tensor {name!r} is there twice")
    stop = start + size_bytes
    table[name] = {"data_offsets": [start, stop], "dtype": dtype, "shape": shape}
    return stop


def _header_bytes(described: Description, table: Mapping[str, Any]) -> bytes:
    text = dumps(encode_description(described), what="segment description").decode("ascii")
    spelled = dumps({_METADATA: {"kvbaton": text}, **table}, what="segment header")
    spelled += b" " * pad_bytes(LENGTH_FIELD_BYTES + len(spelled))
    return len(spelled).to_bytes(LENGTH_FIELD_BYTES, "little") + spelled


def _read_back(header_bytes: bytes, file_size: int, storage: Storage) -> SegmentHeader:
    """Hold what was sealed to the rules of the reader, so that nothing unreadable is put."""
    try:
        return parse_header(header_bytes, file_size=file_size, storage=storage)
    except FormatError as error:
        raise InputError(
            f"cannot be sealed: {error.sentence}", at=error.at, hint=error.hint
        ) from error
