"""Right answers by the right cache and by wrong ones of the same shape."""

from __future__ import annotations

from kvbaton.audit.report.charts.canvas import (
    INK,
    SERIES,
    SOFT,
    Chart,
    drawing,
    name_rows,
    to_svg,
)
from kvbaton.audit.report.numbers import share_text
from kvbaton.audit.report.reading import Fields
from kvbaton.audit.report.tables import cells, table

WHOLE, OTHER = "T3", "T4"
"""The whole cache, and the same shape from another conversation."""


def content_chart(result: Fields) -> Chart | None:
    """A bar per treatment that speaks about content: text, the whole cache, and the controls."""
    shown = [
        (name, accuracy, treatment.text("label"), treatment.text("role"))
        for name, treatment in result.items("treatments")
        if treatment.text("role") == "control" or name in ("T0", WHOLE, OTHER)
        if (accuracy := treatment.number("accuracy")) is not None
    ]
    if len(shown) < 2:
        return None
    name, title = "content", "Right answers with the right and with wrong caches"
    said = "; ".join(f"{n} ({label or role}) {share_text(a)}" for n, a, label, role in shown)
    description = f"{said}."
    with drawing(name, height=0.75 + 0.36 * len(shown)) as (figure, (axes,)):
        for row, (_, accuracy, _, role) in enumerate(shown):
            control = role == "control"
            axes.barh(
                row, 100 * accuracy, height=0.55, color=SERIES[1] if control else SERIES[0],
                edgecolor=INK, linewidth=0.8, hatch="////" if control else "",
            )  # fmt: skip
            axes.annotate(
                share_text(accuracy), (100 * accuracy, row), xytext=(5, 0),
                textcoords="offset points", va="center", color=INK,
            )  # fmt: skip
        axes.axvline(0, color=SOFT, linewidth=1)
        name_rows(axes, [n for n, *_ in shown])
        axes.set_xlim(0, 122)
        axes.set_xticks([0, 25, 50, 75, 100])
        axes.set_xlabel("right answers, %")
        svg = to_svg(figure, name=name, title=title, description=description)
    rows = (cells(n, label or "\u2013", share_text(a)) for n, a, label, _ in shown)
    numbers = table(title, ("treatment", "what it is", "right answers"), rows, labels=2)
    return Chart(name, title, description, svg, numbers, "Hatched: controls, whose cache is wrong.")
