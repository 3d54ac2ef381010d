"""Drawing a graph as SVG: one file without scripts, styles or pictures from elsewhere.

What is stale is marked by a word, a dashed border and a pattern, besides its colour; kinds of nodes
have shapes of their own; every node has a title that says all of it, for a pointer or a screen
reader.  Names come from elsewhere, and are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from kvbaton.errors import InputError
from kvbaton.lineage.drawing import STALE, Caption, captions
from kvbaton.lineage.layering import Layout, Point, layered
from kvbaton.lineage.records import Graph, NodeKind

MOST_NODES = 1000
_WIDTH, _HEIGHT = 210, 60
_COLUMN, _ROW, _MARGIN, _TOP = 290, 92, 24, 56
_CHARACTERS = {"name": 24, "small": 30}
"""That fit on a line of a node."""
_STYLE = """
text { font: 12px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #1b1b1b; }
.name { font-weight: bold; }
.small { font-size: 10px; fill: #333; }
.edge { fill: none; stroke: #5f6b76; stroke-width: 1.4; }
.edge.stale { stroke-dasharray: 5 3; }
.shape { fill: #eaf2fb; stroke: #1f5a91; stroke-width: 1.6; }
.stale .shape { fill: url(#stale); stroke: #8f4a00; stroke-dasharray: 6 3; }
.asked .shape { stroke-width: 3.2; }
.tag { fill: #1f5a91; }
.tagged { fill: #fff; font-size: 11px; }
.flag { fill: #8f4a00; }
"""
_DEFINITIONS = """<defs>
<pattern id="stale" width="7" height="7" patternUnits="userSpaceOnUse"
 patternTransform="rotate(45)"><rect width="7" height="7" fill="#fff6e6"/><rect width="2"
 height="7" fill="#f3dcb5"/></pattern>
<marker id="to" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7"
 orient="auto"><path d="M0 0 8 4 0 8z" fill="#5f6b76"/></marker>
</defs>"""


def draw_svg(graph: Graph) -> str:
    """The graph as an SVG document: made from left to right, each layer by the ledger's order.

    Raises
    ------
    InputError
        There are more nodes than anybody could look at.
    LineageCycle
        A node descends from itself.
    """
    if len(graph.nodes) > MOST_NODES:
        raise InputError(
            f"a picture shows at most {MOST_NODES} nodes, and these are {len(graph.nodes)}",
            hint="draw what is above and below one: kvbaton ledger graph ID",
        )
    return "\n".join(_lines(graph, layered(graph))) + "\n"


def _lines(graph: Graph, layout: Layout) -> Iterator[str]:
    width = 2 * _MARGIN + max(1, layout.layers) * _COLUMN - (_COLUMN - _WIDTH)
    height = _TOP + 2 * _MARGIN + layout.height * _ROW
    stale = {node.id for node in graph.nodes if node.stale is not None}
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="title about" '
        f'width="{width}" height="{height:.0f}" viewBox="0 0 {width} {height:.0f}">'
    )
    yield f'<title id="title">Lineage of {len(graph.nodes)} nodes</title>'
    yield (
        f'<desc id="about">{len(stale)} of them are stale. Arrows lead from what something was '
        "made from to what was made.</desc>"
    )
    yield f"<style>{_STYLE}</style>"
    yield _DEFINITIONS
    yield f'<rect width="{width}" height="{height:.0f}" fill="#fff"/>'
    yield from _legend()
    for (parent, child), points in sorted(layout.edges.items()):
        yield _edge(points, stale=parent in stale and child in stale)
    known = captions(graph)
    for node in graph.nodes:
        marks = "node" + (" stale" if node.id in stale else "")
        marks += " asked" if node.id == graph.root else ""
        yield f'<g class="{marks}" transform="translate({_corner(layout.places[node.id])})">'
        yield from _node(node.id, node.kind, known[node.id])
        yield "</g>"
    yield "</svg>"


def _legend() -> Iterator[str]:
    """Which shape is which kind, and what stale looks like."""
    entries = [(kind.value, kind, "") for kind in NodeKind] + [("stale", NodeKind.BATON, " stale")]
    for i, (word, kind, mark) in enumerate(entries):
        yield (
            f'<g class="legend{mark}" transform="translate({_MARGIN + i * 105} 16)">'
            f'{_shape(kind, 26, 16)}<text x="34" y="12">{word}</text></g>'
        )


def _corner(place: Point) -> str:
    return f"{_MARGIN + place.layer * _COLUMN} {_TOP + _MARGIN + place.down * _ROW:.1f}"


def _edge(points: tuple[Point, ...], *, stale: bool) -> str:
    """A smooth line from the right of a node, through its bends, to the left of another."""
    first, *others = points
    x, y = _MARGIN + first.layer * _COLUMN + _WIDTH, _middle(first)
    path = [f"M{x} {y:.1f}"]
    for i, point in enumerate(others):
        to_x, to_y = _MARGIN + point.layer * _COLUMN, _middle(point)
        half = (to_x - x) / 2
        path.append(f"C{x + half:.1f} {y:.1f} {to_x - half:.1f} {to_y:.1f} {to_x} {to_y:.1f}")
        x, y = to_x, to_y
        if i < len(others) - 1:  # past the nodes of this layer
            x += _WIDTH
            path.append(f"H{x}")
    return (
        f'<path class="edge{" stale" if stale else ""}" marker-end="url(#to)" d="{"".join(path)}"/>'
    )


def _middle(point: Point) -> float:
    return _TOP + _MARGIN + point.down * _ROW + _HEIGHT / 2


def _node(name: str, kind: NodeKind, caption: Caption) -> Iterator[str]:
    yield f"<title>{_text(_whole(name, caption))}</title>"
    yield _shape(kind, _WIDTH, _HEIGHT)
    yield _line(caption.label or caption.name, 19, "name")
    yield _line(" ".join([caption.kind, *caption.facts[:1]]), 35, "small")
    yield _line(", ".join(caption.facts[1:]), 49, "small")
    if caption.stale:
        yield '<rect class="flag" x="8" y="-9" width="44" height="16" rx="3"/>'
        yield f'<text class="tagged" x="12" y="3">{STALE}</text>'
    if caption.heads:
        word = _cut(", ".join(caption.heads), 20)
        wide = 8 + 7 * len(word)
        yield f'<rect class="tag" x="8" y="{_HEIGHT - 7}" width="{wide}" height="16" rx="3"/>'
        yield f'<text class="tagged" x="12" y="{_HEIGHT + 5}">{_text(word)}</text>'


def _whole(name: str, caption: Caption) -> str:
    """All that is known of a node, as its title."""
    parts = [f"{caption.kind} {caption.label or caption.name}", f"id {name}", *caption.facts]
    parts += [f"head {head}" for head in caption.heads]
    parts += [f"stale: {caption.stale}"] if caption.stale else []
    return "; ".join(parts)


def _line(text: str, y: int, mark: str) -> str:
    return f'<text class="{mark}" x="14" y="{y}">{_text(_cut(text, _CHARACTERS[mark]))}</text>'


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _text(text: str) -> str:
    return escape(text, quote=True)


def _shape(kind: NodeKind, width: int, height: int) -> str:
    """A baton has corners, an answer is round, an artefact is a sheet with a folded corner."""
    if kind is NodeKind.ARTEFACT:
        fold = height / 4
        return (
            f'<path class="shape" d="M0 0H{width - fold:g}L{width} {fold:g}V{height}H0z'
            f'M{width - fold:g} 0V{fold:g}H{width}"/>'
        )
    corner = height / 2 if kind is NodeKind.ANSWER else 3
    return f'<rect class="shape" width="{width}" height="{height}" rx="{corner:g}"/>'
