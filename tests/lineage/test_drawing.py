"""Drawings of a graph: everything is in them, once, and names can do nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from xml.etree import ElementTree

import hypothesis.strategies as st
import pytest
from hypothesis import given
from tests.lineage.nodes import answer, baton

from kvbaton.errors import InputError, LineageCycle
from kvbaton.lineage.drawing import MAX_DEPTH, draw_text, short_names, shown
from kvbaton.lineage.layering import layered
from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.picture import MOST_NODES, draw_svg
from kvbaton.lineage.records import Entry, Graph, Head, Node, NodeKind, Stale

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = [
    '"><script>alert(1)</script>', "</text></svg>", "a\u202eb", "\x1b[2J", "line\nbreak", "&amp;",
    "]]>", "nul\x00", "\ud800", "\u2028",
]  # fmt: skip


def graph_of(*nodes: Node, heads: Sequence[Head] = ()) -> Graph:
    """Nodes as a ledger would have numbered them."""
    numbered = (node.seen(i, node.stale) for i, node in enumerate(nodes, start=1))
    return Graph(tuple(numbered), tuple(heads))


def diamond() -> Graph:
    """A plan, two workers, what both were joined to; the first worker is stale."""
    stale = Stale(9, "plan", 1, "plan has moved on from 1")
    left = baton("left", "plan").seen(2, stale)
    return Graph(
        (baton("plan").seen(1, None), left, baton("right", "plan").seen(3, None),
         answer("joined", "left", "right").seen(4, None)),
        (Head("plan", 2, "right", 0, 9),),
    )  # fmt: skip


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Graphs without cycles, in which some parents are not recorded."""
    count = draw(st.integers(0, 14))
    nodes = []
    for number in range(count):
        some = st.lists(st.integers(0, max(0, number - 1)), max_size=3) if number else st.just([])
        parents = [f"n{i}" for i in draw(some)] + draw(st.sampled_from([[], ["gone"]]))
        kind = draw(st.sampled_from(NodeKind))
        nodes.append(Node(f"n{number}", kind, parents=tuple(parents)))
    return graph_of(*draw(st.permutations(nodes)))


# --- text --------------------------------------------------------------------------------------


def test_a_diamond_as_text() -> None:
    """Each node stands once, below its first parent; heads and marks are there."""
    assert draw_text(diamond()) == (
        "plan  baton  planner\n"
        "├─ left  baton  planner  STALE: plan has moved on from 1\n"
        "│  └─ joined  answer\n"
        "└─ right  baton  planner  [plan@2]\n"
        "   └─ → joined (drawn under left)\n"
    )
    assert draw_text(Graph((), ())) == ""


def test_facts_and_parents_that_are_not_drawn() -> None:
    """A few words on each, and where else it comes from."""
    node = Node(
        "b2", NodeKind.BATON, label="notes", parents=("b1", "b0"), agent="coder", model="m",
        tokens=2048, codec="int4", fidelity="lossy", hops_lossy=2,
    )  # fmt: skip
    assert draw_text(graph_of(node)) == (
        'b2  baton  "notes"  coder, m, 2,048 tokens, lossy (int4), 2 lossy hops'
        "  from b1, b0 (not drawn)\n"
    )


@given(graphs())
def test_every_node_and_every_edge_is_in_the_text_once(graph: Graph) -> None:
    """One line per node, and one per edge that is not to the first parent."""
    lines = draw_text(graph).splitlines()
    whole = Counter(m[1] for line in lines if (m := re.match(r"[│├└─ ]*(n\d+)  ", line)))
    assert whole == Counter(node.id for node in graph.nodes)
    there = set(whole)
    edges = sum(len({p for p in node.parents if p in there}) for node in graph.nodes)
    roots = sum(not (set(node.parents) & there) for node in graph.nodes)
    assert len(lines) == edges + roots


def test_a_long_chain_is_drawn_in_pieces() -> None:
    """No line is indented further than the limit, and nothing is left out."""
    chain = [baton("n0"), *(baton(f"n{i}", f"n{i - 1}") for i in range(1, 5000))]
    lines = draw_text(graph_of(*chain)).splitlines()
    assert max(len(line) - len(line.lstrip(" │├└─")) for line in lines) == 3 * MAX_DEPTH
    assert sum("baton" in line for line in lines) == 5000
    assert sum("drawn further down" in line for line in lines) == 5000 // MAX_DEPTH


def test_ids_are_as_short_as_tells_them_apart() -> None:
    """Twelve digits, or more where two begin alike; names of one's own are whole."""
    names = ["a" * 64, "a" * 20 + "b" * 44, "notes.md"]
    short = short_names(names)
    assert len(set(short.values())) == 3
    assert (len(short[names[0]]), short["notes.md"]) == (24, "notes.md")
    assert short_names(["a" * 64]) == {"a" * 64: "a" * 12}
    assert short_names(["f" * 32, "artefact-" + "f" * 32]) == {
        "f" * 32: "f" * 12, "artefact-" + "f" * 32: "artefact-" + "f" * 32,
    }  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_names_cannot_move_a_cursor(name: str) -> None:
    """Every character of the drawing can be printed, and each node has one line."""
    node = Node("n1", NodeKind.ARTEFACT, agent=name, model=name, sequence=1)
    head = Head(name, 1, "n1", 0, 1)
    (line,) = draw_text(graph_of(node, heads=[head])).splitlines()
    assert line.isprintable()
    assert shown(name) in line


def test_a_cycle_is_refused() -> None:
    """A ledger has none; a graph from elsewhere may."""
    round_trip = graph_of(baton("a", "b"), baton("b", "a"))
    for draw in (draw_text, draw_svg, layered):
        with pytest.raises(LineageCycle):
            draw(round_trip)


# --- layers ------------------------------------------------------------------------------------


@given(graphs())
def test_layers_keep_parents_left_and_nodes_apart(graph: Graph) -> None:
    """Edges lead to the right, layer by layer, and no two nodes overlap."""
    layout = layered(graph)
    assert set(layout.places) == {node.id for node in graph.nodes}
    for (parent, child), points in layout.edges.items():
        first, last = layout.places[parent].layer, layout.places[child].layer
        assert [point.layer for point in points] == list(range(first, last + 1))
    by_layer: dict[int, list[float]] = {}
    for place in layout.places.values():
        by_layer.setdefault(place.layer, []).append(place.down)
    for several in by_layer.values():
        ordered = sorted(several)
        assert all(b - a > 0.99 for a, b in pairwise(ordered))
        assert 0 <= ordered[0] <= ordered[-1] <= layout.height - 0.99


@given(graphs())
def test_the_same_graph_has_the_same_drawing(graph: Graph) -> None:
    """In whatever order its nodes are given, but for the order in which they are written."""
    again = Graph(tuple(reversed(graph.nodes)), graph.heads)
    assert layered(graph) == layered(again)
    assert draw_svg(graph) == draw_svg(graph)
    assert sorted(draw_svg(graph).splitlines()) == sorted(draw_svg(again).splitlines())


def test_a_chain_stands_on_one_line() -> None:
    """Nothing bends where nothing has to."""
    chain = [baton("n0"), *(baton(f"n{i}", f"n{i - 1}") for i in range(1, 6))]
    places = layered(graph_of(*chain)).places
    assert {place.down for place in places.values()} == {0.0}


# --- SVG ---------------------------------------------------------------------------------------


def groups(svg: str) -> dict[str, ElementTree.Element]:
    """Groups of nodes by the beginning of their title."""
    root = ElementTree.fromstring(svg)
    found = {}
    for group in root.iter(f"{SVG}g"):
        title = group.find(f"{SVG}title")
        if title is not None and title.text:
            found[title.text] = group
    return found


def test_a_diamond_as_svg() -> None:
    """A titled group per node, a path per edge, and what is stale says so in words."""
    svg = draw_svg(diamond())
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == "Lineage of 4 nodes"
    assert (root.findtext(f"{SVG}desc") or "").startswith("1 of them are stale")
    paths = [path for path in root.iter(f"{SVG}path") if path.get("class", "").startswith("edge")]
    assert len(paths) == 4
    found = groups(svg)
    assert sorted(found) == [
        "answer joined; id joined",
        "baton left; id left; planner; stale: plan has moved on from 1",
        "baton plan; id plan; planner",
        "baton right; id right; planner; head plan@2",
    ]
    words = {title: "".join(group.itertext()) for title, group in found.items()}
    assert [("STALE" in text) for _, text in sorted(words.items())] == [False, True, False, False]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_inert_in_svg(name: str) -> None:
    """Hostile names are text: no element, no attribute and no character of theirs acts."""
    node = Node("n1", NodeKind.ARTEFACT, agent=name, model=name, fidelity=name, codec=name,
                sequence=1)  # fmt: skip
    svg = draw_svg(graph_of(node, heads=[Head(name, 1, "n1", 0, 1)]))
    plain = draw_svg(graph_of(Node("n1", NodeKind.ARTEFACT, agent="x", fidelity="x"),
                              heads=[Head("x", 1, "n1", 0, 1)]))  # fmt: skip
    tags = [element.tag for element in ElementTree.fromstring(svg).iter()]
    assert tags == [element.tag for element in ElementTree.fromstring(plain).iter()]
    svg.encode("utf-8")
    assert all(character.isprintable() or character == "\n" for character in svg)


def test_svg_needs_nothing_from_elsewhere() -> None:
    """No script, no link, no picture, no font file."""
    svg = draw_svg(diamond())
    assert not re.search(r"<script|href|<image|@import|@font-face|url\((?!#)", svg)


def test_what_nobody_could_look_at_is_refused() -> None:
    """Too many nodes are an error with advice, not a file of a hundred megabytes."""
    many = [baton(f"n{i}") for i in range(MOST_NODES + 1)]
    with pytest.raises(InputError, match="at most 1000"):
        draw_svg(graph_of(*many))
    assert draw_svg(graph_of(*many[:-1])).count("<title>") == MOST_NODES


def test_the_most_bends_are_drawn_straight() -> None:
    """A thousand nodes that all build on all before them still end."""
    nodes = [baton("n0"), *(baton(f"n{i}", f"n{i - 1}", "n0") for i in range(1, 500))]
    layout = layered(graph_of(*nodes))
    assert {len(points) for points in layout.edges.values()} == {2}


def test_a_ledgers_graph_is_drawn(ledger: Ledger) -> None:
    """With its heads and marks."""
    ledger.move("plan", baton("b1"), expected=0)
    ledger.record([Entry(answer("a1", "b1")), Entry(baton("alone"))])
    ledger.move("plan", baton("b2"), expected=1)
    text = draw_text(ledger.graph())
    assert text == (
        "b1  baton  planner  STALE: plan has moved on from 1\n"
        "└─ a1  answer  STALE: plan has moved on from 1\n"
        "alone  baton  planner\n"
        "b2  baton  planner  [plan@2]\n"
    )
