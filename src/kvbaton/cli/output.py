"""What a command says: tables and progress for people, one JSON object for programs.

The result goes to standard output, everything else to standard error.  With ``--json`` standard
output carries exactly one JSON object, whatever happens.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Annotated, Any, NoReturn

import typer
from rich.console import Console, JustifyMethod
from rich.progress import (
    BarColumn,
    DownloadColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from kvbaton.errors import BatonRefused, FormatError, KvbatonError
from kvbaton.types import JSON

JsonFlag = Annotated[
    bool, typer.Option("--json", help="Print one JSON object to standard output, and no more.")
]
"""``--json``, as every command has it."""

QUIET_S = 1.0
"""Work that takes longer is announced where there is no terminal to draw on."""

_SPOOFS = frozenset(
    {0x61C, 0x200E, 0x200F, 0x2028, 0x2029, 0xFEFF}
    | set(range(0x202A, 0x202F))
    | set(range(0x2066, 0x206A))
)
"""Characters that turn the direction of text or break lines where nobody sees it."""


_UNFOLDED = 10_000
"""Columns of a table that is never folded."""


class _Terminal(Console):
    """A console that leaves it to ``main`` what a reader who went away means.

    Where nobody looks at columns, lines are as long as they need to be.
    """

    def __init__(self, file: IO[str], *, unfolded: bool = False) -> None:
        width = _UNFOLDED if unfolded or not file.isatty() else None
        super().__init__(file=file, soft_wrap=True, highlight=False, width=width)

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


class Step:
    """Work under way: ``say`` what it is doing now, or how far it is."""

    def __init__(self, show: Callable[[str, int, int], None]) -> None:
        self._show = show

    def say(self, label: str, done_bytes: int = 0, total_bytes: int = 0) -> None:
        """Change the label and, where the end is known, the bar."""
        self._show(label, done_bytes, total_bytes)


class Output:
    """Where one command writes to.

    Parameters
    ----------
    as_json
        Print the result as one JSON object; people read standard error meanwhile.
    """

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self.out = _Terminal(sys.stdout)
        self.err = _Terminal(sys.stderr)

    def result(self, value: JSON, show: Callable[[Console], None]) -> None:
        """Print the command's result: ``value`` with ``--json``, else whatever ``show`` prints."""
        if self.as_json:
            sys.stdout.write(to_json(value) + "\n")
        else:
            show(self.out)
        sys.stdout.flush()

    def say(self, text: str, *, style: str = "") -> None:
        """Tell people something, on standard error; control characters are made visible."""
        self.err.print(Text(visible(text), style=style))

    def warn(self, text: str) -> None:
        """Tell people of something that they should know."""
        self.say(f"warning: {text}", style="yellow")

    @contextmanager
    def progress(self, label: str) -> Iterator[Step]:
        """Show on standard error that something is under way.

        A terminal gets a moving line that disappears; elsewhere one line is printed, for what
        takes over a second.
        """
        if self.err.is_terminal:
            with self._bars() as bars:
                task = bars.add_task(visible(label), total=None)
                yield Step(_drawing(bars, task))
            return
        lines = _Lines(label, self.say)
        try:
            yield Step(lines.show)
        finally:
            lines.stop()

    def _bars(self) -> Bars:
        return Bars(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            _OnlyWithTotal(BarColumn(bar_width=30)),
            _OnlyWithTotal(DownloadColumn()),
            _OnlyWithTotal(TimeRemainingColumn()),
            TimeElapsedColumn(),
            console=self.err,
            transient=True,
        )


class _Lines:
    """Progress where there is no terminal: one line per label and tenth, after a quiet second."""

    def __init__(self, label: str, say: Callable[[str], None]) -> None:
        self._now, self._say, self._loud = f"{label} ...", say, False
        self._lock = threading.Lock()
        self._timer = threading.Timer(QUIET_S, self._speak)
        self._timer.daemon = True
        self._timer.start()

    def _speak(self) -> None:
        with self._lock:
            self._loud = True
            self._say(self._now)

    def show(self, label: str, done_bytes: int, total_bytes: int) -> None:
        """Remember, or print, what is done now."""
        share = f" {100 * done_bytes // total_bytes // 10 * 10}%" if total_bytes else " ..."
        with self._lock:
            changed, self._now = label + share != self._now, label + share
            if self._loud and changed:
                self._say(self._now)

    def stop(self) -> None:
        """Say nothing more."""
        self._timer.cancel()
        with self._lock:
            self._say = lambda text: None


class _OnlyWithTotal(TextColumn):
    """A column that is empty while the end of the work is not known."""

    def __init__(self, inner: Any) -> None:
        super().__init__("")
        self._inner = inner

    def render(self, task: Any) -> Any:
        return self._inner.render(task) if task.total else Text("")


def _drawing(bars: Bars, task: Any) -> Callable[[str, int, int], None]:
    def show(label: str, done_bytes: int, total_bytes: int) -> None:
        known = total_bytes or None
        bars.update(task, description=visible(label), completed=done_bytes, total=known)

    return show


def to_json(value: JSON) -> str:
    """One line of JSON in ASCII, so that no terminal and no decoder can stumble over it."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False)


def error_json(error: KvbatonError) -> JSON:
    """``{"code", "sentence", "at", "hint", "exit_code"}`` and what is particular to its class."""
    said: JSON = {
        "code": error.code,
        "sentence": error.sentence,
        "at": error.at,
        "hint": error.hint,
        "exit_code": error.exit_code,
    }
    if isinstance(error, BatonRefused):
        said["reason"] = error.reason_code
    if isinstance(error, FormatError):
        said["fault"] = error.fault.value
    return said


def visible(text: str, *, lines: bool = True) -> str:
    r"""Text from elsewhere as a terminal may show it: control characters become ``\x1b``.

    ``lines`` keeps line ends and tabs.
    """
    kept = "\n\t" if lines else ""
    return "".join(c if c in kept or not _acts(c) else _escaped(c) for c in text)


def _acts(character: str) -> bool:
    point = ord(character)
    controls = point < 0x20 or 0x7F <= point < 0xA0
    return controls or point in _SPOOFS or 0xD800 <= point < 0xE000


def _escaped(character: str) -> str:
    point = ord(character)
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}"


def print_table(
    console: Console, headings: Sequence[str], rows: Iterable[Sequence[str]], *, right: str = ""
) -> None:
    """Print rows under headings (none: without a head); cells are shown as they are.

    Nothing is folded or cut off, so that an id can be copied from any terminal.  ``right`` has one
    letter per column: ``r`` where numbers are set flush right.
    """
    table = Table(box=None, pad_edge=False, show_header=any(headings))
    flush = right.ljust(len(headings))
    for heading, side in zip(headings, flush, strict=False):
        justify: JustifyMethod = "right" if side == "r" else "left"
        table.add_column(heading, justify=justify)
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    _Terminal(console.file, unfolded=True).print(table)


def bytes_text(count: int) -> str:
    """``1234567`` as ``1.2 MB``, in powers of 1000."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 99.5 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def age_text(seconds: float) -> str:
    """Seconds as ``12 s``, ``3 min``, ``5 h`` or ``2 d``."""
    for unit, size, limit in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < limit:
            return f"{max(0, seconds) / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def expiry_text(expires_ms: int) -> str:
    """When something expires, from milliseconds since the epoch, 0 for ``never``: ``in 5 min``."""
    if not expires_ms:
        return "never"
    left_s = expires_ms / 1000 - time.time()
    return f"in {age_text(left_s)}" if left_s > 0 else f"{age_text(-left_s)} ago"
