"""Finding the beginning of a prompt in a store, without any baton."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvbaton.errors import FormatError, NotTrusted, StoreError, TrustFault
from kvbaton.seals import Purpose, TrustDomain
from kvbaton.seals.statement import sign, verify
from kvbaton.stores import Key, Kind, Store
from kvbaton.types import FidelityClass, KVLayout, SegmentKind, SegmentRef, SegmentSpan
from kvbaton.wire import limits, prefix


class PrefixIndex:
    """Records of full, exact segments under the prefix keys at their ends.

    Layouts with window layers are not indexed: their caches are known at their end only.  Records
    are signed like batons: a revoked key's are no hits, and nobody stores in another's name.
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
        self._store, self._domain, self._size = store, domain, segment_tokens
        self._keys = domain.keys
        self._indexed, self._observe = not layout.window_layers, observe

    def add(self, function: str, ref: SegmentRef, ids: Sequence[int], *, sender: str) -> None:
        """Let other prompts with the same beginning find a full, exact segment of ``sender``'s.

        Raises
        ------
        SettingsError
            There is no key that may sign for the sender.
        """
        if not self._serves(ref):
            return
        (after,) = self._keys.prefix_keys(function, ids, [ref.span.stop])
        record = prefix.PrefixRecord(
            function=function,
            address=ref.address,
            size_bytes=ref.size_bytes,
            first=ref.span.first,
            ids=tuple(ids[ref.span.first : ref.span.stop]),
            domain=self._domain.name,
            sender=sender,
        )
        key = Key(Kind.PREFIX, after)
        signer = self._domain.signers.signer(sender, self._domain.name)
        raw = sign(prefix.PAYLOAD_TYPE, prefix.encode_prefix(record), signer)
        if not self._store.put(key, [raw]) and self._read(key) is None:
            self._store.delete(key)  # what lies there is not believed any more
            self._store.put(key, [raw])

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
        record = self._read(key)
        if record is None:
            return None
        try:
            with self._store.open(Key(Kind.SEGMENT, record.address)) as reader:
                size_bytes = reader.size_bytes
        except StoreError as error:
            self._observe("prefix-miss", {"span": span, "why": error.code})
            return None
        same = record.first == span.first and record.ids == tuple(ids[span.first : span.stop])
        if not same or record.function != function:
            return None
        return SegmentRef(record.address, span, size_bytes)

    def _read(self, key: Key) -> prefix.PrefixRecord | None:
        """A record that a trusted key has signed for its own sender; None for anything else."""
        try:
            raw = self._store.get(key, limit_bytes=limits.MAX_PREFIX_RECORD_BYTES)
            return verified_record(raw, self._domain)
        except (StoreError, FormatError, NotTrusted) as error:
            self._observe("prefix-miss", {"why": error.code})
            return None


def verified_record(raw: bytes, domain: TrustDomain) -> prefix.PrefixRecord:
    """What a stored prefix record says, once it is verified.

    Raises
    ------
    NotTrusted
        It is not signed by a key that is trusted and may speak for its sender.
    FormatError
        What was signed is no record.
    """
    found = verify(raw, payload_type=prefix.PAYLOAD_TYPE, purpose=Purpose.BATON, trust=domain.trust)
    record = prefix.parse_prefix(found.payload)
    if record.domain != domain.name or not found.key.speaks_for(record.sender, record.domain):
        raise NotTrusted("the record's key may not speak for its sender", fault=TrustFault.SIGNER)
    return record
