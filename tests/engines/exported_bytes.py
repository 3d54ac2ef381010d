"""Digests of what deterministic engines export; run as a script with a number of threads."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from blake3 import blake3
from tests.engines.families import tiny

from kvbaton.testing.engines import cut

FAMILIES = ("llama", "gemma3")
IDS = [3 + (97 * i + 11 * i * i) % 280 for i in range(500)]


def digest(engine: Any, cache: Any, tokens: int) -> str:
    """BLAKE3 over all bytes that a cache exports, in order."""
    hashed = blake3()
    for part in engine.export(cache, cut(engine.layout, tokens, 256)):
        for tensor in (part.keys, part.values):
            hashed.update(tensor.view(torch.uint8).numpy().tobytes())
    return str(hashed.hexdigest())


def exported(family: str, dtype: torch.dtype, threads: int) -> str:
    """Digest after a prefill of 500 tokens and three decoded ones, in a process of ``threads``."""
    engine = tiny(family, dtype=dtype, deterministic=True)
    torch.set_num_threads(threads)
    cache = engine.new_cache(8)
    engine.forward(cache, IDS)
    for token in (5, 6, 7):
        engine.forward(cache, [token])
    torch.set_num_threads(1)
    return digest(engine, cache, cache.length)


def all_exported(threads: int) -> list[str]:
    """Digests of all families in float32 and bfloat16."""
    dtypes = (torch.float32, torch.bfloat16)
    return [exported(family, dtype, threads) for family in FAMILIES for dtype in dtypes]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(all_exported(int(sys.argv[1]))))
