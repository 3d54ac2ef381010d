"""What people see: nothing that acts on a terminal, sizes, ages, progress."""

from __future__ import annotations

import io
import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from kvbaton.cli import output as shown
from kvbaton.cli.output import Output, age_text, bytes_text, print_table, to_json, visible


def test_control_characters_become_visible() -> None:
    """Escape sequences, bells, and characters that turn text around are spelled out."""
    assert visible("a\x1b[31mb\x07") == r"a\x1b[31mb\x07"
    assert visible("x\N{RIGHT-TO-LEFT OVERRIDE}y") == r"x\u202ey"
    assert visible("\x9b1m") == r"\x9b1m"
    assert visible("\udc80") == r"\udc80"
    assert visible("one\ntwo\tthree") == "one\ntwo\tthree"
    assert visible("one\ntwo", lines=False) == r"one\x0atwo"
    assert visible("naïve 世界 🙂") == "naïve 世界 🙂"


@given(st.text(st.characters(codec=None), max_size=60))
def test_nothing_that_is_shown_acts(text: str) -> None:
    """Whatever the text, what is left can be printed and holds no control character."""
    safe = visible(text, lines=False)
    safe.encode("utf-8")
    assert all(c.isprintable() or c.isspace() or ord(c) > 0x9F for c in safe)
    assert "\x1b" not in safe


@given(st.text(st.characters(codec=None), max_size=60))
def test_json_is_one_line_of_ascii(text: str) -> None:
    """Any string survives, and no character can break the line."""
    line = to_json({"text": text})
    assert line.isascii()
    assert "\n" not in line
    assert json.loads(line) == {"text": text}


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (99_400, "99.4 kB"), (99_600, "100 kB"),
     (999_600, "1.0 MB"), (47_185_920, "47.2 MB"), (3_200_000_000, "3.2 GB"),
     (5 * 10**12, "5.0 TB")],
)  # fmt: skip
def test_sizes_are_read_at_a_glance(count: int, text: str) -> None:
    """Powers of 1000, three digits."""
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3.0, "0 s"), (12.4, "12 s"), (119.0, "119 s"), (180.0, "3 min"), (7200.0, "2 h"),
     (172_800.0, "2 d")],
)  # fmt: skip
def test_ages_are_read_at_a_glance(seconds: float, text: str) -> None:
    """The largest unit that leaves at least two of it; a clock that is ahead gives 0."""
    assert age_text(seconds) == text


def test_cells_are_shown_as_they_are() -> None:
    """Markup in a cell is text, and nothing is cut off."""
    out = io.StringIO()
    console = Console(file=out, width=40)
    print_table(console, ("name",), [("[red]" + "x" * 50,)])
    assert "[red]" in out.getvalue()
    assert "x" * 50 in out.getvalue()


def test_work_of_a_moment_is_not_announced(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal nothing is printed for what takes less than a second."""
    with Output().progress("working") as step:
        step.say("still", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_longer_work_is_announced_by_tenths(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the quiet second each new label and each tenth is one line on standard error."""
    timers: list[object] = []

    class AtOnce:
        """A timer that fires when it is told to."""

        daemon = False

        def __init__(self, seconds: float, call: object) -> None:
            self.seconds, self.call = seconds, call
            timers.append(self)

        def start(self) -> None:
            """Wait to be fired."""

        def cancel(self) -> None:
            """Nothing to cancel."""

    monkeypatch.setattr(shown.threading, "Timer", AtOnce)
    monkeypatch.setattr(shown.threading, "Lock", threading.Lock)
    with Output(as_json=True).progress("pulling") as step:
        step.say("pulling", 5, 100)
        (timer,) = timers
        timer.call()
        for done in (10, 11, 12, 29, 30):
            step.say("pulling", done, 100)
        step.say("converting")
    assert timer.seconds == shown.QUIET_S == 1.0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "pulling 0%", "pulling 10%", "pulling 20%", "pulling 30%", "converting ...",
    ]  # fmt: skip
