"""What the tests of leases run in processes of their own; each part prints a line at each step.

``read STORE BATON NTH`` loads SmolLM2, takes a baton, and stops for good at the n-th layer.
``queue STORE BATON`` holds a baton, waits for a line, and takes it.
``race STORE NAME ROUNDS`` hands the same turn off again and again, now and then slowly, looks that
each baton is whole, and removes it.
``hold STORE BATON`` holds a baton and ends in order on SIGTERM.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from tests.relay.child import DOMAIN, LONG
from tests.relay.conftest import SEGMENT_TOKENS, make_engine

from kvbaton import api
from kvbaton.agent import Agent
from kvbaton.cli.draining import drained_on_sigterm
from kvbaton.errors import FormatError, StoreError
from kvbaton.leasing import hold
from kvbaton.relay import Relay
from kvbaton.stores import Key, Kind, open_store
from kvbaton.testing import Do, FaultyStore, StoreFault

TTL_S = 0.3


def read(store: str, baton: str, nth: str) -> None:
    """Take, and wait to be killed at the n-th layer."""
    left = [int(nth)]

    def observe(name: str, facts: Mapping[str, Any]) -> None:
        left[0] -= name == "layer-attached"
        if left[0] == 0:
            print("reached", flush=True)
            threading.Event().wait()

    engine = api.load("smollm2-135m", dtype="float32")
    agent = Agent("reader", engine, Relay(engine, open_store(store), DOMAIN, observer=observe))
    agent.take(baton, "Go on", max_new_tokens=1, deadline_s=600)


def _agent(name: str, store: str) -> Agent:
    relay = Relay(make_engine(), open_store(store), DOMAIN, segment_tokens=SEGMENT_TOKENS)
    return Agent(name, relay.engine, relay, stream=False)


def queue(store: str, baton: str) -> None:
    """Hold, wait for the turn, take; prints the receipt's route and what was computed."""
    agent = _agent("queueing", store)
    with hold(agent, baton, ttl_s=TTL_S):
        print("holding", flush=True)
        sys.stdin.readline()
        receipt = agent.take(baton, "Go on", max_new_tokens=1).receipt
    print(json.dumps([receipt.route.value, receipt.reused_tokens]), flush=True)


def race(store: str, name: str, rounds: str) -> None:
    """Hand the same turn off again and again; prints how many batons were not whole."""
    shelf, chance = open_store(store), random.Random(name)
    slow = FaultyStore(shelf)
    for kind in (Kind.TRANSCRIPT, Kind.BATON):  # long enough for a whole collection
        slow.inject(StoreFault("put", Do(lambda _: time.sleep(chance.random() / 20)), kind=kind))
    engine = make_engine()
    relay = Relay(engine, slow, DOMAIN, segment_tokens=SEGMENT_TOKENS)
    agent = Agent(name, engine, relay, stream=False)
    turn = agent.run(LONG, max_new_tokens=9)
    print("ready", flush=True)
    sys.stdin.readline()
    broken = 0
    for _ in range(int(rounds)):
        baton = agent.hand_off(turn)
        keys = [Key(Kind.SEGMENT, ref.address) for ref in baton.manifest.segments]
        keys.append(Key(Kind.TRANSCRIPT, baton.manifest.transcript))
        broken += not all(map(shelf.exists, keys))
        shelf.delete(Key(Kind.BATON, baton.id))
    print(json.dumps({"broken": broken, "segments": len(keys) - 1}), flush=True)


def follow(store: str, rounds: str) -> None:
    """Take whatever baton is there, again and again; prints routes and reasons."""
    agent, shelf = _agent("follower", store), open_store(store)
    print("ready", flush=True)
    sys.stdin.readline()
    seen: dict[str, int] = {}
    while sum(seen.values()) < int(rounds):
        for entry in shelf.list(Kind.BATON):
            try:
                receipt = agent.take(entry.key.name, "Go on", max_new_tokens=1).receipt
                said = receipt.route.value
                said += "".join(f" {r.code.value}" for r in receipt.reasons)
            except (StoreError, FormatError) as error:
                said = error.code
            except Exception as error:  # noqa: BLE001 - said to the parent, by its class
                said = type(error).__name__
            seen[said] = seen.get(said, 0) + 1
    print(json.dumps(seen), flush=True)


def hold_it(store: str, baton: str) -> None:
    """Hold until SIGTERM, then end in order."""
    agent = _agent("holder", store)
    with drained_on_sigterm("what it holds") as ending, hold(agent, baton):
        print("holding", flush=True)
        while not ending():
            threading.Event().wait(0.01)


if __name__ == "__main__":
    parts = {"read": read, "queue": queue, "race": race, "follow": follow, "hold": hold_it}
    parts[sys.argv[1]](*sys.argv[2:])
