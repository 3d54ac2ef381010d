"""Break-even lengths from the ladder of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kvbaton.audit.analysis.blocks import number_in
from kvbaton.audit.analysis.result import BreakEven, BreakEvenPoint
from kvbaton.audit.analysis.runs import Run
from kvbaton.policy.break_even import BreakEven as Found
from kvbaton.policy.break_even import LadderPoint, break_even
from kvbaton.policy.profit import ProfitMap
from kvbaton.types import JSON

TEXT_ONLY = "T0"


Measured = Mapping[str, Mapping[str, Found]]
"""Pair -> treatment -> from which length on it is faster than text."""


def measured_break_evens(runs: Sequence[Run], *, seed: int) -> Measured:
    """Of every pair; empty without a ladder."""
    return {
        run.pair: {
            name: break_even(points, route=name, seed=seed)
            for name, points in ladders(run.records).items()
        }
        for run in runs
    }


def break_evens(measured: Measured) -> dict[str, BreakEven]:
    """Those of the first pair by treatment; of several pairs, also by ``TREATMENT @ PAIR``."""
    found: dict[str, BreakEven] = {}
    for pair, by_treatment in measured.items():
        for name, one in by_treatment.items():
            row = _as_json(one)
            found.setdefault(name, row)
            if len(measured) > 1:
                found[f"{name} @ {pair}"] = row
    return found


def profit_of(measured: Measured) -> ProfitMap:
    """Which route pays at which length; each pair is a stratum, where there are several."""
    return ProfitMap.of(
        {
            (pair if len(measured) > 1 else "", name): one
            for pair, by_treatment in measured.items()
            for name, one in by_treatment.items()
        }
    )


def ladders(records: Iterable[JSON]) -> dict[str, list[LadderPoint]]:
    """Treatment -> its times and those of text at each length that both were timed at."""
    times: dict[str, dict[int, list[float]]] = {}
    ladder = [record for record in records if record.get("kind") == "ladder"]
    for record in sorted(ladder, key=_place):
        seconds, tokens = number_in(record.get("ttft_s")), record.get("tokens")
        if seconds is not None and seconds > 0 and isinstance(tokens, int) and tokens > 0:
            by_length = times.setdefault(str(record["treatment"]), {})
            by_length.setdefault(tokens, []).append(seconds)
    text = times.pop(TEXT_ONLY, {})
    found = {
        name: [
            LadderPoint(tokens, tuple(text[tokens]), tuple(by_length[tokens]))
            for tokens in sorted(text.keys() & by_length.keys())
        ]
        for name, by_length in sorted(times.items())
    }
    return {name: points for name, points in found.items() if points}


def _as_json(found: Found) -> BreakEven:
    return BreakEven(
        tokens=found.tokens,
        ci=None if found.ci is None else list(found.ci),
        at_most=found.at_most,
        points=[
            BreakEvenPoint(tokens=p.tokens, ratio=p.ratio, ci=None if p.ci is None else list(p.ci))
            for p in found.points
        ],
        warnings=list(found.warnings),
        why=_why(found),
    )


def _why(found: Found) -> str:
    longest = found.points[-1].tokens
    if found.tokens is None:
        return f"It is not faster than text up to {longest} tokens."
    if found.at_most:
        return f"It is faster than text at every length from {found.tokens} to {longest} tokens."
    return f"It is faster than text from about {found.tokens} tokens on."


def _place(record: JSON) -> list[str]:
    return [str(record.get(name, "")) for name in ("treatment", "tokens", "repeat")]
