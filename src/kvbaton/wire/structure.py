"""A segment's header against itself: ranges, tensors and pads must tell one story.

Both directions use it: what ``seal_segment`` writes is held to the rules that ``parse_header``
holds files to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from kvbaton.errors import Fault, FormatError
from kvbaton.types import (
    DTYPE_BYTES,
    JSON,
    KVLayout,
    LayerLayout,
    LayerRange,
    Place,
    SegmentKind,
    SegmentSpan,
    TensorRecord,
)
from kvbaton.wire import fields as f
from kvbaton.wire.limits import ALIGNMENT, MAX_SEGMENT_BYTES, MAX_TENSOR_AXES

RAW: tuple[JSON, ...] = ({"name": "raw"},)
"""The codec chain that stores K and V as they are."""

Chain = tuple[JSON, ...]
Expected = Mapping[str, tuple[str, tuple[int, ...] | None]]
_TENSOR_FIELDS = frozenset({"data_offsets", "dtype", "shape"})
_INT = frozenset({int})
FREE_BYTES = 4096
_SUFFIX = re.compile(r"[kv][a-z0-9_.]{0,62}")


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor that a layer must have: its name without the layer, dtype, shape and size, and how
    its entry's end is spelled."""

    suffix: str
    dtype: str
    shape: tuple[int, ...] | None
    axes: list[int]
    size_bytes: int
    spelled: str
    at_most: int = 0


class Storage(Protocol):
    """Which tensors a codec chain stores for one K or V."""

    def __call__(
        self, codec: Chain, *, place: Place, shape: tuple[int, int, int], dtype: str, at: str
    ) -> Expected:
        """Return ``{tensor name: (safetensors dtype, shape)}`` of K or V at ``place``.

        ``shape`` is ``(kv_heads, tokens, head_dim)`` and ``dtype`` the cache's.  Names begin with
        the place's name and use ``a-z 0-9 . _``; they depend on the layer's structure, not on its
        number.  A shape of None stands for one axis of any length up to twice the plain tensor's
        bytes and ``FREE_BYTES``: what compression may make of it, and nobody has to allocate more.

        Raises
        ------
        FormatError
            ``UNKNOWN_CODEC`` with the hint what would bring it; ``at`` is the chain's place.
        """


def raw_storage(
    codec: Chain, *, place: Place, shape: tuple[int, int, int], dtype: str, at: str
) -> Expected:
    """The :class:`Storage` of :data:`RAW` alone."""
    if codec != RAW:
        names = "+".join(str(step.get("name"))[:40] for step in codec)
        raise f.refuse(f"unknown codec {names!r}", Fault.UNKNOWN_CODEC, at)
    return {place.name: (dtype, shape)}


def pad_bytes(offset: int) -> int:
    """Bytes from ``offset`` to the next multiple of the alignment."""
    return -offset % ALIGNMENT


def tensor_prefix(layer: int) -> str:
    """What the names of a layer's tensors begin with: ``layer.0007.``."""
    return f"layer.{layer:04d}."


# --- ranges ------------------------------------------------------------------------------------


def check_ranges(span: SegmentSpan, layout: KVLayout, ranges: Sequence[LayerRange]) -> None:
    """Ranges name the layers of the segment's kind in order and partition the body.

    Raises
    ------
    FormatError
        ``RANGES`` or, where positions are wrong, ``TOKENS``.
    """
    is_run = span.kind is SegmentKind.RUN
    wanted = layout.full_layers if is_run else layout.window_layers
    if len(ranges) != len(wanted) or not wanted:
        raise f.refuse(
            f"{len(ranges)} ranges for {len(wanted)} {'full-attention' if is_run else 'window'} "
            "layers",
            Fault.RANGES,
            "$.ranges",
        )
    cursor = 0
    for index, (layer, part) in enumerate(zip(wanted, ranges, strict=True)):
        if part.layer != layer or part.start != cursor or part.stop <= cursor or part.stop % 64:
            raise _bad_range(part, layer, cursor, f"$.ranges[{index}]")
        _check_run(span, layout.layers[layer], part, index)
        cursor = part.stop


def _bad_range(part: LayerRange, layer: int, cursor: int, at: str) -> FormatError:
    if part.layer != layer:
        return f.refuse(f"layer {part.layer} where layer {layer} belongs", Fault.RANGES, at)
    return f.refuse(
        f"layer {layer} covers bytes {part.start} to {part.stop}: ranges follow each other from "
        f"byte 0 on in multiples of {ALIGNMENT}; this one starts at {cursor}",
        Fault.RANGES,
        at,
    )


def _check_run(span: SegmentSpan, spec: LayerLayout, part: LayerRange, index: int) -> None:
    """A run segment's layers cover all of it; a window layer's the end, less than a window."""
    run = part.run
    if span.kind is SegmentKind.RUN:
        good = run.first == span.first and run.count == span.count
    else:
        good = (
            run.first >= span.first
            and run.first + run.count == span.first + span.count
            and run.count < spec.window
        )
    if not good:
        raise f.refuse(
            f"layer {part.layer} holds positions {run.first} to {run.stop - 1} in a "
            f"{span.kind} segment of positions {span.first} to {span.stop - 1}",
            Fault.TOKENS,
            f"$.ranges[{index}]",
        )


# --- tensors -----------------------------------------------------------------------------------


def read_tensors(
    table: Mapping[str, Any],
    *,
    layout: KVLayout,
    ranges: Sequence[LayerRange],
    codecs: Sequence[Chain],
    storage: Storage,
) -> tuple[TensorRecord, ...]:
    """The tensors of a header, pads left out, in data order.

    ``table`` is the safetensors table without ``__metadata__``.  Every entry must be the one that
    layout, ranges and codec chains call for, at the only offset it can have.

    Raises
    ------
    FormatError
        With the tensor's name in the path.
    """
    records: list[TensorRecord] = []
    pads = 0
    plans = _plans(layout, ranges, codecs, storage)
    for index, (part, plan) in enumerate(zip(ranges, plans, strict=True)):
        cursor, prefix = part.start, tensor_prefix(part.layer)
        for wanted in plan:
            record = _read_tensor(table, prefix + wanted.suffix, wanted, cursor)
            records.append(record)
            cursor = record.stop
            if cursor % ALIGNMENT:
                cursor = _read_pad(table, record)
                pads += 1
        if cursor != part.stop:
            raise f.refuse(
                f"layer {part.layer} ends at byte {part.stop}, its tensors at {cursor}",
                Fault.RANGES,
                f"$.ranges[{index}]",
            )
    if len(table) != len(records) + pads:
        raise _unknown_tensor(table, records)
    return tuple(records)


def expect_tensors(
    *,
    layout: KVLayout,
    ranges: Sequence[LayerRange],
    codecs: Sequence[Chain],
    storage: Storage,
) -> tuple[tuple[TensorRecord, ...], str] | None:
    """The tensors that a header must have, and how its table spells them (without braces).

    The fast twin of :func:`read_tensors`: a table with just this text has just these tensors.
    None where the ranges do not fit, or where a length is free: the table must be read then.
    """
    records: list[TensorRecord] = []
    spelled: list[str] = []
    plans = _plans(layout, ranges, codecs, storage)
    for part, plan in zip(ranges, plans, strict=True):
        cursor, prefix = part.start, tensor_prefix(part.layer)
        for wanted in plan:
            if wanted.shape is None:
                return None
            name, stop = prefix + wanted.suffix, cursor + wanted.size_bytes
            records.append(TensorRecord(name, wanted.dtype, wanted.shape, cursor, stop))
            spelled.append(f'"{name}":{{"data_offsets":[{cursor},{stop}],{wanted.spelled}')
            cursor = stop + pad_bytes(stop)
            if cursor > stop:
                spelled.append(
                    f'"{name}-pad":{{"data_offsets":[{stop},{cursor}],'
                    f'"dtype":"U8","shape":[{cursor - stop}]}}'
                )
        if cursor != part.stop:
            return None
    return tuple(records), ",".join(spelled)


def layer_places(layout: KVLayout, layer: int, first: int) -> tuple[Place, Place]:
    """Where K and V of a layer belong whose first token stands at ``first``."""
    index = layout.layers[layer].rope
    rope = layout.ropes[index] if index >= 0 else None
    return Place("k", layer, first, rope), Place("v", layer, first)


def _plans(
    layout: KVLayout, ranges: Sequence[LayerRange], codecs: Sequence[Chain], storage: Storage
) -> list[tuple[_Tensor, ...]]:
    """The plan of each range; alike layers share theirs."""
    known: dict[tuple[int, int, int, int, int], tuple[_Tensor, ...]] = {}
    plans = []
    for part in ranges:
        spec = layout.layers[part.layer]
        key = (id(spec), part.run.first, part.run.count, part.k_codec, part.v_codec)
        if (plan := known.get(key)) is None:
            plan = known[key] = _plan(layout, part, codecs, storage)
        plans.append(plan)
    return plans


def _plan(
    layout: KVLayout, part: LayerRange, codecs: Sequence[Chain], storage: Storage
) -> tuple[_Tensor, ...]:
    """Tensors of one layer sorted by name."""
    wanted = []
    spec = layout.layers[part.layer]
    for place, codec in zip(
        layer_places(layout, part.layer, part.run.first), (part.k_codec, part.v_codec), strict=True
    ):
        dim = spec.k_dim if place.name == "k" else spec.v_dim
        shape = (spec.kv_heads, part.run.count, dim)
        at = f"$.codecs[{codec}]"
        stored = storage(codecs[codec], place=place, shape=shape, dtype=layout.dtype, at=at)
        for suffix, (stored_dtype, axes) in sorted(stored.items()):
            if not (suffix.startswith(place.name) and _SUFFIX.fullmatch(suffix)):
                raise f.refuse(f"bad tensor name {suffix[:80]!r}", Fault.UNKNOWN_TENSOR, at)
            plain = prod(shape) * DTYPE_BYTES[layout.dtype]
            wanted.append(_wanted(suffix, stored_dtype, axes, at_most=2 * plain + FREE_BYTES))
    return tuple(wanted)


def _wanted(suffix: str, dtype: str, shape: tuple[int, ...] | None, *, at_most: int = 0) -> _Tensor:
    size_bytes = 0 if shape is None else prod(shape) * DTYPE_BYTES[dtype]
    axes = list(shape or ())
    spelled = f'"dtype":"{dtype}","shape":[{",".join(map(str, axes))}]}}'
    return _Tensor(suffix, dtype, shape, axes, size_bytes, spelled, at_most)


def _read_tensor(table: Mapping[str, Any], name: str, wanted: _Tensor, start: int) -> TensorRecord:
    """The entry of the tensor that must start at ``start``."""
    entry = table.get(name)
    stop = start + wanted.size_bytes
    if (
        entry == {"data_offsets": [start, stop], "dtype": wanted.dtype, "shape": wanted.axes}
        and wanted.shape
        and _INT.issuperset(map(type, entry["data_offsets"] + entry["shape"]))
    ):
        return TensorRecord(name, wanted.dtype, wanted.shape, start, stop)
    return _read_odd_tensor(table, name, wanted, start)


def _read_odd_tensor(
    table: Mapping[str, Any], name: str, wanted: _Tensor, start: int
) -> TensorRecord:
    """An entry of free length, or one that is wrong: field by field."""
    at = f'$["{name}"]'
    if name not in table:
        raise f.refuse(f"tensor {name!r} is missing", Fault.MISSING_TENSOR, at)
    entry = f.read_object(table[name], at, _TENSOR_FIELDS)
    if entry["dtype"] != wanted.dtype:
        raise _bad_dtype(entry["dtype"], wanted.dtype, at)
    axes = f.read_list(entry["shape"], f"{at}.shape", at_most=MAX_TENSOR_AXES)
    for i in range(len(axes)):
        f.read_int(axes, i, f"{at}.shape", 1, MAX_SEGMENT_BYTES)
    if axes != wanted.axes and not (wanted.shape is None and len(axes) == 1):
        raise f.refuse(
            f"shape {axes} where {wanted.axes} belongs", Fault.SHAPE_MISMATCH, f"{at}.shape"
        )
    if wanted.shape is None and axes[0] > wanted.at_most:
        raise f.refuse(
            f"{axes[0]} bytes where at most {wanted.at_most} belong",
            Fault.OUT_OF_RANGE,
            f"{at}.shape",
        )
    stop = start + prod(axes) * DTYPE_BYTES[wanted.dtype]
    _check_offsets(entry["data_offsets"], start, stop, f"{at}.data_offsets")
    return TensorRecord(name, wanted.dtype, tuple(axes), start, stop)


def _read_pad(table: Mapping[str, Any], record: TensorRecord) -> int:
    """Where the pad behind a tensor ends."""
    pad = _wanted("pad", "U8", (pad_bytes(record.stop),))
    return _read_tensor(table, f"{record.name}-pad", pad, record.stop).stop


def _bad_dtype(found: Any, wanted: str, at: str) -> FormatError:
    known = type(found) is str and found in DTYPE_BYTES
    return f.refuse(
        f"dtype {str(found)[:40]!r} where {wanted!r} belongs",
        Fault.SHAPE_MISMATCH if known else Fault.UNKNOWN_DTYPE,
        f"{at}.dtype",
    )


def _check_offsets(found: Any, start: int, stop: int, at: str) -> None:
    f.read_list(found, at, at_least=2, at_most=2)
    first = f.read_int(found, 0, at, 0, MAX_SEGMENT_BYTES)
    last = f.read_int(found, 1, at, 0, MAX_SEGMENT_BYTES)
    if first > start:
        raise f.refuse(f"bytes {start} to {first} belong to no tensor", Fault.GAP, at)
    if first < start:
        raise f.refuse(f"bytes {first} to {start} belong to two tensors", Fault.OVERLAP, at)
    if last != stop:
        raise f.refuse(
            f"{last - first} bytes where shape and dtype need {stop - start}",
            Fault.SIZE_MISMATCH,
            at,
        )


def _unknown_tensor(table: Mapping[str, Any], records: Sequence[TensorRecord]) -> FormatError:
    known = {record.name for record in records}
    padded = {f"{record.name}-pad" for record in records if pad_bytes(record.stop)}
    name = min(table.keys() - known - padded)[:80]
    return f.refuse(f"unknown tensor {name!r}", Fault.UNKNOWN_TENSOR, f'$["{name}"]')
