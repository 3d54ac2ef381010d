"""`kvbaton policy rollback`: answers from caches, and all that was built on them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Cli
from tests.cli.test_reference import names, shape
from tests.lineage.nodes import answer, baton, entry

from kvbaton.api import Agent
from kvbaton.ledgers import close_keepers
from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.records import Entry

HOUR_MS = 3_600_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the test's ledger lies."""
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    """A plan; an answer from it; a baton, an answer and a file that were built on the answer."""
    with Ledger(f"sqlite:///{path}", "local") as made:
        made.record(
            [
                Entry(baton("plan")),
                Entry(answer("answer-a", "plan")),
                Entry(baton("baton-a", "answer-a")),
                Entry(answer("answer-b", "baton-a")),
                entry("file-a", "answer-b"),
                Entry(answer("answer-old", "plan")),
                entry("file-old", "answer-old"),
            ]
        )
        yield made


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Receipts: two new answers from caches, one by text, one that is old, one nobody noted."""
    now_ms = time.time_ns() // 1_000_000
    rows: list[dict[str, Any]] = [
        {"id": "answer-old", "agent": "coder", "created_ms": now_ms - 9 * HOUR_MS},
        {"id": "answer-a", "agent": "coder", "created_ms": now_ms - HOUR_MS},
        {"id": "answer-b", "agent": "critic", "created_ms": now_ms},
        {"id": "answer-t", "agent": "coder", "created_ms": now_ms, "route": "text"},
        {"id": "answer-n", "agent": "coder", "created_ms": now_ms, "mode": "slice"},
    ]
    path = tmp_path / "receipts.jsonl"
    plain = {"route": "baton", "fidelity": {"class": "exact", "codec": "raw"}}
    path.write_text("".join(json.dumps(plain | row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def run(cli: Cli, path: Path, ledger: Ledger, log: Path) -> Any:
    """Runs the command on that ledger and that log."""
    assert ledger.sequence() > 0
    return lambda *more: cli(
        "policy", "rollback", "--ledger", path, "--receipts", log, *more, "--json"
    )


def test_descendants_of_recent_answers_are_listed(run: Any) -> None:
    """Those from caches since then; each descendant once, and what the ledger does not know."""
    said = run("--since", "2h").json
    assert said["answers"] == ["answer-a", "answer-b", "answer-n"]
    assert [node["id"] for node in said["contaminated"]] == ["baton-a", "file-a"]
    assert [node["kind"] for node in said["contaminated"]] == ["baton", "artefact"]
    assert (said["unlisted"], said["complete"]) == (["answer-n"], False)
    assert said["withdrawn"] == []
    assert names(said) == shape("policy rollback")


def test_answers_are_chosen_by_agent_and_route(run: Any) -> None:
    """Either may be given again."""
    assert run("--since", "2h", "--agent", "critic").json["answers"] == ["answer-b"]
    assert run("--since", "2h", "--route", "slice").json["answers"] == ["answer-n"]
    both = run("--since", "2h", "--route", "slice", "--route", "exact", "--agent", "coder").json
    assert both["answers"] == ["answer-a", "answer-n"]


@pytest.mark.parametrize("since", ["1970-01-01", "1970-01-01T00:00:00+00:00", "10d"])
def test_a_time_is_a_date_or_how_long_ago(run: Any, since: str) -> None:
    """Far enough back, the old answer and its file are listed, too."""
    said = run("--since", since).json
    assert said["answers"][0] == "answer-old"
    assert "file-old" in [node["id"] for node in said["contaminated"]]


def test_a_withdrawal_marks_all_of_it(run: Any, ledger: Ledger) -> None:
    """The answers that the ledger knows, and what was built on them; the old one is left alone."""
    said = run("--since", "2h", "--withdraw", "the canary has died").json
    assert said["withdrawn"] == ["answer-a", "answer-b"]
    stale = {node.id for node in ledger.nodes(stale=True)}
    assert stale == {"answer-a", "baton-a", "answer-b", "file-a"}
    marked = ledger.node("file-a").stale
    assert marked is not None
    assert "the canary has died" in marked.why
    assert all(node["stale"] for node in run("--since", "2h").json["contaminated"])


def test_people_see_counts(cli: Cli, path: Path, ledger: Ledger, log: Path) -> None:
    """Answers, what was built on them, and what is not known."""
    shown = cli("policy", "rollback", "--since", "2h", "--ledger", path, "--receipts", log)
    assert ledger.sequence() > 0
    assert "3 answers came from caches, 2 nodes were built on them" in shown.out
    assert "of 1 answers the ledger does not say what was built on them" in shown.out


def test_without_a_ledger_the_answers_are_listed(
    cli: Cli, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a warning; a ledger that is named must be there, and so must one to withdraw from."""
    monkeypatch.setenv("KVBATON_LEDGER", f"sqlite:///{tmp_path}/absent.db")
    asked = ("policy", "rollback", "--since", "2h", "--receipts", log, "--json")
    found = cli(*asked)
    assert found.json["unlisted"] == ["answer-a", "answer-b", "answer-n"]
    assert "warning: nothing is known of what was built on them" in found.err
    assert cli(*asked, "--withdraw", "why").code == 14
    assert cli(*asked, "--ledger", tmp_path / "absent.db").code == 14


@pytest.mark.parametrize(
    ("options", "at"), [(("--since", "soon"), "--since"), (("--withdraw", " "), "--withdraw")]
)
def test_what_makes_no_sense_is_refused(run: Any, options: tuple[str, str], at: str) -> None:
    """By the option's name."""
    failed = run("--since", "1h", *options) if "--since" not in options else run(*options)
    assert (failed.code, failed.json["error"]["at"]) == (3, at)


def test_an_id_that_only_begins_alike_is_another(cli: Cli, path: Path, ledger: Ledger) -> None:
    """An answer of the log is looked up by its whole id."""
    log = path.with_name("short.jsonl")
    log.write_text('{"id": "answer-ol", "route": "baton"}\n{"id": "answer", "route": "baton"}\n')
    assert ledger.sequence() > 0
    asked = ("policy", "rollback", "--since", "1h", "--ledger", path, "--receipts", log, "--json")
    said = cli(*asked).json
    assert said["unlisted"] == ["answer-ol", "answer"]
    assert said["contaminated"] == []


def test_a_real_hand_off_is_rolled_back(
    cli: Cli,
    tiny: Path,
    remembered: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An answer from a cache, a file made from it, and what a third agent went on to say."""
    log, url = tmp_path / "receipts.jsonl", f"sqlite:///{tmp_path}/real.db"
    monkeypatch.setenv("KVBATON_RECEIPTS", str(log))
    engine = remembered(str(tiny), dtype="float32")
    planner, coder, critic = (
        Agent(name, engine, store=f"dir://{tmp_path}/store", ledger=url)
        for name in ("planner", "coder", "critic")
    )
    plan = planner.hand_off(planner.run("Every door has a key.", max_new_tokens=3))
    code = coder.take(plan, "Write it.", max_new_tokens=3)
    file = coder.artefact("doors.py", code)
    onward = coder.hand_off(code)
    said = critic.take(onward, "Read it.", max_new_tokens=3, route="text")
    close_keepers()
    found = cli(
        "policy", "rollback", "--since", "1h", "--receipts", log, "--ledger", tmp_path / "real.db",
        "--json",
    ).json  # fmt: skip
    assert found["answers"] == [code.receipt.id]
    built = {node["id"]: node["kind"] for node in found["contaminated"]}
    assert built == {file: "artefact", onward.id: "baton", said.receipt.id: "answer"}
    assert found["complete"] is True
