"""What quality costs in bytes, and where the seconds of a gain come from."""

from __future__ import annotations

import re
from collections.abc import Sequence
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
    name_rows,
    plain_ticks,
    short,
    style,
    to_svg,
)
from kvbaton.audit.report.numbers import (
    DASH,
    amount_text,
    multiple_text,
    seconds_text,
    share_text,
)
from kvbaton.audit.report.reading import Fields
from kvbaton.audit.report.tables import cells, given, table

LEAST_MULTIPLE = 0.05
"""Multiples of the noise floor below this are drawn here: they cannot be told from none."""

_MOST_MULTIPLE = 1e12

PARTS = (
    ("receiver_prefill_s", "receiver's prefill"),
    ("sender_decode_s", "sender's decoding"),
    ("allocation_s", "allocation"),
    ("tokenization_s", "tokenization"),
    ("transport_s", "transport"),
    ("other_s", "other"),
)
"""Where a gain may come from: key of the result, and name."""


_ROUND = re.compile(r"\.0+(?= )")


@dataclass(frozen=True, slots=True)
class Price:
    """A treatment's mean bytes, and what its answers are worth."""

    name: str
    bytes_moved: float
    multiple: float | None
    accuracy: float | None


def bytes_chart(result: Fields) -> Chart | None:
    """Divergence in multiples of the noise floor, and accuracy, against bytes moved."""
    prices = _prices(result)
    if not prices:
        return None
    name, title = "bytes", "Quality against bytes moved"
    said = "; ".join(
        f"{p.name} moves {amount_text(p.bytes_moved, 'B')}, divergence {multiple_text(p.multiple)} "
        f"the noise floor, {share_text(p.accuracy)} right"
        for p in prices
    )
    description = f"{said}."
    columns, below = legend_shape([price.name for price in prices])
    with drawing(name, height=4.1 + below, panels=2) as (figure, panels):
        _divergences(panels[0], prices)
        _accuracies(panels[1], prices)
        moved = [price.bytes_moved for price in prices]
        room = 1.5 if max(moved) > 2 * min(moved) else 3.0
        low, high = min(moved) / room, max(moved) * room
        for axes in panels:
            axes.set_xscale("log")
            axes.set_xlim(low, high)
            _byte_ticks(axes, low, high)
        panels[1].set_xlabel("bytes moved per hand-off (mean)")
        labels = panels[1].get_legend_handles_labels()
        figure.legend(*labels, loc="outside lower left", ncols=columns)
        svg = to_svg(figure, name=name, title=title, description=description)
    rows = (
        cells(
            p.name,
            amount_text(p.bytes_moved, "B"),
            given(multiple_text(p.multiple), "no divergence or no noise floor"),
            given(share_text(p.accuracy), "no answers"),
        )
        for p in prices
    )
    headings = ("treatment", "bytes moved", "divergence, x noise floor", "right answers")
    note = "Dashed: the noise floor."
    return Chart(name, title, description, svg, table(title, headings, rows), note)


def gains_chart(result: Fields) -> Chart | None:
    """Seconds that each part of the work saves or costs, as a stacked bar per treatment."""
    roles = {name: one.text("role") for name, one in result.items("treatments")}
    found = [
        (name, [one.number(key) or 0.0 for key, _ in PARTS])
        for name, one in result.items("attribution")
        if any(one.number(key) for key, _ in PARTS) and roles.get(name) != "control"
    ]
    if not found:
        return None
    name, title = "gains", "Where the saved seconds come from, per trial"
    description = "; ".join(f"{n}: {_gains(values)}" for n, values in found) + "."
    with drawing(name, height=1.7 + 0.36 * len(found)) as (figure, (axes,)):
        for row, (_, values) in enumerate(found):
            _stack(axes, row, values)
        axes.axvline(0, color=INK, linewidth=1.2)
        name_rows(axes, [n for n, _ in found])
        axes.locator_params(axis="x", nbins=6)
        axes.set_xlabel("seconds")
        figure.legend(handles=_legend(found), loc="outside lower left", ncols=2, handlelength=1.6)
        svg = to_svg(figure, name=name, title=title, description=description)
    rows = (cells(n, *(seconds_text(value) for value in values)) for n, values in found)
    numbers = table(title, ("treatment", *(label for _, label in PARTS)), rows)
    note = "Right of 0 is saved, left of 0 is spent."
    return Chart(name, title, description, svg, numbers, note)


def _prices(result: Fields) -> list[Price]:
    found = []
    for name, one in result.items("treatments"):
        moved, multiple = one.number("bytes_moved") or 0.0, one.number("kl_multiple")
        accuracy = one.number("accuracy")
        known = multiple is not None or accuracy is not None
        if one.text("role") == "candidate" and moved > 0 and known:
            multiple = multiple and min(abs(multiple), _MOST_MULTIPLE)
            found.append(Price(name, drawable(moved), multiple, accuracy))
    return found


def _byte_ticks(axes: Any, low: float, high: float) -> None:
    """Few enough that their labels do not touch."""
    ticks = log_ticks(low, high)
    while len(ticks) > 4:
        ticks = ticks[::2]
    plain_ticks(axes.xaxis, ticks, [_ROUND.sub("", amount_text(tick, "B")) for tick in ticks])


def _divergences(axes: Any, prices: Sequence[Price]) -> None:
    drawn = [(i, p, max(p.multiple, LEAST_MULTIPLE)) for i, p in enumerate(prices) if p.multiple]
    drawn += [(i, p, LEAST_MULTIPLE) for i, p in enumerate(prices) if p.multiple == 0]
    axes.set_yscale("log")
    axes.axhline(1, color=SOFT, linewidth=1, linestyle=(0, (4, 3)))
    for index, price, multiple in drawn:
        _mark(axes, index, price, multiple)
    low = min([0.5, *(m for *_, m in drawn)]) / 1.5
    high = max([2.0, *(m for *_, m in drawn)]) * 1.5
    axes.set_ylim(low, high)
    ticks = log_ticks(low, high)
    plain_ticks(axes.yaxis, ticks, [f"{tick:g}" for tick in ticks])
    axes.set_title("divergence (KL), multiples of the noise floor")


def _accuracies(axes: Any, prices: Sequence[Price]) -> None:
    known = [100 * p.accuracy for p in prices if p.accuracy is not None]
    for index, price in enumerate(prices):
        value = price.accuracy
        _mark(axes, index, price, None if value is None else 100 * value)
    axes.set_ylim(max(-5.0, min([85.0, *known]) - 5), 105)
    axes.set_title("right answers, %")


def _mark(axes: Any, index: int, price: Price, value: float | None) -> None:
    """One marker; without a value only its place in the legend."""
    look = style(index)
    places = ([], []) if value is None else ([price.bytes_moved], [value])
    axes.plot(
        *places, linestyle="none", marker=look.marker, markersize=7.5, color=look.color,
        markeredgecolor=INK, markeredgewidth=0.9, label=short(price.name),
    )  # fmt: skip


def _gains(values: Sequence[float]) -> str:
    named = zip((label for _, label in PARTS), values, strict=True)
    said = [f"{label} {seconds_text(value)}" for label, value in named if value]
    return ", ".join(said) or DASH


def _stack(axes: Any, row: int, values: Sequence[float]) -> None:
    """Savings to the right of zero, costs to the left."""
    ends = {True: 0.0, False: 0.0}
    for index, value in enumerate(values):
        if value:
            look = style(index)
            axes.barh(
                row, value, left=ends[value > 0], height=0.6, color=look.color, edgecolor=INK,
                linewidth=0.8, hatch=look.hatch,
            )  # fmt: skip
            ends[value > 0] += value


def _legend(found: Sequence[tuple[str, Sequence[float]]]) -> list[Any]:
    """Patches of the parts that occur."""
    from matplotlib.patches import Patch

    return [
        Patch(
            facecolor=style(index).color,
            edgecolor=INK,
            linewidth=0.8,
            hatch=style(index).hatch,
            label=label,
        )
        for index, (_, label) in enumerate(PARTS)
        if any(values[index] for _, values in found)
    ]
