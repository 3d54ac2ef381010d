"""What was seen of a ledger: an older copy is refused, by every process and after a restart."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.lineage.nodes import baton

from kvbaton.errors import LedgerError, LedgerRolledBack
from kvbaton.lineage import seen as seen_module
from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.marks import Seat
from kvbaton.lineage.seen import Seen

URL = "sqlite:////nowhere/ledger.db"
PATIENCE_S = 30.0


class Clock:
    """Milliseconds that only a test moves."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        """The time now."""
        return self.ms


def look(seen: Seen, as_of: int, **head: Any) -> None:
    """Read a ledger that says this, and compare."""
    seen.check(seen.so_far(), as_of, **head)


def test_less_than_was_seen_is_refused_with_the_age(tmp_path: Path) -> None:
    """The sequence, and each ref by itself; the error says how long ago it was more."""
    clock = Clock()
    seen = Seen(tmp_path, URL, "local", now_ms=clock)
    look(seen, 5, ref="plan", number=2, baton="b2")
    clock.ms += 600_000
    with pytest.raises(LedgerRolledBack, match=r"stands at 4, and stood at 5 10 min ago") as caught:
        look(seen, 4)
    assert "kvbaton ledger accept" in caught.value.hint
    with pytest.raises(LedgerRolledBack, match="plan stands at 1, and stood at 2 10 min") as caught:
        look(seen, 9, ref="plan", number=1, baton="b1")
    assert (caught.value.at, caught.value.exit_code) == ("plan", 14)
    with pytest.raises(LedgerRolledBack, match="plan stands at 0"):
        look(seen, 9, ref="plan", number=0)
    look(seen, 5, ref="plan", number=2, baton="b2")
    look(seen, 5, ref="other", number=1)


def test_another_baton_under_the_same_number_is_refused(tmp_path: Path) -> None:
    """A ledger that was restored and then went on has other heads with the same numbers."""
    seen = Seen(tmp_path, URL, "local")
    look(seen, 5, ref="plan", number=2)
    look(seen, 5, ref="plan", number=2, baton="b2")
    look(seen, 6, ref="plan", number=2)
    with pytest.raises(LedgerRolledBack, match="another baton as its 2"):
        look(seen, 7, ref="plan", number=2, baton="forged")
    assert seen.newest("plan") == Seat(2, "b2", seen.so_far().heads["plan"].seen_ms)


def test_it_is_remembered_after_a_restart(tmp_path: Path) -> None:
    """A new head is on the disk at once, a sequence when the handle is closed; both private."""
    first = Seen(tmp_path / "seen", URL, "local")
    look(first, 5, ref="plan", number=2, baton="b2")
    second = Seen(tmp_path / "seen", URL, "local")
    assert (second.so_far().sequence, second.so_far().heads["plan"].number) == (5, 2)
    look(first, 6)
    with first:
        look(first, 7)
    assert Seen(tmp_path / "seen", URL, "local").so_far().sequence == 7
    assert stat.S_IMODE(first.path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "seen").stat().st_mode) == 0o700
    assert sorted(path.suffix for path in (tmp_path / "seen").iterdir()) == [".json", ".lock"]


def test_ledgers_and_domains_are_apart_and_urls_are_not_kept(tmp_path: Path) -> None:
    """Each has a file of its own, in which no password lies."""
    secret = "postgresql://me:hunter2@host/db"
    for url, domain, as_of in ((URL, "local", 5), (URL, "other", 3), (secret, "local", 1)):
        with Seen(tmp_path, url, domain) as seen:
            look(seen, as_of)
    assert Seen(tmp_path, URL, "other").so_far().sequence == 3
    assert not any(b"hunter2" in path.read_bytes() for path in tmp_path.iterdir())


def test_nothing_is_written_on_the_way_and_all_of_it_afterwards(tmp_path: Path) -> None:
    """With `keep=False` the file is only touched by `keep`, and a sequence alone not every time."""
    seen = Seen(tmp_path, URL, "local")
    look(seen, 5, ref="plan", number=1, keep=False)
    assert not seen.path.exists()
    seen.keep()
    written = seen.path.read_bytes()
    look(seen, 6)
    assert seen.path.read_bytes() == written
    look(seen, 7, ref="plan", number=2)
    assert Seen(tmp_path, URL, "local").so_far().sequence == 7


def test_what_others_see_in_the_meantime_is_no_alarm(tmp_path: Path) -> None:
    """A reading counts against what was seen before it began; the next one against all of it."""
    mine, theirs = Seen(tmp_path, URL, "local"), Seen(tmp_path, URL, "local")
    before = mine.so_far()
    look(theirs, 9, ref="plan", number=3, baton="b3")
    mine.check(before, 8, ref="plan", number=2, baton="b2")
    assert mine.so_far().heads["plan"].number == 3
    with pytest.raises(LedgerRolledBack):
        look(mine, 8, ref="plan", number=2, baton="b2")


_LOOKER = """
import sys
from pathlib import Path
from kvbaton.lineage.seen import Seen
folder, url, first, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
seen = Seen(folder, url, "local")
sys.stdin.readline()
for number in range(1, count + 1):
    before = seen.so_far()
    as_of = max(before.sequence, 0) + 1
    seen.check(before, as_of, ref=f"ref-{first}", number=number, baton=f"b{first}-{number}")
while not seen.keep():
    pass
"""


def test_several_processes_lose_nothing_of_each_other(tmp_path: Path) -> None:
    """Each moves a ref of its own, without closing: all heads are there in the end."""
    pipes: Any = {"stdin": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", _LOOKER, str(tmp_path), URL]
    running = [subprocess.Popen([*command, str(n), "40"], **pipes) for n in range(3)]
    for process in running:
        process.communicate("go\n", timeout=120)
    assert [process.returncode for process in running] == [0, 0, 0]
    marks = Seen(tmp_path, URL, "local").so_far()
    assert {ref: seat.baton for ref, seat in marks.heads.items()} == {
        f"ref-{n}": f"b{n}-40" for n in range(3)
    }
    assert marks.sequence >= 40


def test_who_restores_on_purpose_accepts_it(tmp_path: Path) -> None:
    """From then on less is believed, by processes that are running, too."""
    running = Seen(tmp_path, URL, "local")
    look(running, 9, ref="plan", number=3, baton="b3")
    look(running, 10, keep=False)  # known to this process only
    with Seen(tmp_path, URL, "local") as seen:
        assert seen.accept(4, {"plan": (1, "b1")}).heads["plan"].number == 3
    look(running, 4, ref="plan", number=1, baton="b1")
    running.close()
    assert Seen(tmp_path, URL, "local").so_far().sequence == 4
    with pytest.raises(LedgerRolledBack):
        look(running, 3)


# --- others that hold the file -------------------------------------------------------------------


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """What was seen is held by somebody who was stopped; to be called to let go of it."""
    with Seen(tmp_path, URL, "local") as seen:
        look(seen, 1)
    descriptor = os.open(seen.path.with_suffix(".lock"), os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield lambda: fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def test_who_holds_the_file_keeps_nobody_waiting(
    tmp_path: Path, held: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading goes on, and believes no old copy; what is new is written as soon as it can be."""
    seen = Seen(tmp_path, URL, "local")
    began_s = time.monotonic()
    look(seen, 5, ref="plan", number=2, baton="b2")
    assert seen.keep() is False
    assert seen.newest("plan") == seen.so_far().heads["plan"]
    with pytest.raises(LedgerRolledBack):
        look(seen, 4)
    with pytest.raises(LedgerError, match="another process holds it"):
        seen.close()
    assert time.monotonic() - began_s < PATIENCE_S
    monkeypatch.setattr(seen_module, "BUSY_S", 0.0)
    with pytest.raises(LedgerError, match="another process holds it") as caught:
        seen.keep()
    assert caught.value.at.endswith(".lock")
    assert Seen(tmp_path, URL, "local").so_far().sequence == 1
    held()
    assert seen.keep() is True
    assert Seen(tmp_path, URL, "local").newest("plan") == seen.newest("plan")


def test_a_sequence_that_cannot_be_kept_is_no_error_at_the_end(
    tmp_path: Path, held: Callable[[], None]
) -> None:
    """It only saves looking again."""
    with Seen(tmp_path, URL, "local") as seen:
        look(seen, 9, keep=False)
    held()
    assert Seen(tmp_path, URL, "local").so_far().sequence == 1


def test_accepting_says_that_it_could_not(
    tmp_path: Path, held: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not believed that the old copy was accepted when it was not."""
    monkeypatch.setattr(seen_module, "ACCEPT_WAIT_S", 0.05)
    seen = Seen(tmp_path, URL, "local")
    with pytest.raises(LedgerError, match="another process holds it"):
        seen.accept(0, {})
    with pytest.raises(LedgerRolledBack):
        look(seen, 0)
    held()
    seen.accept(0, {})
    look(Seen(tmp_path, URL, "local"), 0)


def test_a_slow_disk_stops_no_reading_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one thread writes, others read, and what they see is written by the next call."""
    seen = Seen(tmp_path, URL, "local")
    began, goes_on = threading.Event(), threading.Event()

    def slow(descriptor: int) -> None:
        del descriptor
        began.set()
        assert goes_on.wait(PATIENCE_S)

    look(seen, 5, ref="plan", number=2, keep=False)
    monkeypatch.setattr(os, "fsync", slow)
    writer = threading.Thread(target=seen.keep)
    writer.start()
    assert began.wait(PATIENCE_S)
    look(seen, 6, ref="plan", number=3, keep=False)
    assert seen.keep() is False
    assert seen.so_far().heads["plan"].number == 3
    goes_on.set()
    writer.join()
    assert Seen(tmp_path, URL, "local").so_far().heads["plan"].number == 2
    assert seen.keep() is True
    assert Seen(tmp_path, URL, "local").so_far().heads["plan"].number == 3


_LEAVER = """
import sys
from pathlib import Path
from kvbaton.ledgers import keeper_of
from kvbaton.lineage.records import Node, NodeKind
url, folder = sys.argv[1], Path(sys.argv[2])
keeper = keeper_of(url, "local", folder / "spool", folder / "seen")
keeper.move("plan", Node("b1", NodeKind.BATON), expected=0)
print("moved", flush=True)
sys.stdin.readline()
print(keeper.move("plan", Node("b2", NodeKind.BATON), expected=1).sequence, flush=True)
"""


def test_a_process_ends_although_another_one_holds_the_file(url: str, tmp_path: Path) -> None:
    """It moves a ref, and goes."""
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", _LEAVER, url, str(tmp_path)]
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "moved\n"
        with next((tmp_path / "seen").glob("*.lock")).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            assert process.communicate("go\n", timeout=PATIENCE_S)[0] == "2\n"
    assert process.returncode == 0


def test_a_pipe_in_its_place_is_refused(tmp_path: Path) -> None:
    """Nobody waits for its other end."""
    with Seen(tmp_path, URL, "local") as seen:
        look(seen, 1)
    seen.path.unlink()
    os.mkfifo(seen.path)
    with pytest.raises(LedgerError, match="foreign file"):
        Seen(tmp_path, URL, "local")


# --- files that are not as they should be --------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b'{"format":2}', b'{"format":1,"epoch":0,"sequence":1,"seen_ms":1}',
        b'{"format":1,"epoch":0,"sequence":-1,"seen_ms":1,"heads":{}}',
        b'{"format":1,"epoch":0,"sequence":1,"seen_ms":1,"heads":{"plan":[1]}}',
        b'{"format":1,"epoch":0,"sequence":true,"seen_ms":1,"heads":{}}',
    ],
)  # fmt: skip
def test_a_damaged_file_is_an_error_not_a_fresh_start(tmp_path: Path, data: bytes) -> None:
    """Else whoever can tear a file could make the old copy good."""
    path = Seen(tmp_path, URL, "local").path
    path.write_bytes(data)
    path.chmod(0o600)
    with pytest.raises(LedgerError, match="cannot be read"):
        Seen(tmp_path, URL, "local")


def test_files_that_others_may_write_or_links_are_refused(tmp_path: Path) -> None:
    """A file of mode 0644, and a symbolic link in its place."""
    with Seen(tmp_path, URL, "local") as seen:
        look(seen, 5)
    seen.path.chmod(0o644)
    with pytest.raises(LedgerError, match="others may"):
        Seen(tmp_path, URL, "local")
    seen.path.rename(tmp_path / "elsewhere")
    seen.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LedgerError, match="cannot be kept"):
        Seen(tmp_path, URL, "local")


def test_an_old_copy_of_a_real_ledger_is_refused(tmp_path: Path, url: str) -> None:
    """Yesterday's file in today's place: the head is older, and the copy is refused."""
    database = Path(url.removeprefix("sqlite:///"))
    with Ledger(url, "local") as ledger:
        ledger.move("plan", baton("b1"), expected=0)
    shutil.copy(database, tmp_path / "yesterday.db")
    with Ledger(url, "local") as ledger, Seen(tmp_path / "seen", url, "local") as seen:
        ledger.move("plan", baton("b2"), expected=1)
        before, head = seen.so_far(), ledger.head("plan")
        seen.check(before, head.as_of, ref="plan", number=head.sequence, baton=head.baton)
    shutil.copy(tmp_path / "yesterday.db", database)
    with Ledger(url, "local") as ledger, Seen(tmp_path / "seen", url, "local") as seen:
        before, found = seen.so_far(), ledger.freshness("b1", "plan", 1)
        assert found.standing == "current"  # as far as the old copy knows
        with pytest.raises(LedgerRolledBack):
            seen.check(before, found.as_of, ref="plan", number=found.head_sequence)
