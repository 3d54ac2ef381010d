"""Looking for traces: which of many short runs of bytes stand anywhere in some files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

WINDOW_BYTES = 64
_LEAST_BYTES = 16
_LEAST_VALUES = 8
"""Fewer different bytes than that are padding, and stand everywhere."""

_CHUNK_BYTES = 8 << 20
_KEY_BYTES = 8


def window_in(data: bytes | memoryview) -> bytes | None:
    """A run of :data:`WINDOW_BYTES` bytes near the middle that says something; None if none does.

    Data that is shorter than that, but not much too short, is a window itself.
    """
    if len(data) < WINDOW_BYTES:
        whole = bytes(data)
        return whole if len(whole) >= _LEAST_BYTES and _says_something(whole) else None
    last = len(data) - WINDOW_BYTES
    for start in (last // 2, last // 4, 3 * last // 4, 0, last):
        found = bytes(data[start : start + WINDOW_BYTES])
        if _says_something(found):
            return found
    return None


def _says_something(window: bytes) -> bool:
    return len(set(window)) >= _LEAST_VALUES


class Windows:
    """Runs of bytes that are looked for at every offset, all at once.

    Parameters
    ----------
    windows
        Each has at least 16 bytes.
    """

    def __init__(self, windows: Iterable[bytes]) -> None:
        self._by_key: dict[bytes, list[bytes]] = {}
        for window in windows:
            self._by_key.setdefault(window[:_KEY_BYTES], []).append(window)
        self._keys = np.array(sorted(int.from_bytes(k, "little") for k in self._by_key), np.uint64)
        self._pairs = np.zeros(1 << 16, bool)
        self._pairs[(self._keys & np.uint64(0xFFFF)).astype(np.int64)] = True

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))

    def found_in(self, chunks: Iterable[bytes]) -> set[bytes]:
        """The windows that stand in a concatenation of chunks."""
        found: set[bytes] = set()
        tail = b""
        for chunk in chunks:
            data = tail + chunk
            found |= self._found(data)
            tail = data[-(WINDOW_BYTES - 1) :]
        return found

    def _found(self, data: bytes) -> set[bytes]:
        if len(data) < _LEAST_BYTES or not len(self):
            return set()
        values = np.frombuffer(data, np.uint8)
        pairs = values[:-1] | (values[1:].astype(np.uint16) << 8)
        starts = np.flatnonzero(self._pairs[pairs])
        starts = starts[starts <= len(data) - _KEY_BYTES]
        words = np.lib.stride_tricks.sliding_window_view(values, _KEY_BYTES)[starts]
        keys = np.ascontiguousarray(words).view("<u8").reshape(-1)
        hits = starts[np.isin(keys, self._keys)]
        return {
            window
            for start in hits.tolist()
            for window in self._by_key[data[start : start + _KEY_BYTES]]
            if data[start : start + len(window)] == window
        }


def files_below(folder: Path) -> Iterator[Path]:
    """Every file below a folder; no symbolic link is followed."""
    for above, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(above, name)
            if path.is_file() and not path.is_symlink():
                yield path


def chunks_of(path: Path) -> Iterator[bytes]:
    """A file's bytes, piece by piece; nothing of one that has gone."""
    try:
        with path.open("rb") as file:
            while data := file.read(_CHUNK_BYTES):
                yield data
    except FileNotFoundError:
        return
