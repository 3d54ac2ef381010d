"""Having codec kernels compiled in the background, so that no take waits for a compiler.

The first use of a kernel on a machine compiles it, which takes seconds; later processes load it.
Until it is there the readable codecs do the same, slower.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from kvbaton.codecs.base import CodecChain
from kvbaton.codecs.plan import CodecPlan

_lock = threading.Lock()
_begun: set[tuple[str, tuple[str, ...]]] = set()


def chains_of(plan: CodecPlan) -> Iterable[CodecChain]:
    """All chains of a plan, each once."""
    return dict.fromkeys(chain for pair in plan.layers for chain in pair)


def warm_soon(chains: Iterable[CodecChain], dtype: str) -> threading.Thread | None:
    """Begin to compile what chains need for a dtype, unless this process has already begun.

    Chains of the same codecs share their kernels.  The thread ends with its work; a process that
    ends before waits for it, so that the next one finds the kernels compiled.
    """
    new: list[CodecChain] = []
    with _lock:
        for chain in chains:
            key = dtype, tuple(codec.name for codec in chain.codecs)
            if not chain.views and key not in _begun:
                _begun.add(key)
                new.append(chain)
    if not new:
        return None
    thread = threading.Thread(target=_warm, args=(new, dtype), name="kvbaton-warm")
    thread.start()
    return thread


def _warm(chains: list[CodecChain], dtype: str) -> None:
    from kvbaton.codecs.fused import warm

    warm(chains, dtype)
