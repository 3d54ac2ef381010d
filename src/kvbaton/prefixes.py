"""Finding the beginning of a prompt in a store, without any baton."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvbaton.errors import FormatError, StoreError
from kvbaton.seals import TrustDomain
from kvbaton.stores import Key, Kind, Store
from kvbaton.types import FidelityClass, KVLayout, SegmentKind, SegmentRef, SegmentSpan
from kvbaton.wire import limits, prefix


class PrefixIndex:
    """Records of full, exact segments under the prefix keys at their ends.

    Layouts with window layers are not indexed: their caches are known at their end only.
    """

    def __init__(
        self,
        store: Store,
        domain: TrustDomain,
        layout: KVLayout,
        *,
        segment_tokens: int,
        observe: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        self._store, self._keys, self._size = store, domain.keys, segment_tokens
        self._indexed, self._observe = not layout.window_layers, observe

    def add(self, function: str, ref: SegmentRef, ids: Sequence[int]) -> None:
        """Let other prompts with the same beginning find a full, exact segment."""
        if not self._serves(ref):
            return
        (after,) = self._keys.prefix_keys(function, ids, [ref.span.stop])
        record = prefix.PrefixRecord(
            function=function,
            address=ref.address,
            size_bytes=ref.size_bytes,
            first=ref.span.first,
            ids=tuple(ids[ref.span.first : ref.span.stop]),
        )
        self._store.put(Key(Kind.PREFIX, after), [prefix.encode_prefix(record)])

    def _serves(self, ref: SegmentRef) -> bool:
        return (
            self._indexed
            and ref.span.kind is SegmentKind.RUN
            and ref.span.count == self._size
            and ref.span.first % self._size == 0
            and ref.fidelity.kind is FidelityClass.EXACT
        )

    def find(self, function: str, ids: Sequence[int]) -> tuple[SegmentRef, ...]:
        """Full exact segments in the store that begin ``ids``, leaving at least one id to feed.

        The ids in each record are compared, not only their hash.
        """
        if not self._indexed:
            return ()
        stops = list(range(self._size, len(ids), self._size))
        names = self._keys.prefix_keys(function, ids, stops)
        found: list[SegmentRef] = []
        for stop, name in zip(stops, names, strict=True):
            span = SegmentSpan(stop - self._size, self._size)
            ref = self._hit(Key(Kind.PREFIX, name), function, ids, span)
            if ref is None:
                break
            found.append(ref)
        return tuple(found)

    def _hit(
        self, key: Key, function: str, ids: Sequence[int], span: SegmentSpan
    ) -> SegmentRef | None:
        try:
            raw = self._store.get(key, limit_bytes=limits.MAX_PREFIX_RECORD_BYTES)
            record = prefix.parse_prefix(raw)
            with self._store.open(Key(Kind.SEGMENT, record.address)) as reader:
                size_bytes = reader.size_bytes
        except (StoreError, FormatError) as error:
            self._observe("prefix-miss", {"span": span, "why": error.code})
            return None
        same = record.first == span.first and record.ids == tuple(ids[span.first : span.stop])
        if not same or record.function != function:
            return None
        return SegmentRef(record.address, span, size_bytes)
