"""How fast a store is, in about a second: seconds to open and to ask, and bytes per second."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from statistics import median

from kvbaton.policy.speeds import StoreSpeed
from kvbaton.stores import Key, Kind, Store

PATIENCE_S = 1.0
"""Seconds that may be spent on one store, roughly."""

_FIRST_BYTES, _LAST_BYTES, _GROWTH = 256 << 10, 32 << 20, 4
_PIECE_BYTES = 128 << 10
"""About one layer of a segment."""
_ASKED = 9
_LEAST_S = 1e-6


def measure_store(store: Store, *, patience_s: float = PATIENCE_S) -> StoreSpeed:
    """Put an object of random bytes, read it piece by piece, and remove it.

    It is made larger until reading it takes a part of the patience, so that a slow store is asked
    for little and a fast one is not judged by its first kilobytes.

    Raises
    ------
    StoreError
        The store cannot be written or read.
    """
    size_bytes = _FIRST_BYTES
    while True:
        found, took_s = _measured(store, size_bytes, patience_s)
        if took_s >= patience_s / _GROWTH / 2 or size_bytes >= _LAST_BYTES:
            return found
        size_bytes *= _GROWTH


def _measured(store: Store, size_bytes: int, patience_s: float) -> tuple[StoreSpeed, float]:
    """Speeds by an object of some size, and the seconds that one reading took."""
    key = Key(Kind.SEGMENT, os.urandom(32).hex())
    data, piece = os.urandom(size_bytes), memoryview(bytearray(_PIECE_BYTES))
    put_s = _timed(lambda: store.put(key, [data]))
    try:
        open_s = median(_timed(lambda: _touch(store, key)) for _ in range(_ASKED))
        with store.open(key) as reader:
            reader.read_into(0, piece[:1])
            asked = [_timed(lambda: reader.read_into(0, piece[:1])) for _ in range(_ASKED)]
        read_s = median(asked)
        reads, left_s, times = -(-size_bytes // _PIECE_BYTES), patience_s / 2, list[float]()
        while not times or (left_s > 0 and len(times) < _ASKED):
            times.append(_timed(lambda: _read(store, key, piece)))
            left_s -= times[-1]
    finally:
        store.delete(key)
    took_s = median(times)
    opening_s = max(0.0, open_s - read_s)
    moving_s = max(took_s - opening_s - reads * read_s, 0.1 * took_s, _LEAST_S)
    speed = StoreSpeed(opening_s, read_s, size_bytes / moving_s, size_bytes / max(put_s, _LEAST_S))
    return speed, took_s


def _touch(store: Store, key: Key) -> None:
    with store.open(key) as reader:
        reader.read(0, 1)


def _read(store: Store, key: Key, piece: memoryview) -> None:
    with store.open(key) as reader:
        for start in range(0, reader.size_bytes, len(piece)):
            reader.read_into(start, piece[: reader.size_bytes - start])


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
