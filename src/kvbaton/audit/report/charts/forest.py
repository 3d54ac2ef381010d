"""Forest plots: an estimate and its interval per treatment, against a line of no effect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvbaton.audit.report.charts.canvas import (
    BAND,
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
from kvbaton.audit.report.numbers import faster_text, points_text, ratio_text, signed
from kvbaton.audit.report.reading import Bounds
from kvbaton.audit.report.tables import cells, given, table

NO_INTERVAL = "the data give no interval"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A treatment's effect; ``bounds`` is None where the data give no interval."""

    name: str
    value: float
    bounds: Bounds | None

    @property
    def ends(self) -> tuple[float, ...]:
        """The estimate and the ends of its interval."""
        return (self.value, *(self.bounds or ()))


def quality_forest(estimates: Sequence[Estimate], margin_points: float) -> Chart | None:
    """Difference of accuracy in points, with the band inside which answers count as equal."""
    if not estimates:
        return None
    name, title = "quality-forest", "Right answers against the reference, in points"
    said = "; ".join(f"{e.name} {points_text(e.value, e.bounds)}" for e in estimates)
    description = f"Margin {margin_points:g} points to either side of zero. {said}."
    with drawing(name, height=1.05 + 0.3 * len(estimates)) as (figure, (axes,)):
        axes.axvspan(-margin_points, margin_points, color=BAND, linewidth=0)
        axes.axvline(0, color=SOFT, linewidth=1)
        for side in (-margin_points, margin_points):
            axes.axvline(side, color=SOFT, linewidth=0.8, linestyle=(0, (4, 3)))
        _bars(axes, estimates, offset=0.0, filled=True)
        name_rows(axes, [e.name for e in estimates])
        _point_axis(axes, estimates, margin_points)
        axes.set_xlabel("points of accuracy")
        svg = to_svg(figure, name=name, title=title, description=description)
    rows = (
        cells(
            e.name,
            points_text(e.value),
            given(points_text(e.bounds[0]) if e.bounds else "\u2013", NO_INTERVAL),
            given(points_text(e.bounds[1]) if e.bounds else "\u2013", NO_INTERVAL),
        )
        for e in estimates
    )
    numbers = table(title, ("treatment", "points", "low", "high"), rows)
    note = f"Shaded: the margin of {margin_points:g} points. Right of 0 is better."
    return Chart(name, title, description, svg, numbers, note)


def speed_forest(first: Sequence[Estimate], end_to_end: Sequence[Estimate]) -> Chart | None:
    """Ratios of seconds on a logarithmic axis: to the first token, and of the whole hand-off."""
    first = [_kept(e) for e in first if min(e.ends) > 0]
    whole = {e.name: _kept(e) for e in end_to_end if min(e.ends) > 0}
    if not first:
        return None
    name, title = "speed-forest", "Seconds against the reference, as ratios"
    said = [f"{e.name} first token {faster_text(e.value, e.bounds)}" for e in first]
    said += [f"{e.name} end to end {faster_text(e.value, e.bounds)}" for e in whole.values()]
    description = "; ".join(said) + "."
    with drawing(name, height=1.45 + 0.36 * len(first)) as (figure, (axes,)):
        axes.axvline(1, color=SOFT, linewidth=1)
        axes.set_xscale("log")
        _bars(axes, first, offset=-0.13, filled=True, label="to the first token")
        below = [whole.get(e.name) for e in first]
        _bars(axes, below, offset=0.17, filled=False, label="end to end")
        name_rows(axes, [e.name for e in first])
        _ratio_axis(axes, [end for e in (*first, *whole.values()) for end in e.ends])
        axes.set_xlabel("ratio of seconds")
        figure.legend(loc="outside upper left", ncols=2)
        svg = to_svg(figure, name=name, title=title, description=description)
    rows = (
        cells(
            e.name,
            ratio_text(e.value, e.bounds),
            given(_of(whole.get(e.name)), "not timed end to end"),
        )
        for e in first
    )
    numbers = table(title, ("treatment", "to the first token", "end to end"), rows)
    return Chart(name, title, description, svg, numbers, "Left of 1 is faster.")


def _kept(ratio: Estimate) -> Estimate:
    low, high = (drawable(end) for end in ratio.bounds or (1.0, 1.0))
    return Estimate(ratio.name, drawable(ratio.value), (low, high) if ratio.bounds else None)


def _of(estimate: Estimate | None) -> str:
    return ratio_text(None) if estimate is None else ratio_text(estimate.value, estimate.bounds)


def _bars(
    axes: Any,
    estimates: Sequence[Estimate | None],
    *,
    offset: float,
    filled: bool,
    label: str = "",
) -> None:
    """A marker per estimate and a line over its interval, in rows from 0 on."""
    named = label
    for row, estimate in enumerate(estimates):
        if estimate is None:
            continue
        place = row + offset
        if estimate.bounds is not None:
            axes.plot(estimate.bounds, (place, place), color=INK, linewidth=1.4)
        axes.plot(
            [estimate.value], [place], linestyle="none", marker="o" if filled else "D",
            markersize=6.5 if filled else 5.5, markerfacecolor=SERIES[0] if filled else PAPER,
            markeredgecolor=INK, markeredgewidth=1.0, label=named or None,
        )  # fmt: skip
        named = ""


def _point_axis(axes: Any, estimates: Sequence[Estimate], margin: float) -> None:
    """Straight, unless an effect is so large that the margin would vanish."""
    low = min(-2 * margin, *(min(e.ends) for e in estimates))
    high = max(2 * margin, *(max(e.ends) for e in estimates))
    if max(-low, high) <= 6 * margin:
        axes.set_xlim(low - 0.5, high + 0.5)
        return
    axes.set_xscale("symlog", linthresh=2 * margin, linscale=1.0)
    axes.set_xlim(1.15 * low, 1.15 * high)
    steps = (-100, -50, -20, 20, 50, 100)
    ticks = [-margin, 0, margin, *(s for s in steps if low <= s <= high and abs(s) > 2 * margin)]
    plain_ticks(axes.xaxis, ticks, [signed(f"{tick:g}") for tick in ticks])


def _ratio_axis(axes: Any, ends: Sequence[float]) -> None:
    low, high = min(0.5, *ends), max(1.25, *ends)
    axes.set_xlim(low / 1.25, high * 1.25)
    ticks = log_ticks(low / 1.25, high * 1.25)
    plain_ticks(axes.xaxis, ticks, [f"{tick:g}" for tick in ticks])
