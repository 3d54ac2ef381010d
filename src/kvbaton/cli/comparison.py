"""Where two batons differ: fields of the manifests, token ids, and the stored bytes of K and V.

Segments with equal bytes are told by the digests of their layer ranges; only ranges that differ
are read, verified, and compared position by position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from typing import Any

from kvbaton.codecs import storage
from kvbaton.errors import NotFound
from kvbaton.reasons import located
from kvbaton.seals import TrustDomain
from kvbaton.stores import Key, Kind, Reader, Store
from kvbaton.types import (
    DTYPE_BYTES,
    JSON,
    LayerRange,
    Manifest,
    SegmentHeader,
    SegmentKind,
    TokenRun,
    Transcript,
    common_prefix,
)
from kvbaton.wire.segment import encoded_layer, read_header, verify_range

_NOT_FIELDS = frozenset({"segments", "spans", "function", "producer", "transcript_bytes"})


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """A field of the manifest with its two values, as text."""

    field: str
    a: str
    b: str

    def to_json(self) -> JSON:
        """``{"field", "a", "b"}``."""
        return {"field": self.field, "a": self.a, "b": self.b}


@dataclass(frozen=True, slots=True, order=True)
class CacheDifference:
    """The first position at which stored K or V differ; ``tensor`` is ``k`` or ``v``.

    ``position`` is the first of a range where its bytes cannot be told apart by position (a codec
    other than ``raw``); ``exact_position`` is False then.
    """

    position: int
    layer: int
    tensor: str
    exact_position: bool = True

    def to_json(self) -> JSON:
        """``{"position", "layer", "tensor", "exact_position"}``."""
        return {
            "position": self.position,
            "layer": self.layer,
            "tensor": self.tensor,
            "exact_position": self.exact_position,
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs between batons ``a`` and ``b``.

    ``ids`` is the first position whose id differs, or None; ``cache`` the first difference of K or
    V among the positions that both hold; ``note`` says why the caches were not compared.
    """

    fields: tuple[FieldDifference, ...]
    ids: int | None
    cache: CacheDifference | None
    note: str = ""

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not self.fields and self.ids is None and self.cache is None and not self.note

    def to_json(self) -> JSON:
        """``{"same", "first", "fields", "ids", "cache", "note"}``."""
        return {
            "same": self.same,
            "first": self._first(),
            "fields": [field.to_json() for field in self.fields],
            "ids": None if self.ids is None else {"position": self.ids},
            "cache": None if self.cache is None else self.cache.to_json(),
            "note": self.note,
        }

    def _first(self) -> JSON:
        """First position, layer and field that differ; null where there is none of a kind."""
        cached = None if self.cache is None else self.cache.position
        position = min((p for p in (self.ids, cached) if p is not None), default=None)
        there = self.cache is not None and cached == position
        return {
            "position": position,
            "layer": self.cache.layer if self.cache is not None and there else None,
            "field": self.fields[0].field if self.fields else None,
        }


Read = tuple[Manifest, Transcript]


def compare(store: Store, domain: TrustDomain, a: Read, b: Read) -> Comparison:
    """Compare two batons of one store.

    Raises
    ------
    FormatError
        A segment is damaged.
    StoreError
        The store cannot be read.
    """
    ids_a, ids_b = a[1].ids, b[1].ids
    agreed = common_prefix(ids_a, ids_b)
    ids = None if agreed == len(ids_a) == len(ids_b) else agreed
    cache, note = None, ""
    try:
        with ExitStack() as stack:
            mine, theirs = (_parts(stack, store, domain, m) for m, _ in (a, b))
            if mine and theirs and mine[0].header.layout != theirs[0].header.layout:
                note = "the caches were not compared: their layouts differ"
            else:
                cache = first_difference(mine, theirs)
    except NotFound as error:
        note = f"the caches were not compared: {error.sentence} at {error.at}"
    return Comparison(tuple(differing_fields(a[0], b[0])), ids, cache, note)


# --- manifests ---------------------------------------------------------------------------------


def differing_fields(a: Manifest, b: Manifest) -> Iterator[FieldDifference]:
    """Fields of the manifests that differ, in the manifests' order; the identity of the function
    and the producer by their parts."""
    yield from _tables("function", dict(a.function.parts), dict(b.function.parts))
    yield from _tables("producer", dict(a.producer), dict(b.producer))
    for entry in fields(Manifest):
        mine, theirs = getattr(a, entry.name), getattr(b, entry.name)
        if entry.name not in _NOT_FIELDS and mine != theirs:
            yield from _unfolded(entry.name, mine, theirs)
    yield from _lists("spans", a.spans, b.spans)
    yield from _lists("segments", a.segments, b.segments)


def _tables(name: str, a: dict[str, Any], b: dict[str, Any]) -> Iterator[FieldDifference]:
    for key in sorted(a.keys() | b.keys()):
        if a.get(key) != b.get(key):
            yield FieldDifference(f"{name}.{key}", _text(a.get(key)), _text(b.get(key)))


def _unfolded(name: str, a: Any, b: Any) -> Iterator[FieldDifference]:
    """A field, or the parts of one that has parts."""
    if not hasattr(a, "__dataclass_fields__"):
        yield FieldDifference(name, _text(a), _text(b))
        return
    for part in fields(a):
        mine, theirs = getattr(a, part.name), getattr(b, part.name)
        if mine != theirs:
            yield FieldDifference(f"{name}.{part.name}", _text(mine), _text(theirs))


def _lists(name: str, a: Sequence[Any], b: Sequence[Any]) -> Iterator[FieldDifference]:
    """The first element of two lists that differs, or their lengths."""
    for index, (mine, theirs) in enumerate(zip(a, b, strict=False)):
        if mine != theirs:
            yield from _unfolded(f"{name}[{index}]", mine, theirs)
            return
    if len(a) != len(b):
        yield FieldDifference(name, f"{len(a)} entries", f"{len(b)} entries")


def _text(value: Any) -> str:
    if isinstance(value, TokenRun):
        return f"{value.first} to {value.stop - 1}"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


# --- caches ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Part:
    """A layer range in an open segment."""

    at: str
    reader: Reader
    header: SegmentHeader
    range: LayerRange

    def read(self) -> memoryview:
        """The range's bytes, verified."""
        data = memoryview(bytearray(self.range.stop - self.range.start))
        with located(self.at):
            self.reader.read_into(self.header.body_start + self.range.start, data)
            verify_range(self.header, self.range, data)
        return data


def first_difference(mine: Sequence[_Part], theirs: Sequence[_Part]) -> CacheDifference | None:
    """The first difference of K or V at the positions that both hold.

    Runs are compared from the first position on until one differs; the window layers' state, which
    overlaps with their end, is always compared.

    Raises
    ------
    StoreError, FormatError
        A segment is unreadable or damaged.
    """
    found: list[CacheDifference] = []
    for (window, _), pairs in sorted(_overlaps(mine, theirs).items()):
        if window or not found:
            found += [difference for pair in pairs for difference in _differences(*pair)]
    return min(found, default=None)


def _parts(stack: ExitStack, store: Store, domain: TrustDomain, manifest: Manifest) -> list[_Part]:
    """All layer ranges of a baton's segments."""
    parts = []
    for index, ref in enumerate(manifest.segments):
        at = f"$.segments[{index}]"
        with located(at):
            reader = stack.enter_context(store.open(Key(Kind.SEGMENT, ref.address)))
            header = read_header(
                reader.read, file_size=reader.size_bytes, address=ref.address, keys=domain.keys,
                storage=storage,
            )  # fmt: skip
        parts += [_Part(at, reader, header, part) for part in header.ranges]
    return parts


def _overlaps(
    mine: Sequence[_Part], theirs: Sequence[_Part]
) -> dict[tuple[bool, int], list[tuple[_Part, _Part]]]:
    """Pairs of ranges of one layer that overlap, by whether they are of window layers and by the
    first position of the overlap."""
    by_layer: dict[int, list[_Part]] = {}
    for part in theirs:
        by_layer.setdefault(part.range.layer, []).append(part)
    groups: dict[tuple[bool, int], list[tuple[_Part, _Part]]] = {}
    for part in mine:
        for other in by_layer.get(part.range.layer, ()):
            first = max(part.range.run.first, other.range.run.first)
            if first < min(part.range.run.stop, other.range.run.stop):
                window = part.header.span.kind is SegmentKind.WINDOW
                groups.setdefault((window, first), []).append((part, other))
    return groups


def _differences(a: _Part, b: _Part) -> Iterator[CacheDifference]:
    layer = a.range.layer
    if a.range.run == b.range.run and a.range.digest == b.range.digest:
        return
    spec, dtype = a.header.layout.layers[layer], a.header.layout.dtype
    first = max(a.range.run.first, b.range.run.first)
    stop = min(a.range.run.stop, b.range.run.stop)
    stored_a, stored_b = _tensors(a), _tensors(b)
    for tensor, dim in (("k", spec.k_dim), ("v", spec.v_dim)):
        if not (_is_raw(a, tensor) and _is_raw(b, tensor)):
            if a.range.run != b.range.run or stored_a[tensor] != stored_b[tensor]:
                yield CacheDifference(first, layer, tensor, exact_position=False)
            continue
        row = dim * DTYPE_BYTES[dtype]
        heads = [_Rows(stored_a[tensor], a.range, row), _Rows(stored_b[tensor], b.range, row)]
        position = _first_row(heads[0], heads[1], first, stop, spec.kv_heads)
        if position is not None:
            yield CacheDifference(position, layer, tensor)


def _tensors(part: _Part) -> dict[str, bytes]:
    """Stored bytes of K and of V, side tensors included."""
    layer = encoded_layer(part.header, part.range, part.read())
    joined: dict[str, bytes] = {}
    for stored in layer.tensors:
        name = stored.name.partition(".")[0]
        joined[name] = joined.get(name, b"") + bytes(stored.data)
    return joined


def _is_raw(part: _Part, tensor: str) -> bool:
    index = part.range.k_codec if tensor == "k" else part.range.v_codec
    return [step["name"] for step in part.header.codecs[index]] == ["raw"]


@dataclass(frozen=True, slots=True)
class _Rows:
    """A tensor ``[kv_heads, tokens, head_dim]`` as bytes, ``row`` of them per head and token."""

    data: bytes
    range: LayerRange
    row: int

    def rows(self, head: int, first: int, stop: int) -> bytes:
        """Bytes of one head at positions ``first`` to ``stop - 1``."""
        start = (head * self.range.run.count + first - self.range.run.first) * self.row
        return self.data[start : start + (stop - first) * self.row]


def _first_row(a: _Rows, b: _Rows, first: int, stop: int, heads: int) -> int | None:
    """The first position at which a head differs; found by halving."""
    while any(a.rows(h, first, stop) != b.rows(h, first, stop) for h in range(heads)):
        if stop - first == 1:
            return first
        middle = (first + stop) // 2
        if any(a.rows(h, first, middle) != b.rows(h, first, middle) for h in range(heads)):
            stop = middle
        else:
            first = middle
    return None
