"""What the process tests run in processes of their own.

``sender STORE EVENT NTH`` hands a baton off and stops for good at the n-th event of that name, so
that the parent can kill it there; ``fan-out STORE TAKERS`` prints memory figures as JSON.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tests.relay.conftest import SEGMENT_TOKENS, make_engine

from kvbaton.agent import Agent
from kvbaton.backing import Source
from kvbaton.relay import Checks, Relay
from kvbaton.seals import TrustDomain
from kvbaton.stores import open_store
from kvbaton.types import KVLayout, LayerKind, LayerLayout
from kvbaton.wire.digests import DomainKeys

DOMAIN = TrustDomain("local", DomainKeys(bytes(range(32))))
LONG = "Hello there, you plan and code. " * 4


def sender(store: str, event: str, nth: str) -> None:
    """Hand off, and wait to be killed when the n-th ``event`` happens."""
    left = [int(nth)]

    def observe(name: str, facts: Mapping[str, Any]) -> None:
        left[0] -= name == event
        if left[0] == 0:
            print("reached", flush=True)
            threading.Event().wait()

    relay = Relay(
        make_engine(), open_store(store), DOMAIN, segment_tokens=SEGMENT_TOKENS, observer=observe
    )
    agent = Agent("sender", relay.engine, relay, stream=False)
    print(agent.hand_off(agent.run(LONG, max_new_tokens=9)).id, flush=True)


def peak_bytes() -> int:
    """High-water mark of this process's resident memory since it was last reset."""
    fields = Path("/proc/self/status").read_text().split()
    return int(fields[fields.index("VmHWM:") + 1]) * 1024


def reset_peak() -> int:
    """Reset the mark; resident bytes now."""
    Path("/proc/self/clear_refs").write_text("5")
    fields = Path("/proc/self/status").read_text().split()
    return int(fields[fields.index("VmRSS:") + 1]) * 1024


def fan_out(store: str, takers: str) -> None:
    """Hand a large cache off, drop it, attach it several times, and print the peak."""
    engine = make_engine()
    spec = LayerLayout(LayerKind.FULL, kv_heads=8, k_dim=64, v_dim=64)
    engine.layout = KVLayout("F32", (spec,) * 4, engine.layout.ropes)
    relay = Relay(engine, open_store(store), DOMAIN, checks=Checks(tokens=False))  # random numbers
    tokens = 8192
    cache = engine.new_cache(tokens)
    states = torch.randn(1, 8, tokens, 64)
    for layer in cache.layers:
        layer.update(states, states)
    ids = tuple(i % 300 for i in range(tokens + 1))
    baton = relay.hand_off(Source(cache, tokens, ids), sender="a", text="")
    cache_bytes = engine.layout.cache_bytes(tokens)
    del cache, states
    relay.attach(baton.manifest.segments[:1], ids, 256, room=1, deadline_s=60)
    before = reset_peak()
    taken = [
        relay.attach(baton.manifest.segments, ids, tokens, room=16, deadline_s=60)
        for _ in range(int(takers))
    ]
    if any(each.cache is None for each in taken):
        raise SystemExit(str(taken[0].reasons))
    print(json.dumps({"cache_bytes": cache_bytes, "peak_extra_bytes": peak_bytes() - before}))


if __name__ == "__main__":
    {"sender": sender, "fan-out": fan_out}[sys.argv[1]](*sys.argv[2:])
