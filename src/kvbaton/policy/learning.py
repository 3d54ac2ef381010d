"""Learning on line: every receipt says a little of how fast host and store are now.

What is kept of each phase are its last ratios of seconds that came to seconds that were measured;
their median corrects the measurement.  One odd turn moves nothing, a lasting change is followed
after a few turns, and no correction leaves its bounds.  What changes from minute to minute, the
load of the host, is the median of the last turns and is forgotten soon.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from threading import Lock
from typing import Any

from kvbaton.errors import Fault
from kvbaton.policy.observed import Observed, observed
from kvbaton.policy.output_length import OutputLengths
from kvbaton.policy.speeds import MAX_NAMED, Knot, Speeds, Spread, StoreSpeed, rising, store_name
from kvbaton.types import JSON
from kvbaton.wire.fields import read_list, refuse

WINDOW = 9
"""Ratios that are kept of each phase."""
SPREAD_WINDOW = 25
"""Ratios of whole takes that are kept, for intervals."""
MOST = 32.0
"""The largest correction, and one over the smallest."""
LOAD_TURNS, LOAD_S = 5, 300.0
"""Turns, and seconds, by which the load of the host is judged."""

_PRIOR = (1.0, 1.0)
"""What was measured counts as two turns that came as expected."""
_FEW, _ENOUGH = 3, 8
_LARGEST = 1e12
_TOTALS = ("total/text", "total/cache")
_RATE = "rate/"


@dataclass(frozen=True, slots=True)
class Learnt:
    """Last ratios by phase, oldest first; ``rate/STORE`` are seconds per byte of a store that was
    not measured, and ``total/ROUTE`` are those of whole predictions."""

    ratios: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def factor(self, phase: str) -> float:
        """By how much a phase is slower than it was measured to be, within bounds."""
        return _bounded(median((*_PRIOR, *self.ratios.get(phase, ()))))

    def with_ratios(self, found: Mapping[str, float]) -> Learnt:
        """The same with one more ratio of each phase; those that are no positive numbers are left
        out, as are new phases beyond a bound."""
        ratios = dict(self.ratios)
        for phase, ratio in found.items():
            known = phase in ratios or len(ratios) < MAX_NAMED
            if known and 0 < ratio <= _LARGEST:
                kept = SPREAD_WINDOW if phase in _TOTALS else WINDOW
                ratios[phase] = (*ratios.get(phase, ()), ratio)[-kept:]
        return Learnt(ratios)

    def to_json(self) -> JSON:
        """An object of lists."""
        return {phase: list(ratios) for phase, ratios in sorted(self.ratios.items())}

    @classmethod
    def from_json(cls, value: Any, at: str = "$") -> Learnt:
        """Read what ``to_json`` wrote; raises ``FormatError``."""
        if type(value) is not dict:
            raise refuse("not an object", Fault.WRONG_TYPE, at)
        if len(value) > MAX_NAMED:
            raise refuse("too many phases", Fault.OUT_OF_RANGE, at)
        found = {}
        for phase, ratios in value.items():
            place = f"{at}.{phase[:80]}"
            for one in read_list(ratios, place, at_most=SPREAD_WINDOW):
                if type(one) not in {int, float}:
                    raise refuse("not a number", Fault.WRONG_TYPE, place)
                if not 0 < one <= _LARGEST:
                    raise refuse("not positive and finite", Fault.OUT_OF_RANGE, place)
            found[phase] = tuple(map(float, ratios))
        return cls(found)


def corrected(speeds: Speeds, learnt: Learnt) -> Speeds:
    """Speeds as they are now: what was measured, by what was learnt since."""
    factor = learnt.factor
    stores = {name: one.times(factor(f"get/{name}")) for name, one in speeds.stores.items()}
    for phase, rates in learnt.ratios.items():
        name = phase.removeprefix(_RATE)
        if phase.startswith(_RATE) and len(rates) >= _FEW and name not in stores:
            per_s = 1 / median(rates)
            stores[name] = StoreSpeed(0.0, 0.0, per_s, per_s)
    return replace(
        speeds,
        prefill=_prefill(speeds, learnt),
        past_s=speeds.past_s * factor("forward"),
        pair_s=speeds.pair_s * factor("forward"),
        overhead=speeds.overhead.times(factor("overhead")),
        verify=speeds.verify.times(factor("verify")),
        probe=speeds.probe.times(factor("probe")),
        attach=speeds.attach.times(factor("attach")),
        codecs={
            name: replace(one, decode=one.decode.times(factor(f"decode/{name}")))
            for name, one in speeds.codecs.items()
        },
        stores=stores,
        text_spread=_spread(learnt, "total/text", speeds.text_spread),
        cache_spread=_spread(learnt, "total/cache", speeds.cache_spread),
    )


def _prefill(speeds: Speeds, learnt: Learnt) -> tuple[Knot, ...]:
    """Each length by its own turns where there are a few, else by those of all lengths."""
    knots = []
    for knot in speeds.prefill:
        own = f"prefill/{knot.tokens}"
        phase = own if len(learnt.ratios.get(own, ())) >= _FEW else "prefill"
        knots.append(Knot(knot.tokens, knot.seconds * learnt.factor(phase)))
    return rising(knots)


def _spread(learnt: Learnt, total: str, measured: Spread) -> Spread:
    """Eight of ten of the last predictions lie within it."""
    ratios = sorted(learnt.ratios.get(total, ()))
    if len(ratios) < _ENOUGH:
        return measured
    cut = len(ratios) // 10
    low, high = ratios[cut], ratios[-1 - cut]
    return Spread(_bounded(min(1.0, low)), _bounded(max(1.0, high)))


def _bounded(ratio: float) -> float:
    return min(max(ratio, 1 / MOST), MOST)


def learn(learnt: Learnt, speeds: Speeds, receipt: Mapping[str, Any], *, store: str = "") -> Learnt:
    """What is known after one more receipt; the same where it says nothing.

    Parameters
    ----------
    speeds
        As they were measured, not corrected.
    receipt
        A receipt's JSON object; anything else is passed over.
    store
        URL of the store that the baton lay in.
    """
    found = observed(speeds, receipt, store)
    return learnt if found is None else _entered(learnt, speeds, found, store)


def _entered(learnt: Learnt, speeds: Speeds, found: Observed, store: str) -> Learnt:
    ratios = dict(found.phases)
    if found.seconds_per_byte and store:
        ratios[_RATE + store_name(store)] = found.seconds_per_byte
    return learnt.with_ratios(ratios)


class Learner:
    """Speeds of one function on this host, kept up to date by receipts.  Safe between threads.

    Parameters
    ----------
    measured
        What calibration has measured.
    learnt, lengths
        What was learnt since, of speeds and of how long answers are.
    clock
        Seconds that only go forward.
    """

    def __init__(
        self,
        measured: Speeds,
        learnt: Learnt | None = None,
        lengths: OutputLengths | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.measured = measured
        self._learnt, self._lengths = learnt or Learnt(), lengths or OutputLengths()
        self._now = corrected(measured, self._learnt)
        self._turns: deque[tuple[float, Mapping[str, Any], str]] = deque(maxlen=LOAD_TURNS)
        self._slowness: tuple[tuple[float, float], ...] = ()
        self._clock, self._lock = clock, Lock()

    @property
    def speeds(self) -> Speeds:
        """Speeds as they are now, for ``predictions_for``."""
        return self._now

    @property
    def learnt(self) -> Learnt:
        """What was learnt so far, to be kept."""
        return self._learnt

    @property
    def lengths(self) -> OutputLengths:
        """How long answers are, from how long their inputs were."""
        return self._lengths

    @property
    def load(self) -> float:
        """How many times as slow the host is now as its speeds say; 1 where nobody knows."""
        since = self._clock() - LOAD_S
        recent = [ratio for at, ratio in self._slowness if at >= since]
        return _bounded(median(recent)) if len(recent) >= _FEW else 1.0

    def seen(self, receipt: Mapping[str, Any], *, store: str = "") -> bool:
        """Learn from a receipt's JSON object; whether it said anything of speeds.  Never raises.

        Parameters
        ----------
        store
            URL of the store that the baton lay in; empty for a turn without one.
        """
        found = observed(self.measured, receipt, store)
        with self._lock:
            self._lengths = self._lengths.seen(receipt)
            if found is None:
                return False
            total = self._total(receipt, store)
            learnt = _entered(self._learnt, self.measured, found, store)
            self._learnt = learnt.with_ratios(total)
            self._now = corrected(self.measured, self._learnt)
            self._turns.append((self._clock(), receipt, store))
            self._slowness = tuple(self._slow_turns())
        return True

    def _slow_turns(self) -> Iterator[tuple[float, float]]:
        """When the last turns were, and how slow beyond what was learnt since of their phases."""
        for at, receipt, store in self._turns:
            found = observed(self._now, receipt, store)
            if found is not None and found.host > 0:
                yield at, found.host

    def _total(self, receipt: Mapping[str, Any], store: str) -> dict[str, float]:
        """What came true over what would have been predicted just before it came."""
        found = observed(self._now, receipt, store)
        if found is None or not found.ttft_s:
            return {}
        predicted_s = found.get_s + self.load * found.host_s
        return {f"total/{found.route}": found.ttft_s / predicted_s} if predicted_s > 0 else {}
