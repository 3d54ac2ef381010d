"""The table that ``kvbaton relay`` ends with, on a terminal and as a picture."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from kvbaton.cli.output import bytes_text, visible
from kvbaton.pipelines import PipelineResult, TurnResult
from kvbaton.types import Route

WIDTH = 100
"""Columns of the picture, and of a table that goes to a file."""

_STYLES = {Route.BATON: "green", Route.PARTIAL: "yellow", Route.TEXT: "red"}
_FONT_FACE = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


def show_result(console: Console, result: PipelineResult) -> None:
    """Print table, totals and reasons."""
    width = console.width if console.is_terminal else max(console.width, WIDTH)
    for part in _parts(result):
        console.print(part, width=width)


def export_svg(result: PipelineResult) -> str:
    """Table and totals as an SVG picture that loads nothing from elsewhere."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    show_result(console, result)
    compared = " --compare" if result.text_wall_s is not None else ""
    svg = console.export_svg(title=f"kvbaton relay{compared}", unique_id="relay")
    return _FONT_FACE.sub("", svg)


def _parts(result: PipelineResult) -> Iterator[RenderableType]:
    yield Text(f"{visible(result.pipeline)}, {result.model}, {result.dtype}", style="bold")
    yield _table(result)
    yield from _totals(result)
    if result.not_run:
        yield Text(f"ended early, not run: {', '.join(result.not_run)}", style="yellow")
    for turn in result.turns:
        for reason in turn.reasons:
            yield Text(f"{turn.agent}: {visible(reason.sentence)}", style="yellow")
        yield from _shadow(turn)
        yield from _difference(turn)


def _table(result: PipelineResult) -> Table:
    compared = result.text_wall_s is not None
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("agent", overflow="fold")
    table.add_column("route")
    for heading in ("context", "reused", "computed", "moved"):
        table.add_column(heading, justify="right")
    headings = ("text", "baton", "faster") if compared else ("first token",)
    for heading in headings:
        table.add_column(heading, justify="right")
    if compared:
        table.add_column("answer by text")
    for turn in result.turns:
        table.add_row(*_cells(turn))
    return table


def _cells(turn: TurnResult) -> Iterator[Text]:
    receipt, text = turn.receipt, turn.text
    yield Text(turn.agent, style="bold")
    first = not turn.takes_baton and receipt.route is Route.TEXT
    yield Text(
        "first" if first else receipt.route.value, style="" if first else _STYLES[receipt.route]
    )
    yield Text(f"{receipt.context_tokens:,}")
    yield Text(f"{receipt.reused_tokens:,}")
    yield Text(f"{receipt.computed_tokens:,}")
    yield Text(bytes_text(receipt.bytes_moved) if receipt.bytes_moved else "-")
    if text is not None:
        yield Text(_seconds(text.ttft_s))
    yield Text(_seconds(turn.ttft_s))
    if text is None:
        return
    faster = text.ttft_s / turn.ttft_s
    yield Text(f"{faster:.1f}x" if text.measured else "", style="bold green" if faster > 1 else "")
    yield Text(_sameness(turn))


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.995 else f"{1000 * seconds:.0f} ms"


def _sameness(turn: TurnResult) -> str:
    difference = turn.difference
    if turn.text is None or not turn.text.measured:
        return "the same run"
    if difference is None:
        return "same"
    return f"differs at token {difference.token + 1}"


def _shadow(turn: TurnResult) -> Iterator[Text]:
    """How the answer by cache, which nobody saw, compares with the one that was given."""
    shadow = turn.receipt.shadow
    if not shadow:
        return
    route = f"{turn.agent}: by the route {shadow['route']}, in the shadow: "
    if "error" in shadow:
        yield Text(f"{route}{visible(shadow['error'])}", style="yellow")
        return
    same = shadow["first_divergence"] is None
    found = "the same answer" if same else f"differs at token {shadow['first_divergence'] + 1}"
    times = (shadow["shadow_ttft_s"], shadow["text_ttft_s"])
    soon = "" if None in times else f", first token in {_seconds(times[0])}, {_seconds(times[1])}"
    yield Text(f"{route}{found}{soon} by text")


def _difference(turn: TurnResult) -> Iterator[Text]:
    """Both answers from where they part, so that nothing is hidden."""
    difference, text = turn.difference, turn.text
    if difference is None or text is None:
        return
    start = max(0, difference.character - 20)
    here, there = (f"...{visible(t[start:][:60])!r}" for t in (turn.output, text.output))
    yield Text(f"{turn.agent}: token {difference.token + 1}: baton {here}, text {there}", "yellow")


def _totals(result: PipelineResult) -> Iterator[Text]:
    found = sum(turn.bytes_deduplicated for turn in result.turns)
    if found:
        yield Text(f"hand-offs found {bytes_text(found)} of their segments in the store already")
    if result.text_wall_s is None:
        yield Text(f"all turns together: {result.wall_s:.1f} s")
        return
    if result.ttft_speedup is not None:
        takers = len(result.takers)
        yield Text.assemble(
            f"to the first token, {takers} agents that take a baton: ",
            (f"{result.ttft_speedup:.1f}x faster", "bold green"),
        )
    yield Text.assemble(
        f"all turns together, the first prefill included: {result.wall_s:.1f} s by baton, "
        f"{result.text_wall_s:.1f} s by text: ",
        (f"{result.speedup:.2f}x faster", "bold green"),
    )
