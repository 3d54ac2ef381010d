"""Modes ``takes`` and ``costs``: seconds, always as shares of other seconds of the same run."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from kvbaton.agent import Agent
from kvbaton.alignment.recompute import DEFAULT_CHOOSER, DEFAULT_FRACTION, Repair
from kvbaton.backing import Source
from kvbaton.bench.fidelity.session import Session, Task
from kvbaton.bench.fidelity.splice import Case
from kvbaton.bench.fidelity.throttle import ThrottledStore
from kvbaton.bench.kl import text_ids
from kvbaton.clock import Clock
from kvbaton.shipping import Packing
from kvbaton.stores import MemoryStore
from kvbaton.taking import refused
from kvbaton.types import JSON, SegmentSpan

LINE_BYTES_PER_S = 100e6
_SAID = 24
_DEADLINE_S = 36_000.0


# --- takes from a slow store ----------------------------------------------------------------------


def take_tasks(session: Session) -> list[Task]:
    """One measurement: both profiles, in turn."""
    tokens = session.scope.take_tokens
    if not session.texts(tokens):
        return []
    name = session.scope.hop_profile
    key = f"takes-both/{tokens}/{session.plan_key(name)}"
    return [Task(key, f"takes from a store of 100 MB/s, {tokens} tokens", lambda: _takes(session))]


def takes(session: Session) -> list[JSON]:
    """Bytes and seconds by profile, to the attached cache and to the first token; their ratios."""
    return session.found(take_tasks(session))


def _takes(session: Session) -> JSON:
    scope, engine = session.scope, session.engine
    text = session.texts(scope.take_tokens)[0]
    ids = text_ids(engine, text, scope.take_tokens)
    cache = engine.new_cache(len(ids))
    engine.forward(cache, ids)
    names = ("exact", scope.hop_profile)
    lines = {name: ThrottledStore(MemoryStore(), LINE_BYTES_PER_S) for name in names}
    batons, sizes = {}, {}
    for name, line in lines.items():
        relay = session.relay(name, store=line.inner)
        batons[name] = relay.hand_off(
            Source(cache, len(ids), ids),
            sender="bench",
            text="",
            packing=Packing(session.plan(name)),
        )
        sizes[name] = sum(ref.size_bytes for ref in batons[name].manifest.segments)

    def take(name: str) -> Any:
        relay = session.relay(name, store=lines[name])
        taken = relay.take(
            batons[name],
            prompt_tokens=len(ids) + 1,
            reusable=len(ids),
            room=scope.positions,
            deadline_s=_DEADLINE_S,
        )
        if taken.cache is None:
            raise refused(taken.reasons[0])
        return taken.cache

    def answer(name: str) -> None:
        engine.forward(take(name), ids[-1:])

    seconds = alternated({name: partial(take, name) for name in names}, scope.repeats)
    answers = alternated({name: partial(answer, name) for name in names}, scope.repeats)
    lossy = scope.hop_profile
    return {
        "tokens": scope.take_tokens,
        "dtype": engine.layout.dtype,
        "bytes_per_s": LINE_BYTES_PER_S,
        "bytes": sizes,
        "seconds": seconds,
        "first_token_s": answers,
        "ratio": seconds["exact"] / seconds[lossy],
        "first_token_ratio": answers["exact"] / answers[lossy],
    }


def alternated(works: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The shortest time of each work, in seconds; they take turns, after one run to warm up."""
    for work in works.values():
        work()
    best = dict.fromkeys(works, float("inf"))
    for _ in range(repeats):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


# --- shift and repair, and the end of a turn ------------------------------------------------------


def cost_tasks(session: Session) -> list[Task]:
    """The cost of a slice, and of a hand-off behind the last token."""
    scope = session.scope
    fits = len(session.texts(scope.slice_tokens)) > 0
    name = session.plan_key(scope.hop_profile)
    repair = f"{DEFAULT_CHOOSER}-{DEFAULT_FRACTION:g}"
    slices = Task(
        f"costs/slice/{scope.slice_tokens}/{repair}",
        "the cost of shift and repair",
        lambda: _slice_costs(session),
    )
    ends = [
        Task(f"costs/hand-off/{plan}", f"the cost of a hand-off, {kind}", _end(session, kind))
        for kind, plan in (("exact", "exact"), (scope.hop_profile, name))
    ]
    return [slices, *ends] if fits else ends


def costs(session: Session) -> list[JSON]:
    """Shares: ``slice`` of the prefill that it replaces, ``hand-off`` of one segment's way."""
    return session.found(cost_tasks(session))


def _slice_costs(session: Session) -> JSON:
    texts = session.texts(session.scope.slice_tokens)
    case = Case(session, texts[0], texts[-1], texts[len(texts) // 2])
    repair = Repair()
    best = {"align": float("inf"), "repair": float("inf"), "prefill": float("inf")}
    for _ in range(session.scope.repeats):
        seconds = case.hung(repair=repair).seconds
        start = time.perf_counter()
        case.own.with_text(case.document, 0)
        seconds = {**seconds, "prefill": time.perf_counter() - start}
        best = {name: min(known, seconds.get(name, 0.0)) for name, known in best.items()}
    return {
        "what": "slice",
        "dtype": session.engine.layout.dtype,
        "tokens": session.scope.slice_tokens,
        "chooser": DEFAULT_CHOOSER,
        "fraction": DEFAULT_FRACTION,
        "shift_s": best["align"],
        "repair_s": best["repair"],
        "prefill_s": best["prefill"],
        "share": (best["align"] + best["repair"]) / best["prefill"],
    }


def _end(session: Session, name: str) -> Callable[[], JSON]:
    return lambda: _hand_off_costs(session, name)


def _hand_off_costs(session: Session, name: str) -> JSON:
    """What is left to do behind the last token, against one segment's encode, seal and put."""
    engine, best = session.engine, {"hand_off": float("inf"), "segment": float("inf")}
    for number in range(session.scope.repeats):
        relay = session.relay(name)
        agent = Agent("bench", engine, relay, stream=True)
        tokens = 2 * relay.segment_tokens - _SAID // 2
        turn = agent.run(_prompt(session, tokens + number), max_new_tokens=_SAID)
        _wait_for_stored(turn)
        start = time.perf_counter()
        agent.hand_off(turn)
        best["hand_off"] = min(best["hand_off"], time.perf_counter() - start)
        best["segment"] = min(best["segment"], _segment_s(session, name, turn))
    return {
        "what": "hand-off",
        "profile": name,
        "dtype": engine.layout.dtype,
        "hand_off_s": best["hand_off"],
        "segment_s": best["segment"],
        "share": best["hand_off"] / best["segment"],
    }


def _prompt(session: Session, tokens: int) -> str:
    """Some text of about so many tokens, a different one for each number."""
    text = session.texts(tokens)[0]
    ids = text_ids(session.engine, text, tokens)
    return session.engine.chat.text_of(ids)


def _wait_for_stored(turn: Any) -> None:
    """Let the segments that became full while the turn was decoded be stored."""
    turn.conversation.stored()


def _segment_s(session: Session, name: str, turn: Any) -> float:
    relay = session.relay(name)
    conversation = turn.conversation
    span = SegmentSpan(0, min(relay.segment_tokens, turn.cached))
    start = time.perf_counter()
    list(relay.shipper.ship(conversation.cache, conversation.ids, [span], Clock()))
    return time.perf_counter() - start
