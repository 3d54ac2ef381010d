"""``bench stores``: how fast objects go into a store and come out, against a plain copy.

An object is put whole, read whole, and read in pieces of a layer's size, as a take does; every
repeat does so in every store and, in the same breath, copies the same bytes in memory and hashes
them.  Bytes are random, so nothing compresses; memory that is read into has been touched before.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from kvbaton.bench.machine import SHARED_MEMORY, environment, fast_folder
from kvbaton.errors import InputError
from kvbaton.stores import Key, Kind, Store, StoreURL, open_store
from kvbaton.types import JSON

SIZE_BYTES = 48_000_000
RANGE_BYTES = 196_608
"""One layer of a full segment of SmolLM2-135M in bfloat16: 256 tokens, 3 heads of 64, K and V."""
REPEATS = 7

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StorePlan:
    """What to measure: stores by URL, the size of an object and of the pieces it is read in."""

    urls: tuple[str, ...]
    size_bytes: int = SIZE_BYTES
    range_bytes: int = RANGE_BYTES
    repeats: int = REPEATS

    def __post_init__(self) -> None:
        if not self.urls:
            raise InputError("there are no stores to measure")
        if min(self.size_bytes, self.range_bytes, self.repeats) < 1:
            raise InputError("sizes and repeats must be at least 1")


@contextmanager
def default_stores(size_bytes: int) -> Iterator[tuple[str, ...]]:
    """URLs of new, empty stores of every built-in kind; gone with the block."""
    places = {fast_folder(4 * size_bytes), Path(tempfile.gettempdir())}
    with tempfile.TemporaryDirectory(prefix="kvbaton-bench-") as disk:
        urls = ["memory://kvbaton-bench"]
        if SHARED_MEMORY in places:
            with tempfile.TemporaryDirectory(prefix="kvbaton-bench-", dir=SHARED_MEMORY) as fast:
                shared = f"dir://{fast}/store"
                yield (*urls, shared, *_on_disk(disk))
        else:
            yield (*urls, *_on_disk(disk))


def _on_disk(folder: str) -> tuple[str, ...]:
    return f"dir://{folder}/store", f"fsspec+file://{folder}/fsspec"


def measure_stores(plan: StorePlan, say: Say) -> JSON:
    """Run the plan.

    Returns
    -------
    JSON
        Speeds in GB/s (GB are 10^9 bytes), medians: ``memcpy_gb_s``, ``blake3_gb_s``,
        ``sha256_gb_s`` and, per entry of ``stores``, ``put_gb_s``, ``get_gb_s``, ``ranges_gb_s``,
        each with ``..._over_memcpy``, its time over that of one copy.

    Raises
    ------
    StoreError, InputError
        A store cannot be opened, or cannot hold the object.
    """
    stores = [open_store(url) for url in plan.urls]
    source = memoryview(os.urandom(plan.size_bytes))
    target = memoryview(bytearray(plan.size_bytes))
    times: dict[str, list[float]] = {}
    try:
        for repeat in range(plan.repeats + 1):
            say(f"repeat {repeat}" if repeat else "warming up")
            seconds = _plain(source, target)
            for url, store in _turned(list(zip(plan.urls, stores, strict=True)), repeat):
                seconds |= _of_store(url, store, source, target, plan.range_bytes)
            if repeat:
                for name, value in seconds.items():
                    times.setdefault(name, []).append(value)
    finally:
        for store in stores:
            store.close()
    return _result(plan, {name: statistics.median(values) for name, values in times.items()})


def _turned(stores: list[tuple[str, Store]], repeat: int) -> Sequence[tuple[str, Store]]:
    shift = repeat % len(stores)
    return [*stores[shift:], *stores[:shift]]


def _plain(source: memoryview, target: memoryview) -> dict[str, float]:
    def copy() -> None:
        target[:] = source

    return {
        "memcpy": _seconds(copy),
        "blake3": _seconds(lambda: blake3(source).digest()),
        "sha256": _seconds(lambda: hashlib.sha256(source).digest()),
    }


def _of_store(
    url: str, store: Store, source: memoryview, target: memoryview, range_bytes: int
) -> dict[str, float]:
    """Put a new object, read it whole and in ranges, and remove it."""
    key = Key(Kind.SEGMENT, os.urandom(32).hex())

    def put() -> None:
        store.put(key, [source])

    def get() -> None:
        with store.open(key) as reader:
            reader.read_into(0, target)

    def get_ranges() -> None:
        piece = target[:range_bytes]
        with store.open(key) as reader:
            for start in range(0, len(source), range_bytes):
                reader.read_into(start, piece[: len(source) - start])

    try:
        seconds = {f"{url} put": _seconds(put), f"{url} get": _seconds(get)}
        _require_same(url, source, target)
        return seconds | {f"{url} ranges": _seconds(get_ranges)}
    finally:
        store.delete(key)


def _require_same(url: str, source: memoryview, target: memoryview) -> None:
    if source != target:
        raise InputError(f"the store {url} gave back other bytes than were put")
    target[:1] = bytes([target[0] ^ 0xFF])  # the next read has to bring them again


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def label_of(url: str) -> str:
    """A store's scheme, and whether it lies in shared memory or in a folder of a disk."""
    parsed = StoreURL.parse(url)
    location = Path(parsed.location)
    if SHARED_MEMORY in location.parents:
        return f"{parsed.scheme} in shared memory"
    return f"{parsed.scheme} on disk" if location.is_absolute() else parsed.scheme


def _result(plan: StorePlan, seconds: dict[str, float]) -> JSON:
    def speed(name: str) -> float:
        return plan.size_bytes / seconds[name] / 1e9

    stores = []
    for url in plan.urls:
        row: JSON = {"store": url, "label": label_of(url)}
        for what in ("put", "get", "ranges"):
            row[f"{what}_gb_s"] = speed(f"{url} {what}")
            row[f"{what}_over_memcpy"] = seconds[f"{url} {what}"] / seconds["memcpy"]
        stores.append(row)
    return {
        "size_bytes": plan.size_bytes,
        "range_bytes": plan.range_bytes,
        "repeats": plan.repeats,
        "memcpy_gb_s": speed("memcpy"),
        "blake3_gb_s": speed("blake3"),
        "sha256_gb_s": speed("sha256"),
        "stores": stores,
        "environment": environment(),
    }
