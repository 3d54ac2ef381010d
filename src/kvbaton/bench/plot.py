"""The result of ``bench ttft`` as a picture; needs matplotlib, which is optional."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvbaton.errors import InputError
from kvbaton.types import JSON

_LINES = (
    ("text_s", "text (prefill)", "tab:red", "o"),
    ("handmade_s", "torch.save / torch.load", "tab:orange", "s"),
    ("prefix_cache_s", "prefix cache in the process", "tab:gray", "^"),
    ("baton_s", "baton", "tab:blue", "D"),
    ("floor_s", "floor: one memcpy + forward", "black", "."),
)


def require_matplotlib() -> Any:
    """The plotting library, with a backend that needs no display.

    Raises
    ------
    InputError
        matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise InputError(
            "a plot needs matplotlib, which is not installed", hint="pip install 'kvbaton[plot]'"
        ) from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    return pyplot


def plot_ttft(result: JSON, file: Path) -> None:
    """Write a picture: seconds to the first token over the tokens of context, a panel per dtype.

    Raises
    ------
    InputError
        matplotlib is not installed, or the file cannot be written.
    """
    pyplot = require_matplotlib()
    dtypes = list(dict.fromkeys(row["dtype"] for row in result["rows"]))
    figure, panels = pyplot.subplots(
        1, len(dtypes), figsize=(5.5 * len(dtypes), 4.2), sharey=True, squeeze=False
    )
    for panel, dtype in zip(panels[0], dtypes, strict=True):
        _draw(panel, [row for row in result["rows"] if row["dtype"] == dtype])
        panel.set_title(f"{result['model']}, {dtype}")
    panels[0][0].set_ylabel("seconds to the first token")
    panels[0][-1].legend(fontsize="small")
    figure.tight_layout()
    try:
        figure.savefig(file, dpi=130)
    except (OSError, ValueError) as error:
        raise InputError(f"the plot cannot be written: {error}", at=str(file)) from error
    finally:
        pyplot.close(figure)


def _draw(panel: Any, rows: list[JSON]) -> None:
    tokens = [row["tokens"] for row in rows]
    for name, label, color, marker in _LINES:
        if all(row[name] is not None for row in rows):
            seconds = [row[name] for row in rows]
            panel.plot(tokens, seconds, label=label, color=color, marker=marker)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xticks(tokens, [f"{count:,}" for count in tokens])
    panel.set_xlabel("tokens of context")
    panel.grid(visible=True, which="both", alpha=0.25)
    for row in rows:
        place = (row["tokens"], row["baton_s"])
        panel.annotate(
            f"{row['speedup']:.0f}x", place, textcoords="offset points", xytext=(0, 7),
            ha="center", fontsize="small", color="tab:blue",
        )  # fmt: skip
