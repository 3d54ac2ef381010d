"""`kvbaton ledger`: what it shows, what it changes, and every way in which it can fail."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from tests.cli.conftest import Cli, Exported
from tests.cli.test_processes import environment
from tests.cli.test_reference import names, shape
from tests.lineage.nodes import answer, baton, entry

from kvbaton import settings
from kvbaton.ledgers import folder_of
from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.records import Entry, Node, NodeKind
from kvbaton.lineage.spool import line_of
from kvbaton.lineage.tables import VERSION

PLAN = "ab" * 32
FUNCTION = "cd" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the test's ledger lies."""
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    """A plan, an answer and a file that were built on it, and a newer plan."""
    with Ledger(f"sqlite:///{path}", "local") as made:
        made.move("plan", baton(PLAN, function=FUNCTION), expected=0)
        notes = Node("notes-v1", NodeKind.ARTEFACT, label="notes.md", parents=("answer-1",))
        made.record([Entry(answer("answer-1", PLAN)), Entry(notes)])
        made.move("plan", baton("newer-plan"), expected=1)
        yield made


@pytest.fixture
def run(cli: Cli, path: Path, ledger: Ledger) -> Any:
    """Runs `kvbaton ledger COMMAND ...` on that ledger."""
    assert ledger.sequence() == 7
    return lambda *arguments, **given: cli("ledger", *arguments, "--ledger", path, **given)


# --- what is shown -----------------------------------------------------------------------------


def test_the_log_says_what_happened(run: Any) -> None:
    """Events in the order of the ledger's sequence, in JSON and in lines."""
    said = run("log", "--json").json
    assert (said["domain"], said["sequence"]) == ("local", 7)
    kinds = ["moved", "recorded", "recorded", "recorded", "moved", "recorded", "stale"]
    assert [(e["sequence"], e["kind"]) for e in said["events"]] == [*enumerate(kinds, start=1)]
    assert [e["sequence"] for e in run("log", "--last", "2", "--json").json["events"]] == [6, 7]
    assert [e["sequence"] for e in run("log", "--since", "5", "--json").json["events"]] == [6, 7]
    of_plan = run("log", "--ref", "plan", "--last", "0", "--json").json["events"]
    assert {event["ref"] for event in of_plan} == {"plan"}
    of_node = run("log", "--node", PLAN[:8], "--json").json["events"]
    assert {event["node"] for event in of_node} == {PLAN}
    out = run("log").out
    assert "moved" in out and "plan@2" in out and PLAN[:16] in out and PLAN[:20] not in out
    assert out.rstrip().endswith("the ledger stands at 7")


def test_a_node_is_shown_with_what_it_came_from_and_led_to(run: Any) -> None:
    """By its id or its first digits."""
    said = run("show", "answer-1", "--json").json
    assert (said["ancestors"], said["descendants"]) == ([PLAN], ["notes-v1"])
    assert said["node"]["stale"]["ref"] == "plan"
    assert run("show", PLAN[:8], "--json").json["node"]["id"] == PLAN
    assert run("show", "newer-plan", "--json").json["heads"][0]["sequence"] == 2
    out = run("show", "answer-1").out
    assert PLAN in out and "notes-v1" in out and "plan has moved on from 1" in out


def test_the_graph_as_text_as_svg_and_as_json(run: Any, tmp_path: Path) -> None:
    """The same nodes in all of them; of one node, only what is above and below it."""
    out = run("graph").out
    assert out.splitlines()[0].startswith(f"{PLAN[:12]}  baton  planner  STALE")
    assert '   └─ notes-v1  artefact  "notes.md"  STALE' in out
    assert "newer-plan  baton  planner  [plan@2]" in out
    said = run("graph", "answer-1", "--svg", tmp_path / "out.svg", "--json").json
    assert [node["id"] for node in said["nodes"]] == [PLAN, "answer-1", "notes-v1"]
    assert said["edges"] == [["answer-1", PLAN], ["notes-v1", "answer-1"]]
    root = ElementTree.parse(said["file"]).getroot()
    assert len(root.findall("{http://www.w3.org/2000/svg}g/{http://www.w3.org/2000/svg}title")) == 3
    result = run("graph", "--svg", tmp_path / "no" / "folder.svg")
    assert (result.code, "cannot be written" in result.err) == (3, True)


def test_refs_and_their_history(run: Any) -> None:
    """Where each stands; and of one, all heads."""
    (head,) = run("refs", "--json").json["refs"]
    assert (head["ref"], head["sequence"], head["baton"]) == ("plan", 2, "newer-plan")
    assert [h["baton"] for h in run("refs", "plan", "--json").json["refs"]] == [PLAN, "newer-plan"]
    assert "newer-plan" in run("refs").out


def test_impact_lists_what_an_upgrade_voids(run: Any) -> None:
    """All that a function made, and all that builds on that."""
    said = run("impact", "--function-id", FUNCTION[:10], "--json").json
    assert [node["id"] for node in said["nodes"]] == [PLAN, "answer-1", "notes-v1"]
    out = run("impact", "--function-id", FUNCTION).out
    assert "1 answer, 1 artefact, 1 baton" in out
    assert "nothing" in run("impact", "--function-id", "f" * 64).out
    assert run("impact", "--function-id", "cd").code == 3


# --- what is changed ---------------------------------------------------------------------------


def test_invalidating_lists_everything_that_was_built_on_it(run: Any, ledger: Ledger) -> None:
    """The list is complete, also where some of it was stale; a second time changes nothing."""
    ledger.record([Entry(answer("late", "newer-plan")), entry("file", "late")])
    said = run("invalidate", "newer-plan", "--why", "wrong customer", "--json").json
    assert said["nodes"] == ["file", "late", "newer-plan"]
    assert [node["id"] for node in said["affected"]] == ["newer-plan", "late", "file"]
    assert "wrong customer" in ledger.node("file").stale.why  # type: ignore[union-attr]
    out = run("invalidate", "newer-plan", "--why", "again").out
    assert "1 answer, 1 artefact, 1 baton; 0 of them were not stale before" in out
    assert run("invalidate", "newer-plan", "--why", " ").code == 3
    assert run("invalidate", "newer-plan").code == 2


def test_records_that_a_dead_process_left_are_read_too(run: Any, path: Path, home: Path) -> None:
    """They are written to the ledger before anything is shown."""
    chosen = settings.from_environment()
    folder = folder_of(f"sqlite:///{path}", "local", chosen.ledger_records)
    folder.mkdir(parents=True)
    (folder / "left.jsonl").write_bytes(line_of(entry("left-over", once="once")))
    assert run("show", "left-over").code == 0
    assert list(folder.iterdir()) == []
    assert home in folder.parents


def test_domains_see_nothing_of_each_other(run: Any) -> None:
    """Another domain's part is empty, not an error."""
    assert run("log", "--domain", "other", "--json").json["events"] == []
    assert run("show", "answer-1", "--domain", "other").code == 3


def test_names_cannot_act_on_a_terminal(run: Any, ledger: Ledger) -> None:
    """Agents' names from elsewhere are shown with their control characters spelled out."""
    hostile = Node(
        "hostile-1", NodeKind.ANSWER, agent="\x1b[2Jx\u202e\n", facts={"a": "\x1b[0m"}, sequence=1
    )  # as another program may have written it
    ledger.record([Entry(hostile)])
    for command in (["log"], ["show", "hostile-1"], ["graph"],
                    ["invalidate", "hostile-1", "--why", "\x1b[31m"]):  # fmt: skip
        result = run(*command)
        assert result.code == 0
        assert "\x1b" not in result.out and "\u202e" not in result.out


# --- what fails --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["refs", "no-such"], "unknown-ref"),
        (["log", "--ref", "no-such"], "unknown-ref"),
        (["log", "--node", "no-such-node"], "unknown-node"),
        (["show", "no-such-node"], "unknown-node"),
        (["show", "ab"], "unknown-node"),
        (["graph", "no-such-node"], "unknown-node"),
        (["invalidate", "no-such-node", "--why", "x"], "unknown-node"),
        (["impact", "--function-id", "short"], "input-error"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_what_is_not_known_is_named(run: Any, command: list[str], code: str) -> None:
    """Exit code 3, and nothing was changed."""
    result = run(*command, "--json")
    assert (result.code, result.json["error"]["code"]) == (3, code)
    assert run("log", "--json").json["sequence"] == 7


def test_an_id_that_fits_several_asks_for_more(run: Any, ledger: Ledger) -> None:
    """Nothing is guessed."""
    ledger.record([Entry(baton(PLAN[:20] + "0" * 44))])
    result = run("show", PLAN[:10], "--json")
    assert (result.code, "several ids" in result.json["error"]["sentence"]) == (3, True)


def test_a_ledger_that_is_not_there(cli: Cli, tmp_path: Path) -> None:
    """An error, and none is made by looking."""
    for command in (["log"], ["migrate"], ["accept"], ["watch"], ["refs"]):
        result = cli("ledger", *command, "--ledger", tmp_path / "none.db", "--json")
        assert (result.code, result.json["error"]["code"]) == (14, "ledger-unavailable")
    assert list(tmp_path.iterdir()) == []
    result = cli("ledger", "log", "--ledger", "nosuchdialect://x", "--json")
    assert (result.code, result.json["error"]["code"]) == (3, "input-error")


def test_a_switched_off_ledger(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings may name none; a command says so."""
    monkeypatch.setenv("KVBATON_LEDGER", "off")
    result = cli("ledger", "log", "--json")
    assert (result.code, result.json["error"]["at"]) == (14, "KVBATON_LEDGER")


def test_a_file_that_is_no_ledger(cli: Cli, path: Path) -> None:
    """Neither bytes nor somebody else's database are touched."""
    path.write_bytes(b"no database at all" * 100)
    result = cli("ledger", "log", "--ledger", path, "--json")
    assert (result.code, result.json["error"]["code"]) == (14, "ledger-error")
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (a)")
    connection.close()
    result = cli("ledger", "log", "--ledger", path, "--json")
    assert (result.code, "something else" in result.json["error"]["sentence"]) == (14, True)


def set_version(path: Path, version: str) -> None:
    """Let the ledger be of another version."""
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", [version])
    connection.close()


def test_another_version_offers_the_migration(run: Any, path: Path) -> None:
    """A newer one is refused, by the migration as well; the same is left as it is."""
    same = run("migrate", "--json").json
    assert (same["from"], same["to"]) == (VERSION, VERSION)
    assert "already" in run("migrate").out
    set_version(path, "9999")
    for command in (["log"], ["migrate"]):
        result = run(*command, "--json")
        assert (result.code, result.json["error"]["code"]) == (14, "ledger-version")
        assert "upgrade" in result.json["error"]["hint"]


def test_an_older_version_is_migrated(
    run: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hint is the command; it is followed here with a program that has one version more."""
    from kvbaton.lineage import migrate

    monkeypatch.setattr(migrate, "VERSION", "0002")
    result = run("log", "--json")
    assert (result.code, result.json["error"]["hint"]) == (14, "kvbaton ledger migrate")
    monkeypatch.setattr(migrate, "_upgrade", lambda connection: set_in(connection, "0002"))
    said = run("migrate", "--json").json
    assert (said["from"], said["to"]) == (VERSION, "0002")
    monkeypatch.setattr(migrate, "_known", lambda: frozenset({VERSION, "0002"}))
    assert run("log").code == 0


def set_in(connection: Any, version: str) -> None:
    """What a migration does to the version."""
    connection.exec_driver_sql("UPDATE alembic_version SET version_num = ?", (version,))


def test_a_locked_ledger_can_be_read_but_not_changed(
    run: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers wait for nobody; who wants to write is told after a while."""
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        assert run("log").code == 0
        result = run("invalidate", "answer-1", "--why", "x", "--json")
        assert (result.code, result.json["error"]["code"]) == (14, "ledger-unavailable")
        assert "locked" in result.json["error"]["sentence"]
    finally:
        holder.close()
    assert run("invalidate", "answer-1", "--why", "x").code == 0


def test_a_cycle_is_named(run: Any, path: Path) -> None:
    """The ledger records none; in one that was tampered with it is not followed for ever."""
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(
            "INSERT INTO edges (domain, child, parent, place) VALUES ('local', ?, 'notes-v1', 0)",
            [PLAN],
        )
    connection.close()
    result = run("graph", "--json")
    assert (result.code, result.json["error"]["code"]) == (14, "lineage-cycle")
    assert run("show", "answer-1").code == 0


def test_an_old_copy_is_warned_of_until_it_is_accepted(
    run: Any, path: Path, ledger: Ledger, tmp_path: Path
) -> None:
    """A file of yesterday in today's place says less than was seen here."""
    ledger.close()
    shutil.copy(path, tmp_path / "yesterday.db")
    with Ledger(f"sqlite:///{path}", "local") as today:
        today.move("plan", baton("third"), expected=2)
    assert "old copy" not in run("refs").err
    shutil.copy(tmp_path / "yesterday.db", path)
    result = run("refs")
    assert result.code == 0
    assert "old copy of the ledger" in result.err and "kvbaton ledger accept" in result.err
    said = run("accept", "--json").json
    assert (said["before"]["heads"], said["now"]["heads"]) == ({"plan": 3}, {"plan": 2})
    assert "old copy" not in run("refs").err
    assert "accepted" in run("accept").out


# --- as other commands have it -----------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [["log"], ["show", "answer-1"], ["graph"], ["refs"], ["impact", "--function-id", FUNCTION],
     ["invalidate", "answer-1", "--why", "x"], ["migrate"]],
    ids=lambda words: words[0],
)  # fmt: skip
def test_commands_print_what_the_page_says(run: Any, command: list[str]) -> None:
    """Every field that a command prints is on the page."""
    said = run(*command, "--json").json
    for event in said.get("events", []):
        event["detail"] = None
    for node in [*said.get("nodes", []), *said.get("affected", []), said.get("node", {})]:
        if isinstance(node, dict):
            node["facts"] = None
    assert names(said) <= shape(f"ledger {command[0]}") | {"facts"}


def test_leases_and_gc_are_there_too(cli: Cli, exported: Exported) -> None:
    """The same commands as `kvbaton gc`, beside what they are needed for."""
    where = ("--store", exported.store, "--json")
    assert cli("ledger", "leases", *where).json["leases"] == []
    assert cli("ledger", "gc", "--dry-run", *where).json["dry_run"] is True


def test_the_benchmark_prints_what_the_page_says(cli: Cli) -> None:
    """Figures for programs, and tables for people."""
    few = ("--known", "5", "--records", "2", "--handoffs", "5", "--repeats", "1")
    result = cli("bench", "ledger", *few, "--json")
    assert result.code == 0
    said = result.json
    assert {"record_ms", "decide_ms", "handoffs_per_s"} <= set(said) <= shape("bench ledger")
    assert set(said["handoff_us"]) <= shape("bench ledger")
    out = cli("bench", "ledger", *few).out
    assert "hand-offs per second, by the clock" in out
    assert cli("bench", "ledger", "--tokens", "1").code == 2


# --- watching ----------------------------------------------------------------------------------


def watcher(home: Path, path: Path, *arguments: str) -> subprocess.Popen[str]:
    """`kvbaton ledger watch` in a process of its own, which has said that it watches."""
    interrupts = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)"
    script = f"{interrupts}\nimport sys\nfrom kvbaton.cli.main import main\nsys.exit(main())"
    command = [sys.executable, "-c", script, "ledger", "watch", "--ledger", str(path), *arguments]
    process = subprocess.Popen(
        command, env=environment(home), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    assert "watching" in process.stderr.readline()
    return process


def test_watching_prints_what_other_processes_do(home: Path, path: Path, ledger: Ledger) -> None:
    """Each event is a line as it happens; after so many it ends."""
    with watcher(home, path, "--json", "--count", "2") as process:
        ledger.record([entry("file")])
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert (first["kind"], first["node"]) == ("recorded", "file")
        ledger.withdraw("file", why="wrong")
        assert json.loads(process.stdout.readline())["kind"] == "withdrawn"
        assert process.wait(60) == 0


def test_an_interrupt_ends_watching(home: Path, path: Path, ledger: Ledger) -> None:
    """Ctrl-C is how it is ended: no error; what came before is there, from the sequence asked."""
    with watcher(home, path, "--since", "4") as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        assert ["moved" in lines[0], "plan@2" in lines[0], "stale" in lines[2]] == 3 * [True]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, "", "")
