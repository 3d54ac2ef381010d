"""The frontier of quality against bytes as a picture; needs matplotlib, which is optional."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvbaton.bench.fidelity.targets import TOKENS
from kvbaton.bench.plot import require_matplotlib
from kvbaton.errors import InputError
from kvbaton.types import JSON

_MARKERS = "osD^v"
_FLOOR = 1e-7
"""What is shown of a KL of nothing."""


def plot_frontier(results: Sequence[JSON], file: Path, *, tokens: int | None = None) -> None:
    """Write a picture: KL over bits per element, one line per result, with its profiles' names.

    Parameters
    ----------
    results
        What ``measure`` has returned, once or for several models and dtypes.
    tokens
        Which length of context is shown; 1,024 where it was measured, else the first.

    Raises
    ------
    InputError
        matplotlib is not installed, nothing was measured, or the file cannot be written.
    """
    pyplot = require_matplotlib()
    lines = [(result, _points(result, tokens)) for result in results]
    if not any(points for _, points in lines):
        raise InputError("there is no profile to draw: measure mode 'continue'")
    figure, panel = pyplot.subplots(figsize=(7.5, 4.8))
    for number, (result, points) in enumerate(lines):
        if points:
            _draw(panel, result, points, marker=_MARKERS[number % len(_MARKERS)])
    panel.set_yscale("log")
    panel.margins(x=0.12)
    panel.set_xlabel("bits per element, all overhead counted")
    panel.set_ylabel("KL from the exact cache, nats (median of texts)")
    panel.grid(visible=True, which="both", alpha=0.25)
    panel.legend(fontsize="small")
    figure.tight_layout()
    try:
        figure.savefig(file, dpi=130)
    except (OSError, ValueError) as error:
        raise InputError(f"the plot cannot be written: {error}", at=str(file)) from error
    finally:
        pyplot.close(figure)


def _points(result: JSON, tokens: int | None) -> list[JSON]:
    """Lossy profiles of one length, by their bits."""
    rows = [
        row
        for row in result["rows"]
        if row["mode"] == "continue" and row["hops"] is None and row["kl"]
    ]
    lengths = [row["tokens"] for row in rows]
    wanted = tokens or (TOKENS if TOKENS in lengths else next(iter(lengths), None))
    return sorted(
        (row for row in rows if row["tokens"] == wanted), key=lambda row: row["bits_per_element"]
    )


def _draw(panel: Any, result: JSON, points: list[JSON], *, marker: str) -> None:
    searched = [row for row in points if row["profile"] != "shallow"]
    label = f"{result['model']}, {points[0]['dtype']}, {points[0]['tokens']:,} tokens"
    bits = [row["bits_per_element"] for row in searched]
    (line,) = panel.plot(bits, [_kl(row) for row in searched], marker=marker, label=label)
    for row in points:
        place = (row["bits_per_element"], _kl(row))
        if row["profile"] == "shallow":
            panel.plot(*place, marker=marker, color=line.get_color(), fillstyle="none")
        panel.annotate(
            row["profile"], place, textcoords="offset points", xytext=(5, 4), fontsize="x-small",
            color=line.get_color(),
        )  # fmt: skip
    floor = result["bf16_noise_floor_kl"]
    if floor:
        panel.axhline(floor, color=line.get_color(), linestyle=":", linewidth=1)


def _kl(row: JSON) -> float:
    return max(float(row["kl"]), _FLOOR)
