"""How seconds to the first token spread, by treatment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvbaton.audit.report.charts.canvas import (
    INK,
    PAPER,
    SERIES,
    SOFT,
    Chart,
    drawable,
    drawing,
    log_ticks,
    name_rows,
    plain_ticks,
    to_svg,
)
from kvbaton.audit.report.numbers import seconds_text
from kvbaton.audit.report.reading import Fields
from kvbaton.audit.report.tables import cells, given, table

DOTS = 48
"""At most so many of a treatment's trials are drawn, evenly over their order."""

_TOO_FEW = "too few trials for this percentile"
_PERCENTILES = ("p50", "p90", "p99")


@dataclass(frozen=True, slots=True)
class Spread:
    """A treatment's seconds: quartiles and dots where trials are known, and percentiles."""

    name: str
    seconds: tuple[float, ...]
    percentiles: tuple[float | None, ...]

    @property
    def drawn(self) -> tuple[float, ...]:
        """Everything that the chart must have room for."""
        return (*self.seconds, *(p for p in self.percentiles if p is not None and p > 0))


def spreads(result: Fields) -> list[Spread]:
    """Each treatment whose seconds are known."""
    samples = dict(result.items("samples"))
    found = []
    for name, treatment in result.items("treatments"):
        seconds = sorted(drawable(s) for s in samples.get(name, Fields(None)).numbers() if s > 0)
        percentiles = tuple(treatment.number("ttft_s", p) for p in _PERCENTILES)
        found.append(Spread(name, tuple(seconds), percentiles))
    return [spread for spread in found if spread.drawn]


def latency_chart(result: Fields) -> Chart | None:
    """A row per treatment: trials as dots, the middle half as a box, the median as a line."""
    found = spreads(result)
    if not found:
        return None
    name, title = "latency", "Seconds to the first token, by treatment"
    said = "; ".join(f"{s.name} {_middle(s)}" for s in found)
    description = f"Logarithmic axis. {said}."
    with drawing(name, height=0.95 + 0.34 * len(found)) as (figure, (axes,)):
        axes.set_xscale("log")
        for row, spread in enumerate(found):
            _row(axes, row, spread)
        name_rows(axes, [spread.name for spread in found])
        every = [s for spread in found for s in spread.drawn]
        low, high = min(every) / 1.2, max(every) * 1.2
        axes.set_xlim(low, high)
        ticks = log_ticks(low, high)
        plain_ticks(axes.xaxis, ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xlabel("seconds")
        svg = to_svg(figure, name=name, title=title, description=description)
    rows = (
        cells(s.name, *(given(seconds_text(p), _TOO_FEW) for p in s.percentiles)) for s in found
    )
    numbers = table(title, ("treatment", "P50", "P90", "P99"), rows)
    note = "Dots: trials. Box: the middle half of them. Thick line: the median."
    return Chart(name, title, description, svg, numbers, note)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which a share of ordered values lies, between neighbours linearly."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def sample_of(result: Mapping[str, object], trials: Sequence[Mapping[str, object]]) -> Fields:
    """The result with each treatment's seconds from its trials, unless it has them already."""
    if Fields(result).items("samples"):
        return Fields(result)
    seconds: dict[str, list[float]] = {}
    for trial in map(Fields, trials):
        ttft_s = trial.number("ttft_s")
        if trial.text("kind") == "timed" and ttft_s is not None:
            seconds.setdefault(trial.text("treatment"), []).append(ttft_s)
    return Fields({**result, "samples": seconds})


def _middle(spread: Spread) -> str:
    if not spread.seconds:
        known = zip(("median", "P90", "P99"), spread.percentiles, strict=True)
        return ", ".join(f"{label} {seconds_text(p)}" for label, p in known if p is not None)
    low, middle, high = (quantile(spread.seconds, share) for share in (0.25, 0.5, 0.75))
    return (
        f"median {seconds_text(middle)}, middle half {seconds_text(low)} to {seconds_text(high)}, "
        f"{len(spread.seconds)} trials"
    )


def _row(axes: Any, row: int, spread: Spread) -> None:
    if not spread.seconds:
        marked = [p for p in spread.percentiles if p is not None]
        axes.plot(marked, [row] * len(marked), color=INK, marker="|", markersize=9)
        return
    low, middle, high = (quantile(spread.seconds, share) for share in (0.25, 0.5, 0.75))
    count = min(DOTS, len(spread.seconds))
    dots = [quantile(spread.seconds, (i + 0.5) / count) for i in range(count)]
    places = [row + 0.26 * (((i * 0.618) % 1.0) - 0.5) for i in range(count)]
    axes.plot(
        dots, places, linestyle="none", marker="o", markersize=3, markerfacecolor=SERIES[0],
        markeredgecolor=PAPER, markeredgewidth=0.3,
    )  # fmt: skip
    box = ((low, high, high, low, low), (row - 0.3, row - 0.3, row + 0.3, row + 0.3, row - 0.3))
    axes.plot(*box, color=SOFT, linewidth=1)
    axes.plot((middle, middle), (row - 0.36, row + 0.36), color=INK, linewidth=2.2)
