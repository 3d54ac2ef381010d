"""From a drawing to SVG that stands in a page: the same bytes each time, colours by the page.

Colours are placeholders that become CSS variables, so that one drawing serves light and dark.
"""

from __future__ import annotations

import html
import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kvbaton.audit.report.tables import Table
from kvbaton.errors import InputError

INK, SOFT, GRID, PAPER, BAND = "#010203", "#040506", "#070809", "#0a0b0c", "#0d0e0f"
SERIES = tuple(f"#1{i}1{i}1{i}" for i in range(8))
"""Placeholders of the eight series colours."""

MARKERS = ("o", "s", "D", "^", "v", "P", "X", "<", ">", "p", "h")
HATCHES = ("", "///", "|||", "xxx", "\\\\\\", "---", "+++")
WIDTH = 3.6
"""Inches at 96 pixels: what a phone shows without making letters small."""

_HALF_WIDTH = 16
"""Letters for which half of a chart's width has room, beside a marker."""

_LEAST, _MOST = 1e-12, 1e18
_VARIABLES = {
    INK: "ink", SOFT: "soft", GRID: "grid", PAPER: "paper", BAND: "band",
    **{color: f"s{i}" for i, color in enumerate(SERIES)},
}  # fmt: skip
_SETTINGS = {
    "svg.fonttype": "none", "text.parse_math": False, "font.size": 10.0,
    "text.color": INK, "axes.edgecolor": SOFT, "axes.labelcolor": INK, "axes.facecolor": "none",
    "axes.grid": True, "axes.axisbelow": True, "axes.titlesize": 10.0, "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.unicode_minus": True,
    "figure.facecolor": "none", "grid.color": GRID, "grid.linewidth": 0.7,
    "xtick.color": SOFT, "ytick.color": SOFT, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "legend.frameon": False, "legend.fontsize": 9.5, "hatch.linewidth": 0.6, "lines.linewidth": 1.5,
    "svg.image_inline": True,
}  # fmt: skip
_ID = re.compile(r'(\bid="|url\(#|href="#)')
_UNUSED_GROUP_ID = re.compile(r'<g id="[^"]*"')
_DECLARED = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_OPENING = re.compile(r"^.*?<svg\b([^>]*)>", re.DOTALL)
_FAMILY = re.compile(r" font-family: [^;\"]*;")
_DIGITS = re.compile(r"(\d\.\d{3})\d+")
_VIEW_BOX = re.compile(r'viewBox="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture of a report.

    Parameters
    ----------
    name
        Unique on a page; its ids begin with it.
    title
        What is shown, in a few words.
    description
        The picture in words, with its numbers.
    svg
        The picture; says title and description to who cannot see it.
    table
        The numbers behind it.
    note
        How to read it; may be empty.
    """

    name: str
    title: str
    description: str
    svg: str
    table: Table
    note: str = ""


@dataclass(frozen=True, slots=True)
class Style:
    """How a series looks: never told apart by colour alone."""

    color: str
    marker: str
    hatch: str


def style(index: int) -> Style:
    """The look of a series; different for the first 88."""
    return Style(
        SERIES[index % len(SERIES)],
        MARKERS[index % len(MARKERS)],
        HATCHES[index % len(HATCHES)],
    )


@contextmanager
def drawing(name: str, *, height: float, panels: int = 1) -> Iterator[tuple[Any, list[Any]]]:
    """A figure with panels below each other, and settings that hold inside only.

    Raises
    ------
    InputError
        matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(
            "a report with charts needs matplotlib, which is not installed",
            hint="pip install 'kvbaton[audit]'",
        ) from None
    settings: dict[str, Any] = {**_SETTINGS, "svg.hashsalt": name}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the reader's fonts draw the letters
        warnings.filterwarnings("ignore", message=".*[Ll]ayout.*")
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.subplots(panels, 1, squeeze=False)
        yield figure, [row[0] for row in axes]


def to_svg(figure: Any, *, name: str, title: str, description: str) -> str:
    """The drawing as an element for a page; call it inside ``drawing``."""
    buffer = io.BytesIO()
    kept_out = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=kept_out)
    return _for_page(buffer.getvalue().decode("utf-8"), name, title, description)


def plain_ticks(axis: Any, values: Sequence[float], labels: Sequence[str]) -> None:
    """Set ticks and labels of an axis, and no minor ones."""
    axis.set_ticks(list(values), list(labels))
    axis.set_ticks([], minor=True)


def log_ticks(low: float, high: float, *, steps: tuple[float, ...] = (1, 2, 5)) -> list[float]:
    """1, 2 and 5 times powers of ten between two positive bounds; fewer where they would crowd."""
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    found = [s * 10.0**d for d in decades for s in steps if low <= s * 10.0**d <= high]
    if len(found) > 7 and len(steps) > 1:
        return log_ticks(low, high, steps=(1,))
    return found[:: 1 + len(found) // 8]


def name_rows(axes: Any, names: Sequence[str]) -> None:
    """Rows of a chart from top to bottom, with their names."""
    plain_ticks(axes.yaxis, range(len(names)), [short(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")


def drawable(value: float) -> float:
    """A positive value kept to what a logarithmic axis can show."""
    return min(max(value, _LEAST), _MOST)


def short(name: str, limit: int = 20) -> str:
    """A name that leaves room for the picture."""
    return name if len(name) <= limit else name[: limit - 1] + "\u2026"


def legend_shape(names: Sequence[str]) -> tuple[int, float]:
    """Columns of a legend in which no name is cut off, and the inches that its rows take."""
    columns = 1 if any(len(name) > _HALF_WIDTH for name in names) else 2
    return columns, 0.22 * math.ceil(len(names) / columns)


def _for_page(svg: str, name: str, title: str, description: str) -> str:
    svg = _DECLARED.sub("", svg)
    found = _OPENING.search(svg)
    attributes, body = (found.group(1), svg[found.end() :]) if found else ("", svg)
    view = _VIEW_BOX.search(attributes)
    body = _UNUSED_GROUP_ID.sub("<g", body)
    body = _ID.sub(rf"\g<1>{name}-", body)
    body = _DIGITS.sub(r"\1", _FAMILY.sub("", body))  # the page has fonts of its own
    for placeholder, variable in _VARIABLES.items():
        body = body.replace(placeholder, f"var(--{variable})")
    return (
        f'<svg class="chart" role="img" aria-labelledby="{name}-title" '
        f'aria-describedby="{name}-text" xmlns="http://www.w3.org/2000/svg" '
        f'xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{view.group(1) if view else ""}">'
        f'<title id="{name}-title">{html.escape(title)}</title>'
        f'<desc id="{name}-text">{html.escape(description)}</desc>{body.strip()}'
    )
