"""Real processes: senders that are killed, and the memory of many takers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.relay.child import LONG

from kvbaton.errors import BatonUnavailable
from kvbaton.stores import Kind, open_store
from kvbaton.types import Route

ROOT = Path(__file__).parents[2]


def start(*arguments: str) -> subprocess.Popen[str]:
    """A child of its own that runs part of ``child.py``."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.relay.child", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("nth", [1, 3, 5])
def test_a_sender_killed_before_its_manifest_leaves_no_baton(
    agent_of: Any, tmp_path: Path, nth: int
) -> None:
    """Killed after some or all segments: no baton is visible, the same hand-off works at once,
    and what the dead sender stored is used again."""
    url = f"dir://{tmp_path}/store"
    with start("sender", url, "segment-stored", str(nth)) as child:
        assert child.stdout is not None
        reached = child.stdout.readline()
        child.send_signal(signal.SIGKILL)
    assert reached == "reached\n"
    store = open_store(url)
    assert list(store.list(Kind.BATON)) == []
    assert len(list(store.list(Kind.SEGMENT))) == nth
    with pytest.raises(BatonUnavailable):
        agent_of("b", store=store).take("0" * 64, "Go on")
    sender = agent_of("sender", store=store, stream=False)
    baton = sender.hand_off(sender.run(LONG, max_new_tokens=9))
    assert baton.bytes_deduplicated > 0
    turn = agent_of("c", store=store).take(baton.id, "Go on", max_new_tokens=3)
    assert turn.receipt.route is Route.BATON
    assert [p for p in (tmp_path / "store" / "tmp").rglob("*") if p.is_file()] == []


def test_takers_share_stored_bytes_and_own_one_copy_each(tmp_path: Path) -> None:
    """Four takers peak at no more than 4.3 caches of extra memory."""
    with start("fan-out", f"dir://{tmp_path}/store", "4") as child:
        printed, _ = child.communicate()
    assert child.returncode == 0
    figures = json.loads(printed)
    assert figures["peak_extra_bytes"] <= 4.3 * figures["cache_bytes"]
    assert figures["peak_extra_bytes"] >= 3.9 * figures["cache_bytes"]
