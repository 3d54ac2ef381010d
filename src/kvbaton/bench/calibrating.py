"""Calibration: real takes by every route at a few lengths, in under a minute.

What is timed are takes of an agent, not instruments of their own: the phases in their receipts are
what later takes will cost.  The rounds go through all lengths and profiles in turn, so that
whatever else the machine does hits all of them alike; medians count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kvbaton.agent import Agent
from kvbaton.bench.quiet import Quiet
from kvbaton.bench.speed_samples import Samples, speeds_from
from kvbaton.bench.store_speed import measure_store
from kvbaton.bench.texts import fitted, real_texts
from kvbaton.codecs.plan import CodecPlan
from kvbaton.errors import InputError, Unsupported
from kvbaton.policy.speeds import EXACT_CODEC, Speeds, store_name
from kvbaton.relay import Checks, Relay
from kvbaton.seals import TrustDomain
from kvbaton.stores import MemoryStore, Store
from kvbaton.types import Baton, Receipt, Route, TokenRun
from kvbaton.warming import chains_of, warm_soon
from kvbaton.wire.digests import DomainKeys

TEXT_TOKENS = (96, 192, 384, 768, 1536, 2560)
TAKE_TOKENS = (192, 768, 1536)
FEW_TOKENS = (4, 16, 32, 64)
"""Tokens of short passes from nothing, which is what a receiver adds behind a cache."""
ROUNDS, BUDGET_S, PATIENCE_S = 7, 48.0, 12.0

_DEADLINE_S = 3600.0
_INSTRUCTION = "Say in one sentence what the text above is about."
_LONG = " ".join([_INSTRUCTION] * 8)
_ANSWER = 6
"""Tokens of an answer, beyond the first, that are timed."""
_SHARES = (0.05, 0.15)
"""Shares of a cache that are computed again to find what that costs."""
_ROOM_TOKENS = 256
"""Left for the instruction and the template."""

DOMAIN = TrustDomain("calibration", DomainKeys(bytes(range(32))))
"""Of what is handed off here: it is taken once more, and forgotten."""

RelayOf = Callable[[str, Store], Relay]
"""Name of a profile and a store -> a relay that encodes by the profile."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CalibrationPlan:
    """What is measured.

    Parameters
    ----------
    profiles
        Codec profiles, ``exact`` among them.
    text_tokens, take_tokens
        Lengths of contexts that are read as text, and of those taken by cache; lengths beyond
        the model's window are left out.
    rounds
        Timed rounds through all of them, fewer where the budget ends before.
    budget_s
        Seconds after which no further round begins; two are made whatever they take.
    patience_s
        Seconds of them that may go into waiting until other processes are done, and into takes
        that they have disturbed.

    Raises
    ------
    InputError
        There is nothing to measure.
    """

    profiles: tuple[str, ...] = (EXACT_CODEC,)
    text_tokens: tuple[int, ...] = TEXT_TOKENS
    take_tokens: tuple[int, ...] = TAKE_TOKENS
    rounds: int = ROUNDS
    budget_s: float = BUDGET_S
    patience_s: float = PATIENCE_S

    def __post_init__(self) -> None:
        if EXACT_CODEC not in self.profiles:
            raise InputError("the profile exact is always measured", at="$.profiles")
        if not self.text_tokens or not self.take_tokens or self.rounds < 2:
            raise InputError("there is nothing to measure: give lengths, and two rounds or more")
        if min(*self.text_tokens, *self.take_tokens) < 16:
            raise InputError("contexts have 16 tokens or more", at="$.text_tokens")


def calibrate(
    engine: Any, store: Store, relay_of: RelayOf, plan: CalibrationPlan, say: Say
) -> Speeds:
    """Measure every route on this machine, and one store.

    Parameters
    ----------
    engine
        The receiver's model: a transformers engine.
    store
        The store whose speed is measured; a few megabytes are put there and removed again.
    relay_of
        Makes the relays; the takes themselves go through memory.
    say
        Is told what is being measured.

    Raises
    ------
    StoreError
        The store cannot be written or read.
    WindowExceeded
        The model's window is too short for any of the lengths.
    """
    say("the store")
    speed = measure_store(store)
    bench = _Bench(engine, relay_of, plan, say)
    samples = bench.run()
    measured = speeds_from(engine, samples, bench.memory_speed, bench.token_bytes())
    return replace(measured, stores={store_name(store.url): speed})


class _Bench:
    """Contexts that were handed off once, and are taken again and again."""

    def __init__(self, engine: Any, relay_of: RelayOf, plan: CalibrationPlan, say: Say) -> None:
        self._engine, self._plan, self._say = engine, plan, say
        self._began = time.perf_counter()
        self._store = MemoryStore()
        self.memory_speed = measure_store(self._store, patience_s=0.1)
        self._relays = {name: relay_of(name, self._store) for name in plan.profiles}
        self._samples, self._quiet = Samples(), Quiet(plan.patience_s)
        self._batons: dict[tuple[str, int], Baton] = {}
        self._receiver = Agent(
            "calibration", engine, self._relays[EXACT_CODEC], stream=False, deadline_s=_DEADLINE_S
        )

    def run(self) -> Samples:
        """All rounds, once everything has been touched."""
        self._compile()
        self._began = time.perf_counter()
        self._prepare()
        self._say("warming up")
        self._take(self._longest, _INSTRUCTION)
        for number in range(1, self._plan.rounds + 1):
            started = time.perf_counter()
            self._say(f"round {number} of {self._plan.rounds}")
            self._round(every=number % 2 == 1)
            now = time.perf_counter()
            if number >= 2 and (now - self._began) + (now - started) > self._plan.budget_s:
                break
        return self._samples

    @property
    def _longest(self) -> Baton:
        """The longest context, exactly as it was computed."""
        return self._batons[EXACT_CODEC, max(tokens for _, tokens in self._batons)]

    def token_bytes(self) -> dict[str, float]:
        """Stored bytes per token, by profile, of the longest context."""
        found = {}
        for (name, _), baton in sorted(self._batons.items(), key=lambda one: one[0][1]):
            size = sum(ref.size_bytes for ref in baton.manifest.segments)
            found[name] = size / baton.manifest.cached_tokens
        return found

    def _compile(self) -> None:
        """Have all kernels ready, and everything touched once, before anything is timed."""
        turn = self._agent(EXACT_CODEC).prefill(_INSTRUCTION)
        for name, relay in self._relays.items():
            if not relay.plan.lossless:
                self._say(f"compiling {name}, once on this machine")
                thread = warm_soon(chains_of(relay.plan), self._engine.layout.dtype)
                if thread is not None:
                    thread.join()
            self._take(self._agent(name).hand_off(turn, plan=relay.plan), _INSTRUCTION)

    def _agent(self, profile: str) -> Agent:
        relay = self._relays[profile]
        return Agent("calibration", self._engine, relay, stream=False, deadline_s=_DEADLINE_S)

    def _prepare(self) -> None:
        """Hand every context off, shortest first, until a part of the budget is used up."""
        text = "\n\n".join(one.text for one in real_texts())
        taken = self._fitting(self._plan.take_tokens)
        for tokens in sorted({*self._fitting(self._plan.text_tokens), *taken}):
            spent_s = time.perf_counter() - self._began
            if len(self._batons) > len(self._relays) and spent_s > self._plan.budget_s / 6:
                break
            self._say(f"a context of {tokens} tokens")
            turn = self._agent(EXACT_CODEC).prefill(fitted(text, tokens, self._count))
            for name in self._relays if tokens in taken else (EXACT_CODEC,):
                baton = self._agent(name).hand_off(turn, plan=self._relays[name].plan)
                self._batons[name, tokens] = baton
                points = self._samples.encode.setdefault(name, [])
                points.append((baton.manifest.cached_tokens, baton.seconds.get("encode", 0.0)))

    def _fitting(self, lengths: Sequence[int]) -> list[int]:
        """Lengths that the window holds with an instruction; the shortest is tried anyway."""
        limit = self._engine.max_tokens - _ROOM_TOKENS
        return [one for one in sorted(lengths) if one <= limit] or [min(lengths)]

    def _count(self, text: str) -> int:
        return len(self._engine.chat.render([{"role": "user", "content": text}]).ids)

    def _round(self, *, every: bool) -> None:
        """One take of everything, and short passes from nothing; the longest context is not read
        in every round, for that takes as long as all the rest."""
        samples, whole = self._samples, self._longest
        longest = max(tokens for _, tokens in self._batons)
        for (name, tokens), baton in self._batons.items():
            read = tokens in self._plan.text_tokens and (every or tokens < longest)
            if name == EXACT_CODEC and read:
                samples.text.append(self._take(baton, _INSTRUCTION, route=Route.TEXT))
            if tokens in self._plan.take_tokens:
                samples.cache.append((name, baton, self._take(baton, _INSTRUCTION)))
        if whole.manifest.cached_tokens + self._count(_LONG) < self._engine.max_tokens:
            samples.cache.append((EXACT_CODEC, whole, self._take(whole, _LONG)))
        self._answer()
        self._passes(whole)

    def _take(self, baton: Baton, instruction: str, **options: Any) -> Receipt:
        """A take by reference, as a receiver elsewhere would do it."""
        options = {"max_new_tokens": 1, "ignore_eos": True} | options

        def take() -> Receipt:
            self._receiver.forget()
            return self._receiver.take(baton.ref, instruction, **options).receipt

        receipt = self._quiet.run(take)
        self._receiver.forget()
        return receipt

    def _answer(self) -> None:
        """What a token of an answer takes."""
        shortest = self._batons[min(self._batons, key=lambda one: (one[1], one[0] != EXACT_CODEC))]
        seconds = self._take(shortest, _INSTRUCTION, max_new_tokens=_ANSWER + 1).seconds
        self._samples.token_s.append((seconds["total"] - seconds["ttft"]) / _ANSWER)

    def _passes(self, baton: Baton) -> None:
        """Short passes from nothing; keys that are turned, and rows that are computed again."""
        ids = baton.transcript.ids
        for count in (one for one in FEW_TOKENS if one < len(ids)):
            self._samples.few.append((count, self._quiet.run(partial(self._pass, ids[:count]))))
        self._slices(baton)

    def _pass(self, ids: Sequence[int]) -> float:
        """Seconds of a pass over a few tokens from nothing."""
        engine = self._engine
        cache = engine.new_cache(len(ids) + 1)
        started = time.perf_counter()
        engine.forward(cache, ids)
        engine.wait_for_device()
        return time.perf_counter() - started

    def _slices(self, baton: Baton) -> None:
        """What slices cost besides, on models whose caches can be moved."""
        relay, engine = self._relays[EXACT_CODEC], self._engine
        cached = baton.manifest.cached_tokens
        if relay.slice_refusal(baton, cached + 1):
            return
        runs = [TokenRun(1, cached - 1)]
        taken = relay.hang(baton, runs, at=0, prompt_tokens=cached + 1, deadline_s=_DEADLINE_S)
        if taken.cache is None:
            return
        self._samples.align.append((taken.reused, taken.seconds.get("align", 0.0)))
        for rows in (range(1, 1 + max(1, round(share * taken.reused))) for share in _SHARES):
            started = time.perf_counter()
            try:
                engine.recompute(taken.cache, baton.transcript.ids[1:cached], rows)
            except Unsupported:
                return
            engine.wait_for_device()
            self._samples.again.append((len(rows), time.perf_counter() - started))


def plain_relays(
    engine: Any,
    plan_of: Callable[[str], CodecPlan | None],
    calibrations: Callable[[str], frozenset[str]],
    checks: Checks,
) -> RelayOf:
    """Relays of a domain of their own, on which nothing decides but the gates.

    Parameters
    ----------
    plan_of
        The codec plan of a profile; None for ``exact``.
    calibrations, checks
        As for ``Relay``.
    """

    def relay_of(profile: str, store: Store) -> Relay:
        return Relay(
            engine, store, DOMAIN, plan=plan_of(profile), calibrations=calibrations,
            max_lossy_hops=None, checks=checks,
        )  # fmt: skip

    return relay_of
