"""``bench throughput``: turns per minute of several agents that work on one context, and what they
hold in memory.

The agents take turns around a ring, several rounds of it, and each goes on from what the one
before it has said.  By baton each takes the baton of the one before it, from a store.  By text each
prefills the whole conversation from nothing, as behind an API that keeps nothing.  The rival
between them keeps every agent's own cache, so that it reads again only what was said since its own
last turn.  All decode equally many tokens, by the same loop.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvbaton.agent import Agent
from kvbaton.bench.machine import SHARED_MEMORY, environment, fast_folder, library_versions, load
from kvbaton.bench.memory import peak_extra_bytes
from kvbaton.bench.texts import fitted, real_texts
from kvbaton.conversation import Turn
from kvbaton.errors import InputError
from kvbaton.pipelines.by_text import TextRelay, warm_up
from kvbaton.relay import Relay
from kvbaton.seals import TrustDomain
from kvbaton.stores import Kind, Store, open_store
from kvbaton.types import JSON
from kvbaton.wire.digests import DomainKeys

AGENTS, ROUNDS, TOKENS, NEW_TOKENS, REPEATS = (2, 5), 3, 2048, 32, 3
FIT_BYTES = 1 << 30
"""Memory in which waiting agents are counted: 1 GiB."""
PATIENCE_S = 3600.0
"""Deadline of takes here: a slow machine is measured, not cut off."""

_ROUTES = ("text", "kept", "baton")
_DOMAIN = TrustDomain("bench", DomainKeys(bytes(range(32))))
_INSTRUCTION = "Add one more point about the document, other than those that were made."

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ThroughputPlan:
    """What to measure.

    Parameters
    ----------
    agents
        Sizes of the ring, one row each.
    rounds
        How often every agent has its turn.
    tokens
        Tokens of the document that the first agent reads.
    new_tokens
        Tokens of each answer.
    repeats
        Timed runs of each route; medians are reported.

    Raises
    ------
    InputError
        A number that makes no sense.
    """

    agents: tuple[int, ...] = AGENTS
    rounds: int = ROUNDS
    tokens: int = TOKENS
    new_tokens: int = NEW_TOKENS
    repeats: int = REPEATS

    def __post_init__(self) -> None:
        numbers = (*self.agents, self.rounds, self.tokens, self.new_tokens, self.repeats)
        if not self.agents or min(numbers) < 1:
            raise InputError("agents, rounds, tokens and repeats are at least 1")


def measure_throughput(engine: Any, plan: ThroughputPlan, say: Say) -> JSON:
    """Run the plan; ``say`` is told what is being measured.

    Returns
    -------
    JSON
        ``{"model", "rows": [{"agents", "rounds", "text_turns_per_min", "kept_turns_per_min",
        "baton_turns_per_min", "ratio", "ratio_kept", "peak_bytes_text", "peak_bytes_kept",
        "peak_bytes_baton", "context_tokens", "turns", "samples"}], "waiting": {"agents", "tokens",
        "kept_bytes", "baton_bytes", "memory_bytes", "kept_agents", "baton_agents"},
        "environment", "settings"}``.  ``peak_bytes_baton`` counts the store's bytes, which lie in
        memory, too.

    Raises
    ------
    WindowExceeded
        The last turn would not fit the model's window.
    """
    machine = environment()
    warm_up(engine)
    document = fitted(
        "\n\n".join(one.text for one in real_texts()), plan.tokens, lambda t: _count(engine, t)
    )
    rows = [_row(engine, plan, count, document, say) for count in plan.agents]
    say("agents that wait")
    return {
        "model": engine.name,
        "rows": rows,
        "waiting": _waiting(engine, plan, document),
        "environment": machine | {"load_after": load(), **library_versions()},
        "settings": {
            "tokens": plan.tokens,
            "new_tokens": plan.new_tokens,
            "repeats": plan.repeats,
            "shared_memory": fast_folder(0) == SHARED_MEMORY,
        },
    }


def _count(engine: Any, text: str) -> int:
    return len(engine.chat.render([{"role": "user", "content": text}]).ids)


# --- turns per minute --------------------------------------------------------------------------


def _row(engine: Any, plan: ThroughputPlan, agents: int, document: str, say: Say) -> JSON:
    samples: dict[str, list[float]] = {route: [] for route in _ROUTES}
    peaks: dict[str, int | None] = {}
    context = 0
    for repeat in range(plan.repeats):
        turn = repeat % len(_ROUTES)
        for route in (*_ROUTES[turn:], *_ROUTES[:turn]):
            say(f"{agents} agents, {plan.rounds} rounds, {route}: run {repeat + 1}")
            seconds, context = _run(engine, plan, agents, document, route)
            samples[route].append(seconds)
    for route in _ROUTES:
        say(f"{agents} agents, {plan.rounds} rounds, {route}: memory")
        peaks[route] = _peak(engine, plan, agents, document, route)
    turns = agents * plan.rounds
    per_min = {r: 60 * turns / statistics.median(samples[r]) for r in _ROUTES}
    return {
        "agents": agents,
        "rounds": plan.rounds,
        **{f"{route}_turns_per_min": per_min[route] for route in _ROUTES},
        "ratio": per_min["baton"] / per_min["text"],
        "ratio_kept": per_min["baton"] / per_min["kept"],
        **{f"peak_bytes_{route}": peaks[route] for route in _ROUTES},
        "context_tokens": context,
        "turns": turns,
        "samples": samples,
    }


def _run(
    engine: Any, plan: ThroughputPlan, agents: int, document: str, route: str
) -> tuple[float, int]:
    """Seconds of a whole run, and tokens of its last context."""
    with _Store(route) as store:
        gc.collect()
        engine.wait_for_device()
        started = time.perf_counter()
        last = _ring(engine, plan, agents, document, route, store)
        engine.wait_for_device()
        return time.perf_counter() - started, last.receipt.context_tokens


def _peak(engine: Any, plan: ThroughputPlan, agents: int, document: str, route: str) -> int | None:
    with _Store(route) as store:
        extra = peak_extra_bytes(
            lambda: _ring(engine, plan, agents, document, route, store), engine.device
        )
        return None if extra is None else extra + _stored_bytes(store)


def _ring(
    engine: Any,
    plan: ThroughputPlan,
    agents: int,
    document: str,
    route: str,
    store: Store | None,
) -> Turn:
    """One whole run; the last turn."""
    ring = [_agent(engine, f"agent-{n}", store) for n in range(agents)]
    how: dict[str, Any] = {"max_new_tokens": plan.new_tokens, "ignore_eos": True}
    turn = ring[0].run(f"{document}\n\n{_INSTRUCTION}", **how)
    for number in range(1, agents * plan.rounds):
        before, now = ring[(number - 1) % agents], ring[number % agents]
        if route == "kept":
            said = [*turn.conversation.messages, {"role": "user", "content": _INSTRUCTION}]
            turn = now.run(messages=said, **how)
            continue
        baton = before.hand_off(turn)
        before.forget()  # what it has said is in the baton
        del turn
        turn = now.take(baton, instruction=_INSTRUCTION, deadline_s=PATIENCE_S, **how)
    return turn


def _agent(engine: Any, name: str, store: Store | None) -> Agent:
    if store is None:
        return Agent(name, engine, TextRelay(engine, _DOMAIN), stream=False)
    return Agent(name, engine, Relay(engine, store, _DOMAIN))


class _Store:
    """A store in shared memory for one run by baton; none for the other routes."""

    def __init__(self, route: str) -> None:
        self._route = route
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._store: Store | None = None

    def __enter__(self) -> Store | None:
        if self._route == "baton":
            parent = fast_folder(FIT_BYTES)
            self._folder = tempfile.TemporaryDirectory(prefix="kvbaton-bench-", dir=parent)
            self._store = open_store(f"dir://{Path(self._folder.name) / 'store'}")
        return self._store

    def __exit__(self, *details: object) -> None:
        if self._store is not None:
            self._store.close()
        if self._folder is not None:
            self._folder.cleanup()


def _stored_bytes(store: Store | None) -> int:
    if store is None:
        return 0
    return sum(entry.size_bytes for kind in Kind for entry in store.list(kind))


# --- agents that wait --------------------------------------------------------------------------


def _waiting(engine: Any, plan: ThroughputPlan, document: str) -> JSON:
    """What agents hold that have all read one document and wait to go on.

    By text each keeps its cache, or would have to read all of it again.  By baton each has a baton
    that shares the document's segments with the others.
    """
    agents = max(plan.agents)
    how: dict[str, Any] = {"max_new_tokens": plan.new_tokens, "ignore_eos": True}
    with _Store("baton") as store:
        reader = _agent(engine, "reader", store)
        first = reader.hand_off(reader.prefill(document))
        shared, sizes, kept = _stored_bytes(store), [], []
        for number in range(agents):
            agent = _agent(engine, f"agent-{number}", store)
            before = _stored_bytes(store)
            turn = agent.take(
                first, instruction=f"{_INSTRUCTION} ({number})", deadline_s=PATIENCE_S, **how
            )
            agent.hand_off(turn)
            sizes.append(_stored_bytes(store) - before)
            kept.append(engine.layout.cache_bytes(turn.cached))
    own, cache = round(statistics.mean(sizes)), round(statistics.mean(kept))
    return {
        "agents": agents,
        "tokens": plan.tokens,
        "kept_bytes": cache,
        "baton_bytes": own,
        "shared_bytes": shared,
        "memory_bytes": FIT_BYTES,
        "kept_agents": FIT_BYTES // cache,
        "baton_agents": _fitting(shared + cache, own),
    }


def _fitting(first_bytes: int, each_bytes: int) -> int:
    """Agents that fit beside what is there once: the shared segments and one running cache."""
    return max(0, FIT_BYTES - first_bytes) // each_bytes
