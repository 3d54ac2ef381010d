"""``bench policy``: whether the policy picks the route that turns out to be fastest.

The speeds come from a calibration at other lengths, and that of each store from an object that is
put there and removed.  Then every point of the grid, a length, a profile and a bandwidth, is taken
from a store that is really that slow, and by text; the policy has chosen before.  The bandwidths of
a length lie around its own break-even, which is measured coarsely.
"""

from __future__ import annotations

import gc
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from kvbaton.agent import Agent
from kvbaton.bench.calibrating import CalibrationPlan, RelayOf, calibrate
from kvbaton.bench.fidelity.throttle import ThrottledStore
from kvbaton.bench.machine import environment, fast_folder, library_versions, load
from kvbaton.bench.quiet import Quiet
from kvbaton.bench.store_speed import measure_store
from kvbaton.bench.texts import fitted, real_texts
from kvbaton.bench.ttft import turned
from kvbaton.errors import InputError
from kvbaton.policy.base import Question, make_policy
from kvbaton.policy.costs import predictions_for
from kvbaton.policy.gates import TakeContext
from kvbaton.policy.learning import Learner
from kvbaton.policy.routes import TEXT, route_name
from kvbaton.policy.speeds import EXACT_CODEC, Speeds, store_name
from kvbaton.stores import Store, open_store
from kvbaton.types import JSON, Baton, Receipt, Route

TOKENS = (128, 256, 512, 1024, 2048)
MULTIPLES = (0.33, 0.45, 0.65, 1.05, 1.6, 3.0, 8.0, 30.0)
"""Bandwidths of a length and profile, in multiples of the break-even: three of eight are near."""
REPEATS, STORE_PATIENCE_S = 3, 0.15
PATIENCE_S = 240.0
AS_GOOD, NEAR = 0.05, 2.0
"""Share by which a right choice may be slower, and how near to break-even a bandwidth is near."""

_INSTRUCTION = "Say in one sentence what the text above is about."
_DEADLINE_S = 3600.0
_ROOM_BYTES = 2 << 30
_COARSE = 3
"""Takes by each route from which break-even is measured, coarsely."""
_LEAST_SHARE = 0.1
"""Of the time by text, left for the line where the cache alone takes about as long."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PolicyBench:
    """What to measure.

    Parameters
    ----------
    profiles
        Codec profiles, ``exact`` among them.
    tokens
        Lengths of contexts.
    multiples
        Bandwidths, in multiples of the break-even of each length and profile.
    repeats
        Timed takes at each point; medians count.
    calibration
        The calibration; it uses none of the lengths.
    patience_s
        Seconds that may go into waiting until other processes are done, and into takes that they
        have disturbed.

    Raises
    ------
    InputError
        There is nothing to measure, or calibration uses a length of the grid.
    """

    profiles: tuple[str, ...]
    tokens: tuple[int, ...] = TOKENS
    multiples: tuple[float, ...] = MULTIPLES
    repeats: int = REPEATS
    calibration: CalibrationPlan | None = None
    patience_s: float = PATIENCE_S

    def __post_init__(self) -> None:
        if not (self.tokens and self.multiples and self.profiles) or self.repeats < 1:
            raise InputError("there is nothing to measure: give lengths, bandwidths and profiles")
        if min(self.tokens) < 1 or min(self.multiples) <= 0:
            raise InputError("lengths and bandwidths are positive")
        used = self.calibrated.text_tokens + self.calibrated.take_tokens
        if set(used) & set(self.tokens):
            raise InputError("calibration and grid have a length in common", at="$.tokens")

    @property
    def calibrated(self) -> CalibrationPlan:
        """The calibration."""
        return self.calibration or CalibrationPlan(self.profiles)


@dataclass(frozen=True, slots=True)
class _Point:
    """One point of the grid: what was chosen, and what is predicted of text and of the cache."""

    tokens: int
    profile: str
    line: ThrottledStore
    chosen: str
    text_s: float
    cache_s: float


def measure_policy(engine: Any, relay_of: RelayOf, plan: PolicyBench, say: Say) -> JSON:
    """Run the plan; ``say`` is told what is being measured.

    Returns
    -------
    JSON
        ``{"model", "rows": [{"tokens", "profile", "bandwidth_mb_s", "chosen", "fastest",
        "predicted_s", "actual_s", "predicted_text_s", "predicted_cache_s", "text_s", "cache_s",
        "regret", "right"}], "best_choice_share", "mean_regret", "near_share", "always_text",
        "always_cache", "prediction_error", "environment", "settings"}``.  ``predicted_s`` and
        ``actual_s`` are of the chosen route; ``regret`` is its time over that of the fastest, less
        one; ``always_text`` and ``always_cache`` are the mean regret of who never chooses.

    Raises
    ------
    WindowExceeded
        A context that the model cannot attend to.
    """
    machine = environment()
    folder = fast_folder(_ROOM_BYTES)
    with tempfile.TemporaryDirectory(prefix="kvbaton-bench-", dir=folder) as place:
        store = open_store(f"dir://{Path(place) / 'store'}")
        speeds = calibrate(engine, store, relay_of, plan.calibrated, say)
        grid = _Grid(engine, relay_of, plan, store, speeds)
        rows = list(grid.rows(say))
        store.close()
    return {
        "model": engine.name,
        "rows": rows,
        **summary_of(rows),
        "environment": machine | {"load_after": load(), **library_versions()},
        "settings": {
            "repeats": plan.repeats,
            "takes": grid.quiet.runs,
            "disturbed": grid.quiet.disturbed,
            "shared_memory": folder != Path(tempfile.gettempdir()),
        },
    }


def summary_of(rows: Sequence[JSON]) -> JSON:
    """Shares and means over all points."""
    best = [min(row["text_s"], row["cache_s"]) for row in rows]
    return {
        "best_choice_share": fmean(row["right"] for row in rows),
        "mean_regret": fmean(row["regret"] for row in rows),
        "near_share": fmean(row["near"] for row in rows),
        "always_text": fmean(r["text_s"] / b - 1 for r, b in zip(rows, best, strict=True)),
        "always_cache": fmean(r["cache_s"] / b - 1 for r, b in zip(rows, best, strict=True)),
        "prediction_error": median(abs(row["predicted_s"] / row["actual_s"] - 1) for row in rows),
    }


class _Grid:
    """Takes every point of the grid, length by length.

    Parameters
    ----------
    store
        Where the batons lie; every bandwidth is a slow line to it.
    speeds
        What calibration has measured.
    """

    def __init__(
        self, engine: Any, relay_of: RelayOf, plan: PolicyBench, store: Store, speeds: Speeds
    ) -> None:
        self._engine, self._relay_of, self._plan = engine, relay_of, plan
        self._store, self._policy, self._learner = store, make_policy(), Learner(speeds)
        self.quiet = Quiet(plan.patience_s)
        self._text = "\n\n".join(one.text for one in real_texts())

    def rows(self, say: Say) -> Iterator[JSON]:
        """One row per point."""
        aside = [
            baton
            for tokens in sorted(self._plan.calibrated.take_tokens)[:2]
            for baton in self._handed_off(tokens, (EXACT_CODEC,)).values()
        ]
        for tokens in self._plan.tokens:
            say(f"{tokens} tokens")
            batons = self._handed_off(tokens, self._plan.profiles)
            whole = batons[EXACT_CODEC]
            text = [self._ttft(whole, self._store, route=Route.TEXT) for _ in range(_COARSE)]
            caches = {}
            for profile, baton in batons.items():
                say(f"{tokens} tokens, {profile}")
                self._look_around(aside)
                lines = self._lines(baton, median(text))
                points = [self._point(profile, baton, line) for line in lines]
                caches[profile] = points, self._timed(baton, points, text)
            for profile, (points, times) in caches.items():
                yield from _rows(points, times, median(text), batons[profile])

    def _agent(self, profile: str, store: Store) -> Agent:
        relay = self._relay_of(profile, store)
        return Agent("bench", self._engine, relay, stream=False, deadline_s=_DEADLINE_S)

    def _handed_off(self, tokens: int, profiles: Sequence[str]) -> dict[str, Baton]:
        """Batons of one context, by profile."""
        turn = self._agent(EXACT_CODEC, self._store).prefill(
            fitted(self._text, tokens, self._count)
        )
        agents = {profile: self._agent(profile, self._store) for profile in profiles}
        return {
            profile: agent.hand_off(turn, plan=agent.relay.plan)
            for profile, agent in agents.items()
        }

    def _count(self, text: str) -> int:
        return len(self._engine.chat.render([{"role": "user", "content": text}]).ids)

    def _take(self, baton: Baton, store: Store, **options: Any) -> Receipt:
        """A take by reference, whose receipt has its time to the first token."""
        options = {"max_new_tokens": 1, "ignore_eos": True, "strict": not options} | options
        agent = self._agent(EXACT_CODEC, store)
        return self.quiet.run(lambda: agent.take(baton.ref, _INSTRUCTION, **options).receipt)

    def _ttft(self, baton: Baton, store: Store, **options: Any) -> float:
        return self._take(baton, store, **options).seconds["ttft"]

    def _look_around(self, aside: Sequence[Baton]) -> None:
        """A few turns of lengths that are not in the grid: they say how busy the host is now."""
        for baton in aside:
            for options in ({}, {"route": Route.TEXT}):
                receipt = self._take(baton, self._store, **options)
                self._learner.seen(receipt.to_json(), store=self._store.url)

    def _lines(self, baton: Baton, text_s: float) -> list[ThrottledStore]:
        """Slow lines around a coarsely measured break-even."""
        gc.collect()
        left_s = text_s - median(self._ttft(baton, self._store) for _ in range(_COARSE))
        even = _size(baton) / max(left_s, _LEAST_SHARE * text_s)
        return [ThrottledStore(self._store, even * one) for one in self._plan.multiples]

    def _point(self, profile: str, baton: Baton, line: ThrottledStore) -> _Point:
        """Choose, before anything is taken over a line."""
        speed = measure_store(line, patience_s=STORE_PATIENCE_S)
        speeds = replace(self._learner.speeds, stores={store_name(line.url): speed})
        context = self._context(baton)
        predictions = predictions_for(
            speeds, baton.manifest, context, store=line.url, load=self._learner.load
        )
        asked = Question(baton.manifest, replace(context, predictions=predictions))
        by_route = {one.route: one.ttft_s for one in predictions}
        route = route_name(baton.manifest)
        return _Point(
            baton.manifest.cached_tokens,
            profile,
            line,
            self._policy.decide(asked).chosen,
            by_route[TEXT],
            by_route[route],
        )

    def _context(self, baton: Baton) -> TakeContext:
        """What the receiver knows: its prompt is the baton's, and an instruction."""
        engine, ids = self._engine, baton.transcript.ids
        turn = engine.chat.handoff_turn(None, _INSTRUCTION)
        return TakeContext(
            function=engine.function,
            layout=engine.layout,
            max_tokens=engine.max_tokens,
            prompt_tokens=len(ids) + len(engine.chat.suffix(ids, turn).ids),
            reusable_tokens=baton.manifest.cached_tokens,
            room_tokens=1,
            free_memory_bytes=engine.free_memory_bytes(),
            max_lossy_hops=None,
            calibrations=frozenset(
                {ref.fidelity.calibration or "" for ref in baton.manifest.segments}
            ),
        )

    def _timed(
        self, baton: Baton, points: Sequence[_Point], text: list[float]
    ) -> list[list[float]]:
        """Seconds to the first token at each point; those of text are added to ``text``."""
        times: list[list[float]] = [[] for _ in points]
        for repeat in range(self._plan.repeats):
            text.append(self._ttft(baton, self._store, route=Route.TEXT))
            for index in turned(range(len(points)), repeat):
                times[index].append(self._ttft(baton, points[index].line))
        return times


def _size(baton: Baton) -> int:
    return sum(ref.size_bytes for ref in baton.manifest.segments)


def _rows(
    points: Sequence[_Point], times: Sequence[Sequence[float]], text_s: float, baton: Baton
) -> Iterator[JSON]:
    """Rows of one length and profile."""
    seconds = [median(one) for one in times]
    size = _size(baton)
    quick = max(range(len(points)), key=lambda index: points[index].line.bytes_per_s)
    own_s = seconds[quick] - size / points[quick].line.bytes_per_s
    even = size / (text_s - own_s) if text_s > own_s else math.inf
    for point, cache_s in zip(points, seconds, strict=True):
        by_text = point.chosen == TEXT
        actual_s, best_s = (text_s if by_text else cache_s), min(text_s, cache_s)
        name = route_name(baton.manifest)
        yield {
            "tokens": point.tokens,
            "profile": point.profile,
            "bandwidth_mb_s": point.line.bytes_per_s / 1e6,
            "chosen": point.chosen,
            "fastest": TEXT if text_s <= cache_s else name,
            "predicted_s": point.text_s if by_text else point.cache_s,
            "actual_s": actual_s,
            "predicted_text_s": point.text_s,
            "predicted_cache_s": point.cache_s,
            "text_s": text_s,
            "cache_s": cache_s,
            "regret": actual_s / best_s - 1,
            "right": actual_s <= (1 + AS_GOOD) * best_s,
            "near": 1 / NEAR <= point.line.bytes_per_s / even <= NEAR,
        }
