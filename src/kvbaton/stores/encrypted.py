"""A store whose objects are encrypted, around any other store.

Every object is a sequence of frames that are encrypted one by one: a segment's header, then each
of its layer ranges; anything else is one frame.  So one layer can be read, and checked, before the
next one has arrived.  The keys are the cipher's; nothing of them reaches the store.

What others see: kinds, names (keyed digests), sizes, the number of layers, times.
"""

from __future__ import annotations

import builtins
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from kvbaton.errors import FormatError, InputError, NotFound, StoreError
from kvbaton.stores.base import Entry, Key, Kind, Reader, Store, byte_views, check_range
from kvbaton.stores.leases import DEFAULT_TTL_S, Debris, Lease, LeaseInfo, Removal
from kvbaton.wire.frames import (
    MAX_FRAME_BYTES,
    TAG_BYTES,
    Frame,
    FrameCipher,
    FrameTable,
    read_table,
    segment_pieces,
    undecryptable,
)

_FIRST_READ_BYTES = 16 << 10
_TRIES = 3


class EncryptedStore(Store):
    """Encrypts what goes into another store, and decrypts what comes out of it.

    Spent claims are stored as they are: they hold nothing, and are decided by the store itself.

    ``put`` returns, and readers have, the bytes of the objects themselves; listings have those of
    what is stored.  An object that lies in the store unencrypted, or that these keys have
    not made, is refused on reading, counts as absent, and is replaced by a put.

    Parameters
    ----------
    inner
        The store that keeps the objects.
    cipher
        The keys of one trust domain.
    """

    def __init__(self, inner: Store, cipher: FrameCipher) -> None:
        self.inner, self.cipher = inner, cipher
        self.url = inner.url

    def put(self, key: Key, parts: Sequence[memoryview | bytes]) -> int:
        """See :meth:`Store.put`; what is there already is not encrypted again."""
        if key.kind is Kind.SPENT:
            return self.inner.put(key, parts)
        views = byte_views(parts)
        stored: list[memoryview | bytes] = []
        for _ in range(_TRIES):
            if self._holds(key, replace=True):
                return 0
            stored = stored or _encrypt(self.cipher, key, views)
            if self.inner.put(key, stored):
                return sum(view.nbytes for view in views)
        raise StoreError(f"{key} is put by others, who do not encrypt it, at the same moment")

    def _holds(self, key: Key, *, replace: bool = False) -> bool:
        """Whether the object is there as these keys make it, its age renewed; ``replace`` removes
        anything else that is in its place."""
        try:
            self._open(key).close()
        except NotFound:
            return False
        except FormatError:
            if replace:
                self.inner.delete(key)
            return False
        return self.inner.exists(key)  # it may have been evicted before its age was renewed

    def open(self, key: Key) -> Reader:
        """See :meth:`Store.open`.

        Raises
        ------
        FormatError
            ``DECRYPTION``: it is not encrypted, or not as these keys would have done it.
        """
        return self.inner.open(key) if key.kind is Kind.SPENT else self._open(key)

    def look(self, key: Key) -> Reader:
        """See :meth:`Store.look`; raises what ``open`` raises."""
        inner = self.inner.look(key)
        return inner if key.kind is Kind.SPENT else self._decrypting(key, inner)

    def _open(self, key: Key) -> Reader:
        return self._decrypting(key, self.inner.open(key))

    def _decrypting(self, key: Key, inner: Reader) -> Reader:
        try:
            return _EncryptedReader(key, inner, self.cipher)
        except BaseException:
            inner.close()
            raise

    def exists(self, key: Key) -> bool:
        """See :meth:`Store.exists`; what is there only unencrypted or of another key is not."""
        return self.inner.exists(key) if key.kind is Kind.SPENT else self._holds(key)

    def delete(self, key: Key) -> bool:
        """See :meth:`Store.delete`."""
        return self.inner.delete(key)

    def list(self, kind: Kind) -> Iterator[Entry]:
        """See :meth:`Store.list`; sizes are those of what is stored."""
        return self.inner.list(kind)

    def claim(self, key: Key, data: bytes) -> bool:
        """See :meth:`Store.claim`."""
        return self.inner.claim(key, data)

    def lease(
        self,
        keys: Iterable[Key] = (),
        *,
        owner: str,
        ttl_s: float = DEFAULT_TTL_S,
        beats: bool = True,
    ) -> Lease:
        """See :meth:`Store.lease`; the owner's name is not encrypted."""
        return self.inner.lease(keys, owner=owner, ttl_s=ttl_s, beats=beats)

    def leases(self) -> builtins.list[LeaseInfo]:
        """See :meth:`Store.leases`."""
        return self.inner.leases()

    def remove_unused(self, entries: Sequence[Entry]) -> builtins.list[Removal]:
        """See :meth:`Store.remove_unused`."""
        return self.inner.remove_unused(entries)

    def read_marks(self) -> bytes:
        """See :meth:`Store.read_marks`; names and times, as others see them anyway."""
        return self.inner.read_marks()

    def write_marks(self, data: bytes) -> None:
        """See :meth:`Store.write_marks`."""
        self.inner.write_marks(data)

    def sweep(self) -> Debris:
        """See :meth:`Store.sweep`."""
        return self.inner.sweep()

    def debris(self) -> Debris:
        """See :meth:`Store.debris`."""
        return self.inner.debris()

    def free_bytes(self) -> int | None:
        """See :meth:`Store.free_bytes`; of what is stored."""
        return self.inner.free_bytes()

    def close(self) -> None:
        """See :meth:`Store.close`."""
        self.inner.close()


def _place(key: Key) -> bytes:
    return str(key).encode("ascii")


def _encrypt(
    cipher: FrameCipher, key: Key, views: Sequence[memoryview]
) -> list[memoryview | bytes]:
    """Table and frames of an object; each frame is joined, hashed and encrypted while it is in
    the processor's caches."""
    total = sum(view.nbytes for view in views)
    pieces = [total]
    if key.kind is Kind.SEGMENT and views:
        pieces = segment_pieces(views[0], total)
    if max(pieces) > MAX_FRAME_BYTES:
        raise InputError(f"{key} has a part of {max(pieces)} bytes, too large to be encrypted")
    place, count, start = _place(key), len(pieces), 0
    out = memoryview(bytearray(total + count * TAG_BYTES))
    frames, source = [], _Source(views, max(pieces))
    for index, size_bytes in enumerate(pieces):
        plain = source.take(size_bytes)
        frame = Frame(place, index, count, size_bytes)
        frame = replace(frame, digest=cipher.digest(frame, plain))
        stop = start + size_bytes + TAG_BYTES
        cipher.encrypt(frame, plain, out[start:stop])
        frames.append(frame)
        start = stop
    return [FrameTable(frames).encode(cipher, place), out]


class _Source:
    """Hands out the next bytes of a concatenation that is never made as a whole."""

    def __init__(self, views: Sequence[memoryview], largest: int) -> None:
        self._views = list(reversed(views))
        self._largest = largest
        self._scratch: memoryview | None = None

    def take(self, size_bytes: int) -> memoryview:
        """The next bytes, valid until the next call; a view where they are one part."""
        if self._views and self._views[-1].nbytes == size_bytes:
            return self._views.pop()
        if self._scratch is None:
            self._scratch = memoryview(bytearray(self._largest))
        done = 0
        while done < size_bytes:
            view = self._views.pop()
            piece = view[: size_bytes - done]
            self._scratch[done : done + piece.nbytes] = piece
            done += piece.nbytes
            if piece.nbytes < view.nbytes:
                self._views.append(view[piece.nbytes :])
        return self._scratch[:size_bytes]


class _EncryptedReader(Reader):
    """Decrypts the frames that a range touches: whole ones straight into the caller's memory.

    Tags show every change of a frame.  That a frame is what its digest in the table says is checked
    too, except for the layer ranges of segments: their own digests stand in the segment's header,
    and whoever uses them checks those.
    """

    def __init__(self, key: Key, inner: Reader, cipher: FrameCipher) -> None:
        self._key, self._inner, self._cipher = key, inner, cipher
        self._lock = threading.Lock()
        self._head = inner.read(0, min(inner.size_bytes, _FIRST_READ_BYTES))
        try:
            self._table = read_table(
                inner.read,
                file_size=inner.size_bytes,
                cipher=cipher,
                place=_place(key),
                first=self._head,
            )
        except FormatError as error:
            sentence = f"{key} cannot be decrypted: {error.sentence}"
            raise undecryptable(sentence, error.at, error.hint) from error
        self.size_bytes = self._table.size_bytes
        self.head_bytes = self._table.frames[0].size_bytes
        self._stored = memoryview(b"")
        self._last: tuple[int, memoryview] | None = None

    def read_into(self, offset: int, buffer: memoryview) -> None:
        view = check_range(self._key, offset, buffer, self.size_bytes)
        with self._lock:
            while view.nbytes:
                done = self._read_some(offset, view)
                offset, view = offset + done, view[done:]

    def _read_some(self, offset: int, view: memoryview) -> int:
        """Fill the view as far as the frame of ``offset`` goes; returns the bytes read."""
        index = self._table.index_at(offset)
        frame, begin = self._table.frames[index], offset - self._table.start(index)
        size_bytes = min(view.nbytes, frame.size_bytes - begin)
        known = self._last is not None and self._last[0] == index
        if not known and size_bytes == frame.size_bytes:
            self._decrypt(frame, view[:size_bytes])
            return size_bytes
        if self._last is None or not known:
            plain = memoryview(bytearray(frame.size_bytes))
            self._decrypt(frame, plain)
            self._last = index, plain
        view[:size_bytes] = self._last[1][begin : begin + size_bytes]
        return size_bytes

    def _decrypt(self, frame: Frame, out: memoryview) -> None:
        ok = self._cipher.decrypt(frame, self._ciphertext(frame), out)
        if ok and not (self._key.kind is Kind.SEGMENT and frame.index):
            ok = self._cipher.digest(frame, out) == frame.digest
        if not ok:
            raise undecryptable(
                f"{self._key} cannot be decrypted: frame {frame.index} was changed",
                f"$.frames[{frame.index}]",
            )

    def _ciphertext(self, frame: Frame) -> memoryview:
        start, size_bytes = self._table.stored_start(frame.index), frame.size_bytes + TAG_BYTES
        if frame.index == 0 and start + size_bytes <= len(self._head):
            return memoryview(self._head)[start : start + size_bytes]
        if self._stored.nbytes < size_bytes:
            self._stored = memoryview(bytearray(size_bytes))
        data = self._stored[:size_bytes]
        self._inner.read_into(start, data)
        return data

    def close(self) -> None:
        self._inner.close()
