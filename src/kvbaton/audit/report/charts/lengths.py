"""From which length of context on a hand-off is faster than text: the break-even curves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvbaton.audit.report.charts.canvas import (
    INK,
    SOFT,
    Chart,
    drawable,
    drawing,
    legend_shape,
    log_ticks,
    plain_ticks,
    short,
    style,
    to_svg,
)
from kvbaton.audit.report.numbers import DASH, count_text, ratio_text
from kvbaton.audit.report.reading import Bounds, Fields
from kvbaton.audit.report.tables import Cell, Table, cells, given, table

NO_POINT = "not measured at this length"

_PROFIT_MAP = "Profit map: route by length of context, as ratio of seconds to the first token"


@dataclass(frozen=True, slots=True)
class Point:
    """Seconds of a route over those of text, at a length."""

    tokens: float
    ratio: float
    bounds: Bounds | None

    @property
    def word(self) -> str:
        """``pays``, ``costs``, or ``open`` where the interval holds 1 or is unknown."""
        if self.bounds is None or self.bounds[0] <= 1 <= self.bounds[1]:
            return "open"
        return "pays" if self.bounds[1] < 1 else "costs"


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of a route, by length, and where it meets text."""

    name: str
    points: tuple[Point, ...]
    tokens: float | None
    bounds: Bounds | None
    why: str
    at_most: bool = False
    """It was faster at every length: the true one may be shorter."""


def curves(result: Fields) -> list[Curve]:
    """Every route whose break-even was looked for."""
    return [
        Curve(
            name,
            _points(one),
            one.number("tokens"),
            one.interval("ci"),
            one.text("why") or "no break-even length within the lengths that were measured",
            at_most=bool(one.yes("at_most")),
        )
        for name, one in result.items("break_even")
    ]


def break_even_text(curve: Curve) -> str:
    """``120 [100, 150]`` tokens; ``32 or fewer`` where no shorter ones were measured."""
    if curve.tokens is None:
        return DASH
    text = count_text(curve.tokens)
    if curve.at_most:
        return f"{text} or fewer"
    if curve.bounds is None:
        return text
    return f"{text} [{count_text(curve.bounds[0])}, {count_text(curve.bounds[1])}]"


def lengths_chart(result: Fields) -> Chart | None:
    """A line per route: its time to the first token over that of text, by length."""
    found = [(i, c) for i, c in enumerate(curves(result)) if c.points]
    if not found:
        return None
    name, title = "break-even", "Seconds to the first token against text, by length of context"
    said = "; ".join(_sentence(curve) for _, curve in found)
    description = f"Both axes are logarithmic; below 1 is faster. {said}."
    columns, below = legend_shape([curve.name for _, curve in found])
    with drawing(name, height=2.9 + below) as (figure, (axes,)):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.axhline(1, color=INK, linewidth=1.2)
        for index, curve in found:
            _draw(axes, index, curve)
        _axes(axes, [point for _, curve in found for point in curve.points])
        figure.legend(loc="outside lower left", ncols=columns)
        svg = to_svg(figure, name=name, title=title, description=description)
    rows = (
        cells(curve.name, count_text(p.tokens), ratio_text(p.ratio, p.bounds))
        for _, curve in found
        for p in curve.points
    )
    numbers = table(title, ("route", "tokens", "ratio"), rows)
    return Chart(name, title, description, svg, numbers, "Below 1 is faster.")


def profit_map(result: Fields) -> Table | None:
    """Length by route: where a hand-off pays, where it costs, and where that is open."""
    found = [curve for curve in curves(result) if curve.points]
    lengths = sorted({point.tokens for curve in found for point in curve.points})
    if not lengths:
        return None
    rows = []
    for curve in found:
        at = {point.tokens: point for point in curve.points}
        places = [_place(at.get(tokens)) for tokens in lengths]
        rows.append(cells(curve.name, given(break_even_text(curve), curve.why), *places))
    headings = ("route", "pays from, tokens", *(f"{count_text(t)} tokens" for t in lengths))
    return table(_PROFIT_MAP, headings, rows)


def _place(point: Point | None) -> Cell:
    if point is None:
        return Cell(DASH, why=NO_POINT)
    tone = {"pays": "good", "costs": "bad", "open": "open"}[point.word]
    return Cell(f"{point.word} {ratio_text(point.ratio)}", tone=tone)


def _points(one: Fields) -> tuple[Point, ...]:
    found = []
    for row in one.rows("points"):
        tokens, ratio = row.number("tokens"), row.number("ratio")
        if tokens is not None and ratio is not None and tokens > 0 and ratio > 0:
            bounds = row.interval("ci")
            low_is_real = bounds is not None and bounds[0] > 0
            found.append(Point(drawable(tokens), drawable(ratio), bounds if low_is_real else None))
    return tuple(sorted(found, key=lambda point: point.tokens))


def _sentence(curve: Curve) -> str:
    at = ", ".join(f"{ratio_text(p.ratio)} at {count_text(p.tokens)} tokens" for p in curve.points)
    if curve.tokens is None:
        return f"{curve.name}: {at}"
    return f"{curve.name} pays from {break_even_text(curve)} tokens on: {at}"


def _draw(axes: Any, index: int, curve: Curve) -> None:
    look = style(index)
    tokens = [point.tokens for point in curve.points]
    axes.plot(
        tokens, [point.ratio for point in curve.points], color=look.color, marker=look.marker,
        markersize=6, markeredgecolor=INK, markeredgewidth=0.8, label=short(curve.name),
    )  # fmt: skip
    for point in curve.points:
        if point.bounds is not None:
            axes.plot((point.tokens, point.tokens), point.bounds, color=INK, linewidth=0.9)
    if curve.tokens is not None and curve.tokens > 0:
        axes.plot([curve.tokens], [1], linestyle="none", marker="|", markersize=13, color=SOFT)


def _axes(axes: Any, points: list[Point]) -> None:
    lengths = sorted({point.tokens for point in points})
    ends = [end for p in points for end in (p.ratio, *(p.bounds or ()))]
    low, high = min(0.8, *ends) / 1.15, max(1.25, *ends) * 1.15
    axes.set_xlim(lengths[0] / 1.25, lengths[-1] * 1.25)
    axes.set_ylim(low, high)
    plain_ticks(axes.xaxis, *_lengths_apart(lengths))
    ticks = log_ticks(low, high)
    plain_ticks(axes.yaxis, ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xlabel("tokens of context")
    axes.set_ylabel("ratio to text")


def _lengths_apart(lengths: list[float]) -> tuple[list[float], list[str]]:
    """Those lengths whose labels do not touch."""
    room = (lengths[-1] / lengths[0]) ** (1 / 6)
    kept: list[float] = []
    for tokens in lengths:
        if not kept or tokens >= kept[-1] * max(room, 1.01):
            kept.append(tokens)
    return kept, [count_text(tokens) for tokens in kept]
