"""A break-even map as a picture: SVG that stands alone, never by colour alone."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from kvbaton.policy.break_even_map import BreakEvenMap, MapCell

_CELL_W, _CELL_H, _LEFT, _TOP = 76, 34, 92, 56
_PALETTE = (
    "#e8e8e4", "#9ecae1", "#a1d99b", "#fdd49e", "#dadaeb", "#fcbba1", "#c7e9c0", "#d9d9d9",
)  # fmt: skip
"""Light fills on which black letters can be read; text is the first."""
_FONT = 'font-family="sans-serif" font-size="12" fill="#111"'


def map_svg(drawn: BreakEvenMap) -> str:
    """The map: lengths upwards, bandwidths to the right, in each cell the name of what wins.

    The same map gives the same bytes.  Names are escaped; titles say each cell in words.
    """
    width = _LEFT + _CELL_W * len(drawn.bandwidths_mb_s) + 16
    height = _TOP + _CELL_H * len(drawn.tokens) + 62
    title = f"Fastest route to the first token: {drawn.model}"
    words = (
        f"By tokens of context and bandwidth of the store, for {drawn.new_tokens} new tokens. "
        f"Measured up to {drawn.measured_to} tokens."
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-labelledby="map-title map-text">',
        f'<title id="map-title">{_safe(title)}</title>',
        f'<desc id="map-text">{_safe(words)}</desc>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(16, 22, title, anchor="start", more=' font-weight="bold"'),
        _text(16, 40, words, anchor="start"),
        *_cells(drawn),
        *_axes(drawn),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _cells(drawn: BreakEvenMap) -> Iterator[str]:
    for row, tokens in enumerate(reversed(drawn.tokens)):
        for column, cell in enumerate(drawn.row(tokens)):
            x, y = _LEFT + column * _CELL_W, _TOP + row * _CELL_H
            fill = _PALETTE[drawn.routes.index(cell.winner) % len(_PALETTE)]
            yield (
                f'<g><title>{_safe(_sentence(cell, drawn.routes))}</title><rect x="{x}" y="{y}" '
                f'width="{_CELL_W}" height="{_CELL_H}" fill="{fill}" stroke="#ffffff"/>'
                f"{_text(x + _CELL_W / 2, y + 21, _short(cell.winner))}</g>"
            )


def _sentence(cell: MapCell, routes: Sequence[str]) -> str:
    times = ", ".join(
        f"{route} {1e3 * seconds:.0f} ms"
        for route, seconds in zip(routes, cell.ttft_s, strict=True)
    )
    return f"{cell.tokens} tokens at {cell.bandwidth_mb_s:g} MB/s: {cell.winner} ({times})"


def _axes(drawn: BreakEvenMap) -> Iterator[str]:
    for row, tokens in enumerate(reversed(drawn.tokens)):
        beyond = "*" if tokens + drawn.new_tokens > drawn.measured_to else ""
        yield _text(_LEFT - 8, _TOP + row * _CELL_H + 21, f"{tokens:,}{beyond}", anchor="end")
    bottom = _TOP + _CELL_H * len(drawn.tokens)
    for column, speed in enumerate(drawn.bandwidths_mb_s):
        yield _text(_LEFT + (column + 0.5) * _CELL_W, bottom + 18, f"{speed:g}")
    middle = _LEFT + _CELL_W * len(drawn.bandwidths_mb_s) / 2
    yield _text(middle, bottom + 38, "bandwidth of the store, MB/s (tokens of context upwards)")
    if drawn.tokens[-1] + drawn.new_tokens > drawn.measured_to:
        yield _text(middle, bottom + 54, "* longer than what was measured")


def _text(x: float, y: float, text: str, *, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" {_FONT}{more}>{_safe(text)}</text>'


def _short(name: str) -> str:
    return name if len(name) <= 13 else name[:12] + "\u2026"


def _safe(text: str) -> str:
    """Text that cannot leave its element, without characters that XML forbids."""
    return html.escape("".join(c for c in text if c.isprintable()))
